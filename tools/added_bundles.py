"""What a pull request adds under `submissions/`: bundles under the names of their contents, and nothing else.

    python tools/added_bundles.py BASE HEAD FOLDER

Each added bundle is written to FOLDER, and its path printed. Nothing of HEAD is run or checked out. Exit code 2: the pull
request changes something that is here, or adds something that is no bundle.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from harness.errors import HarnessError, UsageError
from harness.submission.bundle import MAX_BYTES, open_bundle

NAME = re.compile(r"submissions/[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}-[0-9a-f]{16}\.zip")
MOST = 20


def git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True, timeout=300)
    if done.returncode:
        raise UsageError(f"git {arguments[0]}: {' '.join(done.stderr.decode('utf-8', 'replace').split())}")
    return done.stdout


def added(base: str, head: str, folder: Path) -> list[Path]:
    words = (
        git("diff", "--name-status", "--no-renames", "-z", f"{base}...{head}")
        .decode("utf-8", "replace")
        .split("\0")[:-1]
    )
    changes = list(zip(words[::2], words[1::2], strict=True))
    for kind, path in changes:
        if kind != "A" or not NAME.fullmatch(path):
            raise UsageError(
                f"{path[:200]!a}: a submission adds submissions/<suite>-<digest>.zip, and changes nothing ({kind})"
            )
    if not 0 < len(changes) <= MOST:
        raise UsageError(f"{len(changes)} bundles; a pull request adds 1 to {MOST}")
    targets = []
    for _, path in changes:
        mode, kind, name = git("ls-tree", head, path).decode().split()[:3]
        size = int(git("cat-file", "-s", name)) if kind == "blob" else 0
        if (mode, kind) != ("100644", "blob") or size > MAX_BYTES:
            raise UsageError(f"{path}: not a plain file of at most {MAX_BYTES:,} bytes ({mode}, {size:,} bytes)")
        target = folder / Path(path).name
        target.write_bytes(git("cat-file", "blob", name))
        with tempfile.TemporaryDirectory() as place:
            name = open_bundle(target, Path(place)).name
        if name != target.name:
            raise UsageError(f"{path}: its content is that of {name}")
        targets.append(target)
    return targets


def main(base: str, head: str, folder: Path) -> None:
    """Write what a pull request adds under `submissions/` to FOLDER, and print the paths."""
    try:
        print("\n".join(map(str, added(base, head, folder))))
    except HarnessError as error:
        print(f"added_bundles: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    typer.run(main)
