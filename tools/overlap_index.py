"""Write harness/tasks/overlaps.json: which problems of each pinned training set repeat a problem of a pinned evaluation set.

    python tools/overlap_index.py DATA_FOLDER

The folder holds every set of `harness data` under its name there. Run it when a set, a pin, or `find_overlaps` changes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from harness.tasks.data import load_set
from harness.tasks.overlap import INDEX, Index, find_overlaps
from harness.tasks.registry import EVALUATION_SETS
from harness.tasks.sets import SETS, SOURCES


def index(folder: Path) -> Index:
    evaluation = [(name, row.id, row.problem) for name in EVALUATION_SETS for row in load_set(name, folder)]
    return Index(
        sets={name: SETS[name].sha256 for name in (*EVALUATION_SETS, *SOURCES.values())},
        overlaps={
            source: find_overlaps(((row.id, row.problem) for row in load_set(source, folder)), evaluation)
            for source in SOURCES.values()
        },
    )


def text(contents: Index) -> str:
    sets = json.dumps(contents.sets, indent=1).replace("\n", "\n ")
    rows = (
        f'  "{name}": [' + ",".join(f"\n   {json.dumps(msgspec.to_builtins(row))}" for row in overlaps) + "]"
        for name, overlaps in contents.overlaps.items()
    )
    overlaps = ",\n".join(rows)
    return f'{{\n "sets": {sets},\n "overlaps": {{\n{overlaps}\n }}\n}}\n'


if __name__ == "__main__":
    made = index(Path(sys.argv[1]))
    INDEX.write_text(text(made), "utf-8")
    print(f"{INDEX}: {', '.join(f'{len(rows)} of {name}' for name, rows in made.overlaps.items())}")
