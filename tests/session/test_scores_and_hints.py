"""Cells whose peers score and hint: both rounds and the score records in the journal, resume, bad peers, costs and plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running import TABLES, Killed, cell, rows, run, weights, with_condition

import regimes.core
from harness.engines.embedded.families import build_tokenizer
from harness.errors import PluginError, SuiteError
from harness.experience.answers import AnswerId, Group, PeerAnswer, Prompt
from harness.learning.hints import Hint
from harness.learning.regime import Regime
from harness.session.cell import cell as cells
from harness.session.cell import learners, questions
from harness.session.cell.judge import Judge
from harness.session.suite.demand import demand_of
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

REGIMES = "regimes=[independent, {regime: copd, ratio: 0}, core]"
HOT = [REGIMES, "training.temperature=1.3", "training.max_new_tokens=20"]  # drafts with something before the box


@pytest.fixture(scope="module", autouse=True)
def every_draft_hints() -> Iterator[None]:
    """These policies solve too little for CoRe's gate; the second round is the same."""

    def hints(self: Regime, own: Any, inbox: Any, context: Any) -> list[Hint]:
        drafts = ((g.prompt.id, inbox.valid(g.prompt.id)) for g in own)
        return [Hint(prompt, max(given, key=lambda p: len(p.text))) for prompt, given in drafts if given]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regimes.core.CoRe, "hints", hints)
        yield


