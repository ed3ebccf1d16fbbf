"""The training loop of one cell: roll out, verify, publish, collect, learn, update; journal, resume_point, resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs

from harness.engines.kind import Engines
from harness.engines.protocol import Optimisation, PolicyEngine, Sampling
from harness.errors import VerificationError
from harness.exchange.receiving import Receiver
from harness.experience.answers import Group, Prompt
from harness.learning.regime import Context, Measured, Need
from harness.learning.terms import Objective, Term, TermAnswer
from harness.phases import Interrupted, log, phase
from harness.session.cell import resume_point, step_rows
from harness.session.cell.endings import cut_at, stops
from harness.session.cell.evaluate import cost_rows
from harness.session.cell.exchanges import CellExchange
from harness.session.cell.health import Watch, check_loss
from harness.session.cell.learners import Learner, roll_out, verdicts
from harness.session.cell.prompt_order import as_asked, curve_prompts, curve_verifier, training_prompts
from harness.session.cell.traces import trace_rows
from harness.store.journal import Journal
from harness.store.rows import CurveRow, StepRow, TermRow, TraceRow
from harness.suite.cells import Cell
from harness.suite.seeds import derive_many, generator
from harness.verification.verifier import Verifier

KL = Objective(form="kl", aggregation="token")
COMMIT_EVERY = 5
Observer = Callable[[int, int, str], None]
"""(finished steps, all steps, a few words on the last one). Without words it is told where a start begins."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one learner's update leaves in the journal."""

    row: StepRow
    details: list[TraceRow | TermRow]


