"""The base class of a sharing regime: what is shared, and how it enters the loss.

A regime is one short module without torch. It is found through the entry-point group `harness.regimes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from harness.experience.answers import Group, Inbox
from harness.experience.records import Pieces, Record
from harness.learning.terms import OldLogprobs, Term

__all__ = ["Context", "Measured", "Need", "NoOptions", "Regime"]


class Need(StrEnum):
    """What a regime needs of the substrate beyond the records themselves."""

    ALIGNED = "aligned"
    """Peers' log-probabilities on the learner's tokens (`PeerAnswer.aligned`); peers must send them."""
    RECEIVER_OLD = "receiver_old"
    """The learner's log-probabilities of peers' answers before the step's first update (`PeerAnswer.receiver_old`)."""
    GRADIENTS = "gradients"
    """The norms and the cosine of each step's own and peer gradients (`Regime.learnt`); costs a copy of the gradient."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Gradients of a step's terms before clipping, mean over its updates; NaN where there was nothing to measure.

    Attributes
    ----------
    own
        Norm of the own terms' gradient alone.
    peer
        Norm of the peer terms' gradient alone, their weights included.
    cosine
        Between the two.
    """

    own: float
    peer: float
    cosine: float


@dataclass(frozen=True, slots=True)
class Context:
    """What `learn` may know besides experience.

    Attributes
    ----------
    learner
        The policy that learns.
    policies
        All of the group, in suite order.
    step
        Training step, from 1.
    rng
        Derived from seed, group, policy and step, never from the regime.
    max_tokens
        Longest answer an engine samples, in tokens (Dr. GRPO's constant).
    updates
        Optimiser updates per step.
    """

    learner: str
    policies: tuple[str, ...]
    step: int
    rng: np.random.Generator
    max_tokens: int
    updates: int = 1


@dataclass(frozen=True)
class NoOptions:
    """For a regime without options."""


class Regime:
    """One policy's instance of a regime. State across steps is explicit: `state` and `restore`.

    Attributes
    ----------
    Options
        A frozen dataclass whose fields are the options a suite may set; its `__post_init__` raises ValueError on a bad one.
    shares
        Record types published.
    options
        This instance's.
    """

    Options: ClassVar[type] = NoOptions
    shares: ClassVar[frozenset[type[Record]]] = frozenset()
    results_version: ClassVar[int | None] = None
    """A plugin's own, to be raised when results change. None: every change of the module's code counts as one."""
    published: ClassVar[str] = ""
    """Where its formula and all its defaults are published, e.g. `arXiv 2603.02604`; empty where some of them are our reading, or
    nobody's but its author's."""
    unequal_rollouts: ClassVar[bool] = True
    """Whether policies may differ in rollouts per prompt."""
    unequal_reason: ClassVar[str] = ""
    """Why not, where it is False."""
    old_logprobs: ClassVar[OldLogprobs] = "trainer"
    """Whose log-probabilities OLD denominators are, unless a suite's variant says otherwise. The trainer's is the published
    way of GRPO and its kin (code: verl and OpenRLHF score own answers again before the first update)."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    def needs(self) -> frozenset[Need]:
        """May depend on the options."""
        return frozenset()

    def publish(self, groups: Sequence[Group], pieces: Pieces) -> list[Record]:
        """What the policy sends after its rollouts: by default all that `shares` names.

        Answers with an invalid verdict, and those that are only EOS, are not exchanged.

        Parameters
        ----------
        groups
            The step's own.
        pieces
            Byte lengths of an answer's tokens, which a `Rollout` carries.
        """
        kinds = sorted(self.shares, key=lambda kind: kind.__name__)
        return [record for group in groups for kind in kinds for record in kind.of(group, pieces)]

    def learn(self, own: Sequence[Group], inbox: Inbox, context: Context) -> list[Term]:
        """The step's terms, from the learner's own groups and what peers sent.

        Parameters
        ----------
        own
            One group per prompt.
        inbox
            What arrived for this step; peers' answers are in the learner's tokens and verified by the learner.
        context
            All else that may be used.

        Returns
        -------
        :
            Terms, which the engine learns in their `order`.

        Raises
        ------
        NotImplementedError
            In the base class.
        """
        raise NotImplementedError

    def learnt(self, measured: Measured) -> None:
        """Called after each step's updates where `needs` has `Need.GRADIENTS`; what is kept of it belongs in `state`."""

    def remarks(self, updates: int) -> Sequence[str]:
        """What a user should know of these options with so many optimiser updates a step; printed when a run starts."""
        return ()

    def state(self) -> Mapping[str, Any]:
        """JSON-compatible state to checkpoint; empty for regimes without memory."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up `state` again."""
