"""A tuned suite's runs: trials by rungs, the check, the table. Each follows from the suite and stored results alone, so a
killed run goes on. Each batch makes an Optuna study from the trials so far, whichever cell ended first."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
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
    """A trial with what it scored. value: its score if it ran to the end; shorter: scores of shorter runs, by steps."""

    number: int
    settings: Chosen
    value: float | None
    shorter: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class TuningStage:
    """What is to run next. words: of what it is. last: whether it is the table."""

    prepared: Prepared
    words: str
    last: bool = False


class TuningStages:
    """The stages of a tuned suite: iterate, run each, and go on when `is_over` says so."""

    def __init__(self, prepared: Prepared, results: Path) -> None:
        if prepared.suite.tune is None:
            raise UsageError(f"{prepared.suite.name}: a suite without `tune`")
        check_variants(prepared.suite, prepared.source)
        self._whole_steps = prepared
        self._results = results
        self.suite = prepared.suite
        self.tune = tune_of(prepared.suite)
        self._files: dict[str, SuiteFile] = {}
        self._starts = _keys_of_starts(prepared)

    def __iter__(self) -> Iterator[TuningStage]:
        """Yield what is to run next: the rungs of each batch of trials, the check, the table. Each is to be run before the
        next."""
        asked: list[TrialRequest] = []
        told: dict[str, list[CompletedTrial]] = {variant.name: [] for variant in self.suite.regimes}
        for first in range(0, self.tune.trials, self.tune.batch):
            numbers = range(first, min(first + self.tune.batch, self.tune.trials))
            batch: list[TrialRequest] = []
            for variant in self.suite.regimes:
                batch += self._propose_trials(variant, told[variant.name], numbers)
            yield from self._by_rungs(batch, asked)
            results = self._read_scores("tuning", self.tune.seeds).score
            for ask in batch:
                told[ask.variant.name].append(self._complete_trial(ask, asked, results))
        scored = {on: self._read_scores("tuning", self.tune.seeds, on) for on in deciding_groups(self.tune)}
        chosen: dict[str, dict[str, CompletedTrial]] = {}
        settings: dict[str, dict[int, Chosen]] = {}
        for variant in self.suite.regimes:
            best = self._choose_trials(variant, told[variant.name], scored)
            chosen[variant.name] = best
            settings[variant.name] = {trial.number: trial.settings for trial in best.values()}
        if self.tune.check:
            checked = check_suite(self.suite, settings)
            yield self._make_stage(checked, "check of the chosen settings on other seeds")
        final = self._prepare_suite(final_suite(self.suite, settings))
        self._write_result(final, chosen, told, asked, scored)
        yield TuningStage(final, "the table", last=True)

    def _prepare_suite(self, suite: Suite) -> Prepared:
        """Prepare a suite that follows from this one, as if it came from the same file."""
        return prepare_suite(suite, self._whole_steps.source, self._results, self._whole_steps.altered)

    def is_over(self, stage: TuningStage) -> bool:
        """Say whether each cell is done, or failed through its own setting."""
        for status in stage.prepared.statuses():
            if status.state != "done" and not self._has_lost(stage.prepared.folder / status.key):
                return False
        return True

    def _propose_trials(
        self, variant: Variant, told: Sequence[CompletedTrial], numbers: Sequence[int]
    ) -> list[TrialRequest]:
        """Propose the settings of one batch of a variant's trials. told: its trials so far. Their steps are set by rungs."""
        spaces = search_space(self.suite, variant)
        defaults = settings_as_published(self.suite, variant)
        tried = propose_settings(spaces, defaults, told, numbers, self.tune.sampler, self.tune.seed)
        return [TrialRequest(variant, number, settings, 0) for number, settings in zip(numbers, tried, strict=True)]

    def _by_rungs(self, batch: Sequence[TrialRequest], asked: list[TrialRequest]) -> Iterator[TuningStage]:
        """Yield one batch's stages, each with more steps for the better part of the trials before; the last has all steps.

        asked: all trials so far, to which each stage's are added. Trial 0, the suite's own settings, runs to the end at once."""
        going = list(batch)
        low = batch[0].number
        high = batch[-1].number
        words = f"{low}" if low == high else f"{low}-{high}"
        whole = self.suite.training.steps
        for rung, steps in enumerate([*self.tune.rungs, whole]):
            now = [ask._replace(steps=steps) for ask in going if ask.number != 0 or steps == whole]
            if rung == 0 and self.tune.rungs:
                now += [ask._replace(steps=whole) for ask in going if ask.number == 0]
                going = [ask for ask in going if ask.number != 0]
            asked += now
            said = f"trials {words} of {self.tune.trials}, {steps} steps"
            yield self._make_stage(trial_suite(self.suite, asked), said)
            if steps == whole:
                return
            going = self._select_best(going, steps)

    def _select_best(self, going: Sequence[TrialRequest], steps: int) -> list[TrialRequest]:
        """Select, of each variant's trials with so many steps, those that go on: the best by score, of equals the earlier."""
        scored = self._read_scores("tuning", self.tune.seeds).score

        def by_score(ask: TrialRequest) -> tuple[float, int]:
            """Return what a trial is sorted by; one that failed has less than any score."""
            score = scored.get(trial_name(ask.variant.name, ask.number, steps), -1.0)
            return -score, ask.number

        kept: list[TrialRequest] = []
        for variant in self.suite.regimes:
            own = [ask for ask in going if ask.variant.name == variant.name]
            going_on = max(1, len(own) // self.tune.keep)
            best = sorted(own, key=by_score)[:going_on]
            kept += sorted(best, key=lambda ask: ask.number)
        return kept

    def _make_stage(self, suite: Suite, words: str) -> TuningStage:
        """Prepare a suite as a stage, without the cells that have lost. Raises SuiteError where it has a model of the table."""
        with faults_in_tune(suite):
            prepared = self._prepare_suite(suite)
        self._files[suite.name] = prepared.suite_file()
        shared = self._starts & _keys_of_starts(prepared)
        if shared:
            problem = f"the model with {min(shared)} is in the table too; tuning must not see it"
            raise SuiteError(prepared.source, "tune.groups", problem)
        running = tuple(cell for cell in prepared.cells if not self._has_lost(prepared.folder / cell.key))
        return TuningStage(replace(prepared, cells=running), words)

    def _has_lost(self, folder: Path) -> bool:
        """Say whether a cell failed through its own setting."""
        manifests = [manifest for _, manifest in read_manifests([folder])]
        return any(manifest.state == "failed" and manifest.fault in OWN_FAULTS for manifest in manifests)

    def _complete_trial(
        self, ask: TrialRequest, asked: Sequence[TrialRequest], score_of: Mapping[str, float]
    ) -> CompletedTrial:
        """Give a trial its scores. asked: all runs so far, also the shorter ones. score_of: by the name of a run."""
        name = ask.variant.name
        shorter: dict[int, float] = {}
        for run in asked:
            is_shorter = run.steps < self.suite.training.steps
            if is_shorter and (run.variant.name, run.number) == (name, ask.number):
                score = score_of.get(trial_name(name, ask.number, run.steps))
                if score is not None:
                    shorter[run.steps] = score
        value = score_of.get(trial_name(name, ask.number))
        return CompletedTrial(ask.number, ask.settings, value, shorter)

    def _choose_trials(
        self, variant: Variant, told: Sequence[CompletedTrial], scored: Mapping[str, TrialScores]
    ) -> dict[str, CompletedTrial]:
        """Choose, by each deciding group, the best trial that ran to the end everywhere; of equals the earlier."""
        ended = [trial for trial in told if trial.value is not None]
        if not ended:
            raise HarnessError(f"{self.suite.name}: no trial of {variant.name} could be trained to its end")
        chosen: dict[str, CompletedTrial] = {}
        for on, trials in scored.items():
            ranked = []
            for trial in ended:
                score = trials.score[trial_name(variant.name, trial.number)]
                ranked.append((score, -trial.number, trial))
            _, _, chosen[on] = max(ranked, key=itemgetter(0, 1))
        return chosen

    def _read_scores(self, what: str, seeds: Sequence[int], on: str = "") -> TrialScores:
        """Read the scores of the trials (`tuning`) or of the check, over all groups or `on` one. A score needs all of its
        cells."""
        ingest_journals(self._results)
        name = f"{self.suite.name}-{what}"
        task = str(self.tune.evaluation.tasks[0])
        groups = 1 if on else len(self.tune.groups)
        with Snapshot(self._results, self._files[name]) as snapshot:
            return read_trial_scores(snapshot, name, task, groups * len(seeds), on)

    def _write_result(
        self,
        final: Prepared,
        chosen: Mapping[str, Mapping[str, CompletedTrial]],
        told: Mapping[str, Sequence[CompletedTrial]],
        asked: Sequence[TrialRequest],
        scored: Mapping[str, TrialScores],
    ) -> None:
        """Store what was tried and chosen. scored: the trials' scores by deciding group. Arguments as in `__iter__`."""
        results = self._read_scores("tuning", self.tune.seeds)
        checked: dict[str, Mapping[str, float]] = {}
        for on in scored:
            checked[on] = self._read_scores("check", self.tune.check, on).score if self.tune.check else {}
        variants: list[Tuned] = []
        for variant in self.suite.regimes:
            name = variant.name
            runs = self._name_runs(name, asked)
            last = {ask.number: (ask.steps, run) for ask, run in runs}
            names = [run for _, run in runs]
            rollouts = _sum_costs(results.rollouts, names)
            cpu_seconds = _sum_costs(results.cpu, names)
            gpu_seconds = _sum_costs(results.gpu, names)
            for on, best in chosen[name].items():
                trials = []
                for trial in told[name]:
                    steps, run = last[trial.number]
                    trials.append(_stored_trial(trial, steps, run, scored[on].score, results.score.keys()))
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
        tuning = Tuning(
            suite=self.suite.name,
            trials_in=f"{self.suite.name}-tuning",
            task=results.task,
            metric=results.metric,
            steps=self.suite.training.steps,
            baseline=self.suite.baseline,
            variants=tuple(variants),
        )
        write_tuning(self._results, final.suite_file(), tuning)

    def _name_runs(self, variant: str, asked: Sequence[TrialRequest]) -> list[tuple[TrialRequest, str]]:
        """Return a variant's runs in the order in which they were asked for, each with its name."""
        runs = []
        for ask in asked:
            if ask.variant.name == variant:
                shortened = ask.steps if ask.steps < self.suite.training.steps else None
                runs.append((ask, trial_name(variant, ask.number, shortened)))
        return runs


def _sum_costs(costs: Mapping[str, float], runs: Sequence[str]) -> float:
    """Return what these runs cost together; one that has not ended counts as nothing."""
    return sum(costs.get(run, 0.0) for run in runs)


def _keys_of_starts(prepared: Prepared) -> set[str]:
    """Return the digests of the models that policies start from; micro models are made for each suite."""
    starts: set[str] = set()
    for cell in prepared.all_cells:
        for policy in cell.group.policies:
            if not policy.is_micro:
                starts.add(cell.identity.models[policy.name])
    return starts


def _stored_trial(
    told: CompletedTrial, steps: int, run: str, scored: Mapping[str, float], done: Container[str]
) -> Trial:
    """Return a trial as it is stored. run: its last one. scored: scores by run. done: runs that ended in every group."""
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
    """Propose settings of the trials `numbers`, one batch. Of trial 0 the defaults; without trials so far, or by `random`, each
    by `seed` and its number, so that regimes share them. Raises UsageError without Optuna."""
    if not spaces:
        return [dict(defaults) for _ in numbers]
    optuna = _import_optuna()
    later = [number for number in numbers if number != 0]
    drawn: list[dict[str, Any]] = []
    if sampler == "random" or not told:
        for number in later:
            of_trial = derive_seed(seed, "trial", number) % _SEEDS
            at_random = optuna.samplers.RandomSampler(seed=of_trial)
            drawn += _ask_for_settings(optuna, at_random, spaces, defaults, (), 1)
    else:
        of_batch = derive_seed(seed, "batch", later[0]) % _SEEDS
        tpe = optuna.samplers.TPESampler(seed=of_batch, n_startup_trials=2, constant_liar=True)
        drawn = _ask_for_settings(optuna, tpe, spaces, defaults, told, len(later))
    drawn_for = dict(zip(later, drawn, strict=True))
    return [{**defaults, **drawn_for.get(number, {})} for number in numbers]


def _ask_for_settings(
    optuna: ModuleType,
    sampler: Any,
    spaces: Mapping[str, Space],
    defaults: Chosen,
    told: Sequence[CompletedTrial],
    count: int,
) -> list[dict[str, Any]]:
    """Ask a sampler for so many settings, given the trials so far. Settings just asked for count as under way."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {name: _distribution_of(optuna, space) for name, space in spaces.items()}
    states = optuna.trial.TrialState
    for trial in told:
        places = {name: _place_of_value(space, trial.settings[name], defaults[name]) for name, space in spaces.items()}
        state = states.PRUNED if trial.value is None else states.COMPLETE
        as_stored = optuna.trial.create_trial(
            state=state,
            params=places,
            distributions=distributions,
            value=trial.value,
            intermediate_values=dict(trial.shorter),
        )
        study.add_trial(as_stored)
    asked = [study.ask(distributions).params for _ in range(count)]
    settings = []
    for places in asked:
        values = {name: _value_at(space, places[name], defaults[name]) for name, space in spaces.items()}
        settings.append(values)
    return settings


def _distribution_of(optuna: ModuleType, space: Space) -> Any:
    """Return a space as Optuna has it: a range from 0 to 1, a choice by its places."""
    if isinstance(space, Range):
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    places = tuple(range(len(space.values)))
    return optuna.distributions.CategoricalDistribution(places)


def _place_of_value(space: Space, value: Any, default: Any) -> float | int:
    """Return where a value lies in its space, as `_distribution_of` counts."""
    return space.unit(value, default) if isinstance(space, Range) else space.values.index(value)


def _value_at(space: Space, place: Any, default: Any) -> Any:
    """Return the value at a place of its space."""
    return space.at(place, default) if isinstance(space, Range) else space.values[place]


def _import_optuna() -> ModuleType:
    """Import Optuna, which is an extra. Raises UsageError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UsageError("a suite with `tune` needs Optuna: pip install 'experience-sharing-harness[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
