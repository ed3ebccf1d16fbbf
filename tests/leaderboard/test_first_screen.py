"""The leaderboard's first screen: what gains, at which rates and costs, by kind of pair."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from paced_results import Line, write_paced
from synthetic_results import REGIMES, write_cell, write_results, write_trials

from harness.engines.embedded.presets import shares_by_steps
from harness.statistics.comparison import GAINS, LOSES
from harness.store import standing
from harness.store.board_sentences import summarise_board
from harness.store.ingest import ingest_journals
from harness.store.kind_answers import QUESTIONS, answer_by_kind, list_harmed
from harness.store.manifest import read_manifest, read_suite, write_manifest, write_suite
from harness.store.ranking import make_heading, rank_regimes
from harness.store.read import Snapshot
from harness.store.roles import RoleRow
from harness.store.standing import KINDS, Section, Standing, make_board
from harness.store.statistic import CLOCK, POINTS
from harness.store.table import seed_rows, show_rows
from harness.store.tuning import write_tuning

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

from drawn_pages import app_on, html_of, html_tables, page, text_of_page, write_report
from drawn_stores import DUO
from streamlit.testing.v1 import AppTest

from leaderboard.frames import BEST
from leaderboard.views.standing import _sort_standings


@pytest.mark.slow
def test_the_first_screen_links_every_suite_and_the_report_says_what_each_gave(
    several: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The table of all suites shows the best of many with an interval that knows nothing of the choice, and says so."""
    shown = html_of(app_on(several, monkeypatch))
    assert all(
        f'<a href="ranking?suite={name}" target="_self">{name}</a>' in shown for name in ("first", "second", "third")
    )
    assert "not corrected for the choice" in BEST
    text = write_report(several, tmp_path)
    links = re.findall('<a href="#(.*?)"', text)
    assert len(links) == 3
    assert all(text.count(f'<h2 id="{link}">') == 1 for link in links)
    assert BEST in text


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A control, two pairs with the statistics of real ones in which sgt gains, and one in which nothing does."""
    folder = tmp_path_factory.mktemp("settings")
    useless = [replace(r, effect=0.0) for r in REGIMES]
    write_results(folder, "built", DUO, seeds=(1, 2, 3), steps=3, questions=20, preset="strong-in")
    for name, pair, regimes in (
        ("alike", ("qwen", "gpt2"), REGIMES),
        ("other", ("neox", "gpt2"), REGIMES),
        ("unlike", ("llama", "neox"), useless),
    ):
        write_results(folder, name, {name: pair}, regimes, (1, 2, 3, 4), steps=3, questions=400, preset="matched")
    ingest_journals(folder)
    return folder


def by_kind(app: AppTest) -> dict[str, list[list[str]]]:
    """The first screen's tables by the kind of their settings, each from its row of columns' names on."""
    kinds = re.findall("<caption>(.*?): gain in points</caption>", html_of(app))
    return {kind: table[1:] for kind, table in zip(kinds, html_tables(app)[-len(kinds) :], strict=True)}


def test_the_first_screen_has_each_setting_by_itself_and_no_rank_over_them(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who has read nothing reads this from its text: an answer in a sentence, a row a regime, a column a setting."""
    app = app_on(settings, monkeypatch)
    answer = text_of_page(app).replace("\\", "")
    with Snapshot(settings) as snapshot:
        board = make_board(snapshot, "defaults", taught=shares_by_steps)
    gains = [row for _, _, row in board.list_gains("alike") if row.verdict == GAINS]
    largest = max(gains, key=lambda row: row.gain)
    gain = POINTS.with_interval(largest.gain, largest.gain_corrected_interval)
    assert answer.startswith(
        f"**On tiny models with the statistics of real pairs, {largest.regime} gains {gain} points; where each policy was taught "
        "what the other lacks, no regime is shown to gain.**"
    )
    assert "Where each policy was taught what the other lacks," in answer
    assert "On tiny models with the statistics of real pairs, sgt gains (published)" in answer
    tables = by_kind(app)
    assert list(tables) == [KINDS["alike"], KINDS["built"]]
    heads, *rows = tables[KINDS["alike"]]
    assert heads == ["regime", "cost", "other4 seeds", "alike4 seeds", "unlike4 seeds"]
    assert [row[0].partition("Where")[0] for row in rows] == sorted(row[0].partition("Where")[0] for row in rows)
    sgt = next(row for row in rows if row[0].startswith("sgt"))
    assert "▲" in sgt[3]
    assert "▲" not in sgt[4]
    assert re.fullmatch(r"\d\.\d(–\d\.\d)?×", sgt[1].strip())
    assert "mean" not in "".join(heads)
    assert not any(row[0].startswith("hacpo-wide") for row in rows), "not with its defaults"
    app.get("button_group")[0].set_value("all").run()
    assert any(row[0].startswith("hacpo-wide") for row in by_kind(app)[KINDS["alike"]])
    app.selectbox(key="by").set_value("gain on qwen × gpt2, alike").run()
    gains = [float(re.findall(r"[+−][\d.]+", row[3])[0].replace("−", "-")) for row in by_kind(app)[KINDS["alike"]][1:]]
    assert gains == sorted(gains, reverse=True)


