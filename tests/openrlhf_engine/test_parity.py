"""The same start weights and the same terms through the embedded engine and through OpenRLHF's actors, in fp32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch

from harness.engines import checkpoint, head
from harness.engines.backend import read_options
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.lora import ADAPTERS
from harness.engines.openrlhf import state
from harness.engines.openrlhf.offload import MemoryState, all_tensors, storages_of
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.openrlhf.seams import checksum_of, environment_of_actors
from harness.engines.openrlhf.strategy import Strategy
from harness.engines.openrlhf.trainer import (
    AnswerRow,
    PolicyWorker,
    learning_splits,
    make_report,
    open_trainers,
    scoring_split,
)
from harness.engines.protocol import Optimisation, Sampling
from harness.engines.vocabulary import open_vocabulary
from harness.errors import CheckpointError, EngineError, SuiteError
from harness.experience.answers import Answer, Group, Inbox, PeerAnswer
from harness.experience.records import GroupValue
from harness.learning import registry
from harness.learning.minibatches import cut_into_minibatches, from_sampler
from harness.learning.regime import Context
from harness.learning.terms import Objective, Term, TermAnswer, with_step_weights
from harness.verification.verdict import Verdict

LONGEST = 24
LORA = {"rank": 4, "alpha": 8.0}
LOSS, NORM, WEIGHT = 1e-5, 1e-4, 1e-5
"""Relative, relative, absolute per step."""
STEP = 1e-4
"""The learning rate, and so about how far AdamW can move a weight in one update."""
ROUNDING = 2 * float(np.finfo(np.float32).eps)
"""Of its tensor's largest gradient: AdamW divides a gradient by its own size, so one of about rounding moves its weight by any
part of a step."""
SCALE = 0.1
"""A loss is a sum of advantages of order 1 that nearly cancel; below this its relative error says nothing."""
REGIMES = ("independent", "naive", "prp", "xgrpo", "sgt", "hacpo", "graft", "sapo", "ftis", "luffy", "chord")
OBJECTIVES = {
    f"{ratio}-{form}-{aggregation}": Objective(ratio, form, low=0.8, high=1.2, exponent=exponent, aggregation=aggregation)
    for ratio, form, aggregation, exponent in [
        ("token", "ppo", "token", 0.0), ("token", "ppo", "constant", 0.0), ("token", "hard", "answer", 1.0),
        ("sequence", "ppo", "answer", 0.0), ("cross", "hard", "answer", 1.0), ("token", "truncated", "token", 0.0),
        ("token", "nll", "prompt", 0.0),
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
            {
                key: (
                    GroupValue(author="b", version=0, step=1, prompt_id=key, count=len(answers), right=int(right[key])),
                )
                for key, answers in peers.items()
            },
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
            return with_step_weights(registry.build(case, {}).learn(self.own, self.inbox, context), 1, 2)
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

        self.ranks = ranks
        self.reservation = Reservation({"a": OpenRLHFSettings(trainers=ranks)})
        slot = self.reservation.slots["a"]
        self.handles = open_trainers(self.reservation.group, slot.trainers, 0.4, environment_of_actors(120.0), 120.0)

    def call(self, method, *arguments):
        import ray

        refs = [
            getattr(handle, method).remote(*(a[rank] if isinstance(a, PerRank) else a for a in arguments))
            for rank, handle in enumerate(self.handles)
        ]
        return ray.get(refs, timeout=600)


class PerRank(list):
    """One argument for each rank."""


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
def trainers(request):
    if request.param == 1:
        yield InProcess()
        return
    request.getfixturevalue("ray_cluster")
    import ray

    group = OnRay(request.param)
    yield group
    for handle in group.handles:
        ray.kill(handle)
    group.reservation.close()


@pytest.fixture(scope="module")
def world(folders, prompts):
    return World(EmbeddedEngine("a", folders["qwen"], device="cpu"), prompts[:6])


ANY_STAGE = ("token-ppo-token", "token-nll-prompt")
"""A loss is computed alike at every ZeRO stage, and each aggregation is divided among the ranks in its own way."""
CASES = {1: (*OBJECTIVES, *REGIMES), 2: (*ANY_STAGE, "token-ppo-constant", "sequence-ppo-answer", "graft")}


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_updates_equal_the_embedded_engine(stage, trainers, world, folders, tmp_path, report_line):
    folder = folders["qwen"]
    strategy = Strategy(OpenRLHFSettings(dtype="fp32", zero_stage=stage, trainers=trainers.ranks), temperature=1.0)
    worst = {"loss": 0.0, "norm": 0.0, "weight": 0.0}
    for case in CASES[trainers.ranks] if stage == 2 else ANY_STAGE:
        embedded = EmbeddedEngine("a", folder, device="cpu")
        shares = Shares(embedded._masters_of_model().optimiser)
        trainers.call("init_model_from_pretrained", strategy, str(folder), 1 << 30)
        trainers.call("join", [], open_vocabulary(folder, chat=False, policy="a").forbidden)
        terms = world.terms(case)
        for step, updates in enumerate((1, 3), start=1):
            # To what was "sampled", as that is far enough from the weights for ratios to be clipped.
            optimisation = Optimisation(
                learning_rate=STEP, updates=updates, max_tokens=LONGEST, measure=updates == 1, old_logprobs="sampler"
            )
            mine = embedded.update(world.prompts, terms, optimisation)
            loss, norm, apart, tallied = learn(trainers, terms, world.prompts, folder, optimisation)
            assert tallied == [(t.moved, t.clipped_tokens, t.ratios) for t in mine.terms]
            worst["loss"] = max(worst["loss"], abs(loss - mine.loss) / max(abs(mine.loss), SCALE))
            worst["norm"] = max(worst["norm"], abs(norm - mine.gradient_norm) / mine.gradient_norm)
            if updates == 1:
                measured = (mine.own_gradient_norm, mine.peer_gradient_norm, mine.own_peer_cosine)
                np.testing.assert_allclose(apart, measured, rtol=1e-3, atol=1e-4, err_msg=case)
            difference = weight_difference(trainers, embedded, shares, tmp_path / f"{case}-{step}")
            worst["weight"] = max(worst["weight"], difference / step)
            assert worst["loss"] < LOSS, f"{case}: {loss} {mine.loss}"
            assert worst["norm"] < NORM, case
            assert worst["weight"] < 1.0, case
    report_line(f"parity, ZeRO {stage}, {trainers.ranks} ranks: worst {worst}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("stage", "dtype"), [(0, "fp32"), (2, "bf16"), (3, "fp32")])
def test_sleeping_and_scoring_the_base_change_nothing(stage, dtype, trainers, world, folders, prompts, tmp_path):
    folder, ranks = folders["qwen"], trainers.ranks
    strategy = Strategy(OpenRLHFSettings(dtype=dtype, zero_stage=stage, trainers=ranks), temperature=1.0)
    optimisation = Optimisation(learning_rate=1e-3, max_tokens=LONGEST, measure=True)
    terms, rows = (
        world.terms("token-ppo-token"),
        [AnswerRow([5, 6, 7], np.arange(8, 20, dtype=np.int32)) for _ in range(4)],
    )
    split = PerRank(scoring_split(rows, ranks, 256).batches)

    def scores(method, *arguments):
        return np.concatenate([flat for of_rank in trainers.call(method, split, *arguments) for flat in of_rank])

    saved = []
    for sleepy in (False, True):
        trainers.call("init_model_from_pretrained", strategy, str(folder), 1 << 30)
        trainers.call("join", [], open_vocabulary(folder, chat=False).forbidden)
        first = scores("logprobs")
        learn(trainers, terms, world.prompts, folder, optimisation)
        if sleepy:
            learnt = scores("logprobs")
            assert np.abs(learnt - first).max() > 1e-3
            for held in map(MemoryState, (1, 0, 1, 2, 0, 2)):
                trainers.call("hold", held)
                if held:
                    np.testing.assert_array_equal(scores("base_logprobs", str(folder)), first)
                    np.testing.assert_array_equal(scores("logprobs"), learnt)
        learn(trainers, terms, world.prompts, folder, optimisation)
        (tmp_path / str(sleepy)).mkdir()
        trainers.call("save", str(tmp_path / str(sleepy)), "moments.safetensors")
        saved.append([load_torch(tmp_path / str(sleepy) / f) for f in ("model.safetensors", "moments.safetensors")])
    for never, often in zip(*saved, strict=True):
        assert never.keys() == often.keys()
        assert all(torch.equal(never[name], often[name]) for name in never)


def test_a_base_that_lacks_a_weight_is_named(folders, tmp_path):
    worker = InProcess().worker
    worker.init_model_from_pretrained(Strategy(OpenRLHFSettings(dtype="fp32"), 1.0), str(folders["qwen"]), 1 << 30)
    with pytest.raises(EngineError, match=r"no safetensors file holds model\..*so the base cannot be scored"):
        worker.base_logprobs([], str(tmp_path))


def learn(trainers, terms, prompts, folder, optimisation, budget=256):
    vocabulary = open_vocabulary(folder, chat=False, policy="a")
    ids = {p.id: vocabulary.encode(p) for p in prompts}
    batches = from_sampler(cut_into_minibatches(terms, optimisation.updates, optimisation.max_tokens))
    rows = [[AnswerRow(ids[a.prompt_id], a.tokens, a.mask) for _, a in b.live()] for b in batches]
    splits = [learning_splits(b, own, trainers.ranks, budget) for b, own in zip(batches, rows, strict=True)]
    plans = PerRank([[tuple(s.batches[rank] for s in own) for own in splits] for rank in range(trainers.ranks)])
    learnt = make_report(terms, batches, rows, splits, trainers.call("learn", plans, optimisation))
    return (
        learnt.loss,
        learnt.gradient_norm,
        (learnt.own_gradient_norm, learnt.peer_gradient_norm, learnt.own_peer_cosine),
        [(t.moved, t.clipped_tokens, t.ratios) for t in learnt.terms],
    )


class Shares:
    """The smallest share of its tensor's largest gradient that each weight's had, both by AdamW's second moment, after any
    update since this began to look: a weight moved by rounding once stays moved, however large its later gradients."""

    def __init__(self, optimiser):
        self.smallest = {}
        optimiser.register_step_post_hook(self._look)

    def _look(self, optimiser, *_):
        for weight, moments in optimiser.state.items():
            size = moments["exp_avg_sq"].sqrt()
            share = size / size.max()
            self.smallest[weight] = torch.minimum(self.smallest.get(weight, share), share)

    def allowed(self, weight):
        """`WEIGHT`, or up to a step where the gradient was no more than rounding."""
        return np.clip(STEP * ROUNDING / np.maximum(self.smallest[weight].numpy(), 1e-30), WEIGHT, STEP)


def weight_difference(trainers, embedded, shares, folder):
    """The worst difference of a weight, as a share of what its gradients' sizes allow it."""
    folder.mkdir()
    trainers.call("save", str(folder), "moments.safetensors")
    ours = load_file(folder / "model.safetensors")
    worst = 0.0
    for name, weight in embedded.model.named_parameters():
        if name not in ours:  # tied to another, which is compared
            continue
        apart = np.abs(ours[name] - weight.detach().numpy())
        worst = max(worst, float((apart / shares.allowed(weight)).max()))
    return worst


