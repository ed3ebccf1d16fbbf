"""Every installed regime keeps the contract, and regimes that break a clause of it are told which."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
import pytest

from harness.errors import PluginError
from harness.experience.answers import Answer
from harness.experience.records import AnswerRecord, Draft, GroupValue, Record, Rollout, Success, TextRollout
from harness.learning.advantages import GRPO, grpo_advantages, own_term, peer_answer
from harness.learning.conformance import check_regime, situations
from harness.learning.hints import Hint
from harness.learning.regime import Need, Regime
from harness.learning.registry import PLUGINS, build, installed, resolve_options
from harness.learning.terms import Objective, Term
from harness.plugins import _load_class

SHARES = {
    "independent": set(), "naive": {TextRollout}, "prp": {Rollout}, "xgrpo": {GroupValue}, "sgt": {Success},
    "hacpo": {Rollout}, "graft": {Rollout}, "sapo": {TextRollout}, "ftis": {Rollout},
    "luffy": {Success}, "chord": {Success}, "grafted": {Rollout}, "rlccf": {TextRollout}, "copd": {Draft}, "core": {TextRollout},
    "imitate-then-rl": {Success}, "score-then-rl": {Draft},
}  # fmt: skip
NEEDS = {
    "naive": {Need.RECEIVER_OLD}, "sapo": {Need.RECEIVER_OLD}, "graft": {Need.RECEIVER_OLD}, "prp": {Need.ALIGNED},
    "ftis": {Need.ALIGNED, Need.RECEIVER_OLD}, "copd": {Need.SCORES},
    "score-then-rl": {Need.SCORES},
}  # fmt: skip
# Other options are in test_losses, against the formulas.
OPTIONS = [(name, {}) for name in SHARES] + [
    ("prp", {"ratio": "receiver_old", "normalise": "none"}),
    ("graft", {"admission": "random", "selection": "random", "groups": "pooled", "order": "uniform"}),
    ("graft", {"admission": "none", "selection": "all", "ratio": "sequence", "answers": "right", "order": "first"}),
    ("ftis", {"filtered": "leave", "aggregation": "token", "clip": "inner", "filter_kl": 1.0}),
    ("grafted", {"update": "sgt"}),
    ("grafted", {"update": "hacpo"}),
    ("copd", {"ratio": 0.0, "beta": 0.5}),
    ("copd", {"ratio": 0.0, "offset": "removed"}),
    ("imitate-then-rl", {"share": 0.0}),
    ("rlccf", {"vote": "peer"}),
    ("score-then-rl", {"share": 1.0, "beta": 0.5}),
    ("core", {"probability": 1.0, "train_on": "plain"}),
]


@pytest.mark.slow_but("independent-", "hacpo-{}", "copd-{}", "core-{}")
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_shipped_regimes_keep_the_contract(name, options):
    check_regime(name, options)


def test_what_is_shared_and_needed():
    assert set(SHARES) == {n for n, e in installed().items() if e.value.startswith("regimes.")}
    for name, shares in SHARES.items():
        assert (build(name, {}).shares, build(name, {}).needs) == (shares, NEEDS.get(name, set()))
    assert build("prp", {"ratio": "receiver_old"}).needs == {Need.RECEIVER_OLD}
    assert build("prp", {"ratio": "none"}).needs == set()
    assert build("copd", {"offset": "removed"}).needs == {Need.SCORES, Need.START_SCORES}


def test_options_younger_than_stored_cells_are_left_out_at_their_defaults():
    """So that these keep their keys."""
    assert resolve_options(build("copd", {}).options) == {"ratio": 1.5, "beta": 1.0}
    assert resolve_options(build("rlccf", {}).options) == {}
    assert resolve_options(build("copd", {"alpha": 0.1}).options) == {"ratio": 1.5, "beta": 1.0, "alpha": 0.1}


@pytest.mark.parametrize("name", SHARES)
def test_plans_count_peers_answers_where_these_are_learnt(name):
    regime = build(name, {})
    sources = {t.source for s in situations(regime) for t in s.learn(build(name, {})) if t.answers}
    counted = regime.peer_share * any(issubclass(kind, AnswerRecord) for kind in regime.shares)
    assert ("peer" in sources) == (counted > 0)


def test_published_defaults():
    assert build("xgrpo", {}).options == build("xgrpo", {"baseline": "pooled", "beta": 0.5, "normalise": "std"}).options
    assert build("luffy", {}).options == build("luffy", {"gamma": 0.1, "gradient": "objective"}).options
    assert build("chord", {}).options == build("chord", {"mu_first": 0.9, "mu_last": 0.05, "phi": True}).options
    defaults = {"truncation": 2.0, "filter_kl": 50.0, "groups": "vertical", "beyond": "weight", "divergence": "learner"}
    defaults |= {"filtered": "stay", "aggregation": "answer", "clip": "none"}
    assert build("ftis", {}).options == build("ftis", defaults).options
    assert build("graft", {}).options.threshold == 0.8
    hacpo = {"delta": 0.2, "delta_step": 0.025, "alpha": 1.0, "window": 5, "clip_low": 3e-4, "clip_high": 4e-4}
    assert build("hacpo", {}).options == build("hacpo", hacpo).options


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("hacpo", {"delta": 1.5}, "delta"), ("hacpo", {"window": 0}, "window"), ("hacpo", {"alpha": -1.0}, "alpha"),
        ("hacpo", {"omega_min": 0.0}, "omega_min"), ("hacpo", {"omega_min": 11.0}, "omega_min"),
        ("hacpo", {"length_normalisation": "chars"}, "length_normalisation"), ("graft", {"threshold": 1.0}, "threshold"),
        ("ftis", {"truncation": 0.0}, "^truncation: "), ("ftis", {"filter_kl": -1.0}, "^filter_kl: "),
        ("sgt", {"lambda": -0.1}, "lambda"), ("prp", {"clip_low": 1.1}, "clip_low"), ("sapo", {"external": -1}, "external"),
        ("xgrpo", {"beta": 1.1}, "beta"), ("copd", {"ratio": -1.0}, "ratio"), ("copd", {"beta": 0.0}, "beta"),
        ("imitate-then-rl", {"share": 1.1}, "share"), ("score-then-rl", {"beta": 0.0}, "beta"),
        ("core", {"probability": 0.72}, "probability"), ("core", {"template": "{hint"}, "template"),
        ("core", {"template": "{answer}"}, "template"), ("core", {"tokens": 0}, "tokens"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(name, options, word):
    with pytest.raises(PluginError, match=word):
        build(name, options)


class Good(Regime):
    """Own answers by GRPO, and peers' answers as plain imitation."""

    shares = frozenset({Rollout})

    def learn(self, own, inbox, context):
        peers = [peer_answer(p, 1.0, None) for g in own for p in inbox.valid(g.prompt.id)]
        return [own_term(own, grpo_advantages, GRPO), Term("peer", "peer", GRPO, tuple(peers))]


