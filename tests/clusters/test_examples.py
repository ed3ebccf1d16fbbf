"""Examples and docs/clusters.md: what they tell people to type is what the program takes."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from test_documented_commands import right

from harness.clusters.slurm import WORDS, read_template

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "clusters.md").read_text()
OURS = re.compile(r"^\s*(?:exec )?(harness (?:run|doctor|submit|status|show|plan)\b[^&|#\n]*)", re.MULTILINE)


def scripts() -> Iterator[tuple[str, str]]:
    """Every piece of shell that people are given, by where it stands."""
    job = yaml.safe_load((EXAMPLES / "kuberay" / "rayjob.yaml").read_text())
    bash, flag, inner = shlex.split(job["spec"]["entrypoint"])
    assert (bash, flag) == ("bash", "-c")
    yield "rayjob.yaml", inner.replace("&&", "&&\n")
    sky = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    yield "skypilot.yaml", sky["setup"] + sky["run"]


SCRIPTS = dict(scripts())


@pytest.mark.parametrize("place", SCRIPTS)
def test_its_commands_are_the_programs_own(place):
    commands = OURS.findall(SCRIPTS[place])
    assert len(commands) >= 2, commands
    for command in commands:
        right(command.replace('"$SUITE"', "hetero_size").replace('"$SKYPILOT_NUM_NODES"', "2"))
    subprocess.run(["bash", "-n"], input=SCRIPTS[place], text=True, check=True)


def test_the_ray_job_has_the_same_nodes_everywhere():
    (claim,) = yaml.safe_load_all((EXAMPLES / "kuberay" / "volume.yaml").read_text())
    job = yaml.safe_load((EXAMPLES / "kuberay" / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    pins = dict(
        re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+)", (ROOT / "constraints-openrlhf.txt").read_text(), re.MULTILINE)
    )
    assert cluster["rayVersion"] == pins["ray"]
    (workers,) = cluster["workerGroupSpecs"]
    assert f"--nodes {1 + workers['replicas']} " in job["spec"]["entrypoint"]
    for template in (cluster["headGroupSpec"]["template"], workers["template"]):
        (container,) = template["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert mounts.keys() == volumes.keys()
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert f"--results {mounts['shared']}/" in job["spec"]["entrypoint"]
        assert (mounts["shm"], volumes["shm"]["emptyDir"]["medium"]) == ("/dev/shm", "Memory")


def test_the_skypilot_task_keeps_all_on_its_volume():
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    (volume,) = task["volumes"]
    assert f"--results {volume}/" in task["run"]
    assert all(task["envs"][name].startswith(f"{volume}/") for name in ("HF_HOME", "HARNESS_CACHE"))


def test_the_page_names_every_word_of_a_template_and_every_file():
    assert all(f"@{word}@" in PAGE for word in WORDS)
    for engine in ("embedded", "openrlhf"):
        assert set(re.findall(r"@([A-Z]+)@", read_template(None, engine))) <= set(WORDS)
    named = re.findall(r"`((?:examples|harness|tests|benchmarks)/[\w./]+)`", PAGE)
    assert not [name for name in named if not (ROOT / name).exists()]
