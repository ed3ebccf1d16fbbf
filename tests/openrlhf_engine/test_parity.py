"""The same start weights and the same terms through the embedded engine and through OpenRLHF's actors, in fp32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.openrlhf.batches import Row, learning_splits, plan
from harness.engines.openrlhf.settings import Settings
from harness.engines.openrlhf.strategy import Strategy
from harness.engines.openrlhf.trainer import PolicyWorker, WorkerGroup, worker_type
from harness.engines.protocol import Optimisation, Sampling
from harness.engines.tally import Tally
from harness.engines.vocabulary import open_vocabulary
from harness.learning import registry
from harness.learning.experience import Answer, Group, Inbox, PeerAnswer, PeerValue
from harness.learning.minibatches import minibatches
from harness.learning.packing import pack
from harness.learning.regime import Context
from harness.learning.terms import Objective, Term, TermAnswer
from harness.verification.verdict import Verdict

LONGEST = 24
LOSS, NORM, WEIGHT = 1e-5, 1e-4, 1e-5
"""Relative, relative, absolute per step."""
SCALE = 0.1
"""A loss is a sum of advantages of order 1 that nearly cancel; below this its relative error says nothing."""
REGIMES = ("independent", "naive", "prp", "xgrpo", "sgt", "hacpo", "graft", "sapo")
OBJECTIVES = {
    f"{ratio}-{form}-{aggregation}": Objective(ratio, form, low=0.8, high=1.2, exponent=exponent, aggregation=aggregation)
    for ratio, form, aggregation, exponent in [
        ("token", "ppo", "token", 0.0), ("token", "ppo", "constant", 0.0), ("token", "hard", "answer", 1.0),
        ("sequence", "ppo", "answer", 0.0), ("cross", "hard", "answer", 1.0), ("token", "nll", "prompt", 0.0),
        ("token", "kl", "token", 0.0),
    ]
}  # fmt: skip


class World:
    """One policy's prompts, its own sampled answers with given verdicts, and as many that pass for a peer's."""

    def __init__(self, engine, prompts):
        self.prompts, self.rng = prompts, np.random.default_rng(11)
        seeds = np.arange(len(prompts) * 8, dtype=np.uint64).reshape(len(prompts), 8)
        samples = engine.sample(prompts, seeds, Sampling(1.0, LONGEST))
        self.own = [
            Group(p, "a", 0, 1, tuple(
                Answer(s.tokens, self.near(s), s.text, s.finished, verdict(i, (0, 2, 4)[p_index % 3]))
                for i, s in enumerate(group[:4])
            ))
            for p_index, (p, group) in enumerate(zip(prompts, samples, strict=True))
        ]  # fmt: skip
        peers = {
            p.id: tuple(self.peer(p, index, s, (3, 0, 2)[i % 3]) for index, s in enumerate(group[4:]))
            for i, (p, group) in enumerate(zip(prompts, samples, strict=True))
        }
        right = {key: sum(a.reward for a in answers) for key, answers in peers.items()}
        self.inbox = Inbox(
            peers,
            {key: tuple(a for a in answers if a.reward) for key, answers in peers.items()},
            {key: (PeerValue("b", key, len(answers), int(right[key])),) for key, answers in peers.items()},
        )

    def near(self, sample):
        return (sample.logprobs + self.rng.normal(-0.05, 0.1, len(sample.tokens))).astype(np.float32)

    def peer(self, prompt, index, sample, right):
        near = self.near(sample)
        return PeerAnswer(
            "b", 0, 1, prompt.id, index, sample.tokens, sample.text, sample.finished, verdict(index, right), aligned=near,
            source_logprob=float(near.sum()), source_tokens=len(near), receiver_old=sample.logprobs,
        )  # fmt: skip

    def terms(self, case):
        """A regime's terms, or own and peer terms of one objective, the peers' with masks."""
        if case in REGIMES:
            context = Context("a", ("a", "b"), 1, np.random.default_rng(0), LONGEST, 1)
            return registry.build(case, {}).learn(self.own, self.inbox, context)
        objective, rng = OBJECTIVES[case], np.random.default_rng(3)
        own = tuple(
            TermAnswer(g.prompt.id, a.tokens, float(rng.normal()), denominator(objective, a.logprobs))
            for g in self.own
            for a in g.answers
        )
        peer = tuple(
            TermAnswer(
                a.prompt_id, a.tokens, float(rng.normal()), denominator(objective, a.aligned), weight=0.5,
                mask=np.arange(len(a.tokens)) % 3 != 1,
            )
            for answers in self.inbox.answers.values() for a in answers
        )  # fmt: skip
        return [Term("own", "own", objective, own), Term("peer", "peer", objective, peer, weight=0.7, order=1)]


def verdict(index, right):
    """The first `right` answers of a group are right."""
    return Verdict("right" if index < right else "wrong")


def denominator(objective, logprobs):
    if objective.form == "nll":
        return None
    return float(logprobs.mean()) if objective.ratio == "cross" else logprobs


class InProcess:
    """One trainer rank without Ray."""

    ranks = 1

    def __init__(self):
        self.worker = PolicyWorker(1, 0, "127.0.0.1", None)

    def call(self, method, *arguments):
        return [getattr(self.worker, method)(*(a[0] if isinstance(a, PerRank) else a for a in arguments))]


class OnRay:
    """Several ranks as Ray actors."""

    def __init__(self, ranks):
        from harness.engines.openrlhf.cluster import Reservation
        from harness.engines.openrlhf.cpu import environment

        self.ranks = ranks
        self.reservation = Reservation({"a": Settings(trainers=ranks)}, 60.0)
        slot = self.reservation.slots["a"]
        worker = worker_type(PolicyWorker, environment(120.0))
        self.handles = WorkerGroup(worker, slot.group, slot.trainers, 0.4, 120.0).handles

    def call(self, method, *arguments):
        import ray

        refs = [
            getattr(handle, method).remote(*(a[rank] if isinstance(a, PerRank) else a for a in arguments))
            for rank, handle in enumerate(self.handles)
        ]
        return ray.get(refs, timeout=240)


class PerRank(list):
    """One argument for each rank."""


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
def trainers(request, ray_cluster):
    if request.param == 1:
        yield InProcess()
        return
    import ray

    group = OnRay(request.param)
    yield group
    for handle in group.handles:
        ray.kill(handle)
    group.reservation.release()


@pytest.fixture(scope="module")
def world(folders, prompts):
    return World(EmbeddedEngine("a", folders["qwen"], device="cpu"), prompts[:6])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_updates_equal_the_embedded_engine(stage, trainers, world, folders, tmp_path, report_line):
    """Every objective's form and every regime, one and three mini-batches a step, two steps one after another."""
    folder = folders["qwen"]
    strategy = Strategy(Settings(dtype="fp32", zero_stage=stage, trainers=trainers.ranks), temperature=1.0)
    worst = {"loss": 0.0, "norm": 0.0, "weight": 0.0}
    for case in (*OBJECTIVES, *REGIMES):
        for updates in (1, 3):
            optimisation = Optimisation(learning_rate=1e-4, updates=updates, max_tokens=LONGEST, measure=updates == 1)
            embedded = EmbeddedEngine("a", folder, device="cpu")
            trainers.call("init_model_from_pretrained", strategy, str(folder), 1 << 30)
            trainers.call("join", [], open_vocabulary(folder, chat=False).forbidden)
            for step in range(2):
                terms = world.terms(case)
                mine = embedded.update(world.prompts, terms, optimisation)
                loss, norm, apart, tallied = learn(trainers, terms, world.prompts, folder, optimisation)
                assert tallied == [(t.active, t.active_tokens) for t in mine.terms]
                worst["loss"] = max(worst["loss"], abs(loss - mine.loss) / max(abs(mine.loss), SCALE))
                worst["norm"] = max(worst["norm"], abs(norm - mine.gradient_norm) / mine.gradient_norm)
                if updates == 1:
                    measured = (mine.own_gradient_norm, mine.peer_gradient_norm, mine.own_peer_cosine)
                    np.testing.assert_allclose(apart, measured, rtol=1e-3, atol=1e-4, err_msg=case)
                difference = weight_difference(trainers, embedded, tmp_path / f"{case}-{updates}-{step}")
                worst["weight"] = max(worst["weight"], difference / (step + 1))
                assert worst["loss"] < LOSS, f"{case}: {loss} {mine.loss}"
                assert worst["norm"] < NORM, case
                assert worst["weight"] < WEIGHT, case
    report_line(f"parity, ZeRO {stage}, {trainers.ranks} ranks: worst {worst}")


