"""Whole cells: every regime runs, repeats itself exactly, resumes exactly, and equals its baseline without peers."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import reference
import typer
from running import TABLES, cell, ingested, rows, run, weights, with_condition

from harness.engines.embedded.plugin import Embedded
from harness.errors import SuiteError
from harness.experience.answers import Prompt
from harness.learning.conformance import check_regime
from harness.learning.regime import Measured
from harness.learning.terms import Schedule
from harness.phases import Interrupted
from harness.session.cell import cell as cells
from harness.session.cell.manifests import manifest_of
from harness.session.policy import micro_spec
from harness.session.single.rescoring import rescore_results
from harness.session.single.standalone import evaluate_checkpoint
from harness.session.suite.prepare import prepare_named
from harness.store.cell_state import read_state
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest
from harness.submission.rerun import compare_tables
from harness.suite.schema import Sharing
from harness.tasks.micro import SKILLS
from harness.tasks.registry import get_task


@pytest.fixture(scope="module")
def every(suite_text, tmp_path_factory):
    place = tmp_path_factory.mktemp("every")
    (place / "tiny.yaml").write_text(suite_text)
    return run(place / "tiny.yaml", place / "results")


@pytest.fixture(params=["finished", pytest.param("every", marks=pytest.mark.slow)])
def trained_cells(request):
    """Three regimes, and every one of the tiny suite."""
    return request.getfixturevalue(request.param)


def test_every_regime_trains_and_is_evaluated(trained_cells):
    for c in trained_cells.cells:
        assert read_state(trained_cells.folder / c.key) == ("done", "", 1)
        steps = rows(trained_cells, c, "steps")
        assert [(r["step"], r["policy"]) for r in steps] == [(s, p) for s in (1, 2, 3, 4) for p in "ab"]
        assert all(r["rollouts"] == 36 and r["right"] + r["wrong"] + r["invalid"] == 36 for r in steps)
        assert sum(r["right"] for r in steps) > 0
        assert len(rows(trained_cells, c, "samples")) == 2 * 6 * 3
        assert {r["step"] for r in rows(trained_cells, c, "curves")} == {0, 2, 4}
        asked = {r["doc_id"] for r in rows(trained_cells, c, "samples")}
        assert {name.partition(":")[0] for name in asked} == set(SKILLS), "a limit of six asks of every skill"


def test_drift_of_the_sampler_is_kept_per_step_and_added_up(finished):
    """On one engine only rounding; steps in which nothing of one's own was learnt have none."""
    steps = [row for c in finished.cells for row in rows(finished, c, "steps")]
    drifts = [(r["sampler_drift"], r["sampler_drift_p99"], r["sampler_drift_outside"]) for r in steps]
    assert all(d == (None,) * 3 or (0 <= d[0] <= d[1] < 1e-4 and d[2] == 0) for d in drifts)
    assert any(mean and mean < high for mean, high, _ in drifts), "rounding is seen"
    with ingested(finished.folder.parent) as store:
        totals = store.query("SELECT * FROM totals JOIN cells USING (suite, cell) WHERE kind = 'cell'").to_pylist()
    assert len(totals) == 2 * len(finished.cells)
    own = {c.key: rows(finished, c, "steps") for c in finished.cells}
    for row in totals:
        of_steps = [r["sampler_drift"] for r in own[row["cell"]] if r["policy"] == row["policy"]]
        known = [drift for drift in of_steps if drift is not None]
        assert row["sampler_drift"] == (pytest.approx(sum(known) / len(known)) if known else None)


@pytest.mark.slow
def test_a_variant_chooses_its_old_log_probabilities_and_their_correction(suite_file, tmp_path):
    variants = ("name: theirs, old_logprobs: sampler", "name: corrected, sampler_correction: 2")
    regimes = ", ".join(f"{{regime: independent, {variant}}}" for variant in variants)
    settings = [
        f"regimes=[independent, {regimes}]",
        "training.steps=1",
        "training.prompts=24",  # so that some group has a right answer on every machine
        "evaluation.curve_every=0",
    ]
    prepared = run(suite_file, tmp_path, settings)
    plain, theirs, corrected = ([r for r in rows(prepared, c, "terms") if r["active"]] for c in prepared.cells)
    assert plain
    assert {(r["ratio_mean"], r["ratio_second"]) for r in plain + corrected} == {(1.0, 1.0)}
    assert all(r["ratio_second"] != 1.0 for r in theirs)
    assert all(0 < abs(a["loss"] - b["loss"]) < 1e-3 for a, b in zip(plain, corrected, strict=True))


