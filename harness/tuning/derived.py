"""The suites of trials, of the check, and of the table. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from harness.errors import SuiteError
from harness.learning import registry
from harness.suite.schema import FileTask, Settings, Suite, Training, Tune, Variant
from harness.suite.space import Choice, Range, Space, spaces_of
from harness.tasks.ladder import is_ladder, levels_of

# Before a setting of training, beside a regime's options
COMMON = "training."
TUNED = "-tuned"
LONGEST = 64

# By setting: a regime's options, and `training.learning_rate` and its like
Chosen = Mapping[str, Any]


class TrialRequest(NamedTuple):
    """A run that a trial asks for. number: of the trial, 0 for the suite's own settings. steps: of training."""

    variant: Variant
    number: int
    settings: Chosen
    steps: int


@contextmanager
def faults_in_tune(suite: Suite) -> Iterator[None]:
    """Say of a fault of the trials' groups or evaluation that its place is in `tune`."""
    try:
        yield
    except SuiteError as error:
        if suite.tune is not None or not error.path.startswith(("groups", "evaluation")):
            raise
        raise SuiteError(error.source, f"tune.{error.path}", error.problem) from None


def tune_of(suite: Suite) -> Tune:
    """Return what a tuned suite says of its search."""
    assert suite.tune is not None
    return suite.tune


def search_space(suite: Suite, variant: Variant) -> dict[str, Space]:
    """Return where each setting is searched: settings of training, then the regime's options.

    The suite's own value is always in it. Of answers a prompt only divisors of the step's answers are searched, so that a step has
    as many answers whatever is chosen.
    """
    now = settings_as_published(suite, variant)
    training = suite.training_of(variant)
    spaces: dict[str, Space] = {}
    common = spaces_of(Training, Training().model_dump())
    for name in tune_of(suite).training:
        space = common[name].around(now[COMMON + name])
        if name == "rollouts":
            answers = training.prompts * training.rollouts
            choices = space.values if isinstance(space, Choice) else ()
            divisors = [value for value in choices if value >= 2 and answers % value == 0]
            if _states_rollouts_of_policies(suite) or len(divisors) < 2:
                continue
            space = Choice(*divisors)
        spaces[COMMON + name] = space
    spaces |= registry.search_spaces(registry.load(variant.regime))
    return {name: _with_value(space, now[name]) for name, space in spaces.items()}


def _states_rollouts_of_policies(suite: Suite) -> bool:
    """Say whether some policy has a number of rollouts of its own."""
    groups = [*suite.groups, *tune_of(suite).groups]
    policies = chain.from_iterable(group.policies for group in groups)
    return any(policy.rollouts for policy in policies)


def _with_value(space: Space, value: Any) -> Space:
    """Return a space that holds the value too."""
    if space.holds(value):
        return space
    if isinstance(space, Choice):
        return Choice(value, *space.values)
    low, high = min(space.low, value), max(space.high, value)
    return Range(low, high, space.scale, space.prior, space.whole)


def settings_as_published(suite: Suite, variant: Variant) -> dict[str, Any]:
    """Return a variant's settings before any search: of training, then the regime's options with their defaults."""
    training = suite.training_of(variant)
    regime = registry.build(variant.regime, variant.options)
    options = registry.resolve_options(regime.options)
    common = {COMMON + name: getattr(training, name) for name in tune_of(suite).training}
    return {**common, **options}


def with_settings(suite: Suite, variant: Variant, name: str, settings: Chosen, steps: int) -> Variant:
    """Return a variant under another name with these settings and steps.

    The answers a step stay as many, however many a prompt.
    """
    before = suite.training_of(variant)
    own: dict[str, Any] = variant.training.model_dump(exclude_none=True) if variant.training else {}
    options = dict(variant.options)
    for key, value in settings.items():
        if key.startswith(COMMON):
            own[key.removeprefix(COMMON)] = value
        else:
            options[key] = value
    if "rollouts" in own:
        own["prompts"] = before.prompts * before.rollouts // own["rollouts"]
    own["steps"] = steps
    plain = suite.training.model_dump()
    changed = {key: value for key, value in own.items() if value != plain[key]}
    training = Settings(**changed) if changed else None
    return variant.model_copy(update={"name": name, "training": training, "options": options})


