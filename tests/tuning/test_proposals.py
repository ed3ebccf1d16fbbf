"""What is asked next: a function of seed and results."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the tune extra is not installed")

from running import here

from harness.errors import SuiteError
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.suite.prepare import prepare_named, prepare_suite
from harness.session.suite.validation import validate_suite
from harness.suite.load import load_suite
from harness.suite.space import Choice, Range
from harness.tuning.derived import (
    TrialRequest,
    check_variants,
    count_runs,
    final_suite,
    foreseen_suites,
    search_space,
    settings_as_published,
    trial_suite,
    tuned_from,
    with_settings,
)
from harness.tuning.stages import CompletedTrial, propose_settings

SPACES = {"rate": Range(1e-5, 1e-3, "log", "normal"), "kind": Choice("a", "b"), "weight": Range(0.0, 1.0)}
DEFAULTS = {"rate": 1e-4, "kind": "a", "weight": 0.5, "fixed": 7}


def told(values=(0.4, 0.5, None, 0.3)):
    settings = propose_settings(SPACES, DEFAULTS, (), range(4), "tpe", 0)
    return [
        CompletedTrial(i, s, v, {5: 0.2} if v is None else {})
        for i, (s, v) in enumerate(zip(settings, values, strict=True))
    ]


def test_trial_0_is_as_published_and_all_lie_in_their_spaces():
    first = propose_settings(SPACES, DEFAULTS, (), range(6), "tpe", 0)
    assert first[0] == DEFAULTS
    later = propose_settings(SPACES, DEFAULTS, told(), range(4, 10), "tpe", 0)
    for settings in first + later:
        assert settings["fixed"] == 7
        assert all(space.holds(settings[name]) for name, space in SPACES.items())
    assert len({s["rate"] for s in first + later}) > 9


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_question_has_the_same_answer_and_another_seed_another(sampler):
    one, again, other = (propose_settings(SPACES, DEFAULTS, told(), [4, 5, 6], sampler, seed) for seed in (0, 0, 1))
    assert one == again != other


def test_tpe_heeds_results_and_random_does_not():
    for sampler, heeds in (("tpe", True), ("random", False)):
        one, other = (
            propose_settings(SPACES, DEFAULTS, t, range(4, 12), sampler, 0)
            for t in (told(), told((0.4, 0.1, 0.9, 0.3)))
        )
        assert (one != other) == heeds


def test_first_batches_share_what_regimes_share():
    common = {"rate": SPACES["rate"], "kind": SPACES["kind"]}
    alone, more = (propose_settings(s, DEFAULTS, (), range(5), "tpe", 3) for s in (common, SPACES))
    assert [(s["rate"], s["kind"]) for s in alone] == [(s["rate"], s["kind"]) for s in more]
    assert len({s["weight"] for s in more}) == 5


def test_tpe_finds_the_better_half():
    """Thirty trials of a score that peaks at weight 0.8: later batches lie nearer to it than the first."""
    known: list[CompletedTrial] = []
    for first in range(0, 32, 4):
        asked = propose_settings(SPACES, DEFAULTS, known, range(first, first + 4), "tpe", 0)
        known += [CompletedTrial(first + i, s, -abs(s["weight"] - 0.8), {}) for i, s in enumerate(asked)]
    away = [abs(t.settings["weight"] - 0.8) for t in known]
    assert sum(away[-8:]) / 8 < 0.6 * sum(away[:8]) / 8


@pytest.fixture
def suite():
    return validate_suite(load_suite("tuned_small"), "tuned_small")


def test_every_trial_has_the_step_s_number_of_answers(suite):
    variant = next(v for v in suite.regimes if v.name == "sgt")
    space = search_space(suite, variant)
    assert space["training.rollouts"].values == (4, 8, 16)
    assert space["training.learning_rate"] == Range(4e-5, 1e-3, "log", "normal")
    assert list(space)[:3] == ["training.learning_rate", "training.rollouts", "training.kl"]
    for rollouts in (4, 8, 16):
        settings = {**settings_as_published(suite, variant), "training.rollouts": rollouts, "lambda": 1.0}
        trial = with_settings(suite, variant, "sgt.1", settings, 20)
        training = suite.training_of(trial)
        assert training.prompts * training.rollouts == 64
        assert (training.rollouts, training.steps, trial.options) == (rollouts, 20, {"lambda": 1.0})
    assert with_settings(suite, variant, "sgt.0", settings_as_published(suite, variant), 20).training is None


@pytest.mark.parametrize("group", ["groups", "tune.groups"])
def test_where_a_policy_has_rollouts_of_its_own_they_are_not_searched(group):
    suite = load_suite("tuned_small", [f"{group}[0].policies[0].rollouts=8"])
    assert "training.rollouts" not in search_space(suite, suite.regimes[0])


def test_what_a_variant_trains_otherwise_stays_in_its_trials():
    changes = ["regimes[3]={regime: hacpo, training: {updates: 4, kl: 0.01}}", "tune.training=[learning_rate]"]
    suite = validate_suite(load_suite("tuned_small", changes), "tuned_small")
    variant = suite.regimes[3]
    for rate in (suite.training.learning_rate, 5e-4):
        settings = {**settings_as_published(suite, variant), "training.learning_rate": rate}
        training = suite.training_of(with_settings(suite, variant, "hacpo.1", settings, 20))
        assert (training.updates, training.kl, training.learning_rate) == (4, 0.01, rate)


def test_a_plan_from_nothing_leaves_out_what_is_done(tmp_path):
    plan = "plan", "tuned_small", "--set", "tune.rungs=[]", "--results", tmp_path
    before = here(*plan)[2]
    prepared = prepare_named("tuned_small", tmp_path, overrides=["tune.rungs=[]"])
    trials = prepare_suite(foreseen_suites(prepared.suite)[0], prepared.source, tmp_path, prepared.altered)
    for cell in trials.all_cells:
        mark_state(trials.folder / cell.key, manifest_of(cell), "done")
    assert "from nothing to the table at most" in before
    assert here(*plan)[2] == before


def test_a_value_outside_its_range_widens_it():
    raw = load_suite("tuned_small", ["regimes[2]={regime: sgt, lambda: 9.0}", "training.kl=0.5"])
    suite = validate_suite(raw, "tuned_small")
    space = search_space(suite, suite.regimes[2])
    assert space["lambda"].holds(9.0)
    assert space["training.kl"].values == (0.5, 0.0, 1e-3, 1e-2)


def test_the_suites_that_come_of_it(suite):
    asked = [TrialRequest(v, 0, settings_as_published(suite, v), steps) for v in suite.regimes for steps in (5, 20)]
    trials = trial_suite(suite, asked)
    assert [v.name for v in trials.regimes[:2]] == ["independent.0-s5", "independent.0"]
    assert (trials.training.part, trials.tune, trials.baseline, trials.seeds) == (
        "tuning",
        None,
        "independent.0",
        [101],
    )
    settings = {**settings_as_published(suite, suite.regimes[0]), "training.kl": 0.01}
    chosen = {
        v.name: {3: {**settings, **v.options}} if v.name == "sgt" else {0: settings_as_published(suite, v)}
        for v in suite.regimes
    }
    final = final_suite(suite, chosen)
    assert [v.name for v in final.regimes] == ["independent", "prp", "sgt", "hacpo", "sgt-tuned"]
    assert (final.training.part, final.training_of(final.regimes[-1]).kl, final.training_of(final.regimes[2]).kl) == (
        "final",
        0.01,
        0,
    )


def test_how_many_runs_that_is(suite):
    assert count_runs(suite) == 4 * (8 + 2)
    with_rungs = suite.model_copy(update={"tune": suite.tune.model_copy(update={"rungs": [5, 10], "check": []})})
    # batch 1: trial 0, three others, one of them, one of them; batch 2: four, two, one
    assert count_runs(with_rungs) == 4 * (1 + 3 + 1 + 1 + 4 + 2 + 1)


def test_what_is_foreseen_is_what_runs_at_most(suite):
    trials, check, table = foreseen_suites(suite)
    cells = [len(s.regimes) * len(s.groups) * len(s.seeds) for s in (trials, check, table)]
    assert (cells[0] + cells[1], cells[2]) == (count_runs(suite), 2 * 4 * 3)
    full = foreseen_suites(load_suite("tuned_full"))
    assert sum(len(s.regimes) * len(s.groups) * len(s.seeds) for s in full[:2]) == count_runs(load_suite("tuned_full"))
    assert len(full[-1].regimes) == 3 * 9


@pytest.mark.parametrize(
    ("name", "of"),
    [("sgt-tuned", "sgt"), ("sgt-tuned.3", "sgt"), ("sgt-tuned.x", None), ("sgt-tuned.", None), ("sgt", None),
     ("x-tuned", None), ("sgt-tuned-tuned.1", None)],
)  # fmt: skip
def test_whose_tuned_copy_a_name_is(name, of):
    assert tuned_from(name, ["independent", "sgt"]) == of


FILE = f"{{file: a.jsonl, sha256: {'a1' * 32}, name: NAME}}"


@pytest.mark.parametrize(
    ("trials", "table"),
    [("math", "math500"), ("ladder", "ladder.add1"), (FILE.replace("NAME", "x"), FILE.replace("NAME", "y"))],
)
def test_trials_that_ask_questions_of_the_table(trials, table):
    for asked, at in ((f"[micro_dev, {trials}]", r"tune.evaluation.tasks\[1\]: \w+ asks"), ("[ladder.sub2]", "")):
        suite = load_suite("tuned_small", [f"tune.evaluation.tasks={asked}", f"evaluation.tasks=[{table}]"])
        with pytest.raises(SuiteError, match=at) if at else nullcontext():
            check_variants(suite, "x.yaml")


def test_names_that_are_taken_or_too_long_and_options_that_no_range_holds():
    for regime, says in (("{regime: sgt, name: independent-tuned}", "is the name of its tuned copy"),
                         ("{regime: sgt, name: " + "x" * 60 + "}", "too long .*52 characters at most"),
                         ("{regime: sgt, lambda: 0}", "regimes\\[2\\]: cannot be tuned: a range on a log scale")):  # fmt: skip
        with pytest.raises(SuiteError, match=says):
            check_variants(load_suite("tuned_small", [f"regimes[2]={regime}"]), str(Path("x.yaml")))
        for command in (("plan",), ("submit", "--slurm", "--dry-run")):
            code, _, err = here(*command, "tuned_small", "--set", f"regimes[2]={regime}")
            assert (code, bool(re.search(says, err))) == (2, True)
    longest = load_suite("tuned_small", ["regimes[2]={regime: sgt, name: " + "x" * 52 + "}"])
    check_variants(longest, "x.yaml")


@pytest.mark.parametrize(
    ("command", "setting", "says"),
    [
        ("plan", "groups[0].policies[0].model=micro/none", "unknown micro model"),
        ("run", "evaluation.tasks=[none]", "unknown task"),
        ("run", "groups[0].policies[0]={name: a, model: ./none}", "no such folder"),
    ],
)
def test_a_fault_of_trials_has_its_place_in_the_search(command, setting, says, tmp_path):
    code, _, err = here(command, "tuned_small", "--set", f"tune.{setting}", "--results", tmp_path)
    place = re.escape(setting.partition("=")[0])
    assert (code, bool(re.search(rf"yaml: tune\.{place}(\[0\]|\.model)?: {says}", err))) == (2, True), err
