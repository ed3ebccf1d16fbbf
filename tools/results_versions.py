"""Whether the code that computes results changed under the same results version (docs/versions.md).

    python tools/results_versions.py                    what changed, and which line to edit; exit code 1 if something did
    python tools/results_versions.py --keep             these changes keep all results (a refactoring): record them
    python tools/results_versions.py --raise learning   results change: raise that version; record all

After a merge conflict in harness/versions.toml, `--keep` writes the table anew; of two versions the higher stays.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # of this checkout, whichever is installed

from harness.versions import PACKAGES, ROOT, TABLE, parse_versions, syntax_of

HEAD = """\
# Results versions by package, and the digest of the syntax that they stand for. docs/versions.md says when to raise one.
#   results change:  python tools/results_versions.py --raise PACKAGE
#   results stay:    python tools/results_versions.py --keep      (the same after a merge conflict in this file)
"""


def changes() -> list[str]:
    table = parse_versions(TABLE.read_text("utf-8"))
    name = TABLE.relative_to(ROOT)
    problems = []
    for package in PACKAGES:
        if package not in table:
            problems.append(f"{name}: [{package}] is missing; record it: python tools/results_versions.py --keep")
        elif (now := syntax_of(package)) != table[package].syntax:
            version, _, line = table[package]
            problems.append(
                f"{name}:{line}: [{package}] its code changed ({', '.join(PACKAGES[package])}), its results version did not\n"
                f'  if stored results change: version = {version + 1} in line {line} and syntax = "{now}" below it, or\n'
                f"                            python tools/results_versions.py --raise {package}\n"
                f"  if all results stay:      python tools/results_versions.py --keep   (proof: tools/reference.py again CELL)"
            )
    return problems + [f"{name}: [{p}] is no package any more; --keep drops it" for p in table if p not in PACKAGES]


def record(raised: list[str]) -> None:
    table = parse_versions(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    parts = [HEAD]
    for package in PACKAGES:
        version = (table[package].version if package in table else 1) + (package in raised)
        header = f'["{package}"]' if "/" in package else f"[{package}]"
        parts.append(f'\n{header}\nversion = {version}\nsyntax = "{syntax_of(package)}"\n')
    TABLE.write_text("".join(parts), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="the changes keep all results")
    parser.add_argument("--raise", dest="raised", nargs="+", choices=list(PACKAGES), default=[], metavar="PACKAGE")
    chosen = parser.parse_args()
    if chosen.keep or chosen.raised:
        record(chosen.raised)
        print(f"{TABLE.relative_to(ROOT)}: recorded")
        return 0
    problems = changes()
    print("\n".join(problems) or "every package's code is the recorded one")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