@pytest.fixture(scope="module")
def finished(every_draft_hints: None, suite_text: str, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("scored")
    (place / "tiny.yaml").write_text(suite_text)
    return run(place / "tiny.yaml", place / "results", HOT, only="*/co*")


def test_scores_travel_as_records_and_cost_their_author(finished: Prepared) -> None:
    """Drafts to the peer, scores back in the same step, aligned with residuals; used where the scored answer moved."""
    records = rows(finished, cell(finished, "copd"), "exchanges")
    drafts, scores = ([r for r in records if r["kind"] == kind] for kind in ("draft", "scores"))
    assert {r["kind"] for r in records} == {"draft", "scores"}
    assert {(r["author"], r["receiver"]) for r in drafts} == {("a", "b"), ("b", "a")}
    asked = {(r["step"], r["author"], r["receiver"], r["prompt_id"], r["index"]) for r in drafts if r["accepted"]}
    given = {(r["step"], r["receiver"], r["author"], r["prompt_id"], r["index"]) for r in scores}
    assert given == asked
    for row in scores:
        assert row["made"] == row["step"]
        assert row["residual_mass"] < 1e-4
        assert min(row["source_tokens"], row["receiver_tokens"], row["bytes"]) > 0
    steps = rows(finished, cell(finished, "copd"), "steps")
    for row in steps:
        mine = [r for r in scores if (r["step"], r["receiver"]) == (row["step"], row["policy"])]
        assert row["peer_received"] == len(mine) > 0
        assert row["peer_used"] == sum(r["used"] for r in mine) > 0
    (term,) = {r["name"] for r in rows(finished, cell(finished, "copd"), "terms")}
    assert term == "distil"
    costs = rows(finished, cell(finished, "copd"), "costs")
    assert {r["policy"] for r in costs if r["phase"] == "score" and r["cpu_seconds"] > 0} == {"a", "b"}


def test_both_rounds_count_as_rollouts_and_are_told_apart(finished: Prepared) -> None:
    """Rollouts and tokens are of both rounds, every other column of the first alone; evaluation sees no hinted prompt."""
    steps = rows(finished, cell(finished, "core"), "steps")
    terms = rows(finished, cell(finished, "core"), "terms")
    assert sum(r["hinted_prompts"] for r in steps) > 0
    for row in steps:
        assert row["answers"] == 36
        assert row["right"] + row["wrong"] + row["invalid"] == 36
        assert row["hinted_answers"] == 6 * row["hinted_prompts"] <= 36
        assert row["rollouts"] == 36 + row["hinted_answers"]
        (hinted,) = [t for t in terms if (t["step"], t["policy"], t["name"]) == (row["step"], row["policy"], "hinted")]
        assert hinted["answers"] <= row["hinted_answers"]
    for row in rows(finished, cell(finished, "copd"), "steps"):
        assert (row["rollouts"], row["hinted_prompts"], row["hinted_answers"], row["hinted_right"]) == (36, 0, 0, 0)
    asked = {r["prompt"] for r in rows(finished, cell(finished, "core"), "samples")}
    assert asked == {r["prompt"] for r in rows(finished, cell(finished, "copd"), "samples")}
    used = [r for r in rows(finished, cell(finished, "core"), "exchanges") if r["used"]]
    assert used, "an answer that stands as a hint behind a gradient is used"


def test_hinted_questions_are_sampled_in_the_second_round_alone(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the learning curve, not in an evaluation; the hint holds neither the gold nor the peer's answer."""
    from harness.engines.embedded.engine import EmbeddedEngine

    sample, second, inside = EmbeddedEngine.sample, learners.second_round, [0]
    hinted: list[tuple[int, str, str]] = []

    def watched(self: Any, prompts: Any, seeds: Any, sampling: Any) -> Any:
        hinted.extend((inside[0], p.text, p.gold) for p in prompts if p.of or p.id.endswith("/hinted"))
        return sample(self, prompts, seeds, sampling)

    def round_b(*arguments: Any) -> list[Group]:
        inside[0] += 1
        try:
            return second(*arguments)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(EmbeddedEngine, "sample", watched)
    monkeypatch.setattr(cells, "second_round", round_b)
    short = ["training.steps=2", "training.measure_every=0", "evaluation.limit=2", "evaluation.curve_prompts=1"]
    run(suite_file, tmp_path, [*HOT, *short], only="*/core/*")
    assert hinted
    for depth, text, gold in hinted:
        question, _, hint = text.partition("A:")
        assert depth == 1
        assert question.startswith("Q: ")
        assert hint.strip()
        assert gold not in hint.replace("=", " ").split()


@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_a_hint_opens_no_turn_and_keeps_its_length(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer's text is cut before what the tokenizer would read as a control token, and after so many tokens."""
    tokenizer = build_tokenizer(family)
    control = next(token for token in tokenizer.get_added_vocab() if token.strip())
    monkeypatch.setattr(learners, "roll_out", lambda learner, cell, step, prompts, verifier: prompts)
    cell: Any = SimpleNamespace(training=SimpleNamespace(task="micro"))

    def hinted(text: str, tokens: int) -> list[Prompt]:
        learner: Any = SimpleNamespace(
            engine=SimpleNamespace(tokenizer=tokenizer), regime=SimpleNamespace(hint_tokens=tokens),
            codec=TokenCodec(tokenizer), clock=learners.Clock(),
        )  # fmt: skip
        answer = PeerAnswer("you", 1, 1, "x", 0, np.zeros(1, np.int32), text, True, Verdict("right", "", "92"))
        own = [Group(Prompt("x", "Q: 46*2\nA:", "92"), "me", 1, 1, ())]
        with Verifier(workers=1) as verifier:
            hints = [Hint("x", answer), Hint("x", answer), Hint("y", answer)]
            return learners.second_round(learner, cell, 1, own, hints, Judge(verifier))  # type: ignore[return-value]

    (prompt,) = hinted(f"first 40*2=80{control} more", 99)
    assert (prompt.text, prompt.of, prompt.hint) == ("Q: 46*2\nA: first 40*2=80", "x", AnswerId("you", "x", 0))
    codec = TokenCodec(tokenizer)
    whole = codec.try_encode(["first 40*2=80 and 6*2=12"])[0].ids.size
    (prompt,) = hinted("first 40*2=80 and 6*2=12 so 80+12=92. \\boxed{92}", 5)
    assert codec.try_encode([prompt.text.removeprefix("Q: 46*2\nA: ")])[0].ids.size == 5 < whole
    assert hinted(f"{control}", 99) == hinted("92 it is", 99) == []
    cut = [prompt.text for tokens in range(1, 12) for prompt in hinted("so 924 or 925", tokens)]
    assert cut
    assert not [text for text in cut if text.endswith("92")], "cut inside a number"


@pytest.mark.slow_but("core")
@pytest.mark.parametrize("regime", ["copd", "core"])
def test_killed_mid_step_resumes_exactly(
    finished: Prepared, suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regime: str
) -> None:
    """Killed in the third step, after scores were given, or the second round sampled, and before the update."""
    update, calls = cells.step_rows.mark_used, [0]

    def killed(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 5:
            raise Killed
        update(*arguments)

    monkeypatch.setattr(cells.step_rows, "mark_used", killed)
    with pytest.raises(Killed):
        run(suite_file, tmp_path, HOT, only=f"*/{regime}/*")
    monkeypatch.setattr(cells.step_rows, "mark_used", update)
    resumed = run(suite_file, tmp_path, HOT, only=f"*/{regime}/*")
    for table in TABLES:
        assert rows(resumed, resumed.cells[0], table) == rows(finished, cell(finished, regime), table), table
    assert weights(resumed, regime) == weights(finished, regime)


@pytest.mark.slow_but("spamming")
@pytest.mark.parametrize(
    ("condition", "reason", "before"),
    [("{kind: stale, steps: 1}", "stale", 0), ("{kind: silent, start: 3}", "late", 2), ("{kind: spamming}", "quota", 4)],
)  # fmt: skip
@pytest.mark.slow
def test_a_scorer_that_is_stale_silent_or_spams_is_refused_and_the_cell_finishes(
    suite_file: Path, tmp_path: Path, condition: str, reason: str, before: int
) -> None:
    prepared = run(with_condition(suite_file, condition), tmp_path / "r", [*HOT, "evaluation.limit=2"], only="*/copd/*")
    records = rows(prepared, prepared.cells[0], "exchanges")
    assert any(r["reason"] == reason and r["author"] == "b" and not r["accepted"] for r in records)
    steps = [r for r in rows(prepared, prepared.cells[0], "steps") if r["policy"] == "a"]
    assert len(steps) == 4
    assert sum(r["peer_used"] > 0 for r in steps) == before
    terms = {r["step"]: r["name"] for r in rows(prepared, prepared.cells[0], "terms") if r["policy"] == "a"}
    assert [terms[s] for s in (1, 2, 3, 4)] == ["distil"] * before + ["own"] * (4 - before), "without scores GRPO"


def test_a_lying_scorer_is_believed_and_moves_the_learner(finished: Prepared, suite_file: Path, tmp_path: Path) -> None:
    """It finds every answer certain: every advantage is -beta log pi_old, none negative."""
    file = with_condition(suite_file, "{kind: lying}")
    prepared = run(file, tmp_path / "r", [*HOT, "training.steps=1"], only="*/copd/*")
    loss = {r["policy"]: r["loss"] for r in rows(prepared, prepared.cells[0], "terms")}
    honest = {r["policy"]: r["loss"] for r in rows(finished, cell(finished, "copd"), "terms") if r["step"] == 1}
    assert loss["b"] == honest["b"]
    assert loss["a"] < 0 < honest["a"]


def test_one_direction_asks_against_it(suite_file: Path, tmp_path: Path) -> None:
    """Scores flow from author to receiver, so only the receiver drafts."""
    edge = [*HOT, "training.steps=1", "sharing.direction=edges", "sharing.edges=[[b, a]]"]
    prepared = run(suite_file, tmp_path, edge, only="*/copd/*")
    records = {(r["kind"], r["author"], r["receiver"]) for r in rows(prepared, prepared.cells[0], "exchanges")}
    assert records == {("draft", "a", "b"), ("scores", "b", "a")}
    assert {r["policy"]: r["name"] for r in rows(prepared, prepared.cells[0], "terms")} == {"a": "distil", "b": "own"}


def test_a_plan_counts_scores_and_the_second_round(suite_file: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite_file), tmp_path, overrides=[REGIMES])
    work = {c.variant.name: demand_of(c, prepared.resolved).workload for c in prepared.cells}
    assert (work["independent"].scored, work["copd"].scored, work["core"].scored) == (0.0, 1.0, 0.0)
    assert (work["independent"].again, work["copd"].again, work["core"].again) == (0.0, 0.0, 0.25)
    policy = prepared.cells[0].group.policies[0]
    lengths = {
        c.variant.name: questions.measure_lengths(policy, Path(policy.model), c.evaluation, c) for c in prepared.cells
    }
    space = len(build_tokenizer("llama").encode(" ", add_special_tokens=False))  # of the template
    assert lengths["core"].prompt == lengths["independent"].prompt + 2 * 12 + space, (
        "a hint is at most as long as a peer's answer"
    )
    assert lengths["core"].longest == max(lengths["independent"].longest, lengths["core"].prompt + 12)
    short = prepare_named(str(suite_file), tmp_path, overrides=["regimes=[independent, {regime: core, tokens: 5}]"])
    assert questions.measure_lengths(policy, Path(policy.model), short.cells[1].evaluation, short.cells[1]).prompt == (
        lengths["independent"].prompt + 5 + space
    )


def test_without_peers_both_are_grpo_bit_for_bit(suite_file: Path, tmp_path: Path) -> None:
    short = ["training.steps=2", "training.measure_every=0", "evaluation.limit=2", "sharing.direction=none"]
    prepared = run(suite_file, tmp_path, [*HOT, *short])
    for regime in ("copd", "core"):
        assert weights(prepared, regime) == weights(prepared, "independent")
        for table in ("steps", "exchanges", "curves", "samples"):
            assert rows(prepared, cell(prepared, regime), table) == rows(prepared, cell(prepared, "independent"), table)


def test_what_cannot_be_is_refused(suite_file: Path, tmp_path: Path) -> None:
    replay = "regimes=[independent, {regime: copd, name: r, replay: {suite: tiny, regime: copd}}]"
    with pytest.raises(SuiteError, match=r"regimes\[1\]\.replay: 'r' needs peers' scores"):
        prepare_named(str(suite_file), tmp_path, overrides=[replay])
    with pytest.raises(PluginError, match="tokens"):
        regimes.core.CoRe(cells.registry.check_options(regimes.core.CoRe, {"tokens": -1}))