def test_parity_would_notice_another_objective(world, folders):
    engine = EmbeddedEngine("a", folders["qwen"], device="cpu")
    term = world.terms("token-ppo-token")[0]
    wrong = replace(term, objective=replace(term.objective, high=1.1))
    losses = [engine.update(world.prompts, [t], Optimisation(learning_rate=0.0)).loss for t in (term, wrong)]
    assert abs(losses[0] - losses[1]) > 100 * LOSS * abs(losses[0])


def grow(trainers, strategy, world, folder, **more):
    trainers.call("init_model_from_pretrained", strategy, str(folder), 1 << 30)
    trainers.call("join", [], open_vocabulary(folder, chat=False).forbidden)
    optimisation = Optimisation(learning_rate=1e-3, max_tokens=LONGEST, **more)
    return learn(trainers, world.terms("token-ppo-token")[:1], world.prompts, folder, optimisation, budget=1)


@pytest.mark.parametrize("stage", [2, 3])
def test_micro_batches_add_up_in_fp32(stage, world, folders):
    """Item 5: the norm of 24 micro-batches' bf16 gradients is that of their sum in fp32."""
    strategy = Strategy(OpenRLHFSettings(zero_stage=stage), 1.0)
    _, norm, (exact, *_), _ = grow(InProcess(), strategy, world, folders["qwen"], measure=True)
    assert norm == pytest.approx(exact, rel=1e-6)