def test_regimes_of_a_seed_share_their_first_samples(trained_cells):
    first = [
        [(r["policy"], r["right"], r["generated_tokens"]) for r in rows(trained_cells, c, "steps")[:2]]
        for c in trained_cells.cells
    ]
    assert all(f == first[0] for f in first)


def test_regimes_differ_where_they_learn(trained_cells):
    learn = {c.variant.name for c in trained_cells.cells} & {"prp", "xgrpo", "hacpo", "naive", "sapo", "ftis"}
    assert learn
    for name in learn:
        assert weights(trained_cells, "independent") != weights(trained_cells, name), name


def test_what_travels_is_what_the_regime_shares(trained_cells):
    kinds = {c.variant.name: {r["kind"] for r in rows(trained_cells, c, "exchanges")} for c in trained_cells.cells}
    assert kinds.pop("independent") == set()
    assert kinds.pop("sgt") <= {"success"}
    others = {"naive": "text", "sapo": "text", "xgrpo": "value"}
    assert kinds == {name: {others.get(name, "rollout")} for name in kinds}


def test_ledger_steps_and_terms_agree_on_what_was_used(trained_cells):
    for c in trained_cells.cells:
        exchanged, terms = rows(trained_cells, c, "exchanges"), rows(trained_cells, c, "terms")
        for step in rows(trained_cells, c, "steps"):
            at = step["step"], step["policy"]
            used = sum(r["used"] for r in exchanged if (r["step"], r["receiver"]) == at)
            active = sum(r["active"] for r in terms if (r["step"], r["policy"], r["source"]) == (*at, "peer"))
            assert step["peer_used"] == used == active <= step["peer_received"], c.variant.name
    used = {r["used"] for r in rows(trained_cells, cell(trained_cells, "hacpo"), "exchanges")}
    assert used == {True, False}, "HACPO's window lets some in and some not"
    imitating = [s for s in rows(trained_cells, cell(trained_cells, "sgt"), "steps") if s["peer_used"]]
    assert imitating
    assert all(
        (s["weight_second_moment"], s["effective_sample_size"], s["clipped_share"]) == (1, 1, 0) for s in imitating
    )


@pytest.mark.slow
def test_without_peers_every_regime_is_its_baseline(finished, suite_file, tmp_path):
    without = ["sharing.direction=none", "evaluation.k=0", "evaluation.limit=1", "evaluation.curve_every=0"]
    alone = run(suite_file, tmp_path / "results", [*without, "regimes[0].objective=gspo"], "*/independent/*")
    # F-TIS averages over answers where the baseline averages over tokens
    silent = run(suite_file, tmp_path / "none", [*without, "regimes[8].aggregation=token"])
    for c in silent.cells:
        reference = (alone, "independent") if c.variant.name == "hacpo" else (finished, "independent")
        assert weights(silent, c.variant.name) == weights(*reference), c.label


def test_eval_of_a_checkpoint_reproduces_the_stored_greedy_answers_and_stores_the_back_end(finished, tmp_path):
    c = cell(finished, "sgt")
    checkpoint = finished.folder / c.key / "checkpoint" / "a"
    folder, other = (
        Path(evaluate_checkpoint(checkpoint, ["micro"], limit=limit, k=0, backend=name, results=tmp_path).folder)
        for name, limit in (("embedded", 6), ("hf", 2))
    )
    again = read_journal(folder).tables["samples"].to_pylist()
    stored = [r for r in rows(finished, c, "samples") if r["policy"] == "a" and r["metric"] == "greedy"]
    assert [(r["doc_id"], r["text"], r["verdict"]) for r in again] == [
        (r["doc_id"], r["text"], r["verdict"]) for r in stored
    ]
    own, theirs = read_manifest(folder), read_manifest(other)
    assert (own.engine, theirs.engine, own.key == theirs.key) == ("embedded", "hf", False)
    assert theirs.identity.models["a"].startswith("content ")
    assert "engines/embedded" not in theirs.identity.versions


@pytest.mark.slow
def test_a_stored_cell_runs_again_to_its_rows(finished, tmp_path):
    stored, other = (finished.folder / cell(finished, name).key for name in ("hacpo", "sgt"))
    with pytest.raises(typer.Exit) as ended:
        reference.again(stored)
    assert not ended.value.exit_code
    tables = compare_tables(*(read_journal(folder).tables for folder in (stored, other)))
    assert {table for table, same, _ in tables if not same} >= {"steps", "exchanges"}


