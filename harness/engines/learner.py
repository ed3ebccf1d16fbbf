"""One step's updates, for any engine that gives log-probabilities with gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, nan, sqrt
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from harness.engines.masters import Masters
from harness.engines.protocol import Optimisation, UpdateReport
from harness.engines.tally import Tally
from harness.errors import Fault, TrainingError
from harness.experience.answers import Prompt
from harness.learning.minibatches import Score, minibatches, pack, settle
from harness.learning.surrogate import surrogate
from harness.learning.terms import Term, TermAnswer

__all__ = ["Forward", "learn"]

Forward = Callable[[Sequence[TermAnswer]], Iterable[tuple[Sequence[int], Sequence[Tensor], int]]]
"""Takes answers through the model, by pieces: for each the indices of its answers, their tokens' log-probabilities (T,) with
gradient, and the number of tokens that went through. The next piece is asked for when the backward pass of the last is done."""


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
    """`optimisation.updates` AdamW steps; one without gradient is a step too, so that all regimes make as many. Own terms go
    first through each mini-batch, so that measuring them apart changes nothing. Raises TrainingError where a gradient is not
    finite."""
    for group in masters.optimiser.param_groups:
        group["lr"], group["betas"] = optimisation.learning_rate, optimisation.betas
        group["weight_decay"] = optimisation.weight_decay
    tally, trained = Tally(terms, optimisation.updates), 0
    gradients = Gradients(masters.parameters, optimisation.measure)
    sources: tuple[Literal["own", "peer"], ...] = ("own", "peer")
    batches = minibatches(terms, optimisation.updates, optimisation.max_tokens)
    for batch in settle(batches, prompts, score, optimisation.old_logprobs, optimisation.sampler_correction):
        gradients.reset()
        live = list(batch.live())
        for source in sources:
            answers = [(term, answer) for term, answer in live if batch.terms[term].source == source]
            for piece, logps, tokens in forward([answer for _, answer in answers]):
                chosen = [answers[index] for index in piece]
                taking = [_taking_part(logp, answer) for logp, (_, answer) in zip(logps, chosen, strict=True)]
                packed = pack(batch, chosen)
                loss, statistics = surrogate(torch.cat(taking), packed)
                torch.autograd.backward(loss)
                tally.add(chosen, packed, statistics)
                trained += tokens
            if answers:
                gradients.observe(source)
        check_norm(name, version + batch.update, gradients.clip(optimisation.clip_norm))
        masters.step()
    return UpdateReport(
        terms=tally.reports(gradients.own_norm, gradients.peer_norm),
        loss=tally.loss,
        gradient_norm=gradients.norm,
        updates=optimisation.updates,
        trained_tokens=trained,
        own_gradient_norm=gradients.own_norm,
        peer_gradient_norm=gradients.peer_norm,
        own_peer_cosine=gradients.cosine,
        drift=tally.drift,
    )


def _taking_part(logp: Tensor, answer: TermAnswer) -> Tensor:
    return logp if answer.mask is None else logp[torch.as_tensor(answer.mask, device=logp.device)]


def check_norm(policy: str, update: int, norm: float) -> None:
    """Raises TrainingError for the norm of a gradient that is NaN or infinite. update: counted from the policy's first."""
    if not isfinite(norm):
        raise TrainingError(Fault.NOT_FINITE, f"policy {policy}: the gradient of update {update} is not finite")


class Gradients:
    """The gradients of a step's updates, with the norms of own and of peer terms alone and their cosine (float64) where
    `measure` says so; means over the updates that had some, NaN where not measured."""

    def __init__(self, parameters: Sequence[nn.Parameter], measure: bool) -> None:
        self._parameters, self._measure = parameters, measure
        self._own: list[Tensor] = []
        self._totals: list[float] = []
        self._norms: dict[str, list[float]] = {"own": [], "peer": []}
        self._cosines: list[float] = []

    def reset(self) -> None:
        """Zeros, never None: an update without gradient must be the same AdamW step in a fresh and in a resumed engine."""
        self._own = []
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def observe(self, source: Literal["own", "peer"]) -> None:
        """Call after the backward passes of all own terms, then after those of all peer terms."""
        if not self._measure:
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if source == "own":
            self._own = [gradient.clone() for gradient in gradients]
        squares = own_squares = product = 0.0
        for index, gradient in enumerate(gradients):
            alone = gradient.double()
            if source == "peer" and self._own:
                own = self._own[index].double()
                alone -= own
                own_squares += float(torch.dot(own.flatten(), own.flatten()))
                product += float(torch.dot(own.flatten(), alone.flatten()))
            squares += float(torch.dot(alone.flatten(), alone.flatten()))
        self._norms[source].append(sqrt(squares))
        if source == "peer" and self._own:
            scale = sqrt(own_squares * squares)
            self._cosines.append(product / scale if scale else 0.0)

    def clip(self, norm: float) -> float:
        """Clip to `norm` and return the norm before clipping."""
        self._totals.append(float(nn.utils.clip_grad_norm_(self._parameters, norm)))
        return self._totals[-1]

    @property
    def norm(self) -> float:
        """Before clipping."""
        return _mean(self._totals)

    @property
    def own_norm(self) -> float:
        """Of the own terms alone."""
        return _mean(self._norms["own"])

    @property
    def peer_norm(self) -> float:
        """Of the peer terms alone."""
        return _mean(self._norms["peer"])

    @property
    def cosine(self) -> float:
        """Between the two."""
        return _mean(self._cosines)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else nan
