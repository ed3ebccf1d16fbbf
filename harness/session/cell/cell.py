"""One cell: train, evaluate, and keep the manifest true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec import structs

from harness.engines.backend import Backend
from harness.engines.catalogue import open_backend
from harness.engines.protocol import Optimisation, PolicyEngine, UpdateReport
from harness.errors import HarnessError, VerificationError
from harness.exchange.receiving import Received, Receiver
from harness.experience.answers import Answer, Group, Prompt
from harness.experience.records import AnswerRecord, Record
from harness.learning import registry
from harness.learning.regime import Context, Measured, Need
from harness.learning.terms import Objective, Term, TermAnswer, with_step_weights
from harness.phases import Interrupted, RunningPhase, announce_phase, log, stop_if_asked
from harness.session.cell import resume_point, step_rows
from harness.session.cell.carried import measure_price, said_of
from harness.session.cell.curves import probe_policy
from harness.session.cell.dynamic import places_to_replace, prompts_not_asked
from harness.session.cell.evaluate import cost_rows, sample_rows
from harness.session.cell.exchanges import CellExchange
from harness.session.cell.health import Watch, check_loss, check_trained
from harness.session.cell.judge import Judge, judge_of, same_of
from harness.session.cell.learners import Clock, Learner, roll_out, second_round, template_date, verdicts_of_answers
from harness.session.cell.manifests import (
    frozen_dates,
    manifest_of,
    mark_state,
    with_dates,
    with_starts,
    with_starts_of,
)
from harness.session.cell.questions import (
    as_asked,
    pool_entry,
    stop_strings,
    training_prompts,
    with_length,
)
from harness.session.policy import base_folder, with_template_date
from harness.store.journal import Journal, read_journal
from harness.store.manifest import CarriedPrice, Manifest, read_manifest, write_manifest
from harness.store.rows import CurveRow, SampleRow, StepRow, TaskRow, TermRow, TraceRow
from harness.suite.cells import Cell
from harness.suite.schema import Policy
from harness.suite.seeds import generator_of
from harness.verification.verifier import Verifier

KL = Objective(form="kl", aggregation="token")
COMMIT_EVERY = 5
# (finished steps, all steps, words on the last one: none where a start begins)
Observer = Callable[[int, int, str], None]


def run_cell(
    cell: Cell,
    folder: Path,
    verifier: Verifier,
    observe: Observer,
    stopped: Callable[[], bool],
    layout: Mapping[str, Mapping[str, Any]] = {},
    attempt: int = 1,
) -> float:
    """Train and evaluate a cell, from its newest checkpoint; return its CPU-seconds. layout: a plan's engine options, by policy,
    which the suite's override. Raises CellError, DiskFullError, Interrupted."""
    dates = frozen_dates(folder, cell.group.policies)
    manifest = structs.replace(manifest_of(cell), pool=pool_entry(cell.training))
    mark_state(folder, manifest, "running", attempts=attempt)
    journal = Journal(folder)
    folders, options = _prepare_policies(cell, layout)

    are_one = cell.sharing.ends == "one_action"
    with open_backend(cell.engine, options, cell.training.temperature, ends_are_one=are_one) as engines:
        learners = engines.each(partial(_open_learner, cell, engines, folders, dates), cell.group.policies)
        try:
            stored = read_journal(folder)
            manifest = _note_starts(manifest, learners)
            if resume_point.has_begun(folder) or "samples" in stored.tables:
                manifest = _as_it_began(manifest, folder)
            mark_state(folder, manifest, "running", attempts=attempt)
            # With all samples, it was interrupted while tidying weights.
            if stored.problems or "samples" not in stored.tables:
                judge = judge_of(cell.training.task, verifier)
                run = Run(cell, folder, engines, learners, journal, verifier, judge, attempt, observe, stopped)
                run.to_the_end()
                check_trained(folder)
                run.evaluate_policies()
        except Exception:
            for learner in learners:  # costs and rows up to there
                journal.append(cost_rows(attempt, learner.name, learner.clock))
            with suppress(HarnessError):
                journal.commit(0)
            raise
    journal.compact()
    resume_point.settle_checkpoint(folder, cell.keep)
    mark_state(folder, manifest, "done", attempts=attempt)
    return sum(learner.clock.cpu_seconds_total for learner in learners)


