"""One suite of many finished cells: what the commands cost that only look. Run by `bench.py`. Keys and manifests are those
of a real suite, journals are synthetic; each command has a process of its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import Row, Size, takes
from starts import spent
from synthetic_results import Regime, write_base, write_cell

from harness.session.cell.manifests import base_manifest, cell_manifest, mark
from harness.session.suite.prepare import prepare

GROUPS = 10
REGIMES = ("independent", "naive", "sgt", "hacpo", "prp", "xgrpo", "graft", "sapo")
POLICIES = ("a", "b")
COMMANDS = {
    "run, nothing to do": (["run", "{suite}"], 2.0),
    "status": (["status", "many"], 1.0),
    "show": (["show", "many"], 1.0),
}


def write(folder: Path, cells: int) -> None:
    groups = "\n".join(
        f"  - name: g{i}\n    policies:\n"
        f"      - {{name: a, model: micro/llama, stage0: {{preset: trap, strong: add, seed: {i}}}}}\n"
        f"      - {{name: b, model: micro/qwen, stage0: {{preset: trap, strong: mul, seed: {i}}}}}"
        for i in range(GROUPS)
    )
    seeds = ", ".join(map(str, range(1, 1 + max(2, cells // GROUPS // len(REGIMES)))))
    file = folder / "many.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"groups:\n{groups}\nregimes: [{', '.join(REGIMES)}]\nseeds: [{seeds}]\n")
    prepared = prepare(str(file), folder / "results")
    prepared.record()
    for cell in prepared.cells:
        regime = Regime(cell.variant.name, cell.variant.regime, 0.01, shares="")
        found = write_cell(
            folder / "results", "many", cell.group.name, POLICIES, regime, cell.seed, 3, 4, 1, ("micro",), 0
        )
        (prepared.folder / found).rename(prepared.folder / cell.key)
        mark(prepared.folder / cell.key, cell_manifest(cell), "done", attempts=1)
    for base in prepared.bases:
        before = set(prepared.folder.glob("base-*"))
        write_base(folder / "results", "many", base.group.name, base.policy.name, ("micro",), 4, 1)
        (made,) = set(prepared.folder.glob("base-*")) - before
        made.rename(prepared.folder / base.key)
        mark(prepared.folder / base.key, base_manifest(base), "done", attempts=1)


def bench(size: Size) -> list[Row]:
    cells = 160 if size.smoke else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, cells)
        words = {name: [w.format(suite=folder / "many.yaml") for w in asked] for name, (asked, _) in COMMANDS.items()}
        once = ["--results", str(folder / "results")]
        rounds = [
            {name: spent([*asked, *once], "many") for name, asked in words.items()} for _ in range(size.rounds + 1)
        ]
    found = {name: [each[name] for each in rounds[1:]] for name in COMMANDS}  # the first builds the store
    return [takes(f"{name}, {cells:,} cells", found[name], bar) for name, (_, bar) in COMMANDS.items()]