def test_rescoring_changes_nothing_while_the_verifier_is_the_same(finished):
    report = rescore_results(finished.folder.parent, "tiny")
    assert report.samples == len(finished.cells) * 2 * 6 * 3
    assert report.changes == ()


def refusals(prepared):
    counts: Counter[str] = Counter()
    for row in rows(prepared, prepared.cells[0], "exchanges"):
        if not row["accepted"]:
            counts[row["reason"]] += max(1, row["messages"])
    return counts


@pytest.mark.parametrize(
    ("condition", "regime", "reason"),
    [
        ("{kind: lying}", "sgt", "unverified"),
        ("{kind: spamming}", "prp", "quota"),
    ],
)
def test_a_bad_peer_is_refused_and_the_cell_finishes(suite_file, tmp_path, condition, regime, reason):
    prepared = run(with_condition(suite_file, condition), tmp_path, ["training.steps=2"], only=f"*/{regime}/*")
    assert refusals(prepared)[reason] > 0
    assert len(rows(prepared, prepared.cells[0], "steps")) == 4


@pytest.mark.slow
def test_without_the_defence_a_liar_is_believed(suite_file, tmp_path):
    file = with_condition(suite_file, "{kind: lying}")
    prepared = run(file, tmp_path / "r", overrides=["sharing.defences.reverify=false"], only="*/sgt/*")
    assert refusals(prepared)["unverified"] == 0
    assert any(row["used"] and row["author"] == "b" for row in rows(prepared, prepared.cells[0], "exchanges"))


@pytest.mark.slow
def test_a_recording_replaces_the_peer(suite_file, tmp_path):
    few = ["evaluation.limit=1", "evaluation.curve_every=0", "training.measure_every=0"]
    recorded = run(suite_file, tmp_path / "r", overrides=["sharing.record=true", *few], only="*/naive/*")
    stored = "regimes=[independent, {regime: naive, name: stored, replay: {suite: tiny, regime: naive, peers: all}}]"
    both = run(suite_file, tmp_path / "r", overrides=[stored, "name=both", *few], only="*/stored/*")
    for kind in ("exchanges", "steps"):  # stored answers of an equal run are its own
        columns = ("author", "receiver", "policy", "step", "prompt_id", "index", "accepted", "used", "reward_mean")
        live, served = (
            [{name: row[name] for name in columns if name in row} for row in rows(done, cell(done, name), kind)]
            for done, name in ((recorded, "naive"), (both, "stored"))
        )
        assert live == served
        assert live
    line = next(one for one in suite_file.read_text().splitlines() if "name: b" in one)
    suite_file.write_text(suite_file.read_text().replace(line + "\n", "").replace("name: tiny", "name: again"))
    one, other = "name: replayed, replay: {suite: tiny", "name: annealed, replay: {share: [1.0, 0.0], suite: tiny"
    variants = ", ".join(f"{{regime: naive, {said}, regime: naive}}}}" for said in (one, other))
    regimes = [f"regimes=[independent, {variants}]", *few]
    done = run(suite_file, tmp_path / "r", overrides=regimes, only="*/*ed/*")
    records, fewer = (rows(done, cell(done, name), "exchanges") for name in ("replayed", "annealed"))
    assert {(row["author"], row["accepted"]) for row in records} == {("b", True)}
    steps = done.cells[0].training.steps
    sent, served = ([sum(r["step"] == step for r in kept) for step in range(1, steps + 1)] for kept in (records, fewer))
    shares = [Schedule(1.0, 0.0).at(step, steps) for step in range(1, steps + 1)]
    assert served == [int(share * count + 0.5) for share, count in zip(shares, sent, strict=True)]
    assert served[0] == sent[0] > served[-1] == 0


@pytest.mark.slow
def test_spreading_by_the_receivers_own_logprobs_and_the_canonical_share(suite_file, tmp_path):
    prepared = run(suite_file, tmp_path / "r", overrides=["sharing.spread=receiver"], only="*/prp/*")
    records = rows(prepared, prepared.cells[0], "exchanges")
    assert any(row["used"] for row in records)
    assert all((row["residual_canonical"] is not None) == (row["step"] % 2 == 0) for row in records if row["accepted"])


