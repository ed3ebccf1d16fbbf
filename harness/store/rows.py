"""Everything that a cell writes, one struct per table. A row belongs to the cell in whose folder it lies.

Floats are NaN where they were not measured (NULL in the store). Shares are fractions in [0, 1], log-probabilities and
entropies are in nats, times in seconds.
"""

from __future__ import annotations

import msgspec

NAN = float("nan")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all rows. `at` is the training step after which a resumed cell drops the row; None keeps it for good."""

    @property
    def at(self) -> int | None:
        step: int | None = getattr(self, "step", None)
        return step


class StepRow(Row, frozen=True, kw_only=True):
    """One policy at one training step.

    version: optimiser updates made so far. right, wrong, invalid: verdicts on own answers; truncated ones are wrong.
    answer_tokens_mean: mean length. entropy: mean per token of the sampling distribution.
    own_gradient_norm, peer_gradient_norm, own_peer_cosine: gradients of own and of peer terms alone.
    kl_step, kl_base: k3 estimate per token to the weights at the step's start and to the base policy.
    weight_second_moment, effective_sample_size: of the importance weights on peer data; the latter as a share of it.
    clipped_share: peer tokens (or answers, as the ratio has it) outside the clip bounds.
    refused_share: peer records refused.
    peer_received, peer_used: peer answers received, and those that gave a nonzero gradient.
    prompts_all_wrong: prompts without any own success; prompts_rescued: those of them on which a peer succeeded.
    peer_only_support_share: trained tokens that only the peer's samples support.
    rollouts: own answers sampled. trained_tokens: through forward and backward. exchanged_*: received from peers.
    """

    policy: str
    step: int
    version: int = 0
    reward_mean: float = NAN
    right: int = 0
    wrong: int = 0
    invalid: int = 0
    truncated: int = 0
    answers: int = 0
    answer_tokens_mean: float = NAN
    entropy: float = NAN
    loss: float = NAN
    gradient_norm: float = NAN
    updates: int = 0
    own_gradient_norm: float = NAN
    peer_gradient_norm: float = NAN
    own_peer_cosine: float = NAN
    kl_step: float = NAN
    kl_base: float = NAN
    weight_second_moment: float = NAN
    effective_sample_size: float = NAN
    clipped_share: float = NAN
    refused_share: float = NAN
    peer_received: int = 0
    peer_used: int = 0
    prompts: int = 0
    prompts_all_wrong: int = 0
    prompts_rescued: int = 0
    peer_only_support_share: float = NAN
    rollouts: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    exchanged_tokens: int = 0
    exchanged_bytes: int = 0
    generate_seconds: float = NAN
    verify_seconds: float = NAN
    exchange_seconds: float = NAN
    score_seconds: float = NAN
    train_seconds: float = NAN


class TermRow(Row, frozen=True, kw_only=True):
    """What the updates of one step did with one term: `engines.protocol.TermReport` of one policy."""

    policy: str
    step: int
    name: str
    source: str
    answers: int
    active: int
    tokens: int
    active_tokens: int
    loss: float
    ratio_mean: float = NAN
    ratio_second: float = NAN
    gradient_norm: float = NAN


class ExchangeRow(Row, frozen=True, kw_only=True):
    """One record that travelled, as its receiver saw it.

    kind: `rollout`, `text`, `value`, `success`. made: the step its author names; messages: how many alike the row sums up,
    0 for an author that sent nothing (`exchange.ledger.Entry`). accepted or refused with `reason`
    (`exchange.refusal.Refusal`). residual_*: THL's five.
    verdict: the receiver's own (`right`, `wrong`, `invalid`; empty where none was made). used: gave a nonzero gradient.
    """

    step: int
    author: str
    receiver: str
    kind: str
    prompt_id: str
    index: int = 0
    made: int = -1
    version: int = 0
    messages: int = 1
    bytes: int = 0
    source_tokens: int = 0
    receiver_tokens: int = 0
    accepted: bool = True
    reason: str = ""
    residual_text: float = NAN
    residual_boundary: float = NAN
    residual_mass: float = NAN
    residual_length: float = NAN
    residual_canonical: float = NAN
    verdict: str = ""
    used: bool = False


class TraceRow(Row, frozen=True, kw_only=True):
    """One exchanged answer kept in full for readers (a few per step suffice).

    own_text: one of the receiver's answers to the same prompt. *_pieces: byte length of each token's text;
    *_logprobs: per token; `aligned` is the author's, carried onto the receiver's tokens.
    """

    step: int
    author: str
    receiver: str
    prompt_id: str
    prompt: str
    gold: str
    own_text: str
    own_verdict: str
    peer_text: str
    peer_verdict: str
    used: bool = False
    index: int = 0
    source_pieces: list[int] = []
    source_logprobs: list[float] = []
    receiver_pieces: list[int] = []
    aligned: list[float] = []
    receiver_logprobs: list[float] = []


class SampleRow(Row, frozen=True, kw_only=True):
    """One evaluation answer. metric: `greedy` or `sampled` (temperature 1); `repeat` counts the samples of a question.

    checkpoint_step: training step of the evaluated checkpoint, 0 for the base. prompt: what the policy read.
    """

    policy: str
    checkpoint_step: int
    task: str
    metric: str
    doc_id: str
    repeat: int = 0
    labels: dict[str, str] = {}
    prompt: str = ""
    text: str = ""
    extracted: str = ""
    gold: str = ""
    verdict: str = ""
    reason: str = ""
    tokens: int = 0
    finished: bool = True

    @property
    def at(self) -> int | None:
        return self.checkpoint_step + 1  # an evaluation comes after its checkpoint


class CurveRow(Row, frozen=True, kw_only=True):
    """Held-out accuracy of one policy during training. metric: `greedy` or `sampled`."""

    policy: str
    step: int
    metric: str
    accuracy: float
    answers: int


class CostRow(Row, frozen=True, kw_only=True):
    """An entry of the append-only cost ledger: what one attempt spent, repeated work included.

    policy: empty for costs that no single policy caused. phase: generate, verify, exchange, score,
    train, evaluate, save, ...
    tokens: generated and trained ones together.
    """

    attempt: int
    policy: str
    phase: str
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    rollouts: int = 0
    tokens: int = 0


TABLES: dict[str, type[Row]] = {
    "steps": StepRow,
    "terms": TermRow,
    "exchanges": ExchangeRow,
    "traces": TraceRow,
    "samples": SampleRow,
    "curves": CurveRow,
    "costs": CostRow,
}
TABLE_OF: dict[type[Row], str] = {row: name for name, row in TABLES.items()}
