"""The same suite with tiny stand-ins: short runs of one cell of every kind, each model a tiny one of its architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.allocation.shapes import load_config
from harness.engines import catalogue
from harness.engines.catalogue import backend_of
from harness.experience.answers import Prompt
from harness.rehearsal import standins
from harness.rehearsal.examination import TOKENIZERS, TOKENS
from harness.session.cell.questions import as_asked, training_prompts
from harness.session.policy import at_hand
from harness.session.suite.places import with_policies
from harness.session.suite.prepare import prepare_suite
from harness.session.suite.prepared import Prepared
from harness.suite.schema import LONGEST_NAME, Policy, Suite, Variant

# Keeps the rehearsal's results apart
PREFIX = "rehearsal-"
# Tiny models, in a folder that is the user's: made anew each time
MODELS = f"{PREFIX}models"
STEPS, PROMPTS, ROLLOUTS, QUESTIONS = 2, 2, 4, 2
SMALL_VLLM = {"rollout_memory": 0.05, "rollout_sequences": 16}
# Of the suite's engine options; the layout is this machine's
KEPT_OPTIONS = ("dtype", "zero_stage", "gradient_checkpointing", "lora", "checkpointing")


def name_of(suite: str) -> str:
    """Return the name under which a suite's rehearsal keeps its results."""
    return f"{PREFIX}{suite}"[:LONGEST_NAME]


def list_not_rehearsed(suite: Suite) -> list[str]:
    """Return what of the full run a rehearsal leaves out."""
    left_out = []
    engine = engine_here(suite)
    if engine != suite.engine:
        lacks = catalogue.engine_info(suite.engine).missing
        left_out.append(f"the path of the {suite.engine} engine, for want of {lacks}; cells ran on the embedded engine")
    if suite.tune is not None:
        left_out.append("tuning")
    if len(suite.seeds) > 1:
        left_out.append(f"seeds but {suite.seeds[0]}")
    policies = [policy for group in suite.groups for policy in group.policies]
    started = {policy.name for policy in policies if policy.stage0 and not policy.is_micro}
    if started:
        left_out.append(f"the supervised start of {', '.join(sorted(started))}")
    replayed = [variant.name for variant in suite.regimes if variant.replay]
    if replayed:
        left_out.append(f"{', '.join(replayed)}: replays a recording")
    left_out.append("the models' weights, size, memory, speed and accuracy; kill and resume")
    return left_out


def engine_here(suite: Suite) -> str:
    """Return the suite's engine where it can run on this machine, else the embedded one."""
    return suite.engine if catalogue.engine_info(suite.engine).available else "embedded"


