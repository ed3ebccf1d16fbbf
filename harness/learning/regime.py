"""The base class of a sharing regime: what is shared, and how it enters the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from harness.experience.answers import Group, Inbox, Prompt
from harness.experience.records import Pieces, Record
from harness.learning.hints import Hint
from harness.learning.terms import OldLogprobs, Term
from harness.verification.scorer import Math, Same

__all__ = ["Context", "Measured", "Need", "NoOptions", "Regime"]


class Need(StrEnum):
    """What a regime needs besides records. ALIGNED: `PeerAnswer.aligned`. RECEIVER_OLD: `PeerAnswer.receiver_old`. SCORES:
    `Inbox.scores`, which costs peers a forward pass. START_SCORES: `PeerScores.start` and `own_start` too, which costs another
    one on either side, under frozen copies of the weights. GRADIENTS: calls of `Regime.learnt`, which cost a copy of the
    gradient."""

    ALIGNED = "aligned"
    RECEIVER_OLD = "receiver_old"
    SCORES = "scores"
    START_SCORES = "start_scores"
    GRADIENTS = "gradients"


@dataclass(frozen=True, slots=True)
class Measured:
    """Norms of a step's own and peer gradients before clipping, and their cosine; NaN where not measured."""

    own: float
    peer: float
    cosine: float


@dataclass(frozen=True, slots=True)
class Context:
    """What `learn` may know besides. step: from 1. rng: never derived from the regime. max_tokens: longest answer sampled.
    updates: of the optimiser, a step. same: whether two read answers (`Verdict.extracted`) say the same, by the task's scorer;
    mathematics by default. same_by_task: the same by the name of the task that asks (`Prompt.task`)."""

    learner: str
    policies: tuple[str, ...]
    step: int
    rng: np.random.Generator
    max_tokens: int
    updates: int = 1
    same: Same = Math().same  # which loads its rules, and with them mpmath, when it is first asked
    same_by_task: Mapping[str, Same] = field(default_factory=dict)

    def same_of(self, prompt: Prompt) -> Same:
        """Whether two read answers to this question say the same."""
        return self.same_by_task.get(prompt.task, self.same)


@dataclass(frozen=True)
class NoOptions:
    """For a regime without options."""


class Regime:
    """One policy's instance of a regime. Options: a frozen dataclass of what a suite may set. shares: record types published.
    results_version: a plugin's own; None counts every change of its module. published: where formula and all defaults are, else
    empty. unequal_rollouts: whether policies may differ in rollouts, else unequal_reason. old_logprobs: whose OLD denominators
    are by default. peer_share: of peers' answers, the most that is learnt, for plans."""

    Options: ClassVar[type] = NoOptions
    shares: ClassVar[frozenset[type[Record]]] = frozenset()
    results_version: ClassVar[int | None] = None
    published: ClassVar[str] = ""
    unequal_rollouts: ClassVar[bool] = True
    unequal_reason: ClassVar[str] = ""
    old_logprobs: ClassVar[OldLogprobs] = "trainer"
    peer_share: ClassVar[float] = 1.0

    run_steps: int = 0
    """Of the run, as the harness sets it before the first step; 0 where it is not known."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    def needs(self) -> frozenset[Need]:
        """May depend on the options."""
        return frozenset()

    @property
    def hint_tokens(self) -> int:
        """The longest hint, in the learner's tokens; 0 without a second round. May depend on the options."""
        return 0

    def publish(self, groups: Sequence[Group], pieces: Pieces) -> list[Record]:
        """Return what to send of own groups: by default all that `shares` names."""
        kinds = sorted(self.shares, key=lambda kind: kind.__name__)
        return [record for group in groups for kind in kinds for record in kind.of(group, pieces)]

    def hints(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Hint]:
        """Return the second round: at most one hint a prompt, off which the harness cuts the answer. Its groups follow the others
        in `learn`; their `prompt.of` is the question's id."""
        return []

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """Return the step's terms, from own groups, one per prompt, and what peers sent."""
        raise NotImplementedError

    def learnt(self, measured: Measured) -> None:
        """Take up what was measured. Called after each step's updates with `Need.GRADIENTS`."""

    def remarks(self, updates: int) -> Sequence[str]:
        """Return what a user should know of these options; printed when a run starts."""
        return ()

    def state(self) -> Mapping[str, Any]:
        """Return the JSON-compatible state to checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up `state` again."""
