"""Every shipped suite of full-size models, rehearsed offline."""

from __future__ import annotations

import json

import pytest
from running import harness

SUITES = (
    *("cross_family", "one_gpu", "graft_replication", "graft", "hetero_size", "hetero_state", "mutual_rl"),
    *("ablation_hacpo", "pretrained", "pretrained_states", "opponents", "graft_stored"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_rehearsed_offline(suite: str) -> None:
    code, out, err = harness("rehearse", suite, "--json")
    report = json.loads(out)
    names = {f["name"] for f in report["findings"]}
    assert code == bool(names), err
    assert names <= {"dataset", "disk"}, report["findings"]
    assert report["cells"]
    assert {cell["state"] for cell in report["cells"]} == {"done"}
