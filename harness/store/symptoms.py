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
    size = max(1, math.ceil(LAST_SHARE * len(steps)))
    while size < len(steps) and sum(r.answers for r in steps[-size:]) < least:
        size += 1
    rows = steps[-size:]
    first = rows[0]
    own = [term for term in terms if term.step >= first.step and term.source == "own" and term.name != "kl"]
    entropies = [row.entropy for row in rows if not math.isnan(row.entropy)]

    def total(column: str) -> int:
        return sum(getattr(row, column) for row in rows)

    return Sums(
        policy=first.policy,
        first=first.step,
        last=rows[-1].step,
        answers=total("answers"),
        right=total("right"),
        wrong=total("wrong"),
        invalid=total("invalid"),
        truncated=total("truncated"),
        empty=total("empty"),
        unboxed=total("unboxed"),
        own=sum(term.answers for term in own),
        active=sum(term.active for term in own),
        entropy=sum(entropies) / len(entropies) if entropies else None,
        entropy_first=steps[0].entropy,
    )


def is_empty(text: str) -> bool:
    return not text.strip()


def is_unboxed(text: str) -> bool:
    return not is_empty(text) and "\\boxed" not in text


def describe_figures(sums: Sums, ends: bool = True) -> str:
    """E.g. ``12% right, 5% cut off, ...``. ends: whether known which were cut off."""
    parts = [f"{_format_share(sums.right, sums.right + sums.wrong)} right"]
    parts += [f"{_format_share(sums.active, sums.own)} of own answers gave a gradient"] if sums.own else []
    shares = {"cut off": sums.truncated} if ends else {}
    shares |= {"empty": sums.empty, "without a box": sums.unboxed}
    parts += [f"{_format_share(count, sums.answers)} {what}" for what, count in shares.items()]
    return ", ".join(parts)


def find_troubles(sums: Sums) -> Iterator[tuple[Trouble, str]]:
    span = f"in steps {sums.first} to {sums.last}"
    valid = sums.right + sums.wrong
    answers = sums.answers
    if answers and sums.truncated == answers:
        yield Trouble.ENDLESS, f"all {answers} answers {span} were cut off, none ended by itself"
    elif sums.truncated >= TRUNCATED_SHARE * answers > 0:
        yield Trouble.TRUNCATION, f"{sums.truncated / answers:.0%} of {answers} answers {span} were cut off"
    if sums.empty >= SILENT_SHARE * answers > 0:
        yield Trouble.EMPTY, f"{sums.empty / answers:.0%} of {answers} answers {span} are empty"
    elif sums.unboxed >= SILENT_SHARE * answers > 0:
        yield Trouble.UNBOXED, f"{sums.unboxed / answers:.0%} of {answers} answers {span} box nothing"
    if valid and sums.right == 0:
        yield Trouble.ALL_FAIL, f"none of {valid} answers {span} is right"
    elif valid and sums.wrong == 0:
        yield Trouble.ALL_PASS, f"all {valid} answers {span} are right"
    elif sums.own and sums.active <= (1 - IDLE_SHARE) * sums.own:
        share = 1 - sums.active / sums.own
        yield (
            Trouble.ZERO_VARIANCE,
            f"{share:.0%} of {sums.own} own answers {span} gave no gradient: groups of equal reward",
        )
    if sums.entropy is not None and sums.entropy < ENTROPY_GONE:
        first = f", {sums.entropy_first:.2g} at first" if sums.entropy_first is not None else ""
        yield Trouble.ENTROPY, f"{sums.entropy:.2g} nats per token {span}{first}"
    if sums.invalid > INVALID_SHARE * answers:
        yield Trouble.INVALID, f"{sums.invalid} of {answers} verdicts {span}"


def _format_share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
