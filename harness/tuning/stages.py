"""A tuned suite's runs: trials by rungs, the check, the table. Each follows from the suite and stored results alone, so a
killed run goes on. Each batch makes an Optuna study from the trials so far, whichever cell ended first."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from harness.errors import Fault, HarnessError, SuiteError, UsageError
from harness.session.suite.prepare import prepare_suite
from harness.session.suite.prepared import Prepared
from harness.store.ingest import ingest_journals
from harness.store.manifest import SuiteFile, read_manifests
from harness.store.read import Snapshot
from harness.store.tuning import Trial, Tuned, Tuning, write_tuning
from harness.store.tuning_table import TrialScores, read_trial_scores
from harness.suite.schema import Suite, Variant
from harness.suite.seeds import derive_seed
from harness.suite.space import Range, Space
from harness.tuning.derived import (
    Chosen,
    TrialRequest,
    check_suite,
    check_variants,
    deciding_groups,
    faults_in_tune,
    final_suite,
    search_space,
    settings_as_published,
    trial_name,
    trial_suite,
    tune_of,
    tuned_name,
)

# Such a trial has lost; any other failure holds tuning up until mended
OWN_FAULTS = (Fault.NOT_FINITE, Fault.EXPLODED, Fault.COLLAPSED, Fault.TRUNCATED)

_SEEDS = 2**32


@dataclass(frozen=True, slots=True)
class CompletedTrial:
    """value: its score if it ran to the end; shorter: scores of shorter runs, by steps."""

    number: int
    settings: Chosen
    value: float | None
    shorter: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class TuningStage:
    prepared: Prepared
    words: str
    last: bool = False


class TuningStages:
    """Iterate, run each, and go on when it is `over`."""

    def __init__(self, prepared: Prepared, results: Path) -> None:
        if prepared.suite.tune is None:
            raise UsageError(f"{prepared.suite.name}: a suite without `tune`")
        check_variants(prepared.suite, prepared.source)
        self._whole_steps = prepared
        self._results = results
        self.suite, self.tune = prepared.suite, tune_of(prepared.suite)
        self._files: dict[str, SuiteFile] = {}
        self._starts = _keys_of_starts(prepared)

    def __iter__(self) -> Iterator[TuningStage]:
        asked: list[TrialRequest] = []
        told: dict[str, list[CompletedTrial]] = {v.name: [] for v in self.suite.regimes}
        for first in range(0, self.tune.trials, self.tune.batch):
            numbers = range(first, min(first + self.tune.batch, self.tune.trials))
            batch: list[TrialRequest] = []
            for v in self.suite.regimes:
                spaces = search_space(self.suite, v)
                defaults = settings_as_published(self.suite, v)
                tried = propose_settings(spaces, defaults, told[v.name], numbers, self.tune.sampler, self.tune.seed)
                batch += [TrialRequest(v, n, settings, 0) for n, settings in zip(numbers, tried, strict=True)]
            yield from self._by_rungs(batch, asked)
            results = self._read_scores("tuning", self.tune.seeds).score
            for ask in batch:
                told[ask.variant.name].append(self._complete_trial(ask, asked, results))
        scored = {on: self._read_scores("tuning", self.tune.seeds, on) for on in deciding_groups(self.tune)}
        chosen = {v.name: self._choose_trials(v, told[v.name], scored) for v in self.suite.regimes}
        settings = {name: {t.number: t.settings for t in each.values()} for name, each in chosen.items()}
        if self.tune.check:
            yield self._make_stage(check_suite(self.suite, settings), "check of the chosen settings on other seeds")
        final = prepare_suite(
            final_suite(self.suite, settings), self._whole_steps.source, self._results, self._whole_steps.altered
        )
        self._write_result(final, chosen, told, asked, scored)
        yield TuningStage(final, "the table", last=True)

    def is_over(self, stage: TuningStage) -> bool:
        """Each cell is done, or failed through its own setting."""
        return all(
            s.state == "done" or self._has_lost(stage.prepared.folder / s.key) for s in stage.prepared.statuses()
        )

    def _by_rungs(self, batch: Sequence[TrialRequest], asked: list[TrialRequest]) -> Iterator[TuningStage]:
        going = list(batch)
        low = batch[0].number
        high = batch[-1].number
        words = f"{low}" if low == high else f"{low}-{high}"
        for i, steps in enumerate([*self.tune.rungs, self.suite.training.steps]):
            now = [a._replace(steps=steps) for a in going if a.number != 0 or steps == self.suite.training.steps]
            if i == 0 and self.tune.rungs:
                now += [a._replace(steps=self.suite.training.steps) for a in going if a.number == 0]
                going = [a for a in going if a.number != 0]
            asked += now
            yield self._make_stage(
                trial_suite(self.suite, asked), f"trials {words} of {self.tune.trials}, {steps} steps"
            )
            if steps == self.suite.training.steps:
                return
            going = self._select_best(going, steps)

    def _select_best(self, going: Sequence[TrialRequest], steps: int) -> list[TrialRequest]:
        scored = self._read_scores("tuning", self.tune.seeds).score
        kept: list[TrialRequest] = []
        for variant in self.suite.regimes:
            own = [a for a in going if a.variant.name == variant.name]
            ranked = sorted(own, key=lambda a: (-scored.get(trial_name(variant.name, a.number, steps), -1.0), a.number))
            kept += sorted(ranked[: max(1, len(own) // self.tune.keep)], key=lambda a: a.number)
        return kept

    def _make_stage(self, suite: Suite, words: str) -> TuningStage:
        with faults_in_tune(suite):
            prepared = prepare_suite(suite, self._whole_steps.source, self._results, self._whole_steps.altered)
        self._files[suite.name] = prepared.suite_file()
        shared = self._starts & _keys_of_starts(prepared)
        if shared:
            problem = f"the model with {min(shared)} is in the table too; tuning must not see it"
            raise SuiteError(prepared.source, "tune.groups", problem)
        running = tuple(c for c in prepared.cells if not self._has_lost(prepared.folder / c.key))
        return TuningStage(replace(prepared, cells=running), words)

    def _has_lost(self, folder: Path) -> bool:
        return any(
            manifest.state == "failed" and manifest.fault in OWN_FAULTS for _, manifest in read_manifests([folder])
        )

    def _complete_trial(
        self, ask: TrialRequest, asked: Sequence[TrialRequest], score_of: Mapping[str, float]
    ) -> CompletedTrial:
        name = ask.variant.name
        top = self.suite.training.steps
        steps = [a.steps for a in asked if (a.variant.name, a.number) == (name, ask.number) and a.steps < top]
        scored = {n: score_of.get(trial_name(name, ask.number, n)) for n in steps}
        shorter = {n: score for n, score in scored.items() if score is not None}
        return CompletedTrial(ask.number, ask.settings, score_of.get(trial_name(name, ask.number)), shorter)

    def _choose_trials(
        self, variant: Variant, told: Sequence[CompletedTrial], scored: Mapping[str, TrialScores]
    ) -> dict[str, CompletedTrial]:
        """The best that ran to the end everywhere; of equals the earlier."""
        ended = [t for t in told if t.value is not None]
        if not ended:
            raise HarnessError(f"{self.suite.name}: no trial of {variant.name} could be trained to its end")
        return {
            on: max(ended, key=lambda t: (trials.score[trial_name(variant.name, t.number)], -t.number))
            for on, trials in scored.items()
        }

    def _read_scores(self, what: str, seeds: Sequence[int], on: str = "") -> TrialScores:
        ingest_journals(self._results)
        name = f"{self.suite.name}-{what}"
        task = str(self.tune.evaluation.tasks[0])
        with Snapshot(self._results, self._files[name]) as snapshot:
            return read_trial_scores(snapshot, name, task, (1 if on else len(self.tune.groups)) * len(seeds), on)

    def _write_result(
        self,
        final: Prepared,
        chosen: Mapping[str, Mapping[str, CompletedTrial]],
        told: Mapping[str, Sequence[CompletedTrial]],
        asked: Sequence[TrialRequest],
        scored: Mapping[str, TrialScores],
    ) -> None:
        results = self._read_scores("tuning", self.tune.seeds)
        checked = {
            on: self._read_scores("check", self.tune.check, on).score if self.tune.check else {} for on in scored
        }
        full_length = self.suite.training.steps
        variants = []
        for variant in self.suite.regimes:
            name = variant.name
            runs = []
            for ask in asked:
                if ask.variant.name == name:
                    shortened = ask.steps if ask.steps < full_length else None
                    runs.append((ask, trial_name(name, ask.number, shortened)))
            last = {ask.number: (ask.steps, run) for ask, run in runs}
            rollouts = sum(results.rollouts.get(run, 0.0) for _, run in runs)
            cpu_seconds = sum(results.cpu.get(run, 0.0) for _, run in runs)
            gpu_seconds = sum(results.gpu.get(run, 0.0) for _, run in runs)
            for on, best in chosen[name].items():
                scores = scored[on].score
                trials = [
                    _stored_trial(trial, *last[trial.number], scores, results.score.keys()) for trial in told[name]
                ]
                tuned = Tuned(
                    variant=name,
                    on=on,
                    final=tuned_name(self.suite, name, best.number),
                    chosen=best.number,
                    trials=tuple(trials),
                    checked=checked[on].get(trial_name(name, best.number)),
                    checked_published=checked[on].get(trial_name(name, 0)),
                    rollouts=rollouts,
                    cpu_seconds=cpu_seconds,
                    gpu_seconds=gpu_seconds,
                )
                variants.append(tuned)
        write_tuning(
            self._results,
            final.suite_file(),
            Tuning(
                suite=self.suite.name, trials_in=f"{self.suite.name}-tuning", task=results.task, metric=results.metric,
                steps=full_length, baseline=self.suite.baseline, variants=tuple(variants),
            ),
        )  # fmt: skip


def _keys_of_starts(prepared: Prepared) -> set[str]:
    return {c.identity.models[p.name] for c in prepared.every for p in c.group.policies if not p.is_micro}


def _stored_trial(
    told: CompletedTrial, steps: int, run: str, scored: Mapping[str, float], done: Container[str]
) -> Trial:
    score = scored.get(run) if run in done else None
    fault = "training failed" if score is None else ""
    return Trial(number=told.number, variant=run, settings=dict(told.settings), steps=steps, score=score, fault=fault)


# Which settings to try next ---------------------------------------------------------------------------------------------


def propose_settings(
    spaces: Mapping[str, Space],
    defaults: Chosen,
    told: Sequence[CompletedTrial],
    numbers: Sequence[int],
    sampler: Literal["tpe", "random"],
    seed: int,
) -> list[dict[str, Any]]:
    """Settings of the trials `numbers`, one batch. Of trial 0 the defaults; without trials so far, or by `random`, each by
    `seed` and its number, so that regimes share them. Raises UsageError without Optuna."""
    if not spaces:
        return [dict(defaults) for _ in numbers]
    optuna = _import_optuna()
    later = [n for n in numbers if n != 0]
    if sampler == "random" or not told:
        drawn = [
            _ask_for_settings(
                optuna,
                optuna.samplers.RandomSampler(seed=derive_seed(seed, "trial", n) % _SEEDS),
                spaces,
                defaults,
                (),
                1,
            )[0]
            for n in later
        ]
    else:
        tpe = optuna.samplers.TPESampler(
            seed=derive_seed(seed, "batch", later[0]) % _SEEDS, n_startup_trials=2, constant_liar=True
        )
        drawn = _ask_for_settings(optuna, tpe, spaces, defaults, told, len(later))
    ready = iter(drawn)
    return [dict(defaults) if n == 0 else {**defaults, **next(ready)} for n in numbers]


def _ask_for_settings(
    optuna: ModuleType,
    sampler: Any,
    spaces: Mapping[str, Space],
    defaults: Chosen,
    told: Sequence[CompletedTrial],
    count: int,
) -> list[dict[str, Any]]:
    """Settings just asked for count as under way."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    of = {name: _distribution_of(optuna, space) for name, space in spaces.items()}
    states = optuna.trial.TrialState
    for trial in told:
        params = {name: _place_of_value(space, trial.settings[name], defaults[name]) for name, space in spaces.items()}
        study.add_trial(
            optuna.trial.create_trial(
                state=states.PRUNED if trial.value is None else states.COMPLETE, params=params, distributions=of,
                value=trial.value, intermediate_values=dict(trial.shorter),
            )
        )  # fmt: skip
    asked = [study.ask(of).params for _ in range(count)]
    return [
        {name: _value_at(space, params[name], defaults[name]) for name, space in spaces.items()} for params in asked
    ]


def _distribution_of(optuna: ModuleType, space: Space) -> Any:
    if isinstance(space, Range):
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    return optuna.distributions.CategoricalDistribution(tuple(range(len(space.values))))


def _place_of_value(space: Space, value: Any, default: Any) -> float | int:
    return space.unit(value, default) if isinstance(space, Range) else space.values.index(value)


def _value_at(space: Space, place: Any, default: Any) -> Any:
    return space.at(place, default) if isinstance(space, Range) else space.values[place]


def _import_optuna() -> ModuleType:
    try:
        import optuna
    except ImportError:
        raise UsageError("a suite with `tune` needs Optuna: pip install 'experience-sharing-harness[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