def scale_down(suite: Suite) -> Suite:
    """Return the suite with its first seed, a few short steps and questions, on the engine that can run here."""
    engine = engine_here(suite)
    short = _short_training(suite)

    def fewer_rollouts(policy: Policy, _: str) -> Policy:
        if policy.is_micro:
            return policy
        rollouts = policy.rollouts and max(2, policy.rollouts * ROLLOUTS // suite.training.rollouts)
        return policy.model_copy(update={"rollouts": rollouts, "stage0": None})

    return with_policies(suite, fewer_rollouts).model_copy(
        update={
            "name": name_of(suite.name),
            "engine": engine,
            "engine_options": _options_for_rows(suite, engine),
            "regimes": [_without_own(variant, short) for variant in suite.regimes if variant.replay is None],
            "seeds": suite.seeds[:1],
            "tune": None,
            "training": suite.training.model_copy(update=short),
            "evaluation": suite.evaluation.model_copy(update=_short_evaluation(suite)),
        }
    )


def _short_training(suite: Suite) -> dict[str, int]:
    return {
        "steps": STEPS,
        "prompts": PROMPTS,
        "rollouts": ROLLOUTS,
        "max_new_tokens": TOKENS,
        "checkpoint_every": 1,
        "measure_every": min(1, suite.training.measure_every),
    }


def _short_evaluation(suite: Suite) -> dict[str, Any]:
    """Make the settings of an evaluation that takes seconds, and still measures all that the suite's measures."""
    evaluation = suite.evaluation
    samples: int | dict[str, int]
    if isinstance(evaluation.k, dict):
        samples = {task: min(QUESTIONS, count) for task, count in evaluation.k.items()}
    else:
        samples = QUESTIONS if evaluation.k is None else min(QUESTIONS, evaluation.k)
    return {
        "limit": QUESTIONS,
        "max_new_tokens": TOKENS,
        "curve_prompts": QUESTIONS,
        "curve_every": min(1, evaluation.curve_every),
        "k": samples,
    }


def _options_for_rows(suite: Suite, engine: str) -> dict[str, object]:
    """Return those of the suite's engine options that decide how rows are computed."""
    backend = backend_of(engine)
    known = backend.Options.__struct_fields__
    options = {name: value for name, value in suite.engine_options.items() if name in KEPT_OPTIONS and name in known}
    return {**options, **SMALL_VLLM} if backend.clustered else options


def _without_own(variant: Variant, settings: dict[str, int]) -> Variant:
    """Leave a variant without settings of its own in the place of these."""
    if variant.training is None:
        return variant
    cleared = {name: None for name in settings if hasattr(variant.training, name)}
    return variant.model_copy(update={"training": variant.training.model_copy(update=cleared)})


def with_tiny_models(suite: Suite, kinds: set[str], root: Path) -> tuple[Prepared, dict[str, str]]:
    """Make a tiny model for each model of the kinds of cells that are rehearsed, and teach it a question of each step. Returns
    the suite with these models, prepared, and what was made by policy. root: where models and results are written. Raises
    UsageError, CellError where a stand-in cannot be asked the suite's questions."""
    groups = {kind.partition("/")[0] for kind in kinds}
    suite = suite.model_copy(update={"groups": [group for group in suite.groups if group.name in groups]})
    made: dict[str, Path] = {}
    described: dict[str, str] = {}

    def tiny(policy: Policy, _: str) -> Policy:
        """Give a policy the tiny model of its kind; policies that are asked alike share one."""
        if policy.is_micro:
            return policy
        about = policy.model_dump_json(include={"model", "revision", "chat", "style"})
        if about not in made:
            made[about] = root / MODELS / f"{len(made)}-{policy.name}"
            described[policy.name] = _make_tiny(policy, made[about], root)
        return policy.model_copy(update={"model": str(made[about]), "revision": None})

    suite = with_policies(suite, tiny)
    _teach_models(_prepare_kinds(suite, kinds, root))
    return _prepare_kinds(suite, kinds, root), described  # weights that were taught have other digests


def _make_tiny(policy: Policy, folder: Path, root: Path) -> str:
    """Write a tiny model with its own tokenizer, or one of its kind; returns what it is."""
    own = at_hand(policy)
    config = load_config(policy.model, policy.revision)
    tokenizers = root / TOKENIZERS
    standins.write_tokenizer(tokenizers / folder.name, config, own)
    standins.write_model(folder, tokenizers / folder.name)
    is_own = own is not None and not own.is_relative_to(tokenizers)
    return f"{config.get('model_type')}, {'its own tokenizer' if is_own else 'a stand-in for its tokenizer'}"


def _prepare_kinds(suite: Suite, kinds: set[str], root: Path) -> Prepared:
    source = str(root / "results" / suite.name)  # not the suite's file: the places that it names were checked
    prepared = prepare_suite(suite, source, root / "results")
    return replace(prepared, cells=tuple(cell for cell in prepared.cells if cell.kind in kinds))


def _teach_models(prepared: Prepared) -> None:
    """Teach each model the first question of each step that its cells ask."""
    asked: dict[str, tuple[Policy, dict[str, Prompt]]] = {}
    for cell in prepared.cells:
        for policy in cell.group.policies:
            _, prompts = asked.setdefault(policy.model, (policy, {}))
            for step in range(1, STEPS + 1):
                first = as_asked(training_prompts(cell, step)[:1], cell.training.task, policy)[0]
                prompts[first.id] = first
    for model, (policy, prompts) in asked.items():
        if not policy.is_micro:
            standins.teach_answers(Path(model), policy, list(prompts.values()))
