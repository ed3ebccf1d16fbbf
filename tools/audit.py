"""Compare every installed dependency with the advisories that PyPI knows: `make audit`, which installs pip-audit. Exit code
1: vulnerable versions, each with its advisory and the version that mends it."""

from __future__ import annotations

import json
import subprocess
import sys

SECONDS = 300
COMMAND = [
    sys.executable,
    "-m",
    "pip_audit",
    "--skip-editable",
    "--format",
    "json",
    "--progress-spinner",
    "off",
    "--timeout",
    "10",
]


def main() -> int:
    try:
        asked = subprocess.run(COMMAND, capture_output=True, text=True, timeout=SECONDS, check=False)
        packages = json.loads(asked.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        print(f"audit skipped: no answer within {SECONDS} s")
        return 0
    except (ValueError, KeyError, TypeError):  # neither pip-audit nor its service answered
        print(f"audit skipped: {(asked.stderr.strip().splitlines() or ['pip-audit said nothing'])[-1]}")
        return 0
    known = [one for one in packages if "skip_reason" not in one]
    if not known:
        print(f"audit skipped: {packages[0]['skip_reason'] if packages else 'there are no packages'}")
        return 0
    holes = [(one["name"], one["version"], hole) for one in known for hole in one["vulns"]]
    for name, version, hole in holes:
        print(f"{name} {version}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version yet'}")
    print(f"{len(holes)} known holes in {len(known)} packages; {len(packages) - len(known)} are not known there")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