def learn(trainers, terms, prompts, folder, optimisation):
    vocabulary = open_vocabulary(folder, chat=False)
    ids = {p.id: vocabulary.encode(p) for p in prompts}
    batches = minibatches(terms, optimisation.updates, optimisation.max_tokens)
    splits = [
        learning_splits(b, [Row(ids[a.prompt_id], a.tokens, a.mask) for _, a in b.live()], trainers.ranks, 256)
        for b in batches
    ]
    plans = PerRank([[plan(split, rank) for split in splits] for rank in range(trainers.ranks)])
    learnt = trainers.call("learn", plans, optimisation)
    tally = Tally(terms, optimisation.updates)
    for index, (batch, split) in enumerate(zip(batches, splits, strict=True)):
        live = list(batch.live())
        for rank in range(trainers.ranks):
            groups = [group for part in split for group in part.places[rank]]
            for group, statistics in zip(groups, learnt[rank][index].statistics, strict=True):
                tally.add(pack(batch, [live[i] for i in group]), statistics)
    first = learnt[0][0].apart
    return (
        tally.loss,
        float(np.mean([one.gradient_norm for one in learnt[0]])),
        (first.own, first.peer, first.cosine),
        [(t.active, t.active_tokens) for t in tally.reports()],
    )


def weight_difference(trainers, embedded, folder):
    folder.mkdir()
    trainers.call("save", str(folder), "moments.safetensors")
    ours = load_file(folder / "model.safetensors")
    embedded.model.save_pretrained(folder / "embedded")
    theirs = load_file(folder / "embedded" / "model.safetensors")
    assert theirs.keys() <= ours.keys()
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)


def test_parity_would_notice_another_objective(world, folders):
    """The figures above are far below what a wrong bound changes."""
    engine = EmbeddedEngine("a", folders["qwen"], device="cpu")
    term = world.terms("token-ppo-token")[0]
    wrong = replace(term, objective=replace(term.objective, high=1.1))
    losses = [engine.update(world.prompts, [t], Optimisation(learning_rate=0.0)).loss for t in (term, wrong)]
    assert abs(losses[0] - losses[1]) > 100 * LOSS * abs(losses[0])
