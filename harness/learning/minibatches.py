"""A step's terms as the mini-batches of its optimiser updates: cut, denominators filled in, packed. No torch.

Our reading: a unit is every answer of one (order, prompt); units, sorted by order and prompt, are cut into contiguous
mini-batches of nearly equal numbers of answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from harness.experience.answers import Prompt
from harness.learning.terms import OLD, Denominator, Objective, OldLogprobs, Term, TermAnswer

# Computes the trainer's log-probabilities of answers to prompts, under its present weights
Score = Callable[[Sequence[Prompt], Sequence[Int32[np.ndarray, "T"]]], Sequence[Float32[np.ndarray, "T"]]]


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """One optimiser update. update: its index in the step. terms: all of the step, each with the answers that fell
    here. max_tokens: of `constant`. correction: C of min(exp(old - sampled), C), the factor of the objective of own tokens
    with `sampled`; 0 for none."""

    update: int
    terms: tuple[Term, ...]
    max_tokens: int
    correction: float = 0.0

    def normaliser(self, objective: Objective) -> int:
        """Return the divisor of all terms with this aggregation, whatever source and weight, at least 1. Of `prompt`: the number
        of prompts in all terms.

        Terms without a ratio, `nll` and `kl`, are counted apart, each form by itself: they are losses beside the policy gradient,
        and their size is not to depend on how many answers that has (our reading)."""
        if objective.aggregation == "prompt":
            prompts = {answer.prompt_id for term in self.terms for answer in term.answers}
            return max(1, len(prompts))
        alike: list[TermAnswer] = []
        for term in self.terms:
            same_aggregation = term.objective.aggregation == objective.aggregation
            same_count = _name_count(term.objective) == _name_count(objective)
            if same_aggregation and same_count:
                alike += term.answers
        match objective.aggregation:
            case "token":
                return max(1, sum(answer.counted for answer in alike))
            case "answer":
                return max(1, len(alike))
            case "constant":
                return max(1, len(alike) * self.max_tokens)

    def live(self) -> Iterator[tuple[int, TermAnswer]]:
        """Yield every answer that can have a gradient, with the index of its term."""
        return ((i, answer) for i, term in enumerate(self.terms) for answer in term.answers if can_move(term, answer))


def _name_count(objective: Objective) -> str:
    """Name the terms with which a term is counted for its divisor: `nll`, `kl`, or all that have a ratio."""
    return objective.form if objective.form in ("nll", "kl") else "ratio"


def can_move(term: Term, answer: TermAnswer) -> bool:
    """Whether an answer has a gradient for some weights: it has an advantage or needs none, a weight, and tokens."""
    pushes = bool(np.any(answer.advantage != 0.0)) or term.objective.form in ("nll", "kl")
    return pushes and term.weight * answer.weight != 0.0 and answer.counted > 0


def denominator_is_stated(objective: Objective) -> bool:
    """Whether an objective's answers must state their denominator, so that None stands for no denominator of theirs: the base's
    log-probabilities for `kl`, another policy's for a cross ratio."""
    return objective.form == "kl" or (objective.ratio == "cross" and objective.form != "nll")


def cut_into_minibatches(terms: Sequence[Term], updates: int, max_tokens: int) -> list[MiniBatch]:
    """Divide a step's terms into exactly `updates` mini-batches, some empty where units lack; each answer gets its place in its
    term.

    A unit is what one prompt has in the terms of one order: it is never divided, so that a group's answers stay together.
    max_tokens: of an answer, for normalisers. Raises ValueError."""
    if updates < 1:
        raise ValueError(f"updates must be at least 1, not {updates}")
    waiting = [term.name for term in terms if term.schedule is not None]
    if waiting:
        raise ValueError(f"term {waiting[0]!r}: its schedule is not settled")
    terms = [replace(term, answers=_with_places(term.answers)) for term in terms]
    rank: dict[str, int] = {}  # of prompts, in the order in which terms name them
    for term in terms:
        for prompt_id in term.prompts:
            rank.setdefault(prompt_id, len(rank))
    sizes = Counter[tuple[int, int]]()
    for term in terms:
        for answer in term.answers:
            sizes[term.order, rank.setdefault(answer.prompt_id, len(rank))] += 1
    units = sorted(sizes)
    update_of = dict(zip(units, _cut_evenly([sizes[unit] for unit in units], updates), strict=True))

    def part_of(term: Term, update: int) -> Term:
        answers = [answer for answer in term.answers if update_of[term.order, rank[answer.prompt_id]] == update]
        return replace(term, answers=tuple(answers))

    batches = []
    for update in range(updates):
        parts = [part_of(term, update) for term in terms]
        batches.append(MiniBatch(update, tuple(parts), max_tokens))
    return batches