def test_a_checkpoint_without_masters_is_not_written(world, folders, tmp_path):
    """Item 1: what DeepSpeed makes of bf16 without ZeRO, which settings refuse."""
    strategy, trainers = Strategy(OpenRLHFSettings(), 1.0), InProcess()
    strategy.stage = strategy.args.ds.zero_stage = 0
    strategy.grad_accum_dtype = None  # else DeepSpeed refuses too
    grow(trainers, strategy, world, folders["qwen"])
    with pytest.raises(CheckpointError, match=r"DeepSpeed has no master of model\."):
        trainers.call("save", str(tmp_path), "moments.safetensors")
    assert not (tmp_path / "moments.safetensors").exists()


def sealed(trainers, folder, version):
    def fill(new):
        trainers.call("save", str(new), checkpoint.OPTIMISER)

    checkpoint.write(folder, "a", version, fill)
    return contents(folder)


def contents(folder):
    """All tensors of a checkpoint; of tied ones that which both engines write."""
    files = ("model.safetensors", ADAPTERS, checkpoint.OPTIMISER)
    tensors = {file: load_torch(folder / file) for file in files if (folder / file).exists()}
    return {(file, name): t for file, ts in tensors.items() for name, t in ts.items() if name != "lm_head.weight"}


def same(these, those):
    assert these.keys() == those.keys()
    assert not [name for name, tensor in these.items() if not torch.equal(tensor, those[name])]


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapters"])
@pytest.mark.parametrize(("stage", "dtype"), [(0, "fp32"), (2, "bf16"), (3, "bf16")])
def test_checkpoints_pass_between_engines_bit_for_bit(stage, dtype, lora, trainers, world, folders, tmp_path):
    """Items 1 and 5: weights, masters, moments and steps go from one engine to the other and back, in both precisions."""
    options = {"dtype": dtype, "zero_stage": stage, "trainers": trainers.ranks, "lora": lora}
    if lora and stage == 3:
        with pytest.raises(SuiteError, match="engine_options: lora needs zero_stage 0 or 2"):
            read_options(OpenRLHFSettings, options)
        return
    folder, terms = folders["qwen"], world.terms("token-ppo-token")[:1]
    strategy = Strategy(read_options(OpenRLHFSettings, options), 1.0)
    grow(trainers, strategy, world, folder)
    ours = sealed(trainers, tmp_path / "ours", 1)
    entries = [name.partition(":")[0] for file, name in ours if file == checkpoint.OPTIMISER]
    assert entries.count("master") == (entries.count("step") if dtype == "bf16" else 0)
    assert (ADAPTERS in {file for file, _ in ours}) == (lora is not None)
    embedded = EmbeddedEngine("a", folder, device="cpu", dtype=dtype, lora=lora)
    embedded.restore(tmp_path / "ours")
    embedded.save(tmp_path / "taken")
    same(contents(tmp_path / "taken"), ours)
    embedded.update(world.prompts, terms, Optimisation(learning_rate=1e-3, max_tokens=LONGEST))
    embedded.save(tmp_path / "theirs")
    strategy.adapters = tmp_path / "theirs" if lora else None
    trainers.call("init_model_from_pretrained", strategy, str(folder if lora else tmp_path / "theirs"), 1 << 30)
    trainers.call("join", [], open_vocabulary(folder, chat=False).forbidden)
    trainers.call("load_moments", str(tmp_path / "theirs" / checkpoint.OPTIMISER))
    same(sealed(trainers, tmp_path / "back", 2), contents(tmp_path / "theirs"))
    optimisation = Optimisation(learning_rate=1e-3, max_tokens=LONGEST)
    theirs = embedded.update(world.prompts, terms, optimisation)
    loss, norm, *_ = learn(trainers, terms, world.prompts, folder, optimisation)
    assert (loss, norm) == pytest.approx((theirs.loss, theirs.gradient_norm), rel=1e-4 if dtype == "fp32" else 0.1)


