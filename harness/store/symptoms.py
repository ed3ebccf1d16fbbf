"""How a policy in training does, and what is wrong with it; for running and stored cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from harness.store.rows import StepRow, TermRow

# Of the steps so far
LAST_SHARE = 0.25
# Of cut-off answers
TRUNCATED_SHARE = 0.5
# Of answers that are empty, or without a box
SILENT_SHARE = 0.5
# Of own answers without a gradient
IDLE_SHARE = 0.9
# Nats per token: 99 of 100 are as good as certain
ENTROPY_GONE = 0.01
INVALID_SHARE = 0.01


class Trouble(StrEnum):
    MISSING = "missing"
    DAMAGED = "damaged"
    ALL_FAIL = "all fail"
    ALL_PASS = "all pass"
    ZERO_VARIANCE = "zero variance"
    ENTROPY = "entropy gone"
    TRUNCATION = "truncation"
    ENDLESS = "no end"
    EMPTY = "empty answers"
    UNBOXED = "no box"
    INVALID = "invalid verdicts"
    UNSENT = "nothing sent"
    REFUSED = "all refused"
    UNUSED = "peer data never used"


ADVICE = {
    Trouble.ALL_FAIL: "easier prompts, a stronger base, or more rollouts: without a success nothing is learnt "
    "(`harness eval FOLDER` says what a base can do)",
    Trouble.ALL_PASS: "harder prompts: where every answer is right nothing is learnt",
    Trouble.ZERO_VARIANCE: "more rollouts a prompt, or prompts that are neither solved nor hopeless",
    Trouble.ENTROPY: "a smaller training.learning_rate, or training.kl above 0: the policy says one thing only",
    Trouble.TRUNCATION: "a larger training.max_new_tokens: a truncated answer is wrong",
    Trouble.ENDLESS: "a larger training.max_new_tokens; a base model that was never taught to end an answer needs a supervised "
    "start, a chat model `chat: true`",
    Trouble.EMPTY: "`chat: true` where the model has a template, else `style: few-shot` where the task offers it: it ends at once",
    Trouble.UNBOXED: "`style: zero-shot` asks for \\boxed{}, `few-shot` shows it, where the task offers them: an answer without "
    "one is read by its last number, or not at all",
    Trouble.INVALID: "the verifier's fault, not the policy's: look at `samples.reason`",
    Trouble.UNSENT: "a baseline with another name: look at `sharing.direction` and at what the regime shares",
    Trouble.REFUSED: "look at sharing.max_staleness and the residual limits, and at the tokenizers",
    Trouble.UNUSED: "the regime's gate, or zero advantages: a baseline at a higher price, unless its votes or rewards count",
}


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """A policy over some of its steps. own, active: own answers in the loss, and those with a gradient. entropy: mean,
    nats per token; entropy_first: at its first step."""

    policy: str
    first: int
    last: int
    answers: int
    right: int
    wrong: int
    invalid: int
    truncated: int
    empty: int = 0
    unboxed: int = 0
    own: int = 0
    active: int = 0
    entropy: float | None = None
    entropy_first: float | None = None


def sum_last_steps(steps: Sequence[StepRow], terms: Iterable[TermRow], least: int = 0) -> Sums:
    """Sum up the last quarter of one policy's steps so far, or more until there are `least` answers.

    steps: in order, at least one. terms: of the same policy; the penalty to the base policy is left out."""
    rows = _select_last(steps, least)
    first = rows[0]
    of_steps = [term for term in terms if term.step >= first.step]
    own = [term for term in of_steps if term.source == "own" and term.name != "kl"]
    entropies = [row.entropy for row in rows if not math.isnan(row.entropy)]

    mean_entropy = sum(entropies) / len(entropies) if entropies else None
    counts = {column: sum(getattr(row, column) for row in rows) for column in _COUNTED}
    return Sums(
        policy=first.policy,
        first=first.step,
        last=rows[-1].step,
        **counts,
        own=sum(term.answers for term in own),
        active=sum(term.active for term in own),
        entropy=mean_entropy,
        entropy_first=steps[0].entropy,
    )


# Columns of a step that are summed up
_COUNTED = ("answers", "right", "wrong", "invalid", "truncated", "empty", "unboxed")


def _select_last(steps: Sequence[StepRow], least: int) -> Sequence[StepRow]:
    """Return the last quarter of the steps, or more until there are `least` answers."""
    size = max(1, math.ceil(LAST_SHARE * len(steps)))
    while size < len(steps):
        answers = sum(row.answers for row in steps[-size:])
        if answers >= least:
            break
        size += 1
    return steps[-size:]


def is_empty(text: str) -> bool:
    """Say whether an answer has no words."""
    return not text.strip()


def is_unboxed(text: str) -> bool:
    """Say whether an answer has words, and no box to find its result in."""
    return not is_empty(text) and "\\boxed" not in text


def describe_figures(sums: Sums, ends: bool = True) -> str:
    """Write what a policy's answers are like, e.g. ``12% right, 5% cut off, ...``. ends: whether known which were cut off."""
    valid = sums.right + sums.wrong
    parts = [f"{_format_share(sums.right, valid)} right"]
    if sums.own:
        parts.append(f"{_format_share(sums.active, sums.own)} of own answers gave a gradient")
    shares = {"cut off": sums.truncated} if ends else {}
    shares |= {"empty": sums.empty, "without a box": sums.unboxed}
    for what, count in shares.items():
        parts.append(f"{_format_share(count, sums.answers)} {what}")
    return ", ".join(parts)