def _prepare_policies(
    cell: Cell, layout: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Path], dict[str, dict[str, Any]]]:
    """Find or make each policy's base weights; return their folders and the engine's options, both by policy. A plan's options
    give way to the suite's own."""
    folders: dict[str, Path] = {}
    options: dict[str, dict[str, Any]] = {}
    of_start = cell.engine_options if cell.engine == "embedded" else {}  # base weights are made by the embedded engine
    for policy in cell.group.policies:
        name = policy.name
        folders[name] = base_folder(policy, cell.seed, options=of_start)
        chosen = {**layout.get(name, {}), **cell.engine_options}
        options[name] = with_length(cell.engine, chosen, policy, folders[name], cell.evaluation, cell)
    return folders, options


def _open_learner(
    cell: Cell, engines: Backend, folders: Mapping[str, Path], dates: Mapping[str, str], policy: Policy
) -> Learner:
    """Open one policy's engine, and put its regime, clock and tokenizer beside it. folders: of base weights, by policy. dates:
    the day that its chat template writes, by policy."""
    policy = with_template_date(policy, dates[policy.name])
    with announce_phase(f"opening {policy.name}"):
        engine = engines.open(policy, folders[policy.name])
    regime = registry.build(cell.variant.regime, cell.variant.options)
    regime.run_steps = cell.training.steps
    clock = Clock(partial(engines.cpu_seconds, policy.name), engine.gpus, policy.name)
    return Learner(policy, engine, regime, cell.rollouts(policy), folders[policy.name], clock)


def _note_starts(manifest: Manifest, learners: Sequence[Learner]) -> Manifest:
    """Note in the manifest what the opened policies start from: weights, precision, the day that a chat template writes."""
    bases = {learner.name: learner.base for learner in learners}
    precision = {learner.name: getattr(learner.engine, "precision", "") for learner in learners}
    dates = {learner.name: template_date(learner.policy, learner.engine.tokenizer) for learner in learners}
    return with_dates(with_starts(manifest, bases, precision), dates)


def _as_it_began(manifest: Manifest, folder: Path) -> Manifest:
    """Keep the starts that a cell noted when it began, since it goes on from weights of its own: what this machine would start
    from is then of no account, but a warning where it differs."""
    before = with_starts_of(read_manifest(folder), manifest)
    for here, noted in zip(manifest.policies, before.policies, strict=True):
        if noted.start and noted.start != here.start:
            words = "%s goes on from its checkpoint; its start on this machine is another one than it began from"
            log.warning(words, here.name, extra={"topic": f"{manifest.group}/start"})
    return before


def read_behind_leads(term: Term, received: Received) -> Term:
    """Put each peer's answer of a term behind its lead (`PeerAnswer.lead`), which regimes do not see."""
    answers = []
    for answer in term.answers:
        lead = received.leads.get(answer.origin, ()) if answer.origin is not None else ()
        answers.append(answer.read_behind(lead) if lead else answer)
    return replace(term, answers=tuple(answers))


def _empty_groups_of_late_answers(
    learner: Learner, step: int, earlier: Sequence[Prompt], received: Received
) -> list[Group]:
    """Make groups without own answers for the earlier prompts on which a peer's record came: a regime then finds them as it finds
    the step's own."""
    heard_of = {record.prompt_id for record, _ in received.admitted}
    version = learner.engine.version
    return [Group(prompt, learner.name, version, step, ()) for prompt in earlier if prompt.id in heard_of]


def is_due(every: int, step: int, last: int = -1) -> bool:
    """Whether it is time: every so many steps (0: never), and at the last."""
    return every > 0 and (step % every == 0 or step == last)


@dataclass(frozen=True, slots=True)
class LearntStep:
    """One policy's rows of one step. details: rows by answer, by term and by task."""

    row: StepRow
    details: list[TraceRow | TermRow | TaskRow]