@dataclass(slots=True)
class Run:
    """A cell being trained."""

    cell: Cell
    folder: Path
    engines: Engines
    learners: Sequence[Learner]
    journal: Journal
    verifier: Verifier
    attempt: int
    observe: Observer
    stopped: Callable[[], bool]
    references: dict[str, PolicyEngine]
    """Each policy's base weights, for KL terms and measurements."""
    exchange: CellExchange = field(init=False)
    best: dict[str, resume_point.Best] = field(default_factory=dict)
    _watch: Watch = field(default_factory=Watch)
    _invalid: int = 0
    _answers: int = 0
    _drawn: dict[int, list[Prompt]] = field(default_factory=dict)

    @property
    def receiver(self) -> Receiver:
        """How the learners take in what peers sent."""
        return Receiver(
            self.exchange.exchange,
            self.cell.sharing,
            partial(verdicts, self.verifier),
            longest=2 * self.cell.training.max_new_tokens,
            scored=any(Need.RECEIVER_OLD in m.regime.needs for m in self.learners),
        )

    def train(self) -> None:
        """Take up the newest checkpoint and train to the last step. Raises CellError, DiskFullError, Interrupted."""
        cell, steps = self.cell, self.cell.training.steps
        found = resume_point.latest(self.folder)
        done = 0 if found is None else found[0]
        self.journal.rewind(-1 if found is None else done)
        lockstep = not (self.engines.side_by_side and cell.sharing.max_staleness) or cell.variant.replay is not None
        self.exchange = CellExchange(
            cell, self.folder, self.learners, self.engines.transport, self._strengths, done, lockstep
        )
        if found is None:
            self._curve(0)
        else:
            self.exchange.restore(resume_point.restore(found[1], cell.key, self.learners))
            self.best = resume_point.resumed_best(self.folder, found[1], self.journal.guard)
        self.observe(done, steps, "")
        while done < steps:
            first, done = done + 1, done + 1 if lockstep else self._meeting(done + 1)
            learnt = self._together(done) if lockstep else self._apart(first, done)
            self._keep(learnt)
            if self._has_curve(done):
                self._curve(done)
            stop = self.stopped()
            if stop or self._has_checkpoint(done):
                self._checkpoint(done)
            elif done % COMMIT_EVERY == 0:
                self.journal.commit(done)
            last = learnt[-len(self.learners) :]
            self.observe(done, steps, "  ".join(f"{one.row.policy} {one.row.reward_mean:.2f}" for one in last))
            if stop and done < steps:
                raise Interrupted
        if steps == 0 and found is None:
            self._checkpoint(0)
        self.exchange.close()

    def _has_curve(self, step: int) -> bool:
        every = self.cell.evaluation.curve_every
        return bool(every) and (step % every == 0 or step == self.cell.training.steps)

    def _has_checkpoint(self, step: int) -> bool:
        return step % self.cell.training.checkpoint_every == 0 or step == self.cell.training.steps

    def _meeting(self, step: int) -> int:
        """The next step, this one included, after which all learners wait for one another."""
        while not (self._has_curve(step) or self._has_checkpoint(step) or step % COMMIT_EVERY == 0):
            step += 1
        return step

    def _together(self, step: int) -> list[Learnt]:
        """A step in lockstep: nobody learns before all have published."""
        for learner in self.learners:
            learner.clock.next_step()
        self.exchange.begin(step)
        rolled = self.engines.each(
            lambda m: roll_out(m, self.cell, step, self._prompts(step, m), self.verifier), self.learners
        )
        groups = {m.name: own for m, own in zip(self.learners, rolled, strict=True)}
        for learner in self.learners:
            self._count_invalid(groups[learner.name])
            self.exchange.publish(learner, groups[learner.name], step, self._measured(step))

        def learn(learner: Learner) -> Learnt:
            others = [own for name, own in groups.items() if name != learner.name]
            return self._learn(learner, step, groups[learner.name], others, behind=0)

        return self.engines.each(learn, self.learners)

    def _apart(self, first: int, last: int) -> list[Learnt]:
        """Steps at each learner's own pace, at most `max_staleness` ahead of those that it listens to."""
        steps = range(first, last + 1)

        def walk(learner: Learner) -> list[tuple[list[Group], Learnt]]:
            return [self._alone(learner, step) for step in steps]

        walks = self.engines.each(walk, self.learners)
        learnt = []
        for at in range(len(steps)):
            rolled = [walked[at][0] for walked in walks]
            for i, walked in enumerate(walks):
                one = walked[at][1]
                count = step_rows.rescued(rolled[i], rolled[:i] + rolled[i + 1 :])
                learnt.append(replace(one, row=structs.replace(one.row, prompts_rescued=count)))
        return learnt

    def _alone(self, learner: Learner, step: int) -> tuple[list[Group], Learnt]:
        learner.clock.next_step()
        own = roll_out(learner, self.cell, step, self._prompts(step, learner), self.verifier)
        self._count_invalid(own)
        self.exchange.publish(learner, own, step, self._measured(step))
        return own, self._learn(learner, step, own, [], behind=self.cell.sharing.max_staleness)

    def _keep(self, learnt: Sequence[Learnt]) -> None:
        for one in learnt:
            self.journal.append(one.details)
            for topic, line in self._watch.hear(one.row, one.details):
                log.warning("%s", line, extra={"topic": f"{self.cell.group.name}/{topic}"})
        self.journal.append([one.row for one in learnt])
        self.journal.append(self.exchange.ledger())

    def _prompts(self, step: int, learner: Learner) -> list[Prompt]:
        if step not in self._drawn:
            self._drawn[step] = training_prompts(self.cell, step)
        return as_asked(self._drawn[step], self.cell.training.task, learner.policy)

    def _earlier(self, step: int, learner: Learner) -> list[Prompt]:
        """Prompts of earlier steps on which stale answers may still arrive."""
        for old in [at for at in list(self._drawn) if at < step - 2 * self.exchange.memory]:
            self._drawn.pop(old, None)
        current = {p.id for p in self._prompts(step, learner)}
        kept = range(max(1, step - self.exchange.memory), step)
        return list({p.id: p for at in kept for p in self._prompts(at, learner) if p.id not in current}.values())

    def _learn(
        self, learner: Learner, step: int, own: Sequence[Group], others: Sequence[Sequence[Group]], behind: int
    ) -> Learnt:
        """One learner's update. On earlier prompts only stale peer answers exist: they stand as groups without own answers."""
        prompts, earlier = self._prompts(step, learner), self._earlier(step, learner)
        training = self.cell.training
        received = self.receiver.collect(learner, step, prompts, earlier, behind)
        context = Context(
            learner=learner.name,
            policies=tuple(m.name for m in self.learners),
            step=step,
            rng=generator(
                self.cell.seed, self.cell.variant.sampling_stream, "learn", self.cell.group.name, learner.name, step
            ),
            max_tokens=training.max_new_tokens,
            updates=training.updates,
        )
        with learner.clock.phase("exchange"):
            late = [
                Group(p, learner.name, learner.engine.version, step, ()) for p in earlier if p.id in received.prompts
            ]
            terms = learner.regime.learn([*own, *late], received.inbox, context)
        if training.kl:
            terms = [*terms, self._kl_term(learner, own)]
        measure, told = self._measured(step), Need.GRADIENTS in learner.regime.needs
        with learner.clock.phase("train"):
            report = learner.engine.update([*prompts, *earlier], terms, self._optimisation(learner, measure or told))
        check_loss(learner.name, step, report.loss)
        if told:
            learner.regime.learnt(Measured(report.own_gradient_norm, report.peer_gradient_norm, report.own_peer_cosine))
        step_rows.mark_used(received, terms, report.terms)
        kl_step, kl_base = self._divergences(learner, own) if measure else (step_rows.NAN, step_rows.NAN)
        return Learnt(
            step_rows.step_row(learner, step, own, others, received, terms, report, kl_step, kl_base),
            [*trace_rows(learner, step, own, received), *step_rows.term_rows(learner.name, step, report)],
        )

    def _measured(self, step: int) -> bool:
        every = self.cell.training.measure_every
        return bool(every) and step % every == 0

    def _optimisation(self, learner: Learner, measure: bool) -> Optimisation:
        t, variant = self.cell.training, self.cell.variant
        return Optimisation(
            learning_rate=t.learning_rate,
            betas=(t.betas[0], t.betas[1]),
            weight_decay=t.weight_decay,
            clip_norm=t.clip_norm,
            updates=t.updates,
            max_tokens=t.max_new_tokens,
            measure=measure,
            old_logprobs=variant.old_logprobs or learner.regime.old_logprobs,
            sampler_correction=variant.sampler_correction,
        )

    def _kl_term(self, learner: Learner, own: Sequence[Group]) -> Term:
        pairs = [(g.prompt, a) for g in own for a in g.valid]
        with learner.clock.phase("score"):
            base = self.references[learner.name].score([p for p, _ in pairs], [a.tokens for _, a in pairs])
        answers = tuple(
            TermAnswer(p.id, a.tokens, 1.0, b, mask=a.chosen) for (p, a), b in zip(pairs, base, strict=True)
        )
        return Term("kl", "own", KL, answers, weight=self.cell.training.kl)

    def _divergences(self, learner: Learner, own: Sequence[Group]) -> tuple[float, float]:
        """KL of the sampling policy to the updated one, and of the sampling policy to the base, per token on own answers."""
        pairs = [(g.prompt, a) for g in own for a in g.valid]
        prompts, tokens, old = [p for p, _ in pairs], [a.tokens for _, a in pairs], [a.logprobs for _, a in pairs]
        with learner.clock.phase("measure"):
            after = learner.engine.score(prompts, tokens)
            base = self.references[learner.name].score(prompts, tokens)
        return step_rows.k3(old, after), step_rows.k3(old, base)

    def _curve(self, step: int) -> None:
        if not self.cell.evaluation.curve_every:
            return
        found = self.engines.each(lambda m: self._probe(m, m.engine, f"curve at step {step}"), self.learners)
        for learner, (accuracy, answers) in zip(self.learners, found, strict=True):
            self.journal.append(
                CurveRow(policy=learner.name, step=step, metric="sampled", accuracy=accuracy, answers=answers)
            )
            if self.cell.keep == "best":
                resume_point.offer(self.folder, step, learner, accuracy, self.best, self.journal.guard)

    def _probe(self, learner: Learner, engine: PolicyEngine, why: str) -> tuple[float, int]:
        """Accuracy of one sample per curve prompt at temperature 1, with the same seeds at every step and in every cell."""
        prompts = curve_prompts(self.cell, learner.policy)
        seeds = np.stack(
            [derive_many(1, self.cell.seed, "curve", self.cell.group.name, learner.name, p.id) for p in prompts]
        )
        with phase(f"{why}: {len(prompts)} questions"), learner.clock.phase("curve"):
            samples = engine.sample(prompts, seeds, Sampling(1.0, self.cell.training.max_new_tokens))
            strings = stops(self.cell, learner.policy)
            flat = [s for group in samples for s in group]
            flat = [cut_at(learner.codec, s, strings)[0] for s in flat] if strings else flat
            said = verdicts(
                curve_verifier(self.cell, self.verifier),
                [p.gold for p in prompts],
                [s.text for s in flat],
                [s.finished for s in flat],
            )
        rewards = [v.reward for v in said if v.valid]
        return (float(np.mean(rewards)) if rewards else step_rows.NAN), len(rewards)

    def _strengths(self) -> dict[str, float]:
        """Held-out accuracy of each base policy, for directions between strong and weak."""
        found = self.engines.each(lambda m: self._probe(m, self.references[m.name], "who is strong"), self.learners)
        return {m.name: accuracy for m, (accuracy, _) in zip(self.learners, found, strict=True)}

    def _count_invalid(self, groups: Sequence[Group]) -> None:
        self._answers += sum(len(g.answers) for g in groups)
        self._invalid += sum(len(g.answers) - len(g.valid) for g in groups)
        limit = self.cell.training.max_invalid
        if self._invalid > max(1.0, limit * self._answers):
            raise VerificationError(
                f"{self._invalid} of {self._answers} verdicts are invalid, more than {limit:.1%} (training.max_invalid)"
            )

    def _checkpoint(self, step: int) -> None:
        """Rows first: a checkpoint without the rows of its steps would lose them, rows after the checkpoint are made again."""
        self.costs()
        self.journal.commit(step)
        with self.learners[0].clock.phase("save"):
            exchange = self.exchange.state()
            resume_point.save(self.folder, self.cell.key, step, self.learners, exchange, self.best, self.journal.guard)

    def costs(self) -> None:
        """Move the clocks' totals into the append-only ledger."""
        for learner in self.learners:
            self.journal.append(cost_rows(self.attempt, learner.name, learner.clock))
