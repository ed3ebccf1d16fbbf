"""One step's updates, for any engine that gives log-probabilities with gradient: mini-batches, loss, clipping, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from harness.engines.gradients import Gradients, check_norm
from harness.engines.masters import Masters
from harness.engines.protocol import Optimisation, UpdateReport
from harness.engines.tally import Tally
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
    """`optimisation.updates` AdamW steps; one without gradient is a step too, so that all regimes make as many.

    Own terms go first through each mini-batch, so that measuring them apart changes nothing.

    Parameters
    ----------
    name, version
        Of the policy, for messages.
    masters
        Its weights and optimiser.
    prompts
        All that a term's answers name.
    terms
        Of the step.
    optimisation
        Settings.
    score
        For OLD denominators, as `PolicyEngine.score`.
    forward
        The model.

    Raises
    ------
    TrainingError
        A gradient is not finite.
    """
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
