"""Chunks and spreading against a merge written token by token (against TRL's."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tokenization.alignment import cut_into_chunks, distribute_logprobs, one_to_one


def loop_chunks(source, receiver):
    """Chunks of one answer as (source tokens, receiver tokens), by merging two lists of ends."""
    groups, a, b = [], 0, 0
    begin = (0, 0)
    while a < len(source):
        while source[a] != receiver[b] or source[a] == 0:
            if receiver[b] == 0 or receiver[b] < source[a]:
                b += 1
            else:
                a += 1
        while a + 1 < len(source) and source[a + 1] == source[a]:
            a += 1
        while b + 1 < len(receiver) and receiver[b + 1] == receiver[b]:
            b += 1
        a, b = a + 1, b + 1
        groups.append((list(range(begin[0], a)), list(range(begin[1], b))))
        begin = (a, b)
    assert b == len(receiver)
    return groups


def groups_of(parts):
    return [
        (list(range(*s)), list(range(*r)))
        for s, r in zip(
            itertools.pairwise(parts.source.tolist()), itertools.pairwise(parts.receiver.tolist()), strict=True
        )
    ]


@st.composite
def answers(draw):
    """An answer in two segmentations of equal byte length; tokens without bytes anywhere."""
    size = draw(st.integers(1, 20))
    return [np.array([*sorted(draw(st.lists(st.integers(0, size), max_size=15))), size], dtype=np.int32) for _ in "ab"]


@settings(max_examples=300, deadline=None)
@given(answers())
def test_chunks_are_those_of_the_merge(pair):
    assert groups_of(cut_into_chunks(*pair)) == loop_chunks(*(ends.tolist() for ends in pair))


@settings(max_examples=300, deadline=None)
@given(answers())
def test_exact_tokens_are_those_of_chunks_of_one_token_on_either_side(pair):
    alike = [len(s) == len(r) == 1 for s, r in loop_chunks(*(ends.tolist() for ends in pair)) for _ in r]
    assert one_to_one(cut_into_chunks(*pair)).tolist() == alike


@settings(max_examples=300, deadline=None)
@given(answers(), st.integers(0, 2**32 - 1), st.sampled_from([None, 1e-320, 1e-3, 1.0]))
def test_mass_is_conserved_and_stays_in_its_chunk(pair, seed, scale):
    rng, (source, receiver) = np.random.default_rng(seed), pair
    logprobs = -rng.exponential(2.0, source.size) * (rng.random(source.size) < 0.8)
    weights = None if scale is None else -np.maximum(rng.exponential(scale, receiver.size), 1e-322)
    parts = cut_into_chunks(source, receiver)
    aligned = distribute_logprobs(receiver, parts, logprobs, weights)
    assert aligned.dtype == np.float32
    assert (aligned <= 0).all()
    assert math.isclose(aligned.sum(dtype=np.float64), logprobs.sum(), abs_tol=1e-6, rel_tol=1e-7)
    lengths = np.diff(receiver, prepend=0)
    for s, r in groups_of(parts):
        share = lengths[r] if weights is None else weights[r]
        np.testing.assert_allclose(aligned[r], logprobs[s].sum() * (share / share.sum()), rtol=1e-6, atol=1e-5)


def test_conservation_over_a_long_answer():
    rng = np.random.default_rng(0)
    source_ends = np.cumsum(rng.integers(1, 6, 20_000))
    receiver_ends = np.unique(np.append(rng.integers(1, source_ends[-1], 15_000), source_ends[-1]))
    logprobs = -rng.exponential(1.0, source_ends.size)
    aligned = distribute_logprobs(receiver_ends, cut_into_chunks(source_ends, receiver_ends), logprobs)
    assert abs(aligned.sum(dtype=np.float64) - logprobs.sum()) < 1e-6


def test_a_receiver_that_is_sure_of_its_tokens_gets_bytes():
    ends = np.array([1, 4])
    parts = cut_into_chunks(np.array([4]), ends)
    assert distribute_logprobs(ends, parts, np.array([-4.0]), np.zeros(2)).tolist() == [-1.0, -3.0]
    assert distribute_logprobs(ends, parts, np.array([-4.0]), np.array([-3.0, -1.0])).tolist() == [-3.0, -1.0]


PAIRS = [(a, b) for a in sorted(zoo.KINDS) for b in sorted(zoo.KINDS) if a != b]


@pytest.mark.parametrize(("source", "receiver"), PAIRS[::9])
def test_mass_over_texts_of_all_kinds(source, receiver, encoded):
    """10 of the 90 pairs; the chunks of every 20th text against the merge."""
    both = [(a, b) for a, b in zip(encoded[source], encoded[receiver], strict=True) if a is not None and b is not None]
    assert len(both) > 780
    rng = np.random.default_rng(1)
    for place, (a, b) in enumerate(both):
        logprobs, parts = -rng.exponential(0.3, a.ends.size), cut_into_chunks(a.ends, b.ends)
        aligned = distribute_logprobs(b.ends, parts, logprobs)
        assert math.isclose(aligned.sum(dtype=np.float64), logprobs.sum(), abs_tol=1e-6, rel_tol=1e-7)
        if place % 20 == 0:
            assert groups_of(parts) == loop_chunks(a.ends.tolist(), b.ends.tolist())
