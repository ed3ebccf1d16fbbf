"""The embedded engine's side of the account: all policies of a cell take turns in one process, on a core or on one GPU."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from harness.allocation.chunks import BLOCK, CACHE_BYTES, GPU_LOGITS, LOGITS, LONGEST, MICRO_TOKENS
from harness.allocation.demand import CellDemand, PolicyDemand, Workload
from harness.allocation.size import (
    CONTEXT_BYTES,
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

FEWER_TOKENS = (4096, 2048, 1024, 512)
"""What is tried where the default does not fit; less costs time."""
LOGITS_BYTES = 12
"""Per token of an answer and entry of the vocabulary: logits with those after the prompt, with what is ruled out, and their
logarithms."""
COMPARED_BYTES = 16
"""Per entry of the largest matrix: own and all gradients are compared in float64."""
CHOICE_BYTES, PARTED_CHOICE_BYTES = 32, 16
"""Per answer and entry of the vocabulary while a token is drawn: logits, log-probabilities and their sums in float64; where the
vocabulary has several blocks, the sums are of these."""
SCORES_BYTES = 6
"""Per query, head and key that the engine's own attention in bf16 keeps."""
WORKER_BYTES = 1 << 30
"""RAM of a worker process with torch, transformers and lm-eval, models left out."""
GPU_WORKER_BYTES = 4 << 30
"""The same with CUDA's libraries and weights on their way to the GPU: a prior."""
LAYER_SECONDS = {True: 6e-4, False: 1.5e-4}
"""Of one layer of transformers' own code for however few tokens, on a GPU and on a core: priors."""
FP32_SHARE = 1 / 15
"""Of a GPU's bf16 peak, what plain fp32 has (data sheets: 67 of 989 TFLOP/s of an H100, 19.5 of 312 of an A100)."""
BF16_GAIN = 3.0
"""Of a core's fp32 peak, what its bf16 reaches in whole passes (a prior)."""
LARGE, MOST_CORES, NEXT_CORE = 50_000_000, 4, 0.8
"""Parameters from which a cell on the CPU has several cores, how many, and what each after the first adds: a prior."""
START_SECONDS = 1.0
"""Opening engines of a cell in a worker that is up: a prior."""


def process_memory(cell: CellDemand, micro_tokens: int = MICRO_TOKENS, gpu: bool = False) -> Memory:
    """Bytes of one process at its fullest: all policies' states and references, and the most that one of them takes at a time."""
    states = [_states(p) for p in cell.policies]
    return Memory(
        weights=sum(s.weights for s in states),
        gradients=sum(s.gradients for s in states),
        optimiser=sum(s.optimiser for s in states),
        reference=sum(weight_bytes(p.model, p.precision) for p in cell.policies if p.reference),
        measuring=max(measuring_bytes(p) for p in cell.policies),
        activations=max(
            max(_training(p, cell.workload, micro_tokens, gpu), _sampling(p, cell.workload), _saving(p))
            for p in cell.policies
        ),
    )


def _states(policy: PolicyDemand) -> Memory:
    """As the engine keeps them: in bf16, gradients are fp32 and belong to the masters."""
    states, trained = trainer_states(policy.model, policy.precision, 0, 1), policy.trained
    if policy.lora:
        weights = states.weights + _bytes(policy) * trained
        states = Memory(weights=weights, optimiser=(12 if policy.precision == "bf16" else 8) * trained)
    return msgspec.structs.replace(states, gradients=4 * trained)


def _bytes(policy: PolicyDemand) -> int:
    """Of a number that the model computes with."""
    return 4 if policy.precision == "fp32" else 2


def measuring_bytes(policy: PolicyDemand) -> int:
    """The gradient of own answers, set aside while peers' is added to it."""
    return 4 * policy.trained if policy.measured else 0


def _training(policy: PolicyDemand, work: Workload, micro_tokens: int, gpu: bool) -> int:
    """One micro-batch: prompts once, each answer over its prompt's keys and values, which it holds a copy of. When the
    activations are gone, the comparison of gradients or AdamW's own copies of one matrix may take more."""
    answers = work.prompts * policy.rollouts
    each = work.answer_tokens + work.prompt_tokens / policy.rollouts
    taken = min(answers, max(1.0, micro_tokens / each))
    model, size = policy.model, _bytes(policy)
    half = size == 2
    through = model.half if half else model.full
    # torch's kernel wants keys that several heads share repeated for each; the engine's own keeps scores instead.
    copies = sum(2 * a.layers * (a.kv_heads if half else a.heads) * a.head_dim for a in model.attention) * size
    scores = sum(a.layers * a.heads for a in model.attention) * SCORES_BYTES * work.sequence
    inside = taken * each * through.layers + taken * work.prompt_tokens * copies
    if half and work.sequence <= LONGEST:
        inside += taken * each * scores
    if policy.checkpointing:  # each layer's input, one layer at a time, and the prompts' keys and values
        inside = inside / model.layers + taken * each * model.layers * size * model.hidden
        inside += taken / policy.rollouts * _cache_bytes(policy, work.prompt_tokens)
    kept = inside + taken * each * through.head
    logits, most = taken * work.answer_tokens * model.vocab, GPU_LOGITS if gpu else LOGITS
    # A vocabulary in parts gives its gradient at the end, beside that of the embedding where they are one matrix.
    head = (
        LOGITS_BYTES * logits if logits <= most else LOGITS_BYTES * most + 2 * size * model.largest * (not policy.lora)
    )
    return max(int(kept + head), COMPARED_BYTES * model.largest if policy.measured and not policy.lora else 0)