def find_troubles(sums: Sums) -> Iterator[tuple[Trouble, str]]:
    """Yield what keeps a policy from learning, each with its numbers in words."""
    yield from _find_bad_forms(sums)
    yield from _find_no_gradient(sums)
    span = f"in steps {sums.first} to {sums.last}"
    if sums.entropy is not None and sums.entropy < ENTROPY_GONE:
        first = f", {sums.entropy_first:.2g} at first" if sums.entropy_first is not None else ""
        yield Trouble.ENTROPY, f"{sums.entropy:.2g} nats per token {span}{first}"
    if sums.invalid > INVALID_SHARE * sums.answers:
        yield Trouble.INVALID, f"{sums.invalid} of {sums.answers} verdicts {span}"


def _find_bad_forms(sums: Sums) -> Iterator[tuple[Trouble, str]]:
    """Yield whether answers do not end, say nothing, or have no box."""
    span = f"in steps {sums.first} to {sums.last}"
    answers = sums.answers
    if answers and sums.truncated == answers:
        yield Trouble.ENDLESS, f"all {answers} answers {span} were cut off, none ended by itself"
    elif sums.truncated >= TRUNCATED_SHARE * answers > 0:
        yield Trouble.TRUNCATION, f"{sums.truncated / answers:.0%} of {answers} answers {span} were cut off"
    if sums.empty >= SILENT_SHARE * answers > 0:
        yield Trouble.EMPTY, f"{sums.empty / answers:.0%} of {answers} answers {span} are empty"
    elif sums.unboxed >= SILENT_SHARE * answers > 0:
        yield Trouble.UNBOXED, f"{sums.unboxed / answers:.0%} of {answers} answers {span} box nothing"


def _find_no_gradient(sums: Sums) -> Iterator[tuple[Trouble, str]]:
    """Yield whether rewards are all alike, so that nothing can be learnt from them."""
    span = f"in steps {sums.first} to {sums.last}"
    valid = sums.right + sums.wrong
    if valid and sums.right == 0:
        yield Trouble.ALL_FAIL, f"none of {valid} answers {span} is right"
    elif valid and sums.wrong == 0:
        yield Trouble.ALL_PASS, f"all {valid} answers {span} are right"
    elif sums.own and sums.active <= (1 - IDLE_SHARE) * sums.own:
        share = 1 - sums.active / sums.own
        told = f"{share:.0%} of {sums.own} own answers {span} gave no gradient: groups of equal reward"
        yield Trouble.ZERO_VARIANCE, told


def _format_share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
