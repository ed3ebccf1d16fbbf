"""The papers' suites: they load without torch, say what they reproduce, and meet their published rows."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from harness import published
from harness.errors import SuiteError
from harness.session.suite.prepare import prepare_named
from harness.session.suite.validation import validate_suite
from harness.suite.load import find_suite, load_suite
from harness.tasks.registry import EVALUATION_SETS

SUITES = {
    "cross_family": ("hacpo2026", 10),
    "hetero_size": ("hacpo2026", 22),
    "hetero_state": ("hacpo2026", 10),
    "ablation_hacpo": ("hacpo2026", 14),
    "mutual_rl": ("mutual_rl2026", 8),
    "graft": ("graft2026", 36),
    "graft_replication": ("graft2026", 44),
    "graft_stored": ("graft2026", 12),
    "opponents": ("graft2026", 18),
}
"""What they are shown against, and how many of its rows."""


@pytest.mark.parametrize("name", SUITES)
def test_it_has_valid_options_a_header_and_its_published_rows(name: str, tmp_path: Path) -> None:
    """24.1: with `max_length: 5120` four of them cut answers of 8,196 tokens short."""
    suite, (paper, covered) = load_suite(name), SUITES[name]
    validate_suite(suite, str(find_suite(name)))
    assert "arXiv" in find_suite(name).read_text("utf-8").split("title:")[0]
    assert set(suite.evaluation.tasks) <= set(EVALUATION_SETS)
    longest = suite.evaluation.max_new_tokens or 0
    words = rf"engine_options\.max_length: 2,000 tokens cut an answer of {longest:,} short"
    with pytest.raises(SuiteError, match=words):
        prepare_named(name, tmp_path, overrides=["engine_options.max_length=2000"])
    publication, count = published.load_publication(paper), 0
    assert name in publication.suites
    for group, variant in product(suite.groups, suite.regimes):
        objective = variant.options.get("objective", "grpo")
        for policy in group.policies:
            assert policy.revision is not None or "OctoThinker" in policy.model
            peers = tuple(peer.model for peer in group.policies if peer is not policy)
            plain = not (variant.dynamic_sampling or variant.training or variant.sampling == "split")
            kind = variant.regime if plain else ""
            trained = (policy.model, peers, kind, variant.name, objective, variant.factor)
            count += publication.beside(*trained) is not None
    assert count == covered


def test_loading_all_of_them_imports_no_torch() -> None:
    script = (
        "import sys\nfrom harness.suite.load import load_suite\n"
        f"for name in {list(SUITES)!r}: load_suite(name)\nassert not {{'torch', 'transformers', 'lm_eval'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
