"""Collected only where OpenRLHF is installed (`make install-openrlhf`); run by `make test-openrlhf`."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

if importlib.util.find_spec("openrlhf") is None:
    collect_ignore_glob = ["test_*.py", "*_fixtures.py"]
else:
    # Before torch and DeepSpeed are imported anywhere.
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0", TORCHDYNAMO_DISABLE="1")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of the nodes that tests start themselves, too: docs/openrlhf.md
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"


def pytest_collection_modifyitems(items):
    """What has moved in another version is said first, before anything here has adapted it."""
    items.sort(key=lambda item: "test_versions" not in item.nodeid)
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))  # processes start slowly on busy cores


@pytest.fixture(scope="session")
def prompts():
    from harness.engines.conformance import tiny_prompts

    return tiny_prompts(12)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of a Llama-, a Qwen- and a NeoX-type policy, trained for a second each so that they end their answers. The first
    names code of its own, which would end whoever ran it."""
    from harness.engines.conformance import tiny_policy

    place = tmp_path_factory.mktemp("policies")
    by_family = {family: tiny_policy(place / family, family) for family in ("llama", "qwen", "neox")}
    (place / "llama/own.py").write_text("raise SystemExit('a model folder ran its code')\n")
    for name, classes in (
        ("config.json", ("AutoConfig", "AutoModelForCausalLM")),
        ("tokenizer_config.json", ("AutoTokenizer",)),
    ):
        file = place / "llama" / name
        named = {one: "own.Own" if one != "AutoTokenizer" else [None, "own.Own"] for one in classes}
        file.write_text(json.dumps({**json.loads(file.read_text()), "auto_map": named}))
    return by_family


@pytest.fixture(scope="session")
def ray_cluster():
    import ray

    from harness.engines.openrlhf.cluster import connect_to_cluster

    connect_to_cluster(devices=4)
    yield
    ray.shutdown()


_LINES = []


@pytest.fixture(scope="session")
def report_line():
    """Keep a measured figure for the end of the run."""
    return _LINES.append


def pytest_terminal_summary(terminalreporter):
    for line in _LINES:
        terminalreporter.write_line(line)