def test_a_good_one_passes():
    check_regime(Good)


class Counting(Good):
    """Forgets its state."""

    steps = 0

    def learn(self, own, inbox, context):
        self.steps += 1
        return [replace(t, weight=1.0 / self.steps) for t in super().learn(own, inbox, context)]


@dataclass(frozen=True)
class RoundedOptions:
    rate: float = 0.123

    def __post_init__(self):
        object.__setattr__(self, "rate", self.rate / 2)


def learning(change):
    return lambda self, own, inbox, context: [change(own_term(own, grpo_advantages, GRPO))]


def each(change):
    return {"learn": learning(lambda term: replace(term, answers=tuple(replace(a, **change(a)) for a in term.answers)))}


def with_advantages(of):
    return {"learn": lambda self, own, inbox, context: [own_term(own, of, GRPO)]}


def not_a_number(group):
    with np.errstate(all="ignore"):
        return group.rewards.astype(float) / group.rewards.sum()


def publish_as_another(self, groups, pieces):
    return [msgspec.structs.replace(r, author="someone else") for r in Regime.publish(self, groups, pieces)]


def publish_invalid(self, groups, pieces):
    records = Regime.publish(self, groups, pieces)
    undecided = [(g.prompt.id, i) for g in groups for i, a in enumerate(g.answers) if records and not a.verdict.valid]
    return records + [msgspec.structs.replace(records[0], prompt_id=prompt, index=i) for prompt, i in undecided]


def write_into_inputs(self, own, inbox, context):
    for group in own:
        for answer in group.answers:
            answer.logprobs[:] = np.minimum(answer.logprobs, 0)
    return Good.learn(self, own, inbox, context)


def empty_the_inbox(self, own, inbox, context):
    inbox.answers.clear()
    return Good.learn(self, own, inbox, context)


def hint(self, own, inbox, context):
    return [Hint(g.prompt.id, p) for g in own for p in inbox.valid(g.prompt.id)[:1]]


def learn_on_the_question(self, own, inbox, context):
    (term,), of = [own_term(own, grpo_advantages, GRPO)], {g.prompt.id: g.prompt.of for g in own if g.prompt.of}
    return [replace(term, answers=tuple(replace(a, prompt_id=of.get(a.prompt_id, a.prompt_id)) for a in term.answers))]


def hint_twice(self, own, inbox, context):
    return [Hint(g.prompt.id, p) for g in own for p in inbox.valid(g.prompt.id)]


def hint_elsewhere(self, own, inbox, context):
    return [Hint(f"{g.prompt.id}0", p) for g in own for p in inbox.valid(g.prompt.id)[:1]]


def learn_invalid(self, own, inbox, context):
    decided = [
        replace(g, answers=tuple(replace(a, verdict=g.valid[0].verdict) for a in g.answers)) for g in own if g.valid
    ]
    return [own_term(decided, grpo_advantages, GRPO)]


class Named(Record, frozen=True, kw_only=True, tag="named"):
    index: Annotated[str, msgspec.Meta(max_length=9)]


class Numbered(Record, frozen=True, kw_only=True, tag=5):
    pass


def publish_numpy(self, groups, pieces):
    return [msgspec.structs.replace(r, reward=np.float32(r.reward)) for r in Regime.publish(self, groups, pieces)]