def test_the_first_screen_answers_four_questions_by_kind_of_pair(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of KINDS, from the same rows as the tables below it; regimes lead to their pages."""
    html = html_of(app_on(settings, monkeypatch))
    (table,) = re.findall('<table class="kinds">.*?</table>', html, re.S)
    rows = ElementTree.fromstring(table).findall("tbody/tr")
    with Snapshot(settings) as snapshot:
        board = make_board(snapshot, "defaults", taught=shares_by_steps)
    answers = answer_by_kind(board, "2 points")
    assert [row.findtext("th") for row in rows] == [KINDS[kind.kind] for kind in answers]
    for row, kind in zip(rows, answers, strict=True):
        texts = ["".join(cell.itertext()) for cell in row.findall("td")]
        assert len(texts) == len(QUESTIONS)
        for text, answer in zip(texts, kind.answers, strict=True):
            assert answer.question in text
            assert answer.said in text
    gains = [row for _, _, row in board.list_gains("alike") if row.verdict in (GAINS, LOSES)]
    found = answers[0].answers[0].found
    assert len(gains) == len(found) > 0
    assert {one.number for one in found} == {POINTS.with_interval(r.gain, r.gain_corrected_interval) for r in gains}
    assert f'<a href="regimes?name={found[0].regime}" target="_self">' in table


def test_a_member_is_harmed_where_its_whole_interval_lies_below_0() -> None:
    def role(stronger: tuple[float, float], weaker: tuple[float, float]) -> RoleRow:
        ends = {"stronger_interval": stronger, "weaker_interval": weaker, "apart": None, "apart_interval": None}
        place = {"group": "g", "task": "t", "metric": "m", "regime": "r", "seeds": 3}
        return RoleRow(**place, **ends, stronger=sum(stronger) / 2, weaker=sum(weaker) / 2)

    assert list_harmed(role((-0.03, -0.01), (-0.02, 0.01))) == [("stronger", "−2.0 [−3.0, −1.0]")]
    assert [whom for whom, _ in list_harmed(role((-0.03, -0.01), (-0.02, -0.01)))] == ["stronger", "weaker"]
    assert list_harmed(role((0.01, 0.02), (-0.02, 0.01))) == list_harmed(None) == []


# What a newcomer asks, and what of the first screen's text answers it
ASKED = {
    "on which pair": r"points\. On (.*?) the gain of",
    "which regime": r"the gain of (\w+) is",
    "by how much": r"is (\+[\d.]+) \[.*?\] points at learning rate 1e-4",
    "at twice the rate": r"and ([+−][\d.]+) \[.*?\] points at learning rate 2e-4 in fast",
    "what it has without sharing": r"at learning rate 2e-4 .*?; independent training ends at ([\d.]+) %",
    "where it does not help": r"in (\d+) of \d+ comparisons no effect",
}


def read_answers(text: str) -> dict[str, str]:
    matches = {question: re.search(pattern, text) for question, pattern in ASKED.items()}
    lacking = [question for question, match in matches.items() if match is None]
    assert not lacking, lacking
    return {question: match[1] for question, match in matches.items() if match}


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair at two learning rates: sgt and hacpo-wide gain at the smaller one, and nothing does at the other. The suite `again`
    has the cells of `slow` and one regime more; `three` holds the pair and another policy."""
    folder = tmp_path_factory.mktemp("rates")
    useless = [replace(r, effect=0.0) for r in REGIMES]
    few, wide = [r for r in REGIMES if r.name != "hacpo-wide"], REGIMES[-1]
    pair, seeds = {"pair": ("neox", "qwen")}, (1, 2, 3, 4)
    for name, groups, regimes, rate in (
        ("slow", pair, few, 1e-4),
        ("fast", pair, useless[:5], 2e-4),
        ("three", {"three": ("neox", "qwen", "gpt2")}, few, 1e-4),
    ):
        write_results(folder, name, groups, regimes, seeds, steps=3, questions=400, preset="matched", rate=rate)
    shutil.copytree(folder / "slow", folder / "again")
    for cell in [file.parent for file in folder.glob("again/*/manifest.json")]:
        write_manifest(cell, msgspec.structs.replace(read_manifest(cell), suite="again"))
    more = [write_cell(folder, "again", "pair", pair["pair"], wide, s, 3, 400, 2, ("micro",), 0) for s in seeds]
    suite = read_suite(folder / "again")
    variants = (*suite.variants, msgspec.structs.replace(suite.variants[0], name=wide.name, regime_type=wide.kind))
    lines = [*suite.config["regimes"], {"name": wide.name, "regime": wide.kind, "options": dict(wide.options)}]
    write_suite(
        folder / "again",
        msgspec.structs.replace(
            suite,
            name="again",
            variants=variants,
            cells=(*suite.cells, *more),
            config={**suite.config, "regimes": lines},
        ),
    )
    ingest_journals(folder)
    return folder


def test_a_newcomer_reads_a_pair_at_both_learning_rates_from_the_first_sentence(
    rates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(rates, monkeypatch)
    text = text_of_page(app).replace("\\", "")
    first = text.partition("\n")[0]
    facts = read_answers(text)
    assert all(re.search(pattern, first) for question, pattern in ASKED.items() if "help" not in question)
    heads, *rows = by_kind(app)[KINDS["alike"]]
    row = next(row for row in rows if row[0].startswith(facts["which regime"]))
    assert (facts["on which pair"], facts["which regime"]) == ("neox × qwen", "sgt")
    for rate, fact in (("1e-4", "by how much"), ("2e-4", "at twice the rate")):
        place = next(i for i, head in enumerate(heads) if f"rate {rate}" in head)
        assert facts[fact] in row[place]
    assert "At one learning rate alone ran 3 families" in text
    for pattern in ASKED.values():
        match = re.search(pattern, text)
        assert match
        with pytest.raises(AssertionError):
            read_answers(re.sub(pattern, "", text))


def test_settings_of_a_pair_stand_side_by_side_with_the_same_numbers_in_every_view(rates: Path) -> None:
    with Snapshot(rates) as snapshot:
        published, every = (make_board(snapshot, which) for which in ("defaults", "all"))
    for shown in (published, every):
        (section,) = shown.sections
        assert [(s.title, s.rate, s.names) for s in section.settings] == [
            ("neox × qwen", 1e-4, "again and slow"),
            ("neox × qwen", 2e-4, "fast"),
            ("3 families", 1e-4, "three"),
        ], "the same cells are one column"
    lines = {line.regime: line.cells for line in every.sections[0].standings}
    for line in published.sections[0].standings:
        assert line.cells == lines[line.regime]
    assert lines["hacpo-wide"][1:] == ("not run", "not run")
    assert not any(isinstance(cell, str) for cell in lines["sgt"][:2])


def test_positive_controls_are_named_as_such_and_not_at_two_rates(rates: Path) -> None:
    """They gain because they were built so."""
    with Snapshot(rates) as snapshot:
        board = make_board(snapshot, "defaults", taught=shares_by_steps)
    largest = max((r for _, _, r in board.list_gains() if r.verdict == GAINS), key=lambda row: row.gain)
    gain = f"{largest.regime} gains {POINTS.with_interval(largest.gain, largest.gain_corrected_interval)} points."
    assert summarise_board(board, board)[0].startswith(
        f"On tiny models with the statistics of real pairs, {gain} On neox × qwen the gain of sgt is "
    )
    (section,) = board.sections
    settings = tuple(msgspec.structs.replace(setting, kind="built") for setting in section.settings)
    built = msgspec.structs.replace(section, kind="built", settings=settings)
    controls = msgspec.structs.replace(board, sections=(built,))
    assert summarise_board(controls, controls)[0] == f"Where each policy was taught what the other lacks, {gain}"


def test_the_first_sentence_has_a_pace_where_no_gain_is_shown(tmp_path: Path) -> None:
    lines = [Line("independent"), Line("hacpo", "hacpo", pace=1.2), Line("naive", "naive", pace=1.4, end=-0.1)]
    write_paced(tmp_path, lines)
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        board = make_board(snapshot, "defaults", taught=shares_by_steps)
    paces = {name: row for name, _, row in board.list_gains()}
    said = summarise_board(board, board)[0]
    assert "no regime is shown to gain, but hacpo learns " in said, said
    assert f"{CLOCK.with_interval(paces['hacpo'].kappa, paces['hacpo'].kappa_interval)} times as fast" in said
    assert paces["naive"].kappa > paces["hacpo"].kappa, "faster, but towards a lower end"


def test_a_pair_that_ran_at_two_rates_within_a_suite_ran_at_more_than_one(rates: Path) -> None:
    with Snapshot(rates) as snapshot:
        board = make_board(snapshot, "defaults", taught=shares_by_steps)
    assert "At one learning rate alone ran 3 families:" in " ".join(summarise_board(board, board))
    (section,) = board.sections
    settings = tuple(msgspec.structs.replace(setting, rates=(1e-4, 2e-4)) for setting in section.settings)
    both = msgspec.structs.replace(board, sections=(msgspec.structs.replace(section, settings=settings),))
    assert "At one learning rate alone" not in " ".join(summarise_board(both, both))


def test_a_group_that_holds_another_is_in_no_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair, with a third and with a fourth, made one effect look like three."""
    groups = {"pair": ("neox", "qwen"), "three": ("neox", "qwen", "gpt2"), "other": ("llama", "gpt2")}
    write_results(tmp_path, "nested", groups, REGIMES[:4], (1, 2, 3), steps=1, questions=40, preset="matched")
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        rows = [r for r in seed_rows(snapshot, "nested", "*") if r.metric == "avg@2"]
        head = make_heading(snapshot, "nested")
    first = head.sentences[0].sentence
    assert first.startswith("On 2 groups and 3 seeds")
    assert first.endswith("Left out: three (it holds pair).")
    assert {a.tasks for a in head.across["avg@2"]} == {2}
    kept = [r for r in rows if r.group != "three"]
    assert rank_regimes(rows, among=rows).ranks[0].accuracy == rank_regimes(kept, among=kept).ranks[0].accuracy
    assert rank_regimes([r for r in rows if r.group == "three"], among=rows).groups == 1, "by itself it has its verdict"
    assert "Mean of 2 of the 3 panels" in html_of(page(tmp_path, "ranking", "nested"))


def test_not_run_is_said_where_nothing_ran_alone(tmp_path: Path) -> None:
    """Of what ran under other settings, is not finished, was not tuned or is not paired, the column says that."""
    regimes = [REGIMES[0], REGIMES[2], REGIMES[4], replace(REGIMES[5], name="hacpo-a")]
    write_results(tmp_path, "one", DUO, regimes, (1, 2), steps=1, questions=4, preset="matched")
    write_results(tmp_path, "two", {"duo": ("neox", "gpt2")}, REGIMES, (1, 2), steps=1, questions=4, preset="matched")
    for file in tmp_path.glob("one/*/manifest.json"):
        manifest = read_manifest(file.parent)
        if manifest.regime == "sgt":
            write_manifest(file.parent, msgspec.structs.replace(manifest, state="failed"))
        if manifest.regime in ("independent", "prp"):
            start = ("a" if manifest.regime == "prp" else "b") * 32
            entries = tuple(msgspec.structs.replace(p, start=start) for p in manifest.policies)
            write_manifest(file.parent, msgspec.structs.replace(manifest, policies=entries))
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        (section,) = make_board(snapshot, "all").sections
    place = next(i for i, setting in enumerate(section.settings) if setting.names == "one")
    said = {line.regime: line.cells[place] for line in section.standings}
    assert {name: why for name, why in said.items() if isinstance(why, str)} == {
        "prp": "not paired", "sgt": "not finished", "hacpo": "only as hacpo-a", "hacpo-wide": "not run", "xgrpo": "not run",
    }  # fmt: skip
    shutil.rmtree(tmp_path / "two")
    write_results(
        tmp_path, "three", {"duo": ("neox", "gpt2")}, REGIMES[:4:3], (1, 2), steps=1, questions=4, preset="matched"
    )
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        (section,) = make_board(snapshot, "all").sections
    assert {line.regime: set(line.cells) for line in section.standings}["prp"] == {"not run", "not paired"}, (
        "it is named"
    )


def test_real_models_that_were_taught_unlike_things_are_a_positive_control() -> None:
    def kind(*starts: dict[str, object], models: str = "org/{}") -> str | None:
        policies = [
            {"name": f"p{i}", "model": models.format(i), "stage0": start or None} for i, start in enumerate(starts)
        ]
        shape = standing._make_setting({"name": "g", "policies": policies}, {}, shares_by_steps)
        return shape and shape.kind

    form = {"preset": "format", "task": "ladder.add1"}
    assert kind(form, form) == kind({}, {}) == "real"
    assert kind(form, {**form, "task": "ladder.spell"}) == kind(form, {**form, "preset": "trap"}) == "built"
    assert kind({"preset": "matched"}, {"preset": "matched"}, models="micro/{}") == "alike"
    trap = [{"preset": "trap", "strong": strong} for strong in ("add", "mul")]
    assert kind(*trap, models="micro/{}") == "built"
    assert kind(trap[0], trap[0], models="micro/{}") == "alike", "both lack the same"
    told = [{**start, "weak_cot": 0.7} for start in trap]
    assert kind(*told, models="micro/{}") == "alike", "by what was taught, not by the preset's name"
    assert kind({"preset": "of a later version"}, trap[0], models="micro/{}") == "built", "nobody can say"


@pytest.mark.slow
def test_the_first_screen_says_where_a_gain_is_of_one_base_checkpoint_alone(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README's first table has a gain that no column has: there all seeds share one base a family."""
    write_results(tmp_path, "quick", DUO, seeds=(1, 2, 3, 4), steps=3, questions=400, preset="trap")
    useless = [replace(r, effect=0.0) for r in REGIMES]
    write_results(tmp_path, "fresh", DUO, useless, (1, 2, 3, 4), steps=3, questions=400, preset="trap", per_seed=True)
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        quick, fresh = (
            next(r for r in show_rows(snapshot, suite) if (r.regime, r.policy, r.metric) == ("sgt", "*", "avg@2"))
            for suite in ("quick", "fresh")
        )
    text = text_of_page(app_on(tmp_path, monkeypatch)).replace("\\", "")
    assert f"sgt gains {POINTS.with_interval(quick.gain, quick.gain_interval)} points on llama × qwen in quick" in text
    assert (
        "all seeds start from one base checkpoint a family. Over 4 base checkpoints a family, in fresh, it is" in text
    )
    assert f"it is {POINTS.with_interval(fresh.gain, fresh.gain_interval)}: no gain is shown there." in text
    assert "base checkpoint" not in text_of_page(app_on(settings, monkeypatch)), "nothing differs"


def test_the_first_screens_sentences_have_the_margin_that_was_chosen(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = re.findall(r"in (\d+) of \d+ comparisons", text_of_page(app_on(settings, monkeypatch, margin="100")))
    assert len(counts) == 2
    assert "0" not in counts, "within 100 points nothing has an effect but what is shown to"


def test_variants_under_names_of_their_own_are_on_the_first_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [REGIMES[0], replace(REGIMES[4], name="sgt-a")]
    write_results(tmp_path, "named", DUO, named, (1, 2), steps=1, questions=4, preset="matched")
    ingest_journals(tmp_path)
    app = app_on(tmp_path, monkeypatch)
    assert "No suite compares regimes with their defaults" in text_of_page(app)
    assert "shown to gain" not in text_of_page(app), "nothing was compared with its defaults"
    app.get("button_group")[0].set_value("all").run()
    assert [row[0] for row in by_kind(app)[KINDS["alike"]][1:]] == ["sgt-a"]


def test_a_tuning_group_of_any_name_chooses_for_pairs_of_its_kind(tmp_path: Path) -> None:
    regimes = [REGIMES[0], *REGIMES[4:6]]
    write_results(tmp_path, "own", DUO, regimes, (1, 2), steps=1, questions=4, preset="matched")
    file, tuning = read_suite(tmp_path / "own"), write_trials(tmp_path, "own")
    config = {**file.config, "tune": {"groups": [{**file.config["groups"][0], "name": "mine"}]}}
    write_suite(tmp_path / "own", msgspec.structs.replace(file, config=config))
    chosen = zip(tuning.variants, ("independent", "sgt"), ("independent", "hacpo"), strict=True)
    variants = tuple(msgspec.structs.replace(v, variant=name, final=final, on="mine") for v, name, final in chosen)
    write_tuning(tmp_path, file, msgspec.structs.replace(tuning, variants=variants))
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        assert [line.regime for line in make_board(snapshot, "tuned").sections[0].standings] == ["sgt"]


def test_by_cost_what_is_not_known_is_last() -> None:
    rows = tuple(Standing(regime=n, cells=(), costs=c) for n, c in (("a", None), ("b", (1.0, 1.5))))
    assert [row.regime for row in _sort_standings(Section("real", (), rows), "cost")] == ["b", "a"]


@pytest.mark.slow
def test_what_was_claimed_before_the_runs_is_answered_on_the_first_screen_and_by_its_suite(tmp_path: Path) -> None:
    own = {"group": "pair", "relation": "above", "over": None, "against": None, "seeds": None}
    claims = [
        {**own, "name": "faster", "regime": "hacpo", "statistic": "kappa", "bound": 1.0},
        {**own, "name": "gains", "regime": "sgt", "statistic": "gain", "bound": 20.0},
        {**own, "name": "much-faster", "regime": "hacpo", "statistic": "kappa", "bound": 1.25},
    ]
    lines = [Line("independent"), Line("hacpo", "hacpo", pace=1.25), Line("sgt", "sgt", end=0.08)]
    write_paced(tmp_path / "with", lines, claims=claims, noise=0.004)
    write_paced(tmp_path / "without", lines, noise=0.004)
    for results in (tmp_path / "with", tmp_path / "without"):
        ingest_journals(results)
    first = text_of_page(page(tmp_path / "with", "standing", "paced")).replace("\\", "")
    assert (
        "Claimed before the runs of [paced](ranking?suite=paced). Supported: kappa of hacpo on pair is above 1 (1.2"
        in first
    )
    assert "Refuted: gain of sgt on pair is above 20 points (+" in first
    assert "Undecided: 1 more." in first
    (table,) = [
        table
        for table in html_tables(page(tmp_path / "with", "ranking", "paced"))
        if table[0][0] == "Claimed before it ran"
    ]
    assert [line[1] for line in table[1:]] == ["supported", "refuted", "undecided"]
    assert table[1][0] == "kappa of hacpo on pair is above 1"
    assert "Claimed" not in text_of_page(page(tmp_path / "without", "standing", "paced"))
    assert "Claimed" not in html_of(page(tmp_path / "without", "ranking", "paced"))


def test_a_regimes_page_says_whose_it_is_and_where_it_ran(settings: Path) -> None:
    """By its name in the address, or that of a variant; what is unknown is said."""
    app = page(settings, "regimes", "alike", name="sgt")
    text = text_of_page(app)
    assert "[arXiv 2605.07244](https://arxiv.org/abs/2605.07244)" in text
    assert "**Status:** published" in text
    assert "Success\\-Gated Transfer" in text or "Success-Gated Transfer" in text, "the formula of docs/formulas.md"
    with Snapshot(settings) as snapshot:
        ran = [
            row for name, _, row in make_board(snapshot, "all", taught=shares_by_steps).list_gains() if name == "sgt"
        ]
    html = html_of(app)
    assert html.count('<a href="ranking?suite=') == len(ran) == 4
    assert all(POINTS.text(row.gain) in html for row in ran)
    assert list(app.dataframe[0].value["option"]) == ["lambda"]
    assert page(settings, "regimes", "alike", name="hacpo-wide").selectbox(key="regime-page").value == "hacpo"
    assert "There is no regime “nobody” here" in text_of_page(page(settings, "regimes", "alike", name="nobody"))
