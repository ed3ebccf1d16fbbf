"""The suites of trials, of the check, and of the table. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    variant: Variant
    number: int
    settings: Chosen
    steps: int


@contextmanager
def faults_in_tune(suite: Suite) -> Iterator[None]:
    """A fault of the trials' groups or evaluation has its place in `tune`."""
    try:
        yield
    except SuiteError as error:
        if suite.tune is not None or not error.path.startswith(("groups", "evaluation")):
            raise
        raise SuiteError(error.source, f"tune.{error.path}", error.problem) from None


def tune_of(suite: Suite) -> Tune:
    assert suite.tune is not None
    return suite.tune


def search_space(suite: Suite, variant: Variant) -> dict[str, Space]:
    """Settings of training, then the regime's options; the suite's own value is always in it. Of answers a prompt only divisors
    of the step's answers are searched."""
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
    return any(policy.rollouts for group in groups for policy in group.policies)


def _with_value(space: Space, value: Any) -> Space:
    if space.holds(value):
        return space
    if isinstance(space, Choice):
        return Choice(value, *space.values)
    return Range(min(space.low, value), max(space.high, value), space.scale, space.prior, space.whole)


def settings_as_published(suite: Suite, variant: Variant) -> dict[str, Any]:
    training = suite.training_of(variant)
    options = registry.resolve_options(registry.build(variant.regime, variant.options).options)
    common = {COMMON + name: getattr(training, name) for name in tune_of(suite).training}
    return {**common, **options}


def with_settings(suite: Suite, variant: Variant, name: str, settings: Chosen, steps: int) -> Variant:
    """The answers a step stay as many, however many a prompt."""
    before = suite.training_of(variant)
    own: dict[str, Any] = variant.training.model_dump(exclude_none=True) if variant.training else {}
    own |= {key.removeprefix(COMMON): v for key, v in settings.items() if key.startswith(COMMON)}
    if "rollouts" in own:
        own["prompts"] = before.prompts * before.rollouts // own["rollouts"]
    own["steps"] = steps
    plain = suite.training.model_dump()
    changed = {key: value for key, value in own.items() if value != plain[key]}
    options = {key: value for key, value in settings.items() if not key.startswith(COMMON)}
    training = Settings(**changed) if changed else None
    return variant.model_copy(update={"name": name, "training": training, "options": {**variant.options, **options}})


def trial_name(variant: str, number: int, steps: int | None = None) -> str:
    """`sgt.3`, and `sgt.3-s15` for a shorter run of it."""
    return f"{variant}.{number}" + ("" if steps is None else f"-s{steps}")


def trial_suite(suite: Suite, asked: Sequence[TrialRequest]) -> Suite:
    variants = []
    for variant, number, settings, steps in asked:
        shortened = steps if steps < suite.training.steps else None
        name = trial_name(variant.name, number, shortened)
        variants.append(with_settings(suite, variant, name, settings, steps))
    return _derived_suite(suite, "tuning", tune_of(suite).seeds, variants, trial_name(suite.baseline, 0))


def deciding_groups(tune: Tune) -> list[str]:
    """Each tuning group, or, as "", all together."""
    return [group.name for group in tune.groups] if tune.transfer else [""]


def tuned_name(suite: Suite, variant: str, number: int) -> str:
    """`sgt-tuned`; with `transfer` `sgt-tuned.3`. Trial 0 is the variant."""
    if number == 0:
        return variant
    return variant + TUNED + (f".{number}" if tune_of(suite).transfer else "")


def tuned_from(name: str, names: Iterable[str]) -> str | None:
    """The variant among `names` with the tuned copy `name`, or None."""
    variant, mark, number = name.rpartition(TUNED)
    told = not number or (number[0] == "." and number[1:].isdigit())
    return variant if mark and told and variant in names else None


def check_suite(suite: Suite, chosen: Mapping[str, Mapping[int, Chosen]]) -> Suite:
    """As published and as chosen, with other seeds. chosen: settings by trial."""
    variants = []
    for variant in suite.regimes:
        for n, values in {0: settings_as_published(suite, variant), **chosen[variant.name]}.items():
            name = trial_name(variant.name, n)
            variants.append(with_settings(suite, variant, name, values, suite.training.steps))
    return _derived_suite(suite, "check", tune_of(suite).check, variants, trial_name(suite.baseline, 0))


def final_suite(suite: Suite, chosen: Mapping[str, Mapping[int, Chosen]]) -> Suite:
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
    return sum(len(s.groups) * len(s.seeds) * len(s.regimes) for s in foreseen_suites(suite)[:-1])


def foreseen_suites(suite: Suite) -> list[Suite]:
    """All that will run at most, the table last."""
    numbers = range(1, 1 + len(deciding_groups(tune_of(suite))))
    chosen: dict[str, dict[int, Chosen]] = {}
    asked: list[TrialRequest] = []
    for variant in suite.regimes:
        now = settings_as_published(suite, variant)
        chosen[variant.name] = dict.fromkeys(numbers, now)
        asked += [TrialRequest(variant, i, now, steps) for i, steps in enumerate(steps_of_runs(suite))]
    check = [check_suite(suite, chosen)] if tune_of(suite).check else []
    return [trial_suite(suite, asked), *check, final_suite(suite, chosen)]


def check_variants(suite: Suite, source: str) -> None:
    """Raises SuiteError where a derived name is taken or too long, a variant takes steps of its own, an option cannot be
    tuned, or trials ask the table's questions."""
    for i, task in enumerate(tune_of(suite).evaluation.tasks):
        for other in (other for other in suite.evaluation.tasks if _share_questions(task, other)):
            problem = f"{task} asks questions of the table's {other}; tuning must not see them"
            raise SuiteError(source, f"tune.evaluation.tasks[{i}]", problem)
    names = {v.name for v in suite.regimes}
    for i, variant in enumerate(suite.regimes):
        name = variant.name
        problem = "with `tune` all variants take the same steps"
        if variant.training is not None and variant.training.steps is not None:
            raise SuiteError(source, f"regimes[{i}].training.steps", problem)
        taken = sorted(other for other in names if tuned_from(other, [name]))
        if taken:
            raise SuiteError(
                source, f"regimes[{i}].name", f"{taken[0]!r} is the name of its tuned copy; choose another"
            )
        if len(trial_name(name, 999, 999_999)) > LONGEST:
            raise SuiteError(
                source, f"regimes[{i}].name", "too long for the names of its trials (52 characters at most)"
            )
        try:
            search_space(suite, variant)
        except ValueError as error:
            raise SuiteError(source, f"regimes[{i}]", f"cannot be tuned: {error}") from None
    if len(suite.name) > LONGEST - len("-tuning"):
        raise SuiteError(source, "name", "too long for a suite with `tune` (57 characters at most)")


def _share_questions(one: str | FileTask, other: str | FileTask) -> bool:
    """Whether two tasks share questions."""
    if isinstance(one, FileTask) and isinstance(other, FileTask):
        return one.sha256 is not None and one.sha256 == other.sha256
    if isinstance(one, FileTask) or isinstance(other, FileTask):
        return False
    if is_ladder(one) and is_ladder(other):
        return not {*levels_of(one)}.isdisjoint(levels_of(other))
    return {one, other} == {"math", "math500"}


def _derived_suite(suite: Suite, what: str, seeds: Sequence[int], variants: Sequence[Variant], baseline: str) -> Suite:
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
