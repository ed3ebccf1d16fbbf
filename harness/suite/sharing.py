"""Who sends to whom in a suite, what of it a receiver takes, and recordings that stand in for peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from harness.suite.fields import Fraction, Name, SuiteModel

Edge = tuple[str, str]  # author, receiver
Strengths = Callable[[], Mapping[str, float]]


def edges_of(
    policies: Sequence[str], direction: str | Iterable[Edge], strengths: Strengths | None = None
) -> tuple[Edge, ...]:
    """List who sends to whom, by receiver, then author, in suite order.

    policies: a group's names. direction: a word of `Sharing.direction`, or the edges. strengths: the bases' held-out accuracy,
    asked only where the direction depends on it; equals in strength do not send to each other. Raises ValueError for an edge
    that does not join two of the policies."""
    every_edge: list[Edge] = []
    for receiver in policies:
        every_edge += [(author, receiver) for author in policies if author != receiver]
    if direction in ("strong_to_weak", "weak_to_strong"):
        if strengths is None:
            raise ValueError(f"{direction} needs the policies' strengths")
        sign = 1 if direction == "strong_to_weak" else -1
        rank = {policy: sign * strength for policy, strength in strengths().items()}
        return tuple((author, receiver) for author, receiver in every_edge if rank[author] > rank[receiver])
    if isinstance(direction, str):
        return tuple(every_edge) if direction == "all" else ()
    chosen = set(direction)
    impossible = sorted(chosen - set(every_edge))
    if impossible:
        author, receiver = impossible[0]
        raise ValueError(f"no edge {author} -> {receiver}: it does not join two of {', '.join(policies)}")
    return tuple(edge for edge in every_edge if edge in chosen)


class Defences(SuiteModel):
    """The receiver's defences; switch one off to measure its worth. Decoding checks, unknown authors and prompts, and bounds
    have no switch."""

    reverify: bool = Field(default=True, description="Verify peers' answers again; off: their verdicts are taken.")
    quotas: bool = Field(default=True, description="Refuse records beyond an author's quota per step.")
    staleness: bool = Field(default=True, description="Refuse records older than `max_staleness`.")
    header_checks: bool = Field(default=True, description="Refuse records with impossible headers.")
    residual_budget: bool = Field(default=True, description="Refuse answers beyond the residual limits.")
    deadline: bool = Field(default=True, description="Wait at most `deadline_seconds` for a peer.")


class Sharing(SuiteModel):
    """Who sends to whom, how old a record may be, and how a peer's answer becomes the receiver's tokens."""

    younger: ClassVar[dict[str, Any]] = {"alignment": "chunk", "ends": "one_action"}

    direction: Literal["all", "none", "strong_to_weak", "weak_to_strong", "edges"] = Field(
        default="all", description="Who sends to whom; strong and weak by the bases' held-out accuracy."
    )
    edges: Annotated[list[Annotated[list[Name], Field(min_length=2, max_length=2)]], Field(max_length=4096)] | None = (
        Field(default=None, description="[author, receiver] pairs, for `direction: edges`.")
    )
    max_staleness: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="Steps that a record may be old; 0 is lockstep."
    )
    record: bool = Field(default=False, description="Keep accepted messages for a `replay`.")
    deadline_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=60.0, description="Longest wait for peers outside lockstep."
    )
    max_text_residual: Fraction = Field(
        default=0.05,
        description="Largest share of an answer's bytes that retokenising may change.",
    )
    max_boundary_residual: Fraction = Field(
        default=1.0,
        description="Largest share of tokens with an estimated log-probability; 1: no limit.",
    )
    spread: Literal["bytes", "receiver"] = Field(
        default="bytes",
        description="How a rollout's log-probabilities spread over the receiver's tokens: by bytes, or by the receiver's own.",
    )
    alignment: Literal["chunk", "strict"] = Field(
        default="chunk",
        description="Which aligned log-probabilities are used: all, or (`strict`) those of tokens that both tokenizers share.",
    )
    ends: Literal["one_action", "as_sampled"] = Field(
        default="one_action",
        description="Log-probability of an answer's end: of ending by any of the policy's ends, or (`as_sampled`) by that one.",
    )
    opening: Literal["as_sent", "receiver"] = Field(
        default="as_sent",
        exclude_if=lambda opening: opening == "as_sent",
        description="Of older suites, without effect: a peer's answer begins and ends as most own answers of the step.",
    )
    defences: Defences = Field(default=Defences(), description="The receiver's defences.")

    @model_validator(mode="after")
    def _check_edges(self) -> Sharing:
        """Check that edges stand with `direction: edges`, and each once. Raises ValueError."""
        if (self.direction == "edges") != (self.edges is not None):
            raise ValueError("`edges` and `direction: edges` go together")
        edges = self.edges or []
        for i, edge in enumerate(edges):
            if edge in edges[:i]:
                raise ValueError(f"edges: {edge[0]} -> {edge[1]} occurs twice")
        return self

    def among(self, policies: Sequence[str], strengths: Strengths | None = None) -> tuple[Edge, ...]:
        """List who sends to whom among these policies, by `edges_of` in this direction. Raises ValueError."""
        stated = [(author, receiver) for author, receiver in self.edges or ()]
        return edges_of(policies, stated if self.direction == "edges" else self.direction, strengths)


class Replay(SuiteModel):
    """Peers from a recording (`Sharing.record`) instead of, or beside, live ones."""

    younger: ClassVar[dict[str, Any]] = {"share": [1.0, 1.0], "peers": "absent"}

    suite: Name = Field(description="Whose results are replayed.")
    regime: Name = Field(description="The recorded variant.")
    share: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        default=[1.0, 1.0],
        description="Share of each recorded step that is served, at the first and the last step; half a cosine between.",
    )
    peers: Literal["absent", "all"] = Field(
        default="absent",
        description="`absent`: authors that the group lacks; `all`: every author's record, and the live policies send nothing.",
    )