class InThreads(Embedded):
    """The embedded engine, its policies side by side."""

    side_by_side = True
    _loading = threading.Lock()  # transformers does not load models in several threads

    def open(self, policy, folder):
        with self._loading:
            return super().open(policy, folder)

    reference = open

    def each(self, work, items):
        listed = list(items)
        with ThreadPoolExecutor(max(1, len(listed))) as pool:
            running = [pool.submit(work, item) for item in listed]
        return [one.result() for one in running]


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(cells, "open_backend", lambda _, options, temperature, **rest: InThreads(options, temperature))


@pytest.mark.slow
def test_side_by_side_in_lockstep_changes_nothing(finished, suite_file, tmp_path, threads):
    apart = run(suite_file, tmp_path, only="*/hacpo/*")
    for table in TABLES:
        assert rows(apart, apart.cells[0], table) == rows(finished, cell(finished, "hacpo"), table) != []


def test_within_the_staleness_nobody_waits_and_nothing_is_lost(suite_file, tmp_path, threads):
    overrides = ["sharing.max_staleness=2", "training.steps=6", "training.checkpoint_every=6", "evaluation.limit=2"]
    prepared = run(suite_file, tmp_path / "r", overrides=overrides, only="*/naive/*")
    naive = cell(prepared, "naive")
    steps = sorted((r["policy"], r["step"], r["prompts_rescued"] is None) for r in rows(prepared, naive, "steps"))
    assert steps == [(p, s, False) for p in "ab" for s in range(1, 7)]
    sent = rows(prepared, naive, "exchanges")
    assert {r["reason"] for r in sent} <= {"", "residual"}  # none late, stale or ahead
    assert all(0 <= r["step"] - r["made"] <= 2 for r in sent)
    heard = {(r["author"], r["receiver"], r["made"]) for r in sent}
    assert heard >= {(a, b, s) for a, b in ("ab", "ba") for s in range(1, 5)}
    assert len(sent) == len({(r["author"], r["receiver"], r["made"], r["prompt_id"], r["index"]) for r in sent})


def test_a_silent_peer_is_waited_for_once_and_no_longer_than_the_deadline(suite_file, tmp_path, threads):
    overrides = ["sharing.max_staleness=1", "sharing.deadline_seconds=0.5", "training.steps=3"]
    prepared = run(
        with_condition(suite_file, "{kind: silent, start: 2}"), tmp_path / "r", overrides=overrides, only="*/naive/*"
    )
    sent = rows(prepared, cell(prepared, "naive"), "exchanges")
    late = [(r["receiver"], r["step"]) for r in sent if r["reason"] == "late"]
    assert late
    assert {receiver for receiver, _ in late} == {"a"}
    assert len(rows(prepared, cell(prepared, "naive"), "steps")) == 6


@pytest.mark.parametrize("direction", ["strong_to_weak", "weak_to_strong"])
def test_direction_by_strength(direction):
    strengths = {"weak": 0.1, "middle": 0.4, "also-middle": 0.4, "strong": 0.9}
    pairs = [
        ("strong", "middle"),
        ("strong", "also-middle"),
        ("strong", "weak"),
        ("middle", "weak"),
        ("also-middle", "weak"),
    ]
    allowed = Sharing(direction=direction).among(list(strengths), lambda: strengths)
    assert sorted(allowed) == sorted(pairs if direction == "strong_to_weak" else [pair[::-1] for pair in pairs])


def test_only_the_one_side_speaks(suite_file, folders, untrained, tmp_path):
    """Strength is measured on the base policies: a was trained, b never was, and the suite says nothing of it."""
    suite_file.write_text(suite_file.read_text().replace(str(folders["qwen"]), str(untrained("qwen"))))
    settings = ["sharing.direction=strong_to_weak", "training.measure_every=0", "training.steps=2", "evaluation.k=0"]
    settings += ["evaluation.curve_every=0", "evaluation.limit=120", "evaluation.curve_prompts=120"]
    done = run(suite_file, tmp_path / "results", settings, only="*/naive/*")
    records = rows(done, done.cells[0], "exchanges")
    assert {(r["author"], r["receiver"]) for r in records} == {("a", "b")}
    assert any(r["accepted"] for r in records)


