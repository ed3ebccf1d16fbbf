"""Which settings to try next: Optuna, asked so that its answer is a function of seed and stored results.

No study is kept: each batch makes a new one from the trials so far, whichever cell ended first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from harness.errors import UsageError
from harness.suite.seeds import derive
from harness.suite.space import Range, Space
from harness.tuning.derived import Chosen

_SEEDS = 2**32


@dataclass(frozen=True, slots=True)
class CompletedTrial:
    """value: its score where it ran to the end; shorter: scores by steps of its shorter runs."""

    number: int
    settings: Chosen
    value: float | None
    shorter: Mapping[int, float]


def propose(
    spaces: Mapping[str, Space],
    defaults: Chosen,
    told: Sequence[CompletedTrial],
    numbers: Sequence[int],
    sampler: Literal["tpe", "random"],
    seed: int,
) -> list[dict[str, Any]]:
    """Settings of the trials `numbers`, one batch. Of trial 0 the defaults; without trials so far, or by `random`, each from
    a generator that `seed` and its number decide: settings that two regimes share are the same in both. Raises UsageError
    without Optuna."""
    if not spaces:
        return [dict(defaults) for _ in numbers]
    optuna = _optuna()
    later = [n for n in numbers if n != 0]
    if sampler == "random" or not told:
        drawn = [
            _ask(
                optuna, optuna.samplers.RandomSampler(seed=derive(seed, "trial", n) % _SEEDS), spaces, defaults, (), 1
            )[0]
            for n in later
        ]
    else:
        tpe = optuna.samplers.TPESampler(
            seed=derive(seed, "batch", later[0]) % _SEEDS, n_startup_trials=2, constant_liar=True
        )
        drawn = _ask(optuna, tpe, spaces, defaults, told, len(later))
    ready = iter(drawn)
    return [dict(defaults) if n == 0 else {**defaults, **next(ready)} for n in numbers]


def _ask(
    optuna: ModuleType,
    sampler: Any,
    spaces: Mapping[str, Space],
    defaults: Chosen,
    told: Sequence[CompletedTrial],
    count: int,
) -> list[dict[str, Any]]:
    """`count` settings; those that were just asked for count as under way."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    of = {name: _distribution(optuna, space) for name, space in spaces.items()}
    states = optuna.trial.TrialState
    for trial in told:
        params = {name: _place(space, trial.settings[name], defaults[name]) for name, space in spaces.items()}
        study.add_trial(
            optuna.trial.create_trial(
                state=states.PRUNED if trial.value is None else states.COMPLETE, params=params, distributions=of,
                value=trial.value, intermediate_values=dict(trial.shorter),
            )
        )  # fmt: skip
    asked = [study.ask(of).params for _ in range(count)]
    return [{name: _value(space, params[name], defaults[name]) for name, space in spaces.items()} for params in asked]


def _distribution(optuna: ModuleType, space: Space) -> Any:
    if isinstance(space, Range):
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    return optuna.distributions.CategoricalDistribution(tuple(range(len(space.values))))


def _place(space: Space, value: Any, default: Any) -> float | int:
    return space.unit(value, default) if isinstance(space, Range) else space.values.index(value)


def _value(space: Space, place: Any, default: Any) -> Any:
    return space.at(place, default) if isinstance(space, Range) else space.values[place]


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise UsageError("a suite with `tune` needs Optuna: pip install 'experience-sharing-harness[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