def _with_places(answers: Sequence[TermAnswer]) -> tuple[TermAnswer, ...]:
    """Number the answers of a term. What a step finds out of one (old log-probabilities, whether it moved) is kept by this
    number: a term may hold an answer twice."""
    return tuple(replace(answer, place=place) for place, answer in enumerate(answers))


def _cut_evenly(sizes: Sequence[int], parts: int) -> list[int]:
    """Choose the part of each unit: edges near equal shares, no part empty unless units lack. sizes: answers of each unit."""
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])  # (U + 1,) answers before each unit
    edges = [0]  # the first unit of each part
    for part in range(1, parts):
        lowest = min(edges[-1] + 1, len(sizes))
        highest = max(lowest, len(sizes) - (parts - part))
        wanted = ends[-1] * part / parts
        distances = np.abs(ends[lowest : highest + 1] - wanted)
        edges.append(lowest + int(np.argmin(distances)))
    units = np.arange(len(sizes))  # (U,)
    parts_of: list[int] = (np.searchsorted(edges, units, side="right") - 1).tolist()
    return parts_of


def fill_old_logprobs(
    batches: Sequence[MiniBatch],
    prompts: Sequence[Prompt],
    score: Score,
    old: OldLogprobs = "trainer",
    correction: float = 0.0,
) -> list[MiniBatch]:
    """Fill in every OLD denominator, before the step's first update; in the first mini-batch the trainer's is its own forward
    pass.

    score: asked at most once, for answers of later mini-batches, and for those whose objective states a denominator. old: whose
    log-probabilities OLD stands for. correction: as in `MiniBatch`. Raises ValueError where an own answer lacks `sampled`."""
    waiting = list(_answers_to_score(batches))
    scored: dict[tuple[int, int], Float32[np.ndarray, "T"]] = {}  # by the term's index and the answer's place in it
    if waiting and old == "trainer":
        by_id = {prompt.id: prompt for prompt in prompts}
        asked = [by_id[answer.prompt_id] for _, answer in waiting]
        scores = score(asked, [answer.tokens for _, answer in waiting])
        for (index, answer), own in zip(waiting, scores, strict=True):
            scored[index, answer.place] = own

    def settled(index: int, answer: TermAnswer) -> TermAnswer:
        """Put the log-probabilities that OLD stands for in its place; None where the forward pass itself gives them."""
        if answer.denominator is not OLD:
            return answer
        if answer.sampled is None:
            raise ValueError(f"an answer to {answer.prompt_id!r} has OLD as its denominator, but no `sampled`")
        denominator = answer.sampled if old == "sampler" else scored.get((index, answer.place))
        return replace(answer, denominator=denominator)

    def settled_term(index: int, term: Term) -> Term:
        return replace(term, answers=tuple(settled(index, answer) for answer in term.answers))

    settled_batches = []
    for batch in batches:
        terms = [settled_term(index, term) for index, term in enumerate(batch.terms)]
        settled_batches.append(replace(batch, terms=tuple(terms), correction=correction))
    return settled_batches


