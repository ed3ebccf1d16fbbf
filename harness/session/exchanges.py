"""A cell's exchange, from its sharing settings: who sends to whom, limits and defences, bad peers, replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.exchange.exchange import Edge, Exchange
from harness.exchange.gate import Defences, Quotas
from harness.session.members import Member
from harness.suite.cells import Cell


def open_exchange(cell: Cell, members: Sequence[Member], strengths: Callable[[], Mapping[str, float]]) -> Exchange:
    """The exchange of one cell. `strengths` is asked only where the direction depends on it."""
    s = cell.sharing
    names = [m.name for m in members]
    shares = frozenset(kind for m in members for kind in m.regime.shares)
    answers = max(m.rollouts for m in members)
    return Exchange(
        names,
        edges(cell, names, strengths) if shares else (),
        kinds=shares,
        max_staleness=s.max_staleness,
        quotas=Quotas.fitting(cell.training.prompts, answers, cell.training.max_new_tokens, s.max_staleness + 1),
        defences=Defences(
            quotas=s.defences.quotas,
            headers=s.defences.header_checks,
            reverify=s.defences.reverify,
            residual=s.defences.residual_budget,
        ),
    )


def edges(cell: Cell, names: Sequence[str], strengths: Callable[[], Mapping[str, float]]) -> list[Edge]:
    """(author, receiver) pairs in suite order. Strength is the base policy's held-out accuracy: our reading."""
    pairs = [(a, r) for r in names for a in names if a != r]
    match cell.sharing.direction:
        case "all":
            return pairs
        case "none":
            return []
        case "edges":
            return [(a, r) for a, r in cell.sharing.edges or ()]
        case "strong_to_weak":
            strength = strengths()
            return [(a, r) for a, r in pairs if strength[a] > strength[r]]
        case "weak_to_strong":
            strength = strengths()
            return [(a, r) for a, r in pairs if strength[a] < strength[r]]
