"""One step's updates, for any engine, and their report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, isnan, nan, sqrt
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from harness.engines.masters import Masters
from harness.engines.protocol import Drift, Optimisation, TermReport, UpdateReport
from harness.errors import Fault, TrainingError
from harness.experience.answers import Prompt
from harness.learning.minibatches import Packed, Score, cut_into_minibatches, fill_old_logprobs, pack_answers
from harness.learning.surrogate import AnswerStatistics, surrogate_loss
from harness.learning.terms import Term, TermAnswer

__all__ = ["Forward", "Gradients", "Tally", "check_norm", "learn", "mean_of_measured"]

Forward = Callable[[Sequence[TermAnswer]], Iterable[tuple[Sequence[int], Sequence[Tensor], int]]]
"""Takes answers through the model, by pieces: for each the indices of its answers, their tokens' log-probabilities (T,) with
gradient, and the number of tokens that went through. The next piece is asked for when the backward pass of the last is done."""
SOURCES: tuple[Literal["own", "peer"], ...] = ("own", "peer")


def learn(
    name: str,
    version: int,
    masters: Masters,
    prompts: Sequence[Prompt],
    terms: Sequence[Term],
    optimisation: Optimisation,
    score: Score,
    forward: Forward,
) -> UpdateReport:
    """Update a policy by one step's terms, in `optimisation.updates` steps of AdamW, and report what that did.

    A step is taken even without gradient, so that all regimes take as many. Own terms go first, so that measuring changes
    nothing. Raises TrainingError where a gradient is not finite.

    name, version: the policy's name and its updates so far, for messages. masters: the trained parameters, and AdamW over them.
    prompts: of all terms' answers. terms: the regime's, and the penalty to the base; each is spread over the updates.
    optimisation: AdamW's settings, the number of updates, and whether own and peer gradients are measured apart. score: gives
    the trainer's log-probabilities before the first update, where denominators ask for them. forward: takes answers through the
    model, piece by piece.
    """
    for group in masters.optimiser.param_groups:
        group["lr"], group["betas"] = optimisation.learning_rate, optimisation.betas
        group["weight_decay"] = optimisation.weight_decay
    tally = Tally(terms, optimisation.updates)
    gradients = Gradients(masters.parameters, optimisation.measure)
    batches = cut_into_minibatches(terms, optimisation.updates, optimisation.max_tokens)
    for batch in fill_old_logprobs(batches, prompts, score, optimisation.old_logprobs, optimisation.sampler_correction):
        gradients.reset()
        live = list(batch.live())
        for source in SOURCES:
            answers = [(term, answer) for term, answer in live if batch.terms[term].source == source]
            for piece, logps, tokens in forward([answer for _, answer in answers]):
                chosen = [answers[index] for index in piece]
                taking_part = torch.cat(
                    [_masked(logp, answer) for logp, (_, answer) in zip(logps, chosen, strict=True)]
                )
                packed = pack_answers(batch, chosen)
                loss, statistics = surrogate_loss(taking_part, packed)
                torch.autograd.backward(loss)
                tally.add(chosen, packed, statistics, tokens)
            if answers:
                gradients.observe(source)
        check_norm(name, version + batch.update, gradients.clip(optimisation.clip_norm))
        masters.step()
    return tally.report(
        norm=mean_of_measured(gradients.totals),
        own_norm=mean_of_measured(gradients.own),
        peer_norm=mean_of_measured(gradients.peer),
        cosine=mean_of_measured(gradients.cosines),
    )


def _masked(logp: Float[Tensor, "T"], answer: TermAnswer) -> Float[Tensor, "N"]:
    """Select the log-probabilities of an answer's tokens that take part."""
    if answer.mask is None:
        return logp
    return logp[torch.as_tensor(answer.mask, device=logp.device)]


def check_norm(policy: str, update: int, norm: float) -> None:
    """Check the norm of an update's gradient. Raises TrainingError where it is not finite. update: counted from the policy's
    first."""
    if not isfinite(norm):
        raise TrainingError(Fault.NOT_FINITE, f"policy {policy}: the gradient of update {update} is not finite")


def mean_of_measured(values: Iterable[float]) -> float:
    """Average the values that were measured, those that are not NaN; NaN without any."""
    measured = [value for value in values if not isnan(value)]
    return float(np.mean(measured)) if measured else nan


class Gradients:
    """The gradients of one step's updates, of which norms and cosines are kept.

    totals: norms before clipping, by update. With `measure`, own, peer: norms of these terms' gradients alone, of updates that
    have such terms; cosines: between both."""

    def __init__(self, parameters: Sequence[nn.Parameter], measure: bool) -> None:
        self._parameters = parameters
        self._measure = measure
        self._before: list[Tensor] = []
        self.totals = list[float]()
        self.own = list[float]()
        self.peer = list[float]()
        self.cosines = list[float]()

    def reset(self) -> None:
        """Set all gradients to zeros, never None: an update without gradient must be the same in a fresh and a resumed engine."""
        self._before = []
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def observe(self, source: Literal["own", "peer"]) -> None:
        """Measure one source's gradient, after the backward passes of own terms, and then after those of peer terms.

        Backward passes add up, so that behind the second ones the parameters hold the sum of both. The own gradient was copied
        behind the first ones, and the peers' is the sum less that copy, in double precision."""
        if not self._measure:
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if source == "own":
            self._before = [gradient.clone() for gradient in gradients]
        squares = own_squares = product = 0.0
        for index, gradient in enumerate(gradients):
            alone = gradient.double()
            if source == "peer" and self._before:
                own = self._before[index].double()
                alone -= own
                own_squares += float(torch.dot(own.flatten(), own.flatten()))
                product += float(torch.dot(own.flatten(), alone.flatten()))
            squares += float(torch.dot(alone.flatten(), alone.flatten()))
        (self.own if source == "own" else self.peer).append(sqrt(squares))
        if source == "peer" and self._before:
            scale = sqrt(own_squares * squares)
            self.cosines.append(product / scale if scale else 0.0)

    def clip(self, norm: float) -> float:
        """Scale the gradient down to this norm where it is larger; return the norm that it had."""
        self.totals.append(float(nn.utils.clip_grad_norm_(self._parameters, norm)))
        return self.totals[-1]