def test_a_base_for_each_seed(tmp_path):
    settings = ["seeds=[1, 2]", "groups[0].policies[0].stage0.per_seed=true"]
    prepared = prepare_named("quickstart", tmp_path / "results", overrides=settings)
    a, b = prepared.suite.groups[0].policies
    assert [(x.policy.name, x.seed) for x in prepared.bases] == [(a.name, 1), (a.name, 2), (b.name, None)]
    for one in prepared.cells:
        assert [(x.policy.name, x.seed) for x in prepared.bases_of(one)] == [(a.name, one.seed), (b.name, None)]
    assert len({x.key for x in prepared.bases} | {micro_spec(p, seed).key for p in (a, b) for seed in (1, 2)}) == 6
    assert [manifest_of(x).seed for x in prepared.bases[:2]] == [1, 2]


@pytest.mark.slow
def test_each_policy_is_asked_in_its_own_style(suite_file, tmp_path):
    settings = [
        "groups[0].policies[0].style=few-shot",
        "training.measure_every=0",
        "training.kl=0.1",
        "training.steps=2",
    ]
    done = run(suite_file, tmp_path / "results", settings, only="*/naive/*")
    task = get_task("micro")
    shots = task.render(Prompt("", "Q: \nA:", ""), "few-shot").removesuffix("Q: \nA:")
    assert "\\boxed" in shots
    samples, traces = rows(done, done.cells[0], "samples"), rows(done, done.cells[0], "traces")
    for records, who in ((samples, "policy"), (traces, "receiver")):
        asked = {name: {r["prompt"] for r in records if r[who] == name} for name in ("a", "b")}
        assert asked["a"], who
        assert all(shots[-60:] in text for text in asked["a"]), "a long one loses its beginning in evaluation"
        assert all(text.startswith("Q: ") and "boxed" not in text for text in asked["b"])
    assert {(r["policy"], r["name"]) for r in rows(done, done.cells[0], "terms")} >= {("a", "kl"), ("b", "kl")}
    assert {r["prompt"].rpartition("\n\n")[2] for r in samples if r["policy"] == "a"} == {
        r["prompt"] for r in samples if r["policy"] == "b"
    }
    words = r"policies\[1\]\.style: gsm8k \(evaluation\.tasks\[1\]\) cannot be asked raw"
    with pytest.raises(SuiteError, match=words):
        prepare_named(
            str(suite_file), tmp_path, overrides=["groups[0].policies[1].style=raw", "evaluation.tasks=[micro, gsm8k]"]
        )


GAUGE = Path(__file__).parents[2] / "examples" / "gauge"
GAUGED = ("training.steps=5", "training.measure_every=0", "evaluation.curve_every=0", "training.prompts=16")


@pytest.fixture
def gauge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "gauge-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gauge\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[harness.regimes]\ngauge = gauge:Gauge\n")
    for place in (GAUGE, tmp_path):
        monkeypatch.syspath_prepend(str(place))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_told_of_every_step_and_the_same_after_a_break(suite_file: Path, tmp_path: Path, gauge: None) -> None:
    settings = [*GAUGED, "regimes=[independent, {regime: gauge, teach: one}]", "evaluation.limit=2"]
    whole = run(suite_file, tmp_path / "whole", settings, only="gauge")
    steps = rows(whole, cell(whole, "gauge"), "steps")
    assert all((s["own_gradient_norm"] or 0) >= 0 for s in steps)
    taught = [s for s in steps if s["peer_used"]]
    assert len(taught) > 3
    assert all(s["peer_gradient_norm"] > 0 for s in taught), "measured though `measure_every` is 0"
    with pytest.raises(Interrupted):
        run(suite_file, tmp_path / "broken", settings, only="gauge", stop_after=4)
    again = run(suite_file, tmp_path / "broken", settings, only="gauge")
    assert rows(again, cell(again, "gauge"), "steps") == steps


def test_contract_and_the_weight_that_it_chooses(gauge: None) -> None:
    from gauge import FIRST, Gauge, GaugeOptions

    for options in ({"teach": "one"}, {"teach": "group"}, {"share": 0.25}):
        check_regime(Gauge, options)
    regime = Gauge(GaugeOptions(share=0.5))
    assert regime._weight() == FIRST
    regime._seen.update(weight=0.1, now=0.25, taught=0.25, peak=0.5)
    regime.learnt(Measured(own=2.0, peer=0.05, cosine=-0.1))
    weight = regime._weight()
    assert weight * 0.5 * (0.05 / (0.1 * 0.25)) == pytest.approx(0.5 * 2.0), (
        "at its highest r the share of the own norm"
    )
    assert regime._seen["below"] == 1
