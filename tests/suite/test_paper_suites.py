"""The papers' suites: they load without torch, say what they reproduce, and meet their published rows."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from harness import published
from harness.errors import SuiteError
from harness.session.suite import rules
from harness.session.suite.prepare import prepare
from harness.suite.load import find, load
from harness.tasks.registry import EVALUATION_SETS

SUITES = (
    "cross_family", "hetero_size", "hetero_state", "ablation_hacpo", "mutual_rl", "graft", "graft_replication",
)  # fmt: skip
AGAINST = dict.fromkeys(SUITES, "hacpo2026") | {
    "mutual_rl": "mutual_rl2026",
    "graft": "graft2026",
    "graft_replication": "graft2026",
}
COVERED = {
    "cross_family": 10,
    "hetero_size": 22,
    "hetero_state": 10,
    "ablation_hacpo": 14,
    "mutual_rl": 8,
    "graft": 36,
    "graft_replication": 10,
}


@pytest.mark.parametrize("name", SUITES)
def test_loads_with_valid_options_and_a_header(name: str) -> None:
    suite = load(name)
    rules.validate(suite, str(find(name)))
    assert "arXiv" in find(name).read_text("utf-8").split("title:")[0]
    assert set(suite.evaluation.tasks) <= set(EVALUATION_SETS)
    for policy in (policy for group in suite.groups for policy in group.policies):
        assert policy.revision is not None or "OctoThinker" in policy.model


@pytest.mark.parametrize("name", SUITES)
def test_evaluation_gets_its_whole_length(name: str, tmp_path: Path) -> None:
    """24.1: with `max_length: 5120` four of them cut answers of 8,196 tokens short."""
    longest = load(name).evaluation.max_new_tokens or 0
    with pytest.raises(
        SuiteError, match=rf"engine_options\.max_length: 2,000 tokens cut an answer of {longest:,} short"
    ):
        prepare(name, tmp_path, overrides=["engine_options.max_length=2000"])


@pytest.mark.parametrize("name", SUITES)
def test_published_rows_are_found(name: str) -> None:
    suite = load(name)
    publication = published.load(AGAINST[name])
    assert name in publication.suites
    found = 0
    for group, variant in product(suite.groups, suite.regimes):
        objective = variant.options.get("objective", "grpo")
        for policy in group.policies:
            peers = tuple(peer.model for peer in group.policies if peer is not policy)
            trained = (policy.model, peers, variant.regime, variant.name, objective, variant.factor)
            found += publication.beside(*trained) is not None
    assert found == COVERED[name]


def test_loading_all_of_them_imports_no_torch() -> None:
    script = (
        "import sys\nfrom harness.suite.load import load\n"
        f"for name in {SUITES!r}: load(name)\nassert not {{'torch', 'transformers', 'lm_eval'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
