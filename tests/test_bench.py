"""The benchmarks' own arithmetic; that the benchmarks work is `make bench-smoke`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import bench
import pytest


def test_sides_take_turns_and_unequal_results_end_it() -> None:
    order: list[str] = []
    spent = bench.turns({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2)
    assert order == ["a", "b", "a", "b", "b", "a"]
    assert [len(times) for times in spent.values()] == [2, 2]
    with pytest.raises(ZeroDivisionError):
        bench.turns({"a": lambda: 1, "b": lambda: 2}, 1, lambda made: 1 / (made["a"] == made["b"]))


def test_ratios_bars_and_what_is_worse(tmp_path: Path) -> None:
    fast = bench.faster("work", "rival", [1.0, 1.0, 2.0], [4.0, 5.0, 6.0], bar=4.0)
    dear = bench.costs("cost", "bare", [2.0, 2.2, 2.4], [2.0, 2.0, 2.0], bar=1.05)
    assert (fast.value, fast.low, fast.high, fast.reached) == (4.0, 3.0, 5.0, True)
    assert (dear.value, dear.reached) == (pytest.approx(1.1), False)
    (tmp_path / "x.json").write_text(json.dumps({"machine": {"cpu": "x"}, "rows": [asdict(fast), asdict(dear)]}))
    within = [replace(fast, value=2.5, low=2.3, high=2.7), replace(dear, value=1.3, low=1.25, high=1.4)]
    beyond = [replace(fast, value=2.0, low=1.9, high=2.3), replace(dear, value=1.6, low=1.5, high=1.7)]
    slower = [
        bench.slower(rows, cpu, tmp_path) for rows, cpu in ((within, "x"), (beyond, "x"), (beyond, "another CPU"))
    ]
    assert [[line.split(":")[0] for line in lines] for lines in slower] == [[], ["work", "cost"], []]


def test_the_table_fits_a_terminal_and_says_what_was_missed() -> None:
    name, against = (
        "GRPO step, Gemma 3, as run without groups of equal reward, per token",
        "transformers.generate, dynamic cache",
    )
    rows = [
        bench.takes(name, [12.345, 123.4, 99.99], 4.0, "minutes", against),
        bench.faster("a", "b", [1.0], [9.0], 4.0),
    ]
    lines = bench.table(rows, smoke=False).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(line[:29].split()) for line in lines[1:-1]).strip() == name
    assert "missed" in " ".join(lines[1:-1])
    assert "missed" not in lines[-1]
    assert lines[-1].split() == ["a", "b", "9", "9", "..", "9", ">=", "4"]