@dataclass(slots=True)
class Run:
    """One start of a cell, from its newest resume point to the last step.

    learners: the cell's opened policies, in the group's order. references: frozen copies of what they started from, by policy;
    empty where nothing asks for them. best: the best points of the learning curves so far, by policy. attempt: number of this
    start, from 1. observe: is told how far training is. stopped: whether the user asked to stop; asked once a step."""

    cell: Cell
    folder: Path
    engines: Backend
    learners: Sequence[Learner]
    journal: Journal
    verifier: Verifier
    judge: Judge
    attempt: int
    observe: Observer
    stopped: Callable[[], bool]
    references: dict[str, PolicyEngine] = field(default_factory=dict)
    exchange: CellExchange = field(init=False)
    best: dict[str, resume_point.Best] = field(default_factory=dict)
    _watch: Watch = field(default_factory=Watch)
    # Verdicts so far, and how many of them are invalid; policies' threads count them
    _counting: Lock = field(default_factory=Lock)
    _answers: int = 0
    _invalid: int = 0
    # Questions by step, as the task has them: a late answer to an earlier one finds its prompt here
    _drawn: dict[int, list[Prompt]] = field(default_factory=dict)
    # With dynamic sampling: of the running step, by policy
    _replaced: dict[tuple[int, str], list[Prompt]] = field(default_factory=dict)
    _dropped: dict[str, list[Group]] = field(default_factory=dict)

    def to_the_end(self) -> None:
        """Train all steps that are left, and leave the trained weights and all rows but the evaluation's in the folder.

        A cell whose last resume point is there was interrupted behind its last step: it is only restored. Raises CellError,
        DiskFullError, and Interrupted where the user asked to stop, after a checkpoint."""
        cell = self.cell
        folder = self.folder
        steps = self.cell.training.steps
        if resume_point.holds_last(folder, steps):
            resume_point.finish_checkpoint(folder, steps)  # it may have been interrupted there
            resume_point.restore_resume_point(folder / resume_point.FINAL, cell.key, self.learners)
            self.journal.rewind(steps)
            self.observe(steps, steps, "")
            return
        training = cell.training
        if training.kl or training.measure_every or "strong" in cell.sharing.direction or self._exchanges_start_scores:
            with announce_phase("opening the frozen references"):
                opened = self.engines.each(lambda m: self.engines.reference(m.policy, m.base), self.learners)
            self.references = {m.name: engine for m, engine in zip(self.learners, opened, strict=True)}
        with announce_phase("training", steps) as phase:
            self._train_steps(phase)
            self._append_costs()
        resume_point.finish_checkpoint(folder, steps)

    def evaluate_policies(self) -> None:
        """Ask every policy the held-out questions, and commit the answers with what they cost."""
        evaluated = self.engines.each(self._evaluate_policy, self.learners)
        for learner, rows in zip(self.learners, evaluated, strict=True):
            costs = cost_rows(self.attempt, learner.name, learner.clock, rows)
            self.journal.append([*rows, *costs])
        self.journal.commit(self.cell.training.steps + 1)

    def _evaluate_policy(self, learner: Learner) -> list[SampleRow]:
        """Ask a policy the held-out questions. Seeds are equal in every regime, so that answers are paired."""
        stop_if_asked()
        cell = self.cell
        with learner.clock.phase("evaluate"):
            asked = learner.engine, cell.evaluation, learner.policy
            return sample_rows(*asked, cell.training.steps, cell.seed, self.verifier)

    def _train_steps(self, training: RunningPhase) -> None:
        """Take the steps behind the newest resume point, with curves, checkpoints and rows between them.

        In lockstep all policies roll out before any learns; apart, each policy goes on alone to the next meeting, which is the
        next step with a curve, a checkpoint or a commit. training: is told how many steps are done. Raises Interrupted."""
        steps = self.cell.training.steps
        can_step_apart = self._can_step_apart()
        saved = resume_point.latest_resume_point(self.folder)
        done = 0 if saved is None else saved[0]
        self._start_or_resume(saved, lockstep=not can_step_apart)
        training.count(done)
        self.observe(done, steps, "")
        while done < steps:
            first = done + 1
            if can_step_apart:
                done = self._next_meeting(first)
                learnt = self._step_apart(first, done)
            else:
                done = first
                learnt = self._step_together(done)
            self._end_step(done, learnt, training)
        if steps == 0 and saved is None:
            self._save_checkpoint(0)
        self.exchange.close()

    def _can_step_apart(self) -> bool:
        """Whether a policy may go on without waiting for the others' step.

        Policies must have devices of their own, and the suite must admit answers of earlier steps (`max_staleness`): a peer's
        records of the very step may be late. Three things need all policies at the same step: peers that score each other's
        drafts, a recording, which is served step by step, and dynamic sampling, which may replace a question for all at once."""
        cell = self.cell
        if not self.engines.side_by_side or cell.sharing.max_staleness == 0:
            return False
        scores_drafts = any(Need.SCORES in m.regime.needs for m in self.learners)
        return not scores_drafts and cell.variant.replay is None and cell.variant.dynamic_sampling is None

    def _start_or_resume(self, saved: tuple[int, Path] | None, lockstep: bool) -> None:
        """Open the exchange, and bring journal, policies and exchange to where training goes on.

        saved: the newest resume point, with the steps finished there; without one the starts are measured. lockstep: as
        `CellExchange`."""
        done = 0 if saved is None else saved[0]
        self.journal.rewind(-1 if saved is None else done)
        self.exchange = CellExchange(self.cell, self.folder, self.learners, self._measure_strengths, done, lockstep)
        if saved is not None:
            self._restore_run(saved[1], done)
            return
        self._measure_prices()
        if self.cell.evaluation.curve_every:
            self._measure_curve(0)

    def _end_step(self, done: int, learnt: Sequence[LearntStep], training: RunningPhase) -> None:
        """Keep the rows, measure a curve and save where it is time, and say how far training is. Raises Interrupted.

        learnt: step by step, of all policies; several steps' where policies stepped apart. Where the user asked to stop, a
        checkpoint is saved first, so that nothing trained is lost."""
        cell = self.cell
        steps = cell.training.steps
        self._keep_rows(learnt)
        if is_due(cell.evaluation.curve_every, done, last=steps):
            self._measure_curve(done)
        stop = self.stopped()
        if stop or is_due(cell.training.checkpoint_every, done, last=steps):
            self._save_checkpoint(done)
        elif done % COMMIT_EVERY == 0:
            self.journal.commit(done)
        last_rows = [one.row for one in learnt[-len(self.learners) :]]
        words = "  ".join(f"{row.policy} {row.reward_mean:.2f}" for row in last_rows)
        training.count(done)
        log.info("step %d/%d  %s", done, steps, words)
        self.observe(done, steps, words)
        if stop and done < steps:
            raise Interrupted

    def _restore_run(self, point: Path, done: int) -> None:
        """Restore what a resume point holds. done: the steps finished there."""
        cell = self.cell
        state = resume_point.restore_resume_point(point, cell.key, self.learners)
        self.exchange.restore(state.exchange)
        self.best = state.best
        self._answers = state.answers
        self._invalid = state.invalid
        if cell.keep == "best" and not self.best:
            words = "keep: best counts from step %d on: until then this cell had another `keep`"
            log.warning(words, done, extra={"topic": f"{cell.group.name}/keep"})
        resume_point.keep_best(self.folder, self.best)

    def _measure_prices(self) -> None:
        """Measure the price of own answers carried as a peer's, for the manifest; who pays is named."""
        shared = frozenset[type[Record]]().union(*(learner.regime.shares for learner in self.learners))
        if not any(issubclass(kind, AnswerRecord) for kind in shared):
            return
        if not any(self.exchange.exchange.authors(m.name) for m in self.learners):
            return

        def measured(learner: Learner) -> CarriedPrice:
            strings = stop_strings(self.cell, learner.policy)
            with learner.clock.phase("measure"):
                prompts = self._draw_prompts(1, learner)
                return measure_price(learner, prompts, self.cell.training.max_new_tokens, strings)

        with announce_phase("carrying own answers as a peer's"):
            found = self.engines.each(measured, self.learners)
        prices = {m.name: price for m, price in zip(self.learners, found, strict=True)}
        write_manifest(self.folder, structs.replace(read_manifest(self.folder), carried=prices))
        for name, price in prices.items():
            said = said_of(name, price)
            if said:
                log.warning("%s", said, extra={"topic": f"{self.cell.group.name}/{name}/carried"})

    def _next_meeting(self, step: int) -> int:
        """Return the first step from this one on after which all policies must be at the same step: a curve, a checkpoint or a
        commit is due there, or it is the last."""
        training = self.cell.training
        every = self.cell.evaluation.curve_every
        while not any(is_due(n, step, training.steps) for n in (every, training.checkpoint_every, COMMIT_EVERY)):
            step += 1
        return step

    def _step_together(self, step: int) -> list[LearntStep]:
        """Take one step in lockstep: all roll out, all publish, all learn. Returns the rows in the policies' order.

        Each policy publishes twice. Drafts go first, on a line of their own, since peers answer them with scores; the other
        records go when those scores are among them, so that a receiver finds all of a peer's records of the step at once."""
        for learner in self.learners:
            learner.clock.next_step()
        self.exchange.begin(step)
        groups = self._roll_out(step)
        measure = is_due(self.cell.training.measure_every, step)
        records = {}
        for learner in self.learners:
            records[learner.name] = self.exchange.records(learner, groups[learner.name], step, measure)
            self.exchange.publish(learner, records[learner.name], step, drafts=True)
        if self.exchange.asks is not None:  # in place of drafts come scores of others' drafts
            scored = self.engines.each(
                lambda m: self._make_receiver().scores(m, step, self._draw_prompts(step, m), groups[m.name]),
                self.learners,
            )
            for learner, scores in zip(self.learners, scored, strict=True):
                records[learner.name] += scores
        for learner in self.learners:
            self.exchange.publish(learner, records[learner.name], step)

        def learn(learner: Learner) -> LearntStep:
            others = [own for name, own in groups.items() if name != learner.name]
            return self._learn_from_step(learner, step, groups[learner.name], others, behind=0)

        return self.engines.each(learn, self.learners)

    def _roll_out(self, step: int) -> dict[str, list[Group]]:
        """Sample the step's groups, by policy; with dynamic sampling, again in place of those that teach nothing."""
        prompts = {learner.name: list(enumerate(self._draw_prompts(step, learner))) for learner in self.learners}
        groups = self._sample_groups(step, prompts)
        self._replaced = {}
        self._dropped = {m.name: [] for m in self.learners}
        dynamic = self.cell.variant.dynamic_sampling
        if dynamic is None:
            return groups
        drawn = training_prompts(self.cell, step)
        kept = {m.name: list(drawn) for m in self.learners}
        asked = {m.name: [prompt.id for prompt in drawn] for m in self.learners}
        for draw in range(1, dynamic.rounds + 1):
            offered = training_prompts(self.cell, step, draw)
            news: dict[str, list[tuple[int, Prompt]]] = {}
            for name, places in places_to_replace(groups, dynamic.decided_by).items():
                # A small pool may offer too few: the others stay.
                news[name] = list(zip(places, prompts_not_asked(offered, asked[name]), strict=False))
            if not any(news.values()):
                break
            sampled = self._sample_groups(step, self._ask_in_style(news))
            for name, new in news.items():
                for (place, prompt), group in zip(new, sampled[name], strict=True):
                    if groups[name][place].answers:
                        self._dropped[name].append(groups[name][place])
                    groups[name][place] = group
                    kept[name][place] = prompt
                    asked[name].append(prompt.id)
        self._replaced = {(step, name): of_policy for name, of_policy in kept.items()}
        return groups

    def _ask_in_style(self, drawn: Mapping[str, Sequence[tuple[int, Prompt]]]) -> dict[str, list[tuple[int, Prompt]]]:
        """Write drawn prompts as each policy is asked. drawn: by policy, each with its place in the step, which it keeps."""
        asked: dict[str, list[tuple[int, Prompt]]] = {}
        for learner in self.learners:
            places = [place for place, _ in drawn[learner.name]]
            prompts = [prompt for _, prompt in drawn[learner.name]]
            texts = as_asked(prompts, self.cell.training.task, learner.policy)
            asked[learner.name] = list(zip(places, texts, strict=True))
        return asked

    def _sample_groups(self, step: int, prompts: Mapping[str, Sequence[tuple[int, Prompt]]]) -> dict[str, list[Group]]:
        """Sample and verify every policy's answers. prompts: by policy, each with its place in the step."""
        sampled = self.engines.each(lambda m: self._answer_prompts(m, step, prompts[m.name]), self.learners)
        for groups in sampled:
            self._count_invalid(groups)
        return {m.name: groups for m, groups in zip(self.learners, sampled, strict=True)}

    def _answer_prompts(self, learner: Learner, step: int, prompts: Sequence[tuple[int, Prompt]]) -> list[Group]:
        """Make one group for each prompt; with `sampling: split` those of other policies' places are empty. prompts: each with
        its place in the step."""
        turns = 1
        turn = 0
        if self.cell.variant.sampling == "split":
            turns = len(self.learners)
            turn = [m.name for m in self.learners].index(learner.name)
        mine = [prompt for place, prompt in prompts if place % turns == turn]
        answered = iter(roll_out(learner, self.cell, step, mine, self.judge) if mine else [])
        version = learner.engine.version
        return [
            next(answered) if place % turns == turn else Group(prompt, learner.name, version, step, ())
            for place, prompt in prompts
        ]

    def _step_apart(self, first: int, last: int) -> list[LearntStep]:
        """Let each policy take the steps `first` to `last` alone, without waiting for the others. Returns the rows step by step,
        of each in the policies' order.

        What compares a policy's groups with the others' of the same step is counted here: while a policy learnt, they were not
        all sampled yet."""
        steps = range(first, last + 1)
        by_policy = self.engines.each(lambda m: [self._step_alone(m, step) for step in steps], self.learners)
        learnt = []
        for of_step in zip(*by_policy, strict=True):
            sampled = [groups for groups, _ in of_step]
            for i, (own, one) in enumerate(of_step):
                others = sampled[:i] + sampled[i + 1 :]
                row = structs.replace(one.row, prompts_rescued=step_rows.count_rescued(own, others))
                details = [detail for detail in one.details if not isinstance(detail, TaskRow)]
                by_task = step_rows.task_rows(row.policy, row.step, own, others)
                learnt.append(LearntStep(row, [*details, *by_task]))
        return learnt

    def _step_alone(self, learner: Learner, step: int) -> tuple[list[Group], LearntStep]:
        """Take one policy's step: sample, publish, and learn from what has come by then, of this step or earlier ones. A peer
        that is more than `max_staleness` steps behind is waited for, up to the deadline."""
        learner.clock.next_step()
        own = self._answer_prompts(learner, step, list(enumerate(self._draw_prompts(step, learner))))
        self._count_invalid(own)
        records = self.exchange.records(learner, own, step, is_due(self.cell.training.measure_every, step))
        self.exchange.publish(learner, records, step)
        return own, self._learn_from_step(learner, step, own, [], behind=self.cell.sharing.max_staleness)

    def _keep_rows(self, learnt: Sequence[LearntStep]) -> None:
        """Append the steps' rows and the exchange's, and warn of what in them looks unhealthy."""
        for one in learnt:
            self.journal.append([one.row, *one.details])
            for topic, line in self._watch.hear(one.row, one.details):
                log.warning("%s", line, extra={"topic": f"{self.cell.group.name}/{topic}"})
        self.journal.append(self.exchange.ledger())

    def _draw_prompts(self, step: int, learner: Learner) -> list[Prompt]:
        """Return the step's questions as the policy is asked them; with dynamic sampling, those that were put in place of others
        too."""
        drawn = self._replaced.get((step, learner.name))
        if not drawn:
            drawn = self._drawn.get(step)  # read once: another policy's thread may drop it
        if not drawn:
            drawn = self._drawn.setdefault(step, training_prompts(self.cell, step))
        return as_asked(drawn, self.cell.training.task, learner.policy)

    def _earlier_prompts(self, step: int, learner: Learner) -> list[Prompt]:
        """Return the prompts of earlier steps on which stale answers may still arrive; older questions are forgotten."""
        for old in list(self._drawn):
            if old < step - 2 * self.exchange.memory:
                self._drawn.pop(old, None)
        current = {prompt.id for prompt in self._draw_prompts(step, learner)}
        earlier: dict[str, Prompt] = {}
        for recent in range(max(1, step - self.exchange.memory), step):
            earlier |= {prompt.id: prompt for prompt in self._draw_prompts(recent, learner) if prompt.id not in current}
        return list(earlier.values())

    def _make_receiver(self) -> Receiver:
        """Make what collects, judges and carries peers' records for a learner, under the cell's settings."""
        return Receiver(
            self.exchange.exchange,
            self.cell.sharing,
            partial(verdicts_of_answers, self.judge),
            longest=2 * self.cell.training.max_new_tokens,
            scored=any(Need.RECEIVER_OLD in m.regime.needs for m in self.learners),
            asks=self.exchange.asks,
            starts=self.references if self._exchanges_start_scores else {},
        )

    @property
    def _exchanges_start_scores(self) -> bool:
        """Whether peers send scores under the weights that they started from, beside those under their present ones."""
        return any(Need.START_SCORES in m.regime.needs for m in self.learners)

    def _learn_from_step(
        self, learner: Learner, step: int, own: Sequence[Group], others: Sequence[Sequence[Group]], behind: int
    ) -> LearntStep:
        """Learn from one step: receive, ask again with hints, make terms, update, measure, and give the step's rows.

        own: the learner's groups; others: those of each other policy, for counts alone. behind: as `Exchange.collect`."""
        prompts = self._draw_prompts(step, learner)
        earlier = self._earlier_prompts(step, learner)
        training = self.cell.training
        received = self._make_receiver().collect(learner, step, prompts, earlier, behind, own)
        again, terms = self._make_terms(learner, step, own, earlier, received)
        valid: list[tuple[Prompt, Answer]] = []
        for group in own:
            valid += [(group.prompt, answer) for answer in group.valid]
        if training.kl:
            terms = [*terms, self._penalty_term(learner, valid)]
        measure = is_due(training.measure_every, step)
        every_prompt = [*prompts, *earlier, *(group.prompt for group in again)]
        report = self._update_policy(learner, step, every_prompt, terms, measure)
        step_rows.mark_used(received, terms, report.terms, again)
        kl_step, kl_base = self._measure_kl(learner, valid) if measure else (step_rows.NAN, step_rows.NAN)
        dropped = self._dropped.get(learner.name, ())
        row = step_rows.step_row(learner, step, own, others, received, terms, report, kl_step, kl_base, again, dropped)
        traces = step_rows.trace_rows(learner, step, own, received)
        terms_of_step = step_rows.term_rows(learner.name, step, report)
        by_task = step_rows.task_rows(learner.name, step, own, others)
        return LearntStep(row, [*traces, *terms_of_step, *by_task])

    def _make_terms(
        self, learner: Learner, step: int, own: Sequence[Group], earlier: Sequence[Prompt], received: Received
    ) -> tuple[list[Group], list[Term]]:
        """Ask again with the regime's hints, and let it make terms of all answers. Returns the groups of that second round, and
        the terms.

        own: the learner's groups of the step. earlier: prompts of earlier steps, on which peers' answers may be late."""
        regime = learner.regime
        context = self._make_context(learner, step)
        with learner.clock.phase("exchange"):
            late = _empty_groups_of_late_answers(learner, step, earlier, received)
            hints = regime.hints([*own, *late], received.inbox, context) if regime.hint_tokens else []
        again = second_round(learner, self.cell, step, own, hints, self.judge)
        self._count_invalid(again)
        with learner.clock.phase("exchange"):
            terms = regime.learn([*own, *late, *again], received.inbox, context)
            terms = with_step_weights(terms, step, self.cell.training.steps)
            if received.leads:
                terms = [read_behind_leads(term, received) for term in terms]
        return again, terms

    def _update_policy(
        self, learner: Learner, step: int, prompts: Sequence[Prompt], terms: Sequence[Term], measure: bool
    ) -> UpdateReport:
        """Update the policy by the step's terms, and tell the regime the gradients that it asked for. prompts: those of all
        terms. measure: own and peer gradients apart. Raises CellError for a loss that is not finite."""
        wants_gradients = Need.GRADIENTS in learner.regime.needs
        optimisation = self._settings_of_updates(learner, measure or wants_gradients)
        with learner.clock.phase("train"):
            report = learner.engine.update(prompts, terms, optimisation)
        check_loss(learner.name, step, report.loss)
        if wants_gradients:
            norms = report.own_gradient_norm, report.peer_gradient_norm
            learner.regime.learnt(Measured(*norms, report.own_peer_cosine))
        return report

    def _make_context(self, learner: Learner, step: int) -> Context:
        """Tell what a regime may know beside its answers. Its random numbers depend on cell, learner and step alone."""
        cell = self.cell
        stream = cell.variant.sampling_stream
        votes = same_of(self.cell.training.task)
        return Context(
            learner=learner.name,
            policies=tuple(one.name for one in self.learners),
            step=step,
            rng=generator_of(cell.seed, stream, "learn", cell.group.name, learner.name, step),
            max_tokens=cell.training.max_new_tokens,
            updates=cell.training.updates,
            same=votes.get("", str.__eq__),
            same_by_task=votes,
        )

    def _penalty_term(self, learner: Learner, valid: Sequence[tuple[Prompt, Answer]]) -> Term:
        """Make the term of `training.kl`: own answers that could be judged, with the base policy's log-probabilities."""
        asked = [prompt for prompt, _ in valid]
        with learner.clock.phase("score"):
            base = self.references[learner.name].score(asked, [answer.tokens for _, answer in valid])
        answers = [
            TermAnswer(prompt.id, answer.tokens, 1.0, logprobs, mask=answer.chosen)
            for (prompt, answer), logprobs in zip(valid, base, strict=True)
        ]
        return Term("kl", "own", KL, tuple(answers), weight=self.cell.training.kl)

    def _settings_of_updates(self, learner: Learner, measure: bool) -> Optimisation:
        """Make the settings of a step's updates. measure: own and peer gradients apart."""
        training = self.cell.training
        variant = self.cell.variant
        return Optimisation(
            learning_rate=training.learning_rate,
            betas=(training.betas[0], training.betas[1]),
            weight_decay=training.weight_decay,
            clip_norm=training.clip_norm,
            updates=training.updates,
            max_tokens=training.max_new_tokens,
            measure=measure,
            old_logprobs=variant.old_logprobs or learner.regime.old_logprobs,
            sampler_correction=variant.sampler_correction,
        )

    def _measure_kl(self, learner: Learner, valid: Sequence[tuple[Prompt, Answer]]) -> tuple[float, float]:
        """Measure the KL in nats per token from the policy that sampled to the updated one, and to the base."""
        asked = [prompt for prompt, _ in valid]
        tokens = [answer.tokens for _, answer in valid]
        old = [answer.logprobs for _, answer in valid]
        with learner.clock.phase("measure"):
            to_updated = step_rows.k3_divergence(old, learner.engine.score(asked, tokens))
            to_base = step_rows.k3_divergence(old, self.references[learner.name].score(asked, tokens))
        return to_updated, to_base

    def _measure_curve(self, step: int) -> None:
        """Ask every policy the curve's questions, and offer its weights where the suite keeps the best ones."""
        why = f"curve at step {step}"
        probe = partial(probe_policy, self.cell, self.verifier)
        probes = self.engines.each(lambda m: probe(m, m.engine, why), self.learners)
        for learner, probed in zip(self.learners, probes, strict=True):
            accuracy, answers = probed[""]
            row = CurveRow(policy=learner.name, step=step, metric="sampled", accuracy=accuracy, answers=answers)
            self.journal.append([row, *step_rows.task_curve_rows(learner.name, step, probed)])
            if self.cell.keep == "best":
                resume_point.offer_best_point(self.folder, step, learner, accuracy, self.best)

    def _measure_strengths(self) -> dict[str, float]:
        """Measure the accuracy of each policy's start, by which the suite's direction tells strong from weak."""
        probe = partial(probe_policy, self.cell, self.verifier)
        probes = self.engines.each(lambda m: probe(m, self.references[m.name], "who is strong"), self.learners)
        return {m.name: probed[""][0] for m, probed in zip(self.learners, probes, strict=True)}

    def _count_invalid(self, groups: Sequence[Group]) -> None:
        """Count the cell's verdicts. Raises VerificationError where more are invalid than the suite allows; a single one never is
        too many, unless it allows none."""
        answers = sum(len(g.answers) for g in groups)
        valid = sum(len(g.valid) for g in groups)
        with self._counting:  # policies' threads count here
            self._answers += answers
            self._invalid += answers - valid
        limit = self.cell.training.max_invalid
        if self._invalid > max(float(limit > 0), limit * self._answers):
            verdicts = [answer.verdict for group in groups for answer in group.answers]
            reasons = sorted({verdict.reason for verdict in verdicts if not verdict.valid})
            last = f", the last ones by {', '.join(reasons)}" if reasons else ""
            raise VerificationError(
                f"{self._invalid} of {self._answers} verdicts are invalid, more than {limit:.1%} "
                f"(training.max_invalid){last}"
            )

    def _save_checkpoint(self, step: int) -> None:
        """Commit the rows, and then the weights: rows behind the newest weights are made again, missing ones could not be."""
        self._append_costs()
        self.journal.commit(step)
        with self.learners[0].clock.phase("save"):
            counted = self.best, self._answers, self._invalid
            resume_point.save_resume_point(
                self.folder, self.cell.key, step, self.learners, self.exchange.state(), *counted
            )

    def _append_costs(self) -> None:
        """Append what each policy has cost so far in this start."""
        for learner in self.learners:
            self.journal.append(cost_rows(self.attempt, learner.name, learner.clock))
