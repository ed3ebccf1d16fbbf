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

    Whoever's they are, answers *take part* if their advantage and weight are not 0, and are *used* if one of their tokens had
    a nonzero gradient in the step's update: taking part, and not outside a bound of its ratio on the side that clips.

    version: optimiser updates made so far. right, wrong, invalid: verdicts on own answers, which add up to `answers`;
    truncated ones are wrong. empty: without visible text; unboxed: with text but without \\boxed.
    reward_mean: right / (right + wrong). answer_tokens_mean: mean length, EOS included.
    entropy: minus the mean log-probability of the sampled tokens, in nats: an unbiased estimate of the sampling
    distribution's entropy per token, the same for every engine.
    loss, gradient_norm: mean over the step's updates, the norm before clipping. own_gradient_norm, peer_gradient_norm,
    own_peer_cosine: gradients of own and of peer terms alone.
    kl_step, kl_base: k3 estimate per token on the step's valid own answers of KL(sampling policy || policy after the step)
    and of KL(sampling policy || base policy).
    sampler_drift, sampler_drift_p99: |trainer - sampler| of own tokens' log-probabilities at the step's start, mean and 99th
    percentile. sampler_drift_outside: own answers whose first ratio to the sampler is outside their own term's bounds. All
    three over the answers learnt in the first update.
    weight_second_moment, effective_sample_size: mean r^2, and (mean r)^2 / mean r^2 (Kish), over the importance weights r of
    peer answers that took part, before clipping: one r per token, or one per answer where the ratio is the answer's.
    Imitation (`nll`) has no ratio: r = 1 for each answer. Coefficients of a regime (omega, lambda) are no part of r.
    clipped_share: of the tokens of peer answers that took part, those without a gradient because of a bound of the ratio;
    an answer with one ratio has all its tokens clipped or none.
    refused_share: of the records that peers sent, those refused by the exchange, by THL or by the verifier.
    peer_received, peer_used: peer answers that the exchange let in, and those of them that were used.
    prompts: asked at this step. prompts_all_wrong: those with valid own answers, none of them right; prompts_rescued: those
    of them on which another policy's own answers to the step had a success.
    peer_only_support_share: of all tokens with a nonzero gradient (KL terms left out), those of peer answers that were made
    likelier on the prompts that prompts_all_wrong counts.
    rollouts: own answers sampled, generated_tokens: their tokens. trained_tokens: through forward and backward, prompts
    included. exchanged_tokens: of the peer answers that neither THL nor the verifier refused, in the learner's tokens, EOS
    included. exchanged_bytes: of all records that the exchange let in. *_seconds: CPU time of each phase.
    """

    policy: str
    step: int
    version: int = 0
    reward_mean: float = NAN
    right: int = 0
    wrong: int = 0
    invalid: int = 0
    truncated: int = 0
    empty: int = 0
    unboxed: int = 0
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
    sampler_drift: float = NAN
    sampler_drift_p99: float = NAN
    sampler_drift_outside: float = NAN
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
    """What the updates of one step did with one term: `engines.protocol.TermReport` of one policy.

    answers, tokens: all of the term's, masked tokens left out. active, active_tokens: with a nonzero gradient.
    clipped_tokens: that would have a gradient if a bound of the ratio had not taken it away. loss: its share of the step's.
    ratios, ratio_mean, ratio_second: number, mean and mean square of the importance weights of answers that took part,
    before clipping: one per token, or one per answer for `sequence` and `cross` ratios and, as 1, for `nll`; none for `kl`.
    gradient_norm: of this term alone; NULL where not measured, or where others share its source.
    """

    policy: str
    step: int
    name: str
    source: str
    answers: int
    active: int
    tokens: int
    active_tokens: int
    clipped_tokens: int = 0
    loss: float
    ratios: int = 0
    ratio_mean: float = NAN
    ratio_second: float = NAN
    gradient_norm: float = NAN


class ExchangeRow(Row, frozen=True, kw_only=True):
    """One record that travelled, as its receiver saw it.

    step: at which it was collected; made: the step its author names. kind: `rollout`, `text`, `value`, `success`, empty where
    the header could not be read. messages: how many alike the row sums up, 0 for an author that sent nothing
    (`exchange.ledger.Entry`). bytes: on the wire. source_tokens, receiver_tokens: under either tokenizer, EOS left out, 0
    where not known. accepted or refused with `reason` (`experience.refusal.Refusal`). residual_*: THL's five.
    marks_spelled: reasoning marks (`<think>` and the like) that the receiver has no token for and reads as letters.
    verdict: the receiver's own (`right`, `wrong`, `invalid`; empty where none was made).
    used: a token of it had a nonzero gradient in the step's update (as in `steps`); never true of a `value`.
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
    marks_spelled: int = 0
    verdict: str = ""
    used: bool = False


class TraceRow(Row, frozen=True, kw_only=True):
    """One exchanged answer kept in full for readers (a few per step suffice).

    used: as in `exchanges`. own_text: one of the receiver's answers to the same prompt. *_pieces: byte length of each token's text;
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


PUBLISHED = -1
"""The `checkpoint_step` of a pretrained model before its supervised start."""


class SampleRow(Row, frozen=True, kw_only=True):
    """One evaluation answer. metric: `greedy` or `sampled` (temperature 1); `repeat` counts the samples of a question.

    checkpoint_step: training step of the evaluated checkpoint, 0 for the base, -1 for a pretrained model before its supervised
    start. prompt: what the policy read.
    vote: for maj@k, the `repeat` of the first valid answer to the question that says the same by the verifier's own
    reading; -1 where nothing was extracted or the verdict is invalid.
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
    vote: int = -1
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