def _answers_to_score(batches: Sequence[MiniBatch]) -> Iterator[tuple[int, TermAnswer]]:
    """Yield the answers, with their terms' indices, whose OLD the trainer must compute: in the first mini-batch it is the forward
    pass itself, unless the objective states a denominator."""
    for batch in batches:
        for index, term in enumerate(batch.terms):
            if not batch.update and not denominator_is_stated(term.objective):
                continue
            for answer in term.answers:
                if answer.denominator is OLD and can_move(term, answer):
                    yield index, answer


def from_sampler(batches: Sequence[MiniBatch]) -> list[MiniBatch]:
    """Fill in every OLD denominator with the sampler's log-probabilities, which needs no trainer."""
    return fill_old_logprobs(batches, (), lambda prompts, answers: [], "sampler")


FormCode = IntEnum("FormCode", ["PPO", "HARD", "NLL", "KL", "TRUNCATED"], start=0)
"""`Objective.form` as a number per answer."""
WeightCode = IntEnum("WeightCode", ["ONE", "SHAPED", "SLOPE", "UNSURE"], start=0)
"""`Objective.token_weight` likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A answers with N tokens taking part, answer after answer. counts: tokens taking part. weight: with weights, normaliser,
    and 1/counts where the aggregation takes the token mean. pooled: one ratio per answer. on_policy: the denominator is the
    current policy without gradient. sampled: NaN for peers' answers. first: the forward pass sees the weights of the step's
    start."""

    term: Int64[np.ndarray, "A"]
    counts: Int64[np.ndarray, "A"]
    weight: Float64[np.ndarray, "A"]
    advantage: Float64[np.ndarray, "N"]
    form: Int64[np.ndarray, "A"]
    log_scale: Float64[np.ndarray, "A"]
    pooled: Bool[np.ndarray, "A"]
    on_policy: Bool[np.ndarray, "A"]
    low: Float64[np.ndarray, "A"]
    high: Float64[np.ndarray, "A"]
    exponent: Float64[np.ndarray, "A"]
    log_bound: Float64[np.ndarray, "A"]
    first: Bool[np.ndarray, "A"]
    correction: Float64[np.ndarray, "A"]
    token_weight: Int64[np.ndarray, "A"]
    gamma: Float64[np.ndarray, "A"]
    denominator: Float64[np.ndarray, "N"]
    sampled: Float64[np.ndarray, "N"]


def pack_answers(batch: MiniBatch, answers: Sequence[tuple[int, TermAnswer]]) -> Packed:
    """Lay out some or all of a mini-batch's answers as flat arrays; the loss is linear in answers, so any part may be packed.

    answers: pairs of the term's index in `batch.terms` and one of its answers. Raises ValueError where an answer has no tokens
    that take part, where lengths differ, or where a denominator is not settled."""
    indices = [index for index, _ in answers]
    packed_answers = [answer for _, answer in answers]
    objectives = [batch.terms[index].objective for index in indices]
    counts = np.array([answer.counted for answer in packed_answers], dtype=np.int64)  # (A,)
    if not counts.all():
        raise ValueError("an answer without tokens cannot be packed")
    advantages = [_per_token(batch, index, answer, answer.advantage, 0.0) for index, answer in answers]
    denominators = [_denominator_of_tokens(batch, index, answer) for index, answer in answers]
    sampled = [_per_token(batch, index, answer, answer.sampled, np.nan) for index, answer in answers]
    bounds = [objective.bounds(batch.update) for objective in objectives]
    low_and_high = np.array(bounds).reshape(-1, 2)  # (A, 2), also where there is no answer
    forms = [FormCode[objective.form.upper()] for objective in objectives]
    token_weights = [WeightCode[objective.token_weight.upper()] for objective in objectives]
    # Only HARD has an exponent; in the others 0 takes the factor out of the common formula.
    exponents = [objective.exponent if objective.form == "hard" else 0.0 for objective in objectives]
    is_on_policy = [answer.denominator is None for answer in packed_answers]
    is_pooled = [_has_pooled_ratio(objective) for objective in objectives]
    return Packed(
        term=np.array(indices, dtype=np.int64),
        counts=counts,
        weight=_weigh_answers(batch, answers, counts),
        advantage=_join_tokens(advantages),
        form=np.array(forms, dtype=np.int64),
        log_scale=_as_doubles(answer.scale for answer in packed_answers),
        pooled=np.array(is_pooled, dtype=bool),
        on_policy=np.array(is_on_policy, dtype=bool),
        low=low_and_high[:, 0],
        high=low_and_high[:, 1],
        exponent=_as_doubles(exponents),
        log_bound=_as_doubles(objective.log_bound for objective in objectives),
        first=np.full(len(answers), batch.update == 0),
        correction=np.full(len(answers), batch.correction),
        token_weight=np.array(token_weights, dtype=np.int64),
        gamma=_as_doubles(objective.gamma for objective in objectives),
        denominator=_join_tokens(denominators),
        sampled=_join_tokens(sampled),
    )