def trial_name(variant: str, number: int, steps: int | None = None) -> str:
    """Return a trial's name: `sgt.3`, and `sgt.3-s15` for a shorter run of it."""
    shortened = "" if steps is None else f"-s{steps}"
    return f"{variant}.{number}{shortened}"


def trial_suite(suite: Suite, asked: Sequence[TrialRequest]) -> Suite:
    """Return the suite of all trials so far: a regime for each run that was asked for."""
    variants = []
    for variant, number, settings, steps in asked:
        shortened = steps if steps < suite.training.steps else None
        name = trial_name(variant.name, number, shortened)
        variants.append(with_settings(suite, variant, name, settings, steps))
    return _derived_suite(suite, "tuning", tune_of(suite).seeds, variants, trial_name(suite.baseline, 0))


def deciding_groups(tune: Tune) -> list[str]:
    """Return who decides on a choice: each tuning group, or, as "", all together."""
    return [group.name for group in tune.groups] if tune.transfer else [""]


def tuned_name(suite: Suite, variant: str, number: int) -> str:
    """Return the name of a variant as tuned: `sgt-tuned`; with `transfer` `sgt-tuned.3`. Trial 0 is the variant."""
    if number == 0:
        return variant
    trial = f".{number}" if tune_of(suite).transfer else ""
    return f"{variant}{TUNED}{trial}"


def tuned_from(name: str, names: Iterable[str]) -> str | None:
    """Return the variant among `names` with the tuned copy `name`, or None."""
    variant, mark, number = name.rpartition(TUNED)
    is_number = not number or (number[0] == "." and number[1:].isdigit())
    if mark and is_number and variant in names:
        return variant
    return None


def check_suite(suite: Suite, chosen: Mapping[str, Mapping[int, Chosen]]) -> Suite:
    """Return the suite of each variant as published and as chosen, with other seeds. chosen: settings by variant and trial."""
    variants = []
    for variant in suite.regimes:
        by_trial = {0: settings_as_published(suite, variant), **chosen[variant.name]}
        for number, values in by_trial.items():
            name = trial_name(variant.name, number)
            variants.append(with_settings(suite, variant, name, values, suite.training.steps))
    return _derived_suite(suite, "check", tune_of(suite).check, variants, trial_name(suite.baseline, 0))


def final_suite(suite: Suite, chosen: Mapping[str, Mapping[int, Chosen]]) -> Suite:
    """Return the suite of the table: its variants, then each as tuned. chosen: settings by variant and trial."""
    tuned = []
    for variant in suite.regimes:
        for number, settings in chosen[variant.name].items():
            if number != 0:
                name = tuned_name(suite, variant.name, number)
                tuned.append(with_settings(suite, variant, name, settings, suite.training.steps))
    return suite.model_copy(update={"regimes": [*suite.regimes, *tuned]})


