"""Everything that a cell writes, one struct per table. A row belongs to the cell in whose folder it lies.

Floats are NaN where they were not measured (NULL in the store). Shares are fractions in [0, 1], log-probabilities and
entropies are in nats, times in seconds.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "NAN",
    "PUBLISHED",
    "TABLES",
    "TABLE_OF",
    "CostRow",
    "CurveRow",
    "ExchangeRow",
    "Row",
    "SampleRow",
    "StepRow",
    "TermRow",
    "TraceRow",
]

NAN = float("nan")
"""Not measured."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all rows."""

    @property
    def at(self) -> int | None:
        """The training step after which a resumed cell drops the row; None keeps it for good."""
        step: int | None = getattr(self, "step", None)
        return step


class StepRow(Row, frozen=True, kw_only=True):
    r"""One policy at one training step.

    Whoever's they are, answers *take part* if their advantage and weight are not 0, and are *used* if one of their tokens had
    a nonzero gradient in the step's update: taking part, and not outside a bound of its ratio on the side that clips.

    Attributes
    ----------
    policy, step
        Whose, and when.
    version
        Optimiser updates made so far.
    reward_mean
        right / (right + wrong).
    right, wrong, invalid
        Verdicts on own answers, which add up to `answers`.
    truncated
        Own answers that were cut off; they are wrong.
    empty
        Own answers without visible text.
    unboxed
        Own answers with text but without \boxed.
    answers
        Own ones.
    answer_tokens_mean
        Mean length, EOS included.
    entropy
        Minus the mean log-probability of the sampled tokens, nats: an unbiased estimate of the sampling distribution's entropy
        per token, the same for every engine.
    loss, gradient_norm
        Mean over the step's updates, the norm before clipping.
    updates
        Made at this step.
    own_gradient_norm, peer_gradient_norm, own_peer_cosine
        Gradients of own and of peer terms alone.
    kl_step, kl_base
        k3 estimate per token (nats) on the step's valid own answers of KL(sampling policy || policy after the step) and of
        KL(sampling policy || base policy).
    sampler_drift, sampler_drift_p99
        |trainer - sampler| of own tokens' log-probabilities at the step's start (nats), mean and 99th percentile, over the
        answers learnt in the first update.
    sampler_drift_outside
        Share of these answers whose first ratio to the sampler is outside their own term's bounds.
    weight_second_moment, effective_sample_size
        Mean r^2, and (mean r)^2 / mean r^2 (Kish), over the importance weights r of peer answers that took part, before
        clipping: one r per token, or one per answer where the ratio is the answer's. Imitation (`nll`) has no ratio: r = 1 for
        each answer. Coefficients of a regime (omega, lambda) are no part of r.
    clipped_share
        Of the tokens of peer answers that took part, those without a gradient because of a bound of the ratio; an answer with
        one ratio has all its tokens clipped or none.
    refused_share
        Of the records that peers sent, those refused by the exchange, in retokenising or by the verifier.
    peer_received, peer_used
        Peer answers that the exchange let in, and those of them that were used.
    prompts
        Asked at this step.
    prompts_all_wrong
        Those with valid own answers, none of them right.
    prompts_rescued
        Those of them on which another policy's own answers to the step had a success.
    peer_only_support_share
        Of all tokens with a nonzero gradient (KL terms left out), those of peer answers that were made likelier on the prompts
        that `prompts_all_wrong` counts.
    rollouts, generated_tokens
        Own answers sampled, and their tokens.
    trained_tokens
        Through forward and backward, prompts included.
    exchanged_tokens
        Of the peer answers that were refused neither in retokenising nor by the verifier, in the learner's tokens, EOS included.
    exchanged_bytes
        Of all records that the exchange let in.
    generate_seconds, verify_seconds, exchange_seconds, score_seconds, train_seconds
        CPU time of each phase.
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

    Attributes
    ----------
    policy, step
        Whose, and when.
    name, source
        The term's; source is `own` or `peer`.
    answers, tokens
        All of the term's, masked tokens left out.
    active, active_tokens
        With a nonzero gradient.
    clipped_tokens
        That would have a gradient if a bound of the ratio had not taken it away.
    loss
        Its share of the step's.
    ratios, ratio_mean, ratio_second
        Number, mean and mean square of the importance weights of answers that took part, before clipping: one per token, or
        one per answer for `sequence` and `cross` ratios and, as 1, for `nll`; none for `kl`.
    gradient_norm
        Of this term alone; NULL where not measured, or where others share its source.
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


class ExchangeRow(Row, frozen=False, kw_only=True):  # type: ignore[misc]  # its receiver fills it in as it learns it
    """One record that travelled, as its receiver saw it.

    Attributes
    ----------
    step
        At which it was collected.
    author, receiver
        Policies.
    kind
        `rollout`, `text`, `value`, `success`, the tag of a plugin's own type; empty where the header could not be read.
    prompt_id, index
        Which answer it is about.
    made
        The step its author names; -1 where the header could not be read.
    version
        Optimiser updates that the author had made.
    messages
        How many alike the row sums up, 0 for an author that sent nothing.
    bytes
        On the wire.
    source_tokens, receiver_tokens
        Under either tokenizer, EOS left out, 0 where not known.
    accepted
        Or refused.
    reason
        Of a refusal (`experience.records.Refusal`).
    residual_text, residual_boundary, residual_mass, residual_length, residual_canonical
        `tokenization.retokenise.Retokenised`.
    marks_spelled
        Reasoning marks (`<think>` and the like) that the receiver has no token for and reads as letters.
    verdict
        The receiver's own (`right`, `wrong`, `invalid`; empty where none was made).
    used
        A token of it had a nonzero gradient in the step's update (as in `steps`); never true of a `value`.
    """

    step: int
    author: str
    receiver: str
    kind: str = ""
    prompt_id: str = ""
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

    def refuse(self, reason: str) -> None:
        """Take the acceptance back: what retokenising or the receiver's verifier found out."""
        self.accepted, self.reason, self.used = False, str(reason), False


