"""What it costs a policy to be taught its own answers as a peer's are taught.

A peer's answer arrives as text. It is encoded by the receiver's tokenizer, begins as the receiver's own answers begin, and ends
with the receiver's end. Where a model's files say something else of these than the model does, every peer's answer is unlikely
through no fault of the peer (8 to 16 nats were seen), and regimes that weigh answers by their likelihood use none. Before the
first step each policy therefore gives greedy answers, which are carried as a peer's would be and scored. A right policy pays
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from harness.engines.protocol import Sampling
from harness.exchange import opening
from harness.experience.answers import Answer, Group, Prompt
from harness.experience.records import TextRollout
from harness.session.cell.learners import Learner
from harness.session.cell.questions import truncate_at_stop
from harness.store.manifest import CarriedPrice
from harness.tokenization.retokenise import Retokenised, retokenise_answers
from harness.verification.verdict import Verdict

__all__ = ["ANSWERS", "FREE", "measure_price", "said_of"]

# Greedy answers of each policy
ANSWERS = 8
# Nats up to which nobody is named
FREE = 0.05
# Nats up to which other ids are the same action: which of a policy's ends an answer has is none of its reasons to pay
_EQUAL = 1e-4
# Tokens at an answer's beginning that another opening may change
_OPENING_TOKENS = 2
_UNJUDGED = Verdict("wrong", "not judged")


def measure_price(
    learner: Learner, prompts: Sequence[Prompt], max_new_tokens: int, strings: Sequence[str] = ()
) -> CarriedPrice:
    """Measure the price of greedy answers to the first `ANSWERS` prompts. strings: that end answers besides the policy's own
    end."""
    groups = _answer_greedily(learner, prompts[:ANSWERS], max_new_tokens, strings)
    finished = [group for group in groups if group.answers[0].finished]
    told = [group for group in finished if group.answers[0].text]
    carried = _carry_own_answers(learner, groups, told)
    compared: list[_Compared] = []
    reasons: list[str] = []
    unusual = 0
    for group, result in zip(told, carried, strict=True):
        if not isinstance(result, Retokenised):
            reasons.append(f"its own answers are refused as a peer's: {result}")
            continue
        answer = group.answers[0]
        difference = _explain_difference(learner, answer, result)
        if difference is None:
            unusual += 1
        else:
            compared.append(_Compared(group.prompt, answer, result, difference))
    nats = _nats_paid(learner, compared)
    for one, paid in zip(compared, nats, strict=True):
        if one.difference and abs(paid) > _EQUAL:
            reasons.append(one.difference)
    most_frequent = ""
    if reasons:
        [(most_frequent, _)] = Counter(reasons).most_common(1)
    return CarriedPrice(
        answers=len(groups),
        finished=len(finished),
        compared=len(compared),
        noncanonical=unusual,
        nats=float(np.mean(nats)) if nats else 0.0,
        why=most_frequent,
    )


class _Compared(NamedTuple):
    """An own answer beside what became of it when it was carried. difference: why the ids are others; empty where they are
    not."""

    prompt: Prompt
    answer: Answer
    carried: Retokenised
    difference: str


def _answer_greedily(
    learner: Learner, prompts: Sequence[Prompt], max_new_tokens: int, strings: Sequence[str]
) -> list[Group]:
    """Sample one greedy answer to each prompt, as groups of one answer that nobody has judged."""
    asked = list(prompts)
    seeds = np.zeros((len(asked), 1), dtype=np.uint64)  # (P, 1): greedy answers draw nothing
    sampled = [row[0] for row in learner.engine.sample(asked, seeds, Sampling(0.0, max_new_tokens))]
    if strings:
        sampled = [truncate_at_stop(learner.codec, sample, strings)[0] for sample in sampled]
    groups = []
    for prompt, sample in zip(asked, sampled, strict=True):
        ending = learner.ending(sample.tokens)
        answer = Answer(sample.tokens, sample.logprobs, sample.text, sample.finished, _UNJUDGED, ending=ending)
        groups.append(Group(prompt, learner.name, learner.engine.version, 0, (answer,)))
    return groups


def _nats_paid(learner: Learner, compared: Sequence[_Compared]) -> list[float]:
    """Return by how many nats each answer is less likely as it was carried than as it was sampled."""
    prompts = [one.prompt for one in compared]
    own = learner.engine.score(prompts, [one.answer.tokens for one in compared])  # (T,) each
    theirs = learner.engine.score(prompts, [one.carried.tokens for one in compared])  # (T,) each
    own_sums = [logprobs.sum(dtype=np.float64) for logprobs in own]
    carried_sums = [logprobs.sum(dtype=np.float64) for logprobs in theirs]
    return [float(a - b) for a, b in zip(own_sums, carried_sums, strict=True)]


def said_of(policy: str, price: CarriedPrice) -> str:
    """Return a sentence on who pays, how much and why; empty where there is nothing to say."""
    if price.answers and not price.finished:
        return (
            f"{policy}: none of its {price.answers} greedy answers ended. Either training.max_new_tokens is too small for them, or "
            "the model ends answers with a token that none of its files names (eos_token_id in generation_config.json)"
        )
    if price.nats <= FREE and not price.why.startswith("its own answers are refused"):
        return ""
    reason = f": {price.why}" if price.why else ""
    return (
        f"{policy}: pays {price.nats:.2f} nats for its own greedy answers when they are carried as a peer's{reason}; "
        "peers' answers cost it as much too much"
    )


def _carry_own_answers(
    learner: Learner, groups: Sequence[Group], told: Sequence[Group]
) -> list[Retokenised | Exception]:
    """Carry own answers as `Receiver.carry` carries a peer's, without a budget."""
    records = []
    for group in told:
        text = group.answers[0].text
        records.append(TextRollout.about(group, index=0, text=text, finished=True, reward=0.0))
    space_of = opening.by_author(groups, records)
    opened = [opening.open_with(record, space_of[record.author]) for record in records]
    joined = opening.begins_without_blank(groups, learner.codec, lambda: learner.engine.reads(groups[0].prompt))
    closing = opening.usual_closing(groups)
    return list(retokenise_answers(opened, learner.codec, joined=joined, closing=closing))


