"""The training loop of one cell: roll out, verify, publish, collect, learn, update; journal, checkpoint, resume."""

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
from harness.learning.regime import Context, Need
from harness.learning.terms import Objective, Term, TermAnswer
from harness.phases import Interrupted, log, phase
from harness.session.cell import checkpoint, metrics
from harness.session.cell.evaluate import cost_rows
from harness.session.cell.exchanges import CellExchange
from harness.session.cell.health import Watch, check_loss
from harness.session.cell.members import Member, roll_out, verdicts
from harness.session.cell.prompts import as_asked, curve_prompts, curve_verifier, training_prompts
from harness.session.cell.traces import trace_rows
from harness.store.journal import Journal
from harness.store.rows import CurveRow, StepRow, TermRow, TraceRow
from harness.suite.cells import Cell
from harness.suite.seeds import derive_many, generator
from harness.verification.verifier import Verifier

KL = Objective(form="kl", aggregation="token")
COMMIT_EVERY = 5
Observer = Callable[[int, int, str], None]
"""(finished steps, all steps, a few words on the last one)."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one member's update leaves in the journal."""

    row: StepRow
    details: list[TraceRow | TermRow]


@dataclass(slots=True)
class Run:
    """A cell being trained."""

    cell: Cell
    folder: Path
    engines: Engines
    members: Sequence[Member]
    journal: Journal
    verifier: Verifier
    attempt: int
    observe: Observer
    stopped: Callable[[], bool]
    references: dict[str, PolicyEngine]
    """Each policy's base weights, for KL terms and measurements."""
    exchange: CellExchange = field(init=False)
    best: dict[str, checkpoint.Best] = field(default_factory=dict)
    _watch: Watch = field(default_factory=Watch)
    _invalid: int = 0
    _answers: int = 0
    _drawn: dict[int, list[Prompt]] = field(default_factory=dict)

    @property
    def receiver(self) -> Receiver:
        """How the members take in what peers sent."""
        return Receiver(
            self.exchange.exchange,
            self.cell.sharing,
            partial(verdicts, self.verifier),
            longest=2 * self.cell.training.max_new_tokens,
            scored=any(Need.RECEIVER_OLD in m.regime.needs for m in self.members),
        )

    def train(self) -> None:
        """Take up the newest checkpoint and train to the last step. Raises CellError, DiskFullError, Interrupted."""
        cell, steps = self.cell, self.cell.training.steps
        found = checkpoint.latest(self.folder)
        done = 0 if found is None else found[0]
        self.journal.rewind(-1 if found is None else done)
        lockstep = not (self.engines.side_by_side and cell.sharing.max_staleness) or cell.variant.replay is not None
        self.exchange = CellExchange(
            cell, self.folder, self.members, self.engines.transport, self._strengths, done, lockstep
        )
        if found is None:
            self._curve(0)
        else:
            self.exchange.restore(checkpoint.restore(found[1], cell.key, self.members))
            self.best = checkpoint.resumed_best(self.folder, found[1], self.journal.guard)
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
            last = learnt[-len(self.members) :]
            self.observe(done, steps, "  ".join(f"{one.row.policy} {one.row.reward_mean:.2f}" for one in last))
            if stop and done < steps:
                raise Interrupted
        if steps == 0:
            self._checkpoint(0)
        self.exchange.close()

    def _has_curve(self, step: int) -> bool:
        every = self.cell.evaluation.curve_every
        return bool(every) and (step % every == 0 or step == self.cell.training.steps)

    def _has_checkpoint(self, step: int) -> bool:
        return step % self.cell.training.checkpoint_every == 0 or step == self.cell.training.steps

    def _meeting(self, step: int) -> int:
        """The next step, this one included, after which all members wait for one another."""
        while not (self._has_curve(step) or self._has_checkpoint(step) or step % COMMIT_EVERY == 0):
            step += 1
        return step

    def _together(self, step: int) -> list[Learnt]:
        """A step in lockstep: nobody learns before all have published."""
        for member in self.members:
            member.clock.next_step()
        self.exchange.begin(step)
        rolled = self.engines.each(
            lambda m: roll_out(m, self.cell, step, self._prompts(step, m), self.verifier), self.members
        )
        groups = {m.name: own for m, own in zip(self.members, rolled, strict=True)}
        for member in self.members:
            self._count_invalid(groups[member.name])
            self.exchange.publish(member, groups[member.name], step, self._measured(step))

        def learn(member: Member) -> Learnt:
            others = [own for name, own in groups.items() if name != member.name]
            return self._learn(member, step, groups[member.name], others, behind=0)

        return self.engines.each(learn, self.members)

    def _apart(self, first: int, last: int) -> list[Learnt]:
        """Steps at each member's own pace, at most `max_staleness` ahead of those that it listens to."""
        steps = range(first, last + 1)

        def walk(member: Member) -> list[tuple[list[Group], Learnt]]:
            return [self._alone(member, step) for step in steps]

        walks = self.engines.each(walk, self.members)
        learnt = []
        for at in range(len(steps)):
            rolled = [walked[at][0] for walked in walks]
            for i, walked in enumerate(walks):
                one = walked[at][1]
                count = metrics.rescued(rolled[i], rolled[:i] + rolled[i + 1 :])
                learnt.append(replace(one, row=structs.replace(one.row, prompts_rescued=count)))
        return learnt

    def _alone(self, member: Member, step: int) -> tuple[list[Group], Learnt]:
        member.clock.next_step()
        own = roll_out(member, self.cell, step, self._prompts(step, member), self.verifier)
        self._count_invalid(own)
        self.exchange.publish(member, own, step, self._measured(step))
        return own, self._learn(member, step, own, [], behind=self.cell.sharing.max_staleness)

    def _keep(self, learnt: Sequence[Learnt]) -> None:
        for one in learnt:
            self.journal.append(one.details)
            for topic, line in self._watch.hear(one.row, one.details):
                log.warning("%s", line, extra={"topic": f"{self.cell.group.name}/{topic}"})
        self.journal.append([one.row for one in learnt])
        self.journal.append(metrics.exchange_rows(self.exchange.ledger()))

    def _prompts(self, step: int, member: Member) -> list[Prompt]:
        if step not in self._drawn:
            self._drawn[step] = training_prompts(self.cell, step)
        return as_asked(self._drawn[step], self.cell.training.task, member.policy)

    def _earlier(self, step: int, member: Member) -> list[Prompt]:
        """Prompts of earlier steps on which stale answers may still arrive."""
        for old in [at for at in list(self._drawn) if at < step - 2 * self.exchange.memory]:
            self._drawn.pop(old, None)
        current = {p.id for p in self._prompts(step, member)}
        kept = range(max(1, step - self.exchange.memory), step)
        return list({p.id: p for at in kept for p in self._prompts(at, member) if p.id not in current}.values())

    def _learn(
        self, member: Member, step: int, own: Sequence[Group], others: Sequence[Sequence[Group]], behind: int
    ) -> Learnt:
        """One member's update. On earlier prompts only stale peer answers exist: they stand as groups without own answers."""
        prompts, earlier = self._prompts(step, member), self._earlier(step, member)
        training = self.cell.training
        received = self.receiver.collect(member, step, prompts, earlier, behind)
        context = Context(
            learner=member.name,
            policies=tuple(m.name for m in self.members),
            step=step,
            rng=generator(
                self.cell.seed, self.cell.variant.sampling_stream, "learn", self.cell.group.name, member.name, step
            ),
            max_tokens=training.max_new_tokens,
            updates=training.updates,
        )
        with member.clock.phase("exchange"):
            late = [Group(p, member.name, member.engine.version, step, ()) for p in earlier if p.id in received.prompts]
            terms = member.regime.learn([*own, *late], received.inbox, context)
        if training.kl:
            terms = [*terms, self._kl_term(member, own)]
        measure = self._measured(step)
        with member.clock.phase("train"):
            report = member.engine.update([*prompts, *earlier], terms, self._optimisation(member, measure))
        check_loss(member.name, step, report.loss)
        metrics.mark_used(received, terms, report.terms)
        kl_step, kl_base = self._divergences(member, own) if measure else (metrics.NAN, metrics.NAN)
        return Learnt(
            metrics.step_row(member, step, own, others, received, terms, report, kl_step, kl_base),
            [*trace_rows(member, step, own, received), *metrics.term_rows(member.name, step, report)],
        )

    def _measured(self, step: int) -> bool:
        every = self.cell.training.measure_every
        return bool(every) and step % every == 0

    def _optimisation(self, member: Member, measure: bool) -> Optimisation:
        t, variant = self.cell.training, self.cell.variant
        return Optimisation(
            learning_rate=t.learning_rate,
            betas=(t.betas[0], t.betas[1]),
            weight_decay=t.weight_decay,
            clip_norm=t.clip_norm,
            updates=t.updates,
            max_tokens=t.max_new_tokens,
            measure=measure,
            old_logprobs=variant.old_logprobs or member.regime.old_logprobs,
            sampler_correction=variant.sampler_correction,
        )

    def _kl_term(self, member: Member, own: Sequence[Group]) -> Term:
        pairs = [(g.prompt, a) for g in own for a in g.valid]
        with member.clock.phase("score"):
            base = self.references[member.name].score([p for p, _ in pairs], [a.tokens for _, a in pairs])
        answers = tuple(TermAnswer(p.id, a.tokens, 1.0, b) for (p, a), b in zip(pairs, base, strict=True))
        return Term("kl", "own", KL, answers, weight=self.cell.training.kl)

    def _divergences(self, member: Member, own: Sequence[Group]) -> tuple[float, float]:
        """KL of the sampling policy to the updated one, and of the sampling policy to the base, per token on own answers."""
        pairs = [(g.prompt, a) for g in own for a in g.valid]
        prompts, tokens, old = [p for p, _ in pairs], [a.tokens for _, a in pairs], [a.logprobs for _, a in pairs]
        with member.clock.phase("measure"):
            after = member.engine.score(prompts, tokens)
            base = self.references[member.name].score(prompts, tokens)
        return metrics.k3(old, after), metrics.k3(old, base)

    def _curve(self, step: int) -> None:
        if not self.cell.evaluation.curve_every:
            return
        found = self.engines.each(lambda m: self._probe(m, m.engine, f"curve at step {step}"), self.members)
        for member, (accuracy, answers) in zip(self.members, found, strict=True):
            self.journal.append(
                CurveRow(policy=member.name, step=step, metric="sampled", accuracy=accuracy, answers=answers)
            )
            if self.cell.keep == "best":
                checkpoint.offer(self.folder, step, member, accuracy, self.best, self.journal.guard)

    def _probe(self, member: Member, engine: PolicyEngine, why: str) -> tuple[float, int]:
        """Accuracy of one sample per curve prompt at temperature 1, with the same seeds at every step and in every cell."""
        prompts = curve_prompts(self.cell, member.policy)
        seeds = np.stack(
            [derive_many(1, self.cell.seed, "curve", self.cell.group.name, member.name, p.id) for p in prompts]
        )
        with phase(f"{why}: {len(prompts)} questions"), member.clock.phase("curve"):
            samples = engine.sample(prompts, seeds, Sampling(1.0, self.cell.training.max_new_tokens))
            flat = [s for group in samples for s in group]
            said = verdicts(
                curve_verifier(self.cell, self.verifier),
                [p.gold for p in prompts],
                [s.text for s in flat],
                [s.finished for s in flat],
            )
        rewards = [v.reward for v in said if v.valid]
        return (float(np.mean(rewards)) if rewards else metrics.NAN), len(rewards)

    def _strengths(self) -> dict[str, float]:
        """Held-out accuracy of each base policy, for directions between strong and weak."""
        found = self.engines.each(lambda m: self._probe(m, self.references[m.name], "who is strong"), self.members)
        return {m.name: accuracy for m, (accuracy, _) in zip(self.members, found, strict=True)}

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
        with self.members[0].clock.phase("save"):
            exchange = self.exchange.state()
            checkpoint.save(self.folder, self.cell.key, step, self.members, exchange, self.best, self.journal.guard)

    def costs(self) -> None:
        """Move the clocks' totals into the append-only ledger."""
        for member in self.members:
            self.journal.append(cost_rows(self.attempt, member.name, member.clock))