BAD = [
    ({"shares": frozenset({Success}), "needs": frozenset({Need.ALIGNED})}, "does not share Rollout"),
    ({"__init__": lambda self, options=None: None}, "must keep its Options"),
    ({"shares": frozenset({Named})}, "Named.index"),
    ({"shares": frozenset({Numbered})}, "cannot travel: .* `str` tags$"),
    ({"needs": frozenset({Need.SCORES})}, "belong together"),
    ({"shares": frozenset({Draft}), "learn": Regime.learn}, "belong together"),
    ({"needs": frozenset({Need.START_SCORES})}, "without Need.SCORES"),
    ({"hints": lambda self, own, inbox, context: []}, "how long they may be"),
    ({"hints": hint_twice, "hint_tokens": 9}, "two hints"),
    ({"hints": hint_elsewhere, "hint_tokens": 9}, "no answer that was received"),
    ({"hints": hint, "hint_tokens": 9, "learn": learn_on_the_question}, "OLD is of the hinted prompt"),
    ({"__doc__": None}, "no docstring"),
    ({"shares": {Rollout}}, "frozenset"),
    ({"publish": publish_as_another}, "publishes as 'someone else'"),
    ({"publish": publish_invalid}, "publishes an answer that is invalid"),
    ({"publish": publish_numpy}, "publishes a Rollout that receivers refuse"),
    ({"publish": lambda *arguments: 2 * Regime.publish(*arguments)}, "publishes two Rollout"),
    ({"learn": learn_invalid}, "invalid verdict"),
    (with_advantages(not_a_number), "advantage is nan"),
    (each(lambda a: {"sampled": a.sampled[:-1]}), "log-probabilities for"),
    (each(lambda a: {"denominator": a.sampled}), "denominator is OLD"),
    (each(lambda a: {"sampled": None}), "no `sampled`"),
    ({"old_logprobs": "nobody"}, "one of sampler, trainer"),
    (each(lambda a: {"weight": -1.0}), "negative weight"),
    (with_advantages(lambda g: grpo_advantages(g) * random.random()), "context.rng"),
    ({"learn": write_into_inputs}, "writes into the arrays"),
    ({"learn": empty_the_inbox}, "changed what it was given"),
    ({"steps": 0}, "after `restore` the terms differ"),
    ({"state": lambda self: {"answer": Answer}}, "not JSON"),
    ({"Options": RoundedOptions}, "do not survive"),
    ({"learn": lambda self, own, inbox, context: tuple(Good.learn(self, own, inbox, context))}, "list of Term"),
    (each(lambda a: {"tokens": a.tokens + 1}), "that are no policy's answer"),
]


@pytest.mark.parametrize(("attributes", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_ones_are_told_what_is_wrong(attributes, says):
    with pytest.raises(AssertionError, match=says):
        check_regime(type("Bad", (Counting if "steps" in attributes else Good,), {"__doc__": "Bad."} | attributes))


@pytest.mark.parametrize("word", [{"ratio": "Token"}, {"form": "PPO"}, {"aggregation": "mean"}, {"token_weight": "p"}])
def test_an_objective_of_unknown_words_is_refused(word):
    with pytest.raises(ValueError, match="is none of"):
        Objective(**word)


@pytest.mark.parametrize("number", [{"low": 1.2, "high": 0.8}, {"low": float("nan")}, {"gamma": float("nan")}])
def test_an_objective_of_impossible_numbers_is_refused(number):
    with pytest.raises(ValueError, match="a number is NaN, or low is above high"):
        Objective(**number)


def test_a_crash_is_the_regimes_own_error():
    def learn(self, own, inbox, context):
        best = max(len(answers) for answers in inbox.answers.values())
        return [own_term(own, lambda g: grpo_advantages(g) * best, GRPO)]

    with pytest.raises(ValueError, match="empty"):
        check_regime(type("Crashes", (Good,), {"__doc__": "Bad.", "learn": learn}))


@pytest.mark.slow
def test_torch_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "heavy_regime.py").write_text(
        "import torch\nfrom regimes.independent import Independent\n\n\nclass Heavy(Independent):\n    'Heavy.'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import heavy_regime

    with pytest.raises(AssertionError, match="imports torch"):
        check_regime(heavy_regime.Heavy)


@dataclass(frozen=True)
class TaggedOptions:
    tags: frozenset[str] = frozenset("abcdefgh")
    levels: tuple[tuple[int, ...], ...] = ((1, 2),)


def test_an_option_that_is_a_set_has_one_order_in_keys_and_is_read_again_as_written():
    written = resolve_options(TaggedOptions())
    assert (
        written == {"tags": list("abcdefgh"), "levels": [[1, 2]]} == msgspec.json.decode(msgspec.json.encode(written))
    )


def test_a_name_that_two_packages_claim_is_refused(tmp_path, monkeypatch):
    (about := tmp_path / "rival-1.0.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[harness.regimes]\nsgt = rival:SGT\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("harness.plugins._load_class", _load_class.__wrapped__)
    with pytest.raises(PluginError, match=r"\(regimes.sgt:SGT\), rival \(rival:SGT\)"):
        PLUGINS.load("sgt")