def _explain_difference(learner: Learner, answer: Answer, carried: Retokenised) -> str | None:
    """Say why its ids are others than the sampled ones; empty where they are the same, None where the policy's own ids are not
    those that its tokenizer makes of the text, which is no fault of the carrying."""
    own = answer.content  # (T,)
    theirs = carried.tokens[: carried.ends.size]  # (T',)
    end = answer.tokens[own.size :]  # (E,)
    closing = carried.tokens[carried.ends.size :]  # (E',)
    if not np.array_equal(own, theirs):
        same = _common_end(own, theirs)
        if max(own.size, theirs.size) - same > _OPENING_TOKENS:
            return None
        own_first = _show_tokens(learner, own[:1])
        their_first = _show_tokens(learner, theirs[:1])
        return f"it begins them with {own_first}, a carried one begins with {their_first}"
    if not np.array_equal(end, closing):
        own_end = _show_tokens(learner, end)
        their_end = _show_tokens(learner, closing)
        return f"it ends them with {own_end}, a carried one ends with {their_end}"
    return ""


def _common_end(a: Int32[np.ndarray, "A"], b: Int32[np.ndarray, "B"]) -> int:
    """Count the equal tokens at the end of both."""
    size = min(a.size, b.size)
    if not size:
        return 0
    end_of_a = a[::-1][:size]  # (S,) from the last token on
    end_of_b = b[::-1][:size]  # (S,)
    unequal = np.flatnonzero(end_of_a != end_of_b)
    return int(unequal[0]) if unequal.size else size


def _show_tokens(learner: Learner, ids: Int32[np.ndarray, "T"]) -> str:
    """Return the tokens as the tokenizer writes them, one behind another."""
    tokens = learner.engine.tokenizer.convert_ids_to_tokens(ids.tolist())
    return "".join(map(str, tokens)) or "nothing"
