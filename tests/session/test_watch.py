"""What watches a training keeps sums, which say the same as all rows, and a late step takes no longer than an early one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.session.cell.health import WATCHED_ANSWERS, Watch, _Running
from harness.store.rows import StepRow, TermRow
from harness.store.symptoms import sum_last_steps

counts = st.integers(0, 30)
steps = st.lists(
    st.tuples(
        counts, counts, counts, st.floats(0, 5) | st.just(float("nan")), st.lists(st.tuples(counts, counts), max_size=3)
    ),
    min_size=1,
    max_size=40,
)


@given(made=steps, least=st.sampled_from([0, 1, WATCHED_ANSWERS, 10_000]), begun=st.sampled_from([1, 7]))
def test_sums_say_what_the_rows_say(made, least, begun):  # type: ignore[no-untyped-def]
    running, rows, terms = _Running(), list[StepRow](), list[TermRow]()
    for step, (right, wrong, cut, entropy, learnt) in enumerate(made, begun):
        row = StepRow(policy="a", step=step, right=right, wrong=wrong, truncated=cut, empty=right // 2, unboxed=wrong // 2,
                      invalid=cut // 3, answers=right + wrong + cut // 3, entropy=entropy)  # fmt: skip
        own = [
            TermRow(
                policy="a",
                step=step,
                name=name,
                source=source,
                answers=answers + active,
                active=active,
                tokens=1,
                active_tokens=1,
                loss=0.0,
            )
            for (answers, active), name, source in zip(
                learnt, ("own", "kl", "peer"), ("own", "own", "peer"), strict=False
            )
        ]
        rows.append(row)
        terms += own
        running.add(row, own)
        ours, theirs = running.late("a", least), sum_last_steps(rows, terms, least)
        assert ours.entropy == pytest.approx(theirs.entropy, nan_ok=True)
        assert ours.entropy_first == pytest.approx(theirs.entropy_first, nan_ok=True)
        for name in (
            "first",
            "last",
            "answers",
            "right",
            "wrong",
            "invalid",
            "truncated",
            "empty",
            "unboxed",
            "own",
            "active",
        ):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_ten_thousand_steps_take_as_long_each_as_the_first_ones() -> None:
    """All rows kept and read again took 42 s for these steps."""
    watch, begun = Watch(), time.process_time()
    for step in range(1, 10_001):
        row = StepRow(policy="a", step=step, right=20, wrong=44, answers=64, entropy=1.0)
        own = TermRow(
            policy="a", step=step, name="own", source="own", answers=64, active=60, tokens=1, active_tokens=1, loss=0.0
        )
        assert watch.hear(row, [own, own]) == []
    assert time.process_time() - begun < 4.0
