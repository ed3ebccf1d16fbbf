"""Functions of the documented modules (docs/api) under the names that they had before: packages of others import them so."""

from __future__ import annotations

from importlib import import_module

import pytest

EARLIER = [
    ("harness.suite.load", "load", "load_suite"),
    ("harness.suite.load", "find", "find_suite"),
    ("harness.suite.load", "resolve", "parse_suite"),
    ("harness.suite.load", "shipped", "shipped_suites"),
    ("harness.learning.registry", "resolved", "resolve_options"),
    ("harness.learning.registry", "spaces", "search_spaces"),
    ("harness.learning.registry", "listing", "list_regimes"),
    ("harness.learning.advantages", "deviation", "deviation_of"),
    ("harness.learning.terms", "scheduled", "with_step_weights"),
    ("harness.experience.records", "sent", "answers_to_send"),
    ("harness.experience.records", "bounded", "require_bounded"),
    ("harness.tokenization.alignment", "chunks", "cut_into_chunks"),
    ("harness.tokenization.alignment", "distribute", "distribute_logprobs"),
    ("harness.tokenization.alignment", "inexact", "inexact_chunks"),
    ("harness.tokenization.retokenise", "retokenise", "retokenise_answers"),
    ("harness.tokenization.retokenise", "align", "align_logprobs"),
    ("harness.tokenization.retokenise", "excess", "explain_excess"),
    ("harness.engines.catalogue", "listing", "list_engines"),
    ("harness.engines.catalogue", "info", "engine_info"),
    ("harness.engines.catalogue", "packages", "packages_of_engines"),
    ("harness.plugins", "blamed", "blame_plugin"),
]


@pytest.mark.parametrize(("module", "earlier", "name"), EARLIER)
def test_an_earlier_name_is_the_same_function(module: str, earlier: str, name: str) -> None:
    read = import_module(module)
    assert getattr(read, earlier) is getattr(read, name)
