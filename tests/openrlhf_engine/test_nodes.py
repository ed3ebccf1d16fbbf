"""`harness doctor --address` on a real cluster of two nodes, of which one does not see what the other does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from ray_nodes import head, node

pytestmark = pytest.mark.timeout(800)


def harness(*arguments):
    """Exit code, stdout and stderr. Under a shell: where Ray runs in this process, it takes its children's exit codes away."""
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    shell = ["sh", "-c", '"$@"; echo "exit code $?" >&2', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=300)
    said, _, code = done.stderr.rpartition("exit code ")
    return int(code), done.stdout, said


def doctor(*arguments):
    return harness("doctor", "--json", *arguments)


def test_a_node_that_sees_other_folders_and_little_shared_memory_is_named(tmp_path):
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("mounts of one's own need root and unshare")
    results, models = tmp_path / "results", tmp_path / "models"
    results.mkdir()
    models.mkdir()
    with head() as address:
        code, out, err = doctor("--address", address, "--within", 100, "--results", results, "--models", models)
        alone = json.loads(out)["checks"]
        assert (code, [c for c in alone if not c["ok"]]) == (0, []), (out, err)
        said = {c["name"].partition(": ")[2] or c["name"]: c["found"] for c in alone}
        assert {*said} == {"nodes", "versions", "clock", "shared memory", "results", "models"}
        assert said["results"] == f"{results}: reads and writes it"
        hide = f"mount -t tmpfs none '{results}'\nmount -t tmpfs -o size=64m none /dev/shm"
        with node(f"--address={address}", "--object-store-memory=80000000", before=hide):
            begin = time.monotonic()
            code, out, err = doctor(
                "--address", address, "--nodes", 2, "--within", 100, "--results", results, "--models", models
            )
            waited = time.monotonic() - begin
    checks = json.loads(out)["checks"]
    wrong = {c["name"].partition(": ")[2]: c for c in checks if not c["ok"]}
    assert (code, {*wrong}) == (1, {"results", "shared memory"}), (out, err)
    assert "No such file" in wrong["results"]["found"]
    assert "emptyDir" in wrong["shared memory"]["advice"]
    assert sum(c["ok"] for c in checks) == len(checks) - 2 == 9
    assert waited < 250
    assert not [*results.iterdir()]
    assert not [*models.iterdir()]


def test_nobody_at_the_address_is_one_line(tmp_path):
    for command in ("doctor", "run", "plan"):
        suite = [] if command == "doctor" else ["openrlhf_cpu"]
        more = ["--within", "2"] if command == "doctor" else []
        if command == "run":
            more = ["--results", tmp_path]
        code, out, err = harness(command, *suite, "--address", "127.0.0.1:9", *more)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert "no Ray cluster to join at 127.0.0.1:9" in err