def in_memory():
    return sum(storage.nbytes() for storage in storages_of(all_tensors("cpu")))


def test_only_the_first_rank_keeps_what_is_saved(world, folders, tmp_path, monkeypatch):
    """Item 6: any other rank takes part, and has one tensor at a time."""
    trainers = InProcess()
    grow(trainers, Strategy(OpenRLHFSettings(), 1.0), world, folders["qwen"])
    original, taken = state.safe_get_full_optimizer_state, []

    def gather(*arguments):
        taken.append(in_memory())
        return original(*arguments)

    monkeypatch.setattr(state, "safe_get_full_optimizer_state", gather)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group=None: 1)
    monkeypatch.setattr("deepspeed.checkpoint.utils.clone_tensors_for_torch_save", None)
    trainers.call("save", str(tmp_path), "moments.safetensors")
    assert not list(tmp_path.iterdir())
    largest = max(p.numel() for p in trainers.worker.actor.model.module.parameters())
    assert max(taken) - taken[0] <= 4 * largest


def test_memory_is_given_back_before_another_model_is_loaded(world, folders, monkeypatch):
    """Item 13: when a checkpoint is restored."""
    from openrlhf.trainer.ray import ppo_actor

    taken, actor = [], ppo_actor.Actor

    def build(*arguments, **more):
        taken.append(in_memory())
        return actor(*arguments, **more)

    trainers = InProcess()
    monkeypatch.setattr(ppo_actor, "Actor", build)
    for _ in range(2):
        grow(trainers, Strategy(OpenRLHFSettings(), 1.0), world, folders["qwen"])
    weights = sum(p.nbytes for p in trainers.worker.actor.model.module.parameters())
    assert taken[1] - taken[0] < 0.5 * weights


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_checksums_are_of_whole_weights(stage, trainers, folders):
    """Item 4: whatever the ZeRO stage and the number of ranks, a tied weight once."""
    strategy = Strategy(OpenRLHFSettings(dtype="fp32", zero_stage=stage, trainers=trainers.ranks), 1.0)
    trainers.call("init_model_from_pretrained", strategy, str(folders["qwen"]), 1 << 30)
    stored = load_torch(folders["qwen"] / "model.safetensors")
    expected = {name: checksum_of(weight) for name, weight in stored.items() if name != "lm_head.weight"}
    for sums in trainers.call("checksums"):
        assert sums == expected


