"""Which names a new package may have; nothing is installed."""

from __future__ import annotations

import pytest

from harness.engines.catalogue import PLUGINS as ENGINES
from harness.errors import UsageError
from harness.learning.registry import PLUGINS as REGIMES
from harness.scaffold import write_package
from harness.tasks.registry import PLUGINS as TASKS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sgt", "installed already"), ("Best", "cannot name"), ("best_of", "cannot name"), ("-x", "cannot name"),
        ("a--b", "cannot name"), ("../x", "cannot name"), ("", "cannot name"), ("class", "cannot name"), ("x" * 41, "cannot name"),
        ("json", "exists already"), ("torch", "exists already"), ("regimes", "exists already"), ("è", "cannot name"),
    ],
)  # fmt: skip
def test_bad_names_are_refused_and_nothing_is_written(tmp_path, name, words):
    with pytest.raises(UsageError, match=words):
        write_package(REGIMES, name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("registry", "flavour", "names", "words"),
    [
        (REGIMES, "", ("none", "true", "null", "yes", "off", "setup", "conftest", "evaluations"), "cannot name a regime"),
        (REGIMES, "", ("term", "group"), "cannot name a regime"),
        (REGIMES, "hints", ("hint",), "cannot name a regime"),
        (ENGINES, "", ("options", "mapping", "policy"), "cannot name an engine"),
        (TASKS, "", ("task", "scorer", "score"), "cannot name a task"),
        (TASKS, "", ("exact", "choice", "python"), "a scorer '.*' is installed already"),
    ],
)  # fmt: skip
def test_names_with_a_meaning_of_their_own_are_refused(tmp_path, registry, flavour, names, words):
    for name in names:
        with pytest.raises(UsageError, match=words):
            write_package(registry, name, tmp_path, flavour)
    assert not list(tmp_path.iterdir())
    for name in ("hint", "nones", "on-off"):
        assert write_package(registry, f"{name}s", tmp_path, flavour)
