"""Memory and time of a cell on the embedded engine, for plans: its policies run in turn in one process, on its cores or one GPU.
No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.allocation.cost_model import (
    CORE,
    DISK,
    GPU_LOGITS,
    LOGITS,
    CellDemand,
    Device,
    Memory,
    PhaseSeconds,
    PolicyDemand,
    Workload,
    checkpoint_bytes,
    device_of,
    logits_bytes,
    score_seconds,
    train_seconds,
    trainer_states,
    weight_bytes,
)
from harness.engines.embedded.sizes import BLOCK, CACHE_BYTES, LONGEST, MICRO_TOKENS

FEWER_TOKENS = (4096, 2048, 1024, 512)  # where the default does not fit
COMPARED_BYTES = 16  # per entry of the largest matrix: two gradients compared in float64
# Per answer and entry of the vocabulary while a token is drawn
CHOICE_BYTES, PARTED_CHOICE_BYTES = 32, 16
EVALUATED = 1024  # answers sampled at once in evaluation at most: `EngineBackend`
SCORES_BYTES = 6  # per query, head and key: the engine's own attention in bf16 keeps them
WORKER_BYTES = 1 << 30  # RAM of a worker process with torch, transformers and lm-eval
GPU_WORKER_BYTES = 4 << 30  # with CUDA's libraries and weights on their way to the GPU: a prior
FP32_SHARE = 1 / 15  # of a GPU's bf16 peak (data sheets: 67 of 989 TFLOP/s of an H100, 19.5 of 312 of an A100)
BF16_GAIN = 3.0  # of a core's fp32 peak, in whole passes: a prior
LARGE, MOST_CORES = 50_000_000, 4  # parameters that may get several cores
NEXT_CORE = 0.2  # what each more adds, measured in bf16
ONE_CORE = device_of(CORE)
PORTABLE = 1.15  # what `numerics: portable` costs a core beside these figures: a step 1.11, a whole cell 1.17 (docs/benchmarks.md)
START_SECONDS = 1.0  # opening a cell's engines in a worker that is up: a prior


def process_memory(cell: CellDemand, micro_tokens: int = MICRO_TOKENS, on: Device = ONE_CORE) -> Memory:
    """Return the bytes of one process at its fullest: all states and references, and the most that one policy adds."""
    policies = cell.policies
    states = [trainer_states(policy) for policy in policies]
    references = [weight_bytes(policy.model, policy.precision) for policy in policies if policy.reference]
    # The own gradient is kept while peers' is added to it.
    measured = [4 * policy.trained * policy.measured for policy in policies]
    working = [_working_bytes(policy, cell.workload, micro_tokens, on.gpu) for policy in policies]
    return Memory(
        weights=sum(state.weights for state in states),
        gradients=sum(state.gradients for state in states),
        optimiser=sum(state.optimiser for state in states),
        reference=sum(references),
        measuring=max(measured),
        activations=max(working),
        context=on.context,
    )


def _working_bytes(policy: PolicyDemand, work: Workload, micro_tokens: int, gpu: bool) -> int:
    """Return the most that a policy adds to its states, in training, in sampling, or where adapters are merged to be saved."""
    training = _training_bytes(policy, work, micro_tokens, gpu)
    merged = weight_bytes(policy.model, "fp32") if policy.lora else 0
    return max(training, _sampling_bytes(policy, work), merged)


def _training_bytes(policy: PolicyDemand, work: Workload, micro_tokens: int, gpu: bool) -> int:
    """Return the bytes of one micro-batch in training: prompts once, each answer over a copy of its prompt's keys and values; or
    comparing gradients."""
    each = work.answer_tokens + work.prompt_tokens / policy.rollouts
    taken = min(work.prompts * policy.rollouts, max(1.0, micro_tokens / each))
    model = policy.model
    size = policy.value_bytes
    half = size == 2
    through = model.half if half else model.full
    # torch's kernel repeats shared keys for each head; the engine's own keeps scores.
    copied = 0
    for attention in model.attention:
        heads = attention.kv_heads if half else attention.heads
        copied += 2 * attention.layers * heads * attention.head_dim
    inside = taken * each * through.layers + taken * work.prompt_tokens * (copied * size)
    if half and work.sequence <= LONGEST:
        scoring_heads = sum(a.layers * a.heads for a in model.attention)
        inside += taken * each * scoring_heads * SCORES_BYTES * work.sequence
    if policy.checkpointing:  # each layer's input, one layer at a time, and the prompts' keys and values
        inside = inside / model.layers + taken * each * model.layers * size * model.hidden
        inside += taken / policy.rollouts * _cache_bytes(policy, work.prompt_tokens)
    logits = taken * work.answer_tokens * model.vocab
    most = GPU_LOGITS if gpu else LOGITS
    head = logits_bytes(policy, logits, most)
    compared = COMPARED_BYTES * model.largest if policy.measured and not policy.lora else 0
    return max(int(inside + taken * each * through.head + head), compared)


def _sampling_bytes(policy: PolicyDemand, work: Workload) -> int:
    """Count the bytes of keys and values while a policy samples, in training or evaluation."""
    vocab = policy.model.vocab

    choice = vocab * (PARTED_CHOICE_BYTES if vocab > BLOCK else CHOICE_BYTES)

    def most(answers: int, longest: int) -> int:
        each = _cache_bytes(policy, work.prompt_tokens + longest)
        taken = min(answers, max(policy.rollouts, CACHE_BYTES // each))
        return taken * (each + choice)

    evaluated = most(min(work.evaluated, EVALUATED), work.evaluation_tokens)
    rolled_out = most(work.prompts * policy.rollouts, work.answer_tokens)
    return max(rolled_out, evaluated)


def _cache_bytes(policy: PolicyDemand, tokens: int) -> int:
    """Return the keys and values of so many tokens, in bytes; the engine keeps what a window no longer sees, too."""
    of_token = sum(2 * a.layers * a.kv_heads * a.head_dim for a in policy.model.attention)
    return of_token * policy.value_bytes * tokens


def cores(cell: CellDemand, most: int) -> int:
    """Say how many cores a cell is worth: one, unless a model is large. most: that other processes leave idle."""
    if max(p.model.parameters for p in cell.policies) >= LARGE:
        return max(1, min(most, MOST_CORES))
    return 1


def phases(cell: CellDemand, on: Device) -> PhaseSeconds:
    """Predict the seconds of each phase. Decoding takes bandwidth or operations, training operations, and each pass its layers'
    own time."""
    each = [_seconds_of_phases(policy, cell.workload, on) for policy in cell.policies]
    summed: dict[str, float] = {}
    for name in PhaseSeconds.__struct_fields__:
        summed[name] = sum(getattr(seconds, name) for seconds in each)
    summed["start"] = START_SECONDS
    return PhaseSeconds(**summed)


def with_portable_speed(core: Device) -> Device:
    """Return the core as it is under `numerics: portable`."""
    slower = {name: getattr(core, name) / PORTABLE for name in ("train", "score", "read")}
    return replace(core, **slower, layer=core.layer * PORTABLE)


def busy_share(cell: CellDemand, on: Device) -> float:
    """Return the share of a cell's seconds in which a GPU does not wait for a layer to be started."""
    without_starts = phases(cell, replace(on, layer=0.0)).total - START_SECONDS
    return without_starts / phases(cell, on).total


