"""Compare the pinned dependencies with the advisories that PyPI knows: `make audit`.

    python tools/audit.py [constraints.txt ...]

Needs pip-audit (`pip install pip-audit`) and an answer from pypi.org. Exit code 0: nothing known, or nothing could be asked, which is
said; 1: vulnerable versions, each with its advisory and the version that mends it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

ADVISORIES = "https://pypi.org/pypi/pip/json"
"""Any package's: where there is no such page (a mirror of files alone), no package has advisories."""
SECONDS = 10


def missing() -> str:
    """Why no audit can be made here; empty where it can."""
    if importlib.util.find_spec("pip_audit") is None:
        return "pip-audit is not installed (pip install pip-audit)"
    try:
        with urllib.request.urlopen(ADVISORIES, timeout=SECONDS) as answer:
            json.load(answer)
    except (OSError, ValueError) as error:
        return f"pypi.org's advisories cannot be read ({error})"
    return ""


def main(files: list[str]) -> int:
    if reason := missing():
        print(f"audit skipped: {reason}")
        return 0
    requirements = [argument for file in files for argument in ("--requirement", file)]
    return subprocess.run(
        [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", *requirements]
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [str(Path(__file__).parents[1] / "constraints.txt")]))
