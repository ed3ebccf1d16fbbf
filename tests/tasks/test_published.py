"""Published numbers: readable, sourced, and as inconsistent as their notes say."""

from __future__ import annotations

import re

import pytest

from harness import published
from harness.errors import UsageError
from harness.tasks.registry import list_task_names


@pytest.mark.parametrize("name", published.publication_names())
def test_every_number_is_a_share_of_a_known_benchmark_with_its_source(name: str) -> None:
    publication = published.load_publication(name)
    assert publication.rows
    assert publication.notes
    for row in publication.rows:
        assert row.source
        assert set(row.values) <= set(list_task_names())
        assert all(0 <= publication.share(value) <= 1 for value in row.values.values())


def test_the_averages_that_do_not_add_up_are_noted() -> None:
    publication = published.load_publication("hacpo2026")
    off = set()
    for row in publication.rows:
        if row.average is not None and len(row.values) == 7:
            mean = sum(row.values.values()) / 7
            if abs(mean - row.average) > 6e-4:
                off.add((row.source, row.policy, row.method.removesuffix("-alpha3"), f"{mean:.4f}"))
    noted = set()
    for note in publication.notes:
        if match := re.match(r"(table \d), (\S+) in .*, (\S+): the printed average is .* columns (\d\.\d+)\.", note):
            noted.add(match.groups())
    assert off == noted
    assert len(off) == 5


def test_a_result_finds_its_row() -> None:
    publication = published.load_publication("hacpo2026")
    peers = ("meta-llama/Llama-3.2-3B-Instruct",)
    ours = publication.beside("Qwen/Qwen3-4B-Base", peers, "hacpo", "hacpo")
    assert ours is not None
    assert ours.average == 0.597
    double = publication.beside("Qwen/Qwen3-4B-Base", peers, "independent", "anything", objective="gspo", factor=2)
    assert double is not None
    assert double.method == "gspo2"
    assert publication.beside("Qwen/Qwen3-4B-Base", peers, "hacpo", "hacpo-wide") is None
    assert publication.beside("Qwen/Qwen3-4B-Base", ("x/y",), "hacpo", "hacpo") is None
    with pytest.raises(UsageError, match="hacpo2026"):
        published.load_publication("nobody1999")