def test_a_checksum_shows_what_differs():
    """Item 4: one bit of one element, two that change places, another shape or type."""
    tensor = torch.randn(3000, 1500).bfloat16()
    altered, swapped = tensor.clone(), tensor.clone()
    altered.view(torch.int16)[2999, 1499] ^= 1
    swapped[0], swapped[1] = tensor[1], tensor[0]
    others = [altered, swapped, tensor.T, tensor.reshape(1500, 3000), tensor.half(), tensor.float(), -tensor]
    assert len({checksum_of(t) for t in (tensor, *others)}) == 8
    assert checksum_of(tensor.T.contiguous().T) == checksum_of(tensor)


@pytest.mark.parametrize(("stage", "dtype"), [(0, "fp32"), (2, "fp32"), (2, "bf16")])
def test_a_large_vocabulary_in_parts_gives_the_same(stage, dtype, world, folders, monkeypatch):
    """Under ZeRO 3 logits stay whole, see `trainer`."""
    runs = []
    for at_once in (1 << 23, 100):
        monkeypatch.setattr(head, "LOGITS", at_once)
        trainers = InProcess()
        strategy = Strategy(OpenRLHFSettings(dtype=dtype, zero_stage=stage), 0.7)
        grow(trainers, strategy, world, folders["qwen"])
        rows = scoring_split([AnswerRow([5, 6], np.array([7, 8, 9], np.int32))], 1, 64).batches[0]
        assert trainers.worker.trainer.head.fits(5) == (at_once > 100)
        loss, norm, *_ = grow(trainers, strategy, world, folders["qwen"])
        runs.append([loss, norm, *(trainers.call("logprobs", rows, raw)[0][0] for raw in (False, True))])
    for whole, parts in zip(*runs, strict=True):
        np.testing.assert_allclose(
            parts, whole, rtol=1e-5 if dtype == "fp32" else 0.05, atol=1e-6 if dtype == "fp32" else 0.05
        )