def _as_doubles(values: Iterable[float]) -> Float64[np.ndarray, "A"]:
    """Make an array (A,) of a figure of each answer."""
    return np.array(list(values), dtype=np.float64)


def _weigh_answers(
    batch: MiniBatch, answers: Sequence[tuple[int, TermAnswer]], counts: Int64[np.ndarray, "A"]
) -> Float64[np.ndarray, "A"]:
    """Compute the factor of each answer's tokens in the loss: its weights, the normaliser of its objective, and 1/counts where
    the objective takes the mean over an answer's tokens."""
    used = {index for index, _ in answers}
    normalisers = {index: batch.normaliser(batch.terms[index].objective) for index in used}
    weights: list[float] = []
    takes_mean: list[bool] = []
    for index, answer in answers:
        term = batch.terms[index]
        weights.append(term.weight * answer.weight / normalisers[index])
        takes_mean.append(term.objective.aggregation in ("answer", "prompt"))
    divisors = np.where(np.array(takes_mean, dtype=bool), counts, 1)  # (A,)
    return np.array(weights) / divisors


def _has_pooled_ratio(objective: Objective) -> bool:
    """Whether an answer has one ratio for all its tokens; NLL and KL have none to pool."""
    return objective.ratio != "token" and objective.form in ("ppo", "hard", "truncated")


def _join_tokens(values: Sequence[Float64[np.ndarray, "T"]]) -> Float64[np.ndarray, "N"]:
    """Join the answers' values one behind another; an empty array of doubles where there is no answer."""
    return np.concatenate([*values, np.zeros(0)])


def _denominator_of_tokens(batch: MiniBatch, index: int, answer: TermAnswer) -> Float64[np.ndarray, "T"]:
    """Return the denominator's log-probabilities (T',) in nats of the tokens that take part; zeros where it is the policy itself.
    Raises ValueError where it is not settled, or lacks though the objective needs one."""
    term = batch.terms[index]
    if answer.denominator is None:
        if denominator_is_stated(term.objective):
            raise ValueError(f"term {term.name!r}: an answer to {answer.prompt_id!r} lacks its denominator")
    elif isinstance(answer.denominator, Denominator):
        raise ValueError(f"term {term.name!r}: denominators are not settled ({answer.prompt_id!r})")
    return _per_token(batch, index, answer, answer.denominator, 0.0)


def _per_token(
    batch: MiniBatch, index: int, answer: TermAnswer, given: np.ndarray | float | None, absent: float
) -> Float64[np.ndarray, "T"]:
    """Return a figure (T',) for each token that takes part: `absent` where none is given, one number for all, or one for each of
    the answer's tokens (T,). Raises ValueError where lengths differ."""
    if given is None:
        return np.full(answer.counted, absent)
    if np.ndim(given) == 0:
        return np.full(answer.counted, float(given))
    values = np.asarray(given, dtype=np.float64)
    if values.shape != answer.tokens.shape:
        name = batch.terms[index].name
        raise ValueError(
            f"term {name!r}: {values.size} log-probabilities for {answer.tokens.size} tokens ({answer.prompt_id!r})"
        )
    return values if answer.mask is None else values[answer.mask]
