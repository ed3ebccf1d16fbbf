"""The embedded engine's side of the account: all policies of a cell take turns in one process, on a core or on one GPU."""

from __future__ import annotations

from dataclasses import replace

from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.size import (
    CONTEXT_BYTES,
    DOUBLES_BYTES,
    Memory,
    checkpoint_bytes,
    trainer_states,
    weight_bytes,
)
from harness.allocation.work import (
    BANDWIDTH_EFFICIENCY,
    DISK,
    SCORE_EFFICIENCY,
    TRAIN_EFFICIENCY,
    Device,
    Phases,
    scoring_flops,
    training_flops,
)

MICRO_TOKENS = 8192
"""Default of the engine's `micro_tokens`."""
FEWER_TOKENS = (4096, 2048, 1024, 512)
"""What is tried where the default does not fit; less costs time."""
CACHE_BYTES = 2 << 30
"""Keys and values that one sampling batch may hold: the engine's own constant."""
LOGITS_BYTES = 16
"""Per token of an answer and entry of the vocabulary: logits as the model gives them, with those after the prompt, with what is
ruled out, and their logarithms."""
CHOICE_BYTES = 32
"""Per answer and entry of the vocabulary while a token is drawn: logits, log-probabilities and their sums in float64."""
WORKER_BYTES = 1 << 30
"""RAM of a worker process with torch, transformers and lm-eval, models left out."""
GPU_WORKER_BYTES = 4 << 30
"""The same with CUDA's libraries and weights on their way to the GPU: a prior."""
LAYER_SECONDS = {True: 6e-4, False: 1.5e-4}
"""Of one layer of transformers' own code for however few tokens, on a GPU and on a core: priors."""
FP32_SHARE = 1 / 15
"""Of a GPU's bf16 peak, what plain fp32 has (data sheets: 67 of 989 TFLOP/s of an H100, 19.5 of 312 of an A100)."""
START_SECONDS = 1.0
"""Opening engines of a cell in a worker that is up: a prior."""


def process_memory(cell: CellDemand, micro_tokens: int = MICRO_TOKENS) -> Memory:
    """Bytes of one process at its fullest: all policies' states and references, and the most that one of them takes at a time."""
    states = [trainer_states(p.model, "fp32", 0, 1) for p in cell.policies]
    return Memory(
        weights=sum(s.weights for s in states),
        gradients=sum(s.gradients for s in states),
        optimiser=sum(s.optimiser for s in states),
        reference=sum(weight_bytes(p.model, "fp32") for p in cell.policies if p.reference),
        measuring=max(measuring_bytes(p) for p in cell.policies),
        activations=max(
            max(_training(p, cell.workload, micro_tokens), _sampling(p, cell.workload)) for p in cell.policies
        ),
    )


def measuring_bytes(policy: PolicyDemand) -> int:
    """The gradient of own answers, set aside while peers' is added to it."""
    return 4 * policy.model.parameters if policy.measured else 0


def _training(policy: PolicyDemand, work: Workload, micro_tokens: int) -> int:
    """One micro-batch: prompts once, each answer over its prompt's keys and values, which it holds a copy of. When the
    activations are gone, the comparison of gradients or AdamW's own copies of one matrix may take more."""
    answers = work.prompts * policy.rollouts
    each = work.answer_tokens + work.prompt_tokens / policy.rollouts
    taken = min(answers, max(1.0, micro_tokens / each))
    model = policy.model
    copies = sum(2 * a.layers * a.heads * a.head_dim for a in model.attention) * 4
    kept = taken * each * (model.full.layers + model.full.head) + taken * work.prompt_tokens * copies
    return max(int(kept + taken * work.answer_tokens * LOGITS_BYTES * model.vocab), DOUBLES_BYTES * model.largest)


def _sampling(policy: PolicyDemand, work: Workload) -> int:
    each = policy.model.kv_bytes(work.sequence, 4)
    answers = min(work.prompts * policy.rollouts, max(policy.rollouts, CACHE_BYTES // each))
    return answers * (each + CHOICE_BYTES * policy.model.vocab)


def in_fp32(on: Device) -> Device:
    """The device as this engine uses it."""
    return replace(on, peak=on.peak * FP32_SHARE)


def device_bytes(memory: Memory) -> int:
    """Of one process on a GPU."""
    return memory.train + CONTEXT_BYTES


def phases(cell: CellDemand, on: Device, gpu: bool) -> Phases:
    """Seconds of a cell, its policies one after another: decoding bound by bandwidth or operations, training by operations, and
    each pass by its layers' own time."""
    found = [_phases(p, cell.workload, on, LAYER_SECONDS[gpu] * p.model.layers) for p in cell.policies]
    return Phases(
        start=START_SECONDS,
        **{name: sum(getattr(f, name) for f in found) for name in Phases.__struct_fields__ if name != "start"},
    )


def busy(cell: CellDemand, on: Device) -> float:
    """Share of a cell's seconds that a GPU works, and does not wait for the next of its layers to be started."""
    working = sum(_phases(p, cell.workload, on, 0.0).total for p in cell.policies)
    return working / phases(cell, on, gpu=True).total


def _phases(policy: PolicyDemand, work: Workload, on: Device, layers: float) -> Phases:
    model = policy.model
    own = work.prompts * policy.rollouts
    share = work.mean_answer_tokens / work.answer_tokens

    def generate(answers: float, prompts: float, longest: int) -> float:
        if not answers:
            return 0.0
        each = model.kv_bytes(work.prompt_tokens + longest, 4)
        batch = min(answers, max(1, CACHE_BYTES // each))
        # Ended answers leave the batch, so each position is read as often as an answer is long on average.
        positions = answers / batch * longest
        bytes_read = positions * 4 * model.read(batch) + answers * longest * share * each / 2
        flops = 2 * model.matmul * answers * longest * share
        decode = max(bytes_read / (on.bandwidth * BANDWIDTH_EFFICIENCY), flops / (on.peak * SCORE_EFFICIENCY))
        prefill = scoring_flops(model, prompts * work.prompt_tokens, work.prompt_tokens) / (on.peak * SCORE_EFFICIENCY)
        return decode + positions * layers + prefill

    def tokens(answers: float) -> float:
        return answers * work.mean_answer_tokens + min(answers, work.prompts) * work.prompt_tokens

    def score(answers: float) -> float:
        through = tokens(answers)
        passes = max(1.0, through / MICRO_TOKENS) if answers else 0.0
        return scoring_flops(model, through, work.mean_sequence) / (on.peak * SCORE_EFFICIENCY) + passes * layers

    trained = tokens(own * work.trained)
    train = training_flops(model, trained, work.mean_sequence, False) / (on.peak * TRAIN_EFFICIENCY)
    train += 3 * layers * max(1.0, trained / MICRO_TOKENS)
    return Phases(
        generate=work.steps * generate(own, work.prompts, work.answer_tokens),
        score=work.steps * score(own * (work.scored + policy.penalised)),
        train=work.steps * train,
        measure=work.measured * 2 * score(own),
        curve=generate(work.curve, work.curve, work.answer_tokens),
        evaluate=generate(work.evaluated, work.evaluated, work.evaluation_tokens or work.answer_tokens),
        save=work.saves * checkpoint_bytes(model, "fp32").whole / DISK,
    )
