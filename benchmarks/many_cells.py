"""One suite of many finished cells: what the commands cost that only look.

    python benchmarks/many_cells.py FOLDER [--cells 10000]

The first time the folder is filled (minutes): the keys and manifests are those of a real suite of ten groups and eight regimes, the
rest are seeds; what the journals say is synthetic. Then `run`, which finds nothing to do, `status` and `show` take turns, each in a
process of its own. Run by `bench.py`.
"""

from __future__ import annotations

import argparse
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
    """`folder`/many.yaml and its results: about so many cells, all done."""
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


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """CPU-seconds of each command in each round after the first, which builds the store."""
    results = folder / "results"

    def once(name: str) -> float:
        words = [word.format(suite=folder / "many.yaml") for word in COMMANDS[name][0]]
        return spent([*words, "--results", str(results)], "many")

    found = [{name: once(name) for name in COMMANDS} for _ in range(rounds + 1)]
    return {name: [each[name] for each in found[1:]] for name in COMMANDS}


def bench(size: Size) -> list[Row]:
    cells = 160 if size.smoke else 10_000
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), cells)
        found = measure(Path(folder), size.rounds)
    return [takes(f"{name}, {cells:,} cells", found[name], bar) for name, (_, bar) in COMMANDS.items()]


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if not (asked.folder / "many.yaml").exists():
        write(asked.folder, asked.cells)
    for name, values in measure(asked.folder, asked.rounds).items():
        print(f"{name:<36} {sorted(values)[len(values) // 2]:.2f} CPU-s  ({', '.join(f'{v:.2f}' for v in values)})")


if __name__ == "__main__":
    main()
