"""Compare every installed dependency with the advisories that PyPI knows: `make audit`.

Needs pip-audit (`pip install pip-audit`) and an answer from pypi.org. Exit code 0: nothing is known, or nothing could be asked,
which is said; 1: vulnerable versions, each with its advisory and the version that mends it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import urllib.request

ADVISORIES = "https://pypi.org/pypi/pip/25.0/json"
"""Those of any version of a package: a mirror of files alone has no such page."""
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


def main() -> int:
    if reason := missing():
        print(f"audit skipped: {reason}")
        return 0
    return subprocess.run([sys.executable, "-m", "pip_audit", "--skip-editable"]).returncode


if __name__ == "__main__":
    sys.exit(main())