class TraceRow(Row, frozen=True, kw_only=True):
    """One exchanged answer kept in full for readers (a few per step suffice).

    Attributes
    ----------
    step
        At which it was collected.
    author, receiver
        Policies.
    prompt_id, prompt, gold
        What was asked.
    own_text, own_verdict
        One of the receiver's answers to the same prompt.
    peer_text, peer_verdict
        The author's answer, and the receiver's verdict on it.
    used
        As in `exchanges`.
    index
        In the author's group.
    source_pieces, receiver_pieces
        Byte length of each token's text, under either tokenizer.
    source_logprobs
        The author's, per token, nats.
    aligned
        The author's, carried onto the receiver's tokens, nats.
    receiver_logprobs
        The receiver's own, per token, nats.
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
    """One evaluation answer.

    Attributes
    ----------
    policy
        Whose.
    checkpoint_step
        Training step of the evaluated checkpoint, 0 for the base, -1 for a pretrained model before its supervised start.
    task, doc_id
        Which question.
    metric
        `greedy` or `sampled` (temperature 1).
    repeat
        Counts the samples of a question.
    labels
        What results are broken down by: skill, level, subject.
    prompt
        What the policy read.
    text
        The answer.
    extracted
        What was taken for its result.
    vote
        For maj@k, the `repeat` of the first valid answer to the question that says the same by the verifier's own reading; -1
        where nothing was extracted or the verdict is invalid.
    gold
        The reference answer.
    verdict, reason
        `verification.verdict.Verdict`.
    tokens
        Of the answer.
    finished
        Whether it ended by itself.
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
        """The step after that of its checkpoint."""
        return self.checkpoint_step + 1  # an evaluation comes after its checkpoint


class CurveRow(Row, frozen=True, kw_only=True):
    """Held-out accuracy of one policy during training.

    Attributes
    ----------
    policy, step
        Whose, and when.
    metric
        `greedy` or `sampled`.
    accuracy
        In [0, 1].
    answers
        Behind it.
    """

    policy: str
    step: int
    metric: str
    accuracy: float
    answers: int


class CostRow(Row, frozen=True, kw_only=True):
    """An entry of the append-only cost ledger: what one attempt spent, repeated work included.

    Attributes
    ----------
    attempt
        Start of the cell, from 1.
    policy
        Empty for costs that no single policy caused.
    phase
        generate, verify, exchange, score, train, evaluate, save, ...
    cpu_seconds, gpu_seconds, wall_seconds
        Spent.
    rollouts
        Sampled.
    tokens
        Generated and trained ones together.
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
"""Rows by table."""
TABLE_OF: dict[type[Row], str] = {row: name for name, row in TABLES.items()}
"""Tables by row."""