def _seconds_of_phases(policy: PolicyDemand, work: Workload, on: Device) -> PhaseSeconds:
    """Predict the seconds of each phase of a cell, for one policy on this device."""
    pace = _Pace(policy, work, _with_precision(on, policy))
    own = work.prompts * policy.rollouts
    rollouts_of_step = pace.generate(own, work.prompts, work.answer_tokens)
    again = 1 + work.again
    scored = own * (work.scored + policy.penalised)
    checkpoint = checkpoint_bytes(policy.model, policy.precision, adapters=policy.adapters)
    return PhaseSeconds(
        generate=work.steps * again * rollouts_of_step,
        score=work.steps * pace.score(scored),
        train=work.steps * pace.train(own * work.trained),
        measure=work.measured * 2 * pace.score(own),
        curve=pace.generate(work.curve, work.curve, work.answer_tokens),
        evaluate=pace.generate(work.evaluated, work.questions, work.evaluation_tokens),
        save=work.saves * checkpoint.whole / DISK,
    )


def _with_precision(on: Device, policy: PolicyDemand) -> Device:
    """Return the device as it computes at the policy's precision: peaks are stated of a GPU in bf16, of a core in fp32."""
    half = policy.precision == "bf16"
    factor: float = 1
    if on.gpu and not half:
        factor = FP32_SHARE
    elif half and not on.gpu:
        factor = BF16_GAIN
    return replace(on, train=on.train * factor, score=on.score * factor)


@dataclass(frozen=True, slots=True)
class _Pace:
    """How fast a policy works on a device, in seconds. on: at the policy's precision."""

    policy: PolicyDemand
    work: Workload
    on: Device

    @property
    def layers(self) -> float:
        """Of starting all layers once."""
        return self.on.layer * self.policy.model.layers

    def generate(self, answers: int, prompts: int, longest: int) -> float:
        """Predict the seconds of so many answers of at most `longest` tokens to so many prompts."""
        if not answers:
            return 0.0
        policy = self.policy
        work = self.work
        model = policy.model
        each = _cache_bytes(policy, work.prompt_tokens + longest)
        batch = min(answers, max(1, CACHE_BYTES // each))
        # Ended answers leave the batch: positions count by the mean length.
        positions = answers / batch * longest
        tokens = answers * longest * work.mean
        weights_read = positions * policy.value_bytes * model.read(batch)
        bytes_read = weights_read + tokens * each / 2  # of the cache half on average, as it grows
        flops = 2 * model.matmul * tokens
        decode = max(bytes_read / self.on.read, flops / self.on.score)
        prefill = score_seconds(model, prompts * work.prompt_tokens, work.prompt_tokens, self.on)
        return decode + positions * self.layers + prefill

    def score(self, answers: float) -> float:
        """Predict the seconds of the log-probabilities of so many answers."""
        tokens = self._tokens_of(answers)
        passes = max(1.0, tokens / MICRO_TOKENS) if answers else 0.0
        return score_seconds(self.policy.model, tokens, self.work.mean_sequence, self.on) + passes * self.layers

    def train(self, answers: float) -> float:
        """Predict the seconds of the updates on so many answers."""
        tokens = self._tokens_of(answers)
        passes = max(1.0, tokens / MICRO_TOKENS)
        starts = 3 * self.layers * passes  # forward once, backward twice
        return train_seconds(self.policy, tokens, self.work.mean_sequence, self.on, self.policy.checkpointing) + starts

    def _tokens_of(self, answers: float) -> float:
        """Return the tokens that go through the model: answers of the mean length, and each prompt once."""
        work = self.work
        of_answers = answers * work.mean * work.answer_tokens
        return of_answers + min(answers, work.prompts) * work.prompt_tokens