def _saving(policy: PolicyDemand) -> int:
    """Merged weights in fp32."""
    return weight_bytes(policy.model, "fp32") if policy.lora else 0


def _sampling(policy: PolicyDemand, work: Workload) -> int:
    vocab = policy.model.vocab
    each = _cache_bytes(policy, work.sequence)
    answers = min(work.prompts * policy.rollouts, max(policy.rollouts, CACHE_BYTES // each))
    return answers * (each + (PARTED_CHOICE_BYTES if vocab > BLOCK else CHOICE_BYTES) * vocab)


def _cache_bytes(policy: PolicyDemand, tokens: float) -> int:
    """Keys and values of one answer: the engine keeps those that a window no longer sees, too."""
    return int(sum(2 * a.layers * a.kv_heads * a.head_dim for a in policy.model.attention) * _bytes(policy) * tokens)


def cores(cell: CellDemand, most: int) -> int:
    """Cores for a cell on the CPU, of `most` in a machine: two processes of one thread do more than one of two, but the working
    sets of large models do not fit beside each other."""
    return max(1, min(most, MOST_CORES)) if max(p.model.parameters for p in cell.policies) >= LARGE else 1


def _speed(policy: PolicyDemand, on: Device, gpu: bool) -> Device:
    """The device as this policy uses it. Peaks are stated of a GPU in bf16, of a core in fp32."""
    half = policy.precision == "bf16"
    return replace(on, peak=on.peak * ((1 if half else FP32_SHARE) if gpu else (BF16_GAIN if half else 1)))


def device_bytes(memory: Memory) -> int:
    """Of one process on a GPU."""
    return memory.train + CONTEXT_BYTES


def phases(cell: CellDemand, on: Device, gpu: bool) -> Phases:
    """Seconds of a cell, its policies one after another: decoding bound by bandwidth or operations, training by operations, and
    each pass by its layers' own time."""
    found = [_phases(p, cell.workload, _speed(p, on, gpu), LAYER_SECONDS[gpu] * p.model.layers) for p in cell.policies]
    return Phases(
        start=START_SECONDS,
        **{name: sum(getattr(f, name) for f in found) for name in Phases.__struct_fields__ if name != "start"},
    )


def busy(cell: CellDemand, on: Device) -> float:
    """Share of a cell's seconds that a GPU works, and does not wait for the next of its layers to be started."""
    working = sum(_phases(p, cell.workload, _speed(p, on, gpu=True), 0.0).total for p in cell.policies)
    return working / phases(cell, on, gpu=True).total


def _phases(policy: PolicyDemand, work: Workload, on: Device, layers: float) -> Phases:
    model = policy.model
    own = work.prompts * policy.rollouts
    share = work.mean_answer_tokens / work.answer_tokens

    def generate(answers: float, prompts: float, longest: int) -> float:
        if not answers:
            return 0.0
        each = _cache_bytes(policy, work.prompt_tokens + longest)
        batch = min(answers, max(1, CACHE_BYTES // each))
        # Ended answers leave the batch, so each position is read as often as an answer is long on average.
        positions = answers / batch * longest
        bytes_read = positions * _bytes(policy) * model.read(batch) + answers * longest * share * each / 2
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
    train = training_flops(model, trained, work.mean_sequence, policy.checkpointing) / (on.peak * TRAIN_EFFICIENCY)
    train += 3 * layers * max(1.0, trained / MICRO_TOKENS)
    return Phases(
        generate=work.steps * generate(own, work.prompts, work.answer_tokens),
        score=work.steps * score(own * (work.scored + policy.penalised)),
        train=work.steps * train,
        measure=work.measured * 2 * score(own),
        curve=generate(work.curve, work.curve, work.answer_tokens),
        evaluate=generate(work.evaluated, work.evaluated, work.evaluation_tokens or work.answer_tokens),
        save=work.saves * checkpoint_bytes(model, policy.precision, adapters=policy.adapters).whole / DISK,
    )