def steps_of_runs(suite: Suite) -> list[int]:
    """Return the steps of each run of one variant's trials: by rungs, of which each keeps the better part of the trials before."""
    tune = tune_of(suite)
    top = suite.training.steps
    steps_of_each: list[int] = []
    for first in range(0, tune.trials, tune.batch):
        going = min(tune.batch, tune.trials - first)
        if tune.rungs and first == 0:  # trial 0, the suite's own settings, runs to the end at once
            steps_of_each.append(top)
            going -= 1
        for steps in tune.rungs:
            steps_of_each += going * [steps]
            going = max(1, going // tune.keep)
        steps_of_each += going * [top]
    return steps_of_each


def count_runs(suite: Suite) -> int:
    """Return how many cells the search takes at most, the table's own not counted."""
    *searched, _ = foreseen_suites(suite)
    return sum(len(one.groups) * len(one.seeds) * len(one.regimes) for one in searched)


def foreseen_suites(suite: Suite) -> list[Suite]:
    """Return all suites that will run at most, the table last."""
    choices = len(deciding_groups(tune_of(suite)))
    numbers = range(1, 1 + choices)
    chosen: dict[str, dict[int, Chosen]] = {}
    asked: list[TrialRequest] = []
    for variant in suite.regimes:
        now = settings_as_published(suite, variant)
        chosen[variant.name] = dict.fromkeys(numbers, now)
        for number, steps in enumerate(steps_of_runs(suite)):
            asked.append(TrialRequest(variant, number, now, steps))
    check = [check_suite(suite, chosen)] if tune_of(suite).check else []
    return [trial_suite(suite, asked), *check, final_suite(suite, chosen)]


def check_variants(suite: Suite, source: str) -> None:
    """Check a tuned suite.

    Raises SuiteError where a derived name is taken or too long, a variant takes steps of its own, an option cannot be tuned, or
    trials ask the table's questions.
    """
    for i, task in enumerate(tune_of(suite).evaluation.tasks):
        for other in suite.evaluation.tasks:
            if _share_questions(task, other):
                problem = f"{task} asks questions of the table's {other}; tuning must not see them"
                raise SuiteError(source, f"tune.evaluation.tasks[{i}]", problem)
    names = {variant.name for variant in suite.regimes}
    for i, variant in enumerate(suite.regimes):
        _check_variant(suite, variant, names, source, f"regimes[{i}]")
    if len(suite.name) > LONGEST - len("-tuning"):
        raise SuiteError(source, "name", "too long for a suite with `tune` (57 characters at most)")


def _check_variant(suite: Suite, variant: Variant, names: Iterable[str], source: str, place: str) -> None:
    """Check one variant of a tuned suite. names: of all variants. place: its own in the file. Raises SuiteError."""
    name = variant.name
    if variant.training is not None and variant.training.steps is not None:
        raise SuiteError(source, f"{place}.training.steps", "with `tune` all variants take the same steps")
    taken = sorted(other for other in names if tuned_from(other, [name]))
    if taken:
        raise SuiteError(source, f"{place}.name", f"{taken[0]!r} is the name of its tuned copy; choose another")
    longest = trial_name(name, 999, 999_999)
    if len(longest) > LONGEST:
        raise SuiteError(source, f"{place}.name", "too long for the names of its trials (52 characters at most)")
    try:
        search_space(suite, variant)
    except ValueError as error:
        raise SuiteError(source, place, f"cannot be tuned: {error}") from None


def _share_questions(one: str | FileTask, other: str | FileTask) -> bool:
    """Say whether two tasks share questions."""
    if isinstance(one, FileTask) and isinstance(other, FileTask):
        return one.sha256 is not None and one.sha256 == other.sha256
    if isinstance(one, FileTask) or isinstance(other, FileTask):
        return False
    if is_ladder(one) and is_ladder(other):
        return not {*levels_of(one)}.isdisjoint(levels_of(other))
    return {one, other} == {"math", "math500"}


def _derived_suite(suite: Suite, what: str, seeds: Sequence[int], variants: Sequence[Variant], baseline: str) -> Suite:
    """Return the suite with the tuning groups and tasks, and these seeds and variants. what: `tuning` or `check`."""
    tune = tune_of(suite)
    changed = {
        "name": f"{suite.name}-{what}",
        "title": f"{what} of {suite.name}",
        "groups": tune.groups,
        "seeds": list(seeds),
        "regimes": list(variants),
        "baseline": baseline,
        "evaluation": tune.evaluation,
        "keep": "none",
        "tune": None,
        "training": suite.training.model_copy(update={"part": "tuning"}),
    }
    return suite.model_copy(update=changed)