class _TermSums(NamedTuple):
    """Sums over a term's answers in all updates: of `AnswerStatistics`, under its names."""

    clipped_tokens: float
    loss: float
    ratio_count: float
    ratio_sum: float
    ratio_square: float


class Tally:
    """What happened to each term's answers over a step. Answers without a forward pass count in `answers` and `tokens` only."""

    def __init__(self, terms: Sequence[Term], updates: int) -> None:
        self._terms = terms
        self._updates = updates
        self._trained = 0
        self._sums = np.zeros((len(terms), len(_TermSums._fields)))  # a `_TermSums` in each row
        # Tokens with a gradient, by the term's index and the answer's place in it
        self._moved: dict[tuple[int, int], int] = {}
        self._drifts: list[Float64[np.ndarray, "N"]] = []
        self._outside: list[Bool[np.ndarray, "A"]] = []

    def add(
        self, answers: Sequence[tuple[int, TermAnswer]], packed: Packed, statistics: AnswerStatistics, tokens: int = 0
    ) -> None:
        """Count what one backward pass did with its answers. answers: a pack's, with their terms' indices. tokens: those that
        went through the model."""
        self._trained = self._trained + tokens
        columns = [getattr(statistics, field) for field in _TermSums._fields]
        rows = np.stack(columns, axis=1)  # (A, 5)
        np.add.at(self._sums, [term for term, _ in answers], rows)
        for (term, answer), active in zip(answers, statistics.active_tokens.tolist(), strict=True):
            self._moved[term, answer.place] = active
        self._add_drift(packed, statistics.drift.astype(np.float64))

    def _add_drift(self, packed: Packed, drift: Float64[np.ndarray, "N"]) -> None:
        """Count how far trainer and sampler are apart on a pack's tokens, and whose ratio would lie outside its bounds by that
        alone. drift: nats; NaN where it is not known."""
        known = ~np.isnan(drift)  # (N,)
        if not known.any():
            return
        counts = packed.counts  # (A,)
        answer_of = np.repeat(np.arange(counts.size), counts)  # (N,)
        means = np.bincount(answer_of, drift, counts.size) / counts  # (A,)
        pooled = np.where(packed.pooled[answer_of], means[answer_of], drift)
        ratio = np.exp(pooled * packed.log_scale[answer_of])  # (N,)
        is_out = (ratio < packed.low[answer_of]) | (ratio > packed.high[answer_of])
        measured = np.bincount(answer_of, known, counts.size) > 0  # (A,)
        has_tokens_outside = np.bincount(answer_of, is_out, counts.size) > 0  # (A,)
        self._drifts.append(drift[known])
        self._outside.append(has_tokens_outside[measured])

    @property
    def drift(self) -> Drift:
        """How far trainer and sampler were apart on the step's tokens: mean and 0.99 quantile in nats, and the share of answers
        that lie outside their bounds by that alone."""
        if not self._drifts:
            return Drift()
        tokens = np.abs(np.concatenate(self._drifts))
        outside = np.concatenate(self._outside)
        return Drift(float(tokens.mean()), float(np.quantile(tokens, 0.99)), float(outside.mean()))

    def report(self, norm: float, own_norm: float = nan, peer_norm: float = nan, cosine: float = nan) -> UpdateReport:
        """Report what the step did. Terms' losses add up to the whole; the norm of a source is also that of its only term.

        norm: of the whole gradient; own_norm, peer_norm, cosine: of its two sources, NaN where they were not measured."""
        norms = {"own": own_norm, "peer": peer_norm}
        sources = [term.source for term in self._terms]
        reports = []
        for index, term in enumerate(self._terms):
            is_only_of_source = sources.count(term.source) == 1
            gradient_norm = norms[term.source] if is_only_of_source else nan
            reports.append(self._report_term(index, term, gradient_norm))
        loss_of_updates = float(self._sums[:, _TermSums._fields.index("loss")].sum())
        return UpdateReport(
            terms=tuple(reports),
            loss=loss_of_updates / self._updates,
            gradient_norm=norm,
            updates=self._updates,
            trained_tokens=self._trained,
            own_gradient_norm=own_norm,
            peer_gradient_norm=peer_norm,
            own_peer_cosine=cosine,
            drift=self.drift,
        )

    def _report_term(self, index: int, term: Term, gradient_norm: float) -> TermReport:
        """Report what the step did with one term's answers. index: of the term."""
        sums = _TermSums(*self._sums[index].tolist())
        count = sums.ratio_count
        mean_ratio = sums.ratio_sum / count if count else nan
        mean_square = sums.ratio_square / count if count else nan
        moved = [self._moved.get((index, place), 0) for place in range(len(term.answers))]
        return TermReport(
            name=term.name,
            source=term.source,
            moved=tuple(moved),
            tokens=sum(answer.counted for answer in term.answers),
            clipped_tokens=int(sums.clipped_tokens),
            loss=sums.loss / self._updates,
            ratios=int(count),
            ratio_mean=mean_ratio,
            ratio_second=mean_square,
            gradient_norm=gradient_norm,
        )
