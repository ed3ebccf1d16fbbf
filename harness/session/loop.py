"""The training loop of one cell: roll out, verify, publish, collect, learn, update; journal, checkpoint, resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.engines.protocol import Optimisation, PolicyEngine, Sampling
from harness.errors import EngineError, VerificationError
from harness.learning.experience import Group, Prompt
from harness.learning.regime import Context
from harness.learning.terms import Objective, Term, TermAnswer
from harness.session import checkpoint, metrics, sharing
from harness.session.engines import Engines
from harness.session.exchanges import CellExchange
from harness.session.members import Member, roll_out, verdicts
from harness.session.prompts import curve_prompts, training_prompts
from harness.session.traces import trace_rows
from harness.store.journal import Journal
from harness.store.rows import CostRow, CurveRow, StepRow, TermRow, TraceRow
from harness.suite.cells import Cell
from harness.suite.seeds import derive_many, generator
from harness.verification.verifier import Verifier

KL = Objective(form="kl", aggregation="token")
COMMIT_EVERY = 5
Observer = Callable[[int, int, str], None]
"""(finished steps, all steps, a few words on the last one)."""


class Interrupted(Exception):
    """The session was asked to stop; a checkpoint has been written."""


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
    _invalid: int = 0
    _answers: int = 0

    def train(self) -> None:
        """Take up the newest checkpoint and train to the last step. Raises CellError, DiskFullError, Interrupted."""
        cell, steps = self.cell, self.cell.training.steps
        found = checkpoint.latest(self.folder)
        done = 0 if found is None else found[0]
        self.journal.rewind(-1 if found is None else done)
        self.exchange = CellExchange(cell, self.folder, self.members, self.engines.transport, self._strengths, done)
        if found is None:
            self._curve(0)
        else:
            self.exchange.restore(checkpoint.restore(found[1], cell.key, self.members))
        for step in range(done + 1, steps + 1):
            row_words = self._step(step)
            if cell.evaluation.curve_every and (step % cell.evaluation.curve_every == 0 or step == steps):
                self._curve(step)
            stop = self.stopped()
            if stop or step == steps or step % cell.training.checkpoint_every == 0:
                self._checkpoint(step)
            elif step % COMMIT_EVERY == 0:
                self.journal.commit(step)
            self.observe(step, steps, row_words)
            if stop and step < steps:
                raise Interrupted
        if steps == done == 0:
            self._checkpoint(0)
        self.exchange.close()

    def _step(self, step: int) -> str:
        prompts = training_prompts(self.cell, step)
        for member in self.members:
            member.clock.next_step()
        earlier = self.exchange.begin(step, prompts)
        rolled = self.engines.each(lambda m: roll_out(m, self.cell, step, prompts, self.verifier), self.members)
        groups = {m.name: own for m, own in zip(self.members, rolled, strict=True)}
        self._count_invalid([g for own in rolled for g in own])
        for member in self.members:
            self.exchange.publish(member, groups[member.name], step, self._measured(step))
        learnt = self.engines.each(lambda m: self._learn(m, step, prompts, earlier, groups), self.members)
        for one in learnt:
            self.journal.append(one.details)
        self.journal.append([one.row for one in learnt])
        self.journal.append(metrics.exchange_rows(self.exchange.ledger()))
        return "  ".join(f"{one.row.policy} {one.row.reward_mean:.2f}" for one in learnt)

    def _learn(
        self,
        member: Member,
        step: int,
        prompts: Sequence[Prompt],
        earlier: Sequence[Prompt],
        groups: dict[str, list[Group]],
    ) -> Learnt:
        """One member's update. On earlier prompts only stale peer answers exist: they stand as groups without own answers."""
        training = self.cell.training
        own = groups[member.name]
        longest = 2 * training.max_new_tokens
        received = sharing.collect(
            self.exchange.exchange, member, prompts, earlier, step, self.cell.sharing, self.verifier, longest
        )
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
            report = member.engine.update([*prompts, *earlier], terms, self._optimisation(measure))
        if not np.isfinite(report.loss):
            raise EngineError(f"{member.name}: the loss is {report.loss} at step {step}")
        sharing.mark_used(received, terms)
        kl_step, kl_base = self._divergences(member, own) if measure else (metrics.NAN, metrics.NAN)
        others = [g for name, g in groups.items() if name != member.name]
        return Learnt(
            metrics.step_row(member, step, own, others, received, terms, report, kl_step, kl_base),
            [*trace_rows(member, step, own, received), *metrics.term_rows(member.name, step, report)],
        )

    def _measured(self, step: int) -> bool:
        every = self.cell.training.measure_every
        return bool(every) and step % every == 0

    def _optimisation(self, measure: bool) -> Optimisation:
        t = self.cell.training
        return Optimisation(
            learning_rate=t.learning_rate,
            betas=(t.betas[0], t.betas[1]),
            weight_decay=t.weight_decay,
            clip_norm=t.clip_norm,
            updates=t.updates,
            max_tokens=t.max_new_tokens,
            measure=measure,
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
        found = self.engines.each(lambda m: self._probe(m, m.engine), self.members)
        for member, (accuracy, answers) in zip(self.members, found, strict=True):
            self.journal.append(
                CurveRow(policy=member.name, step=step, metric="sampled", accuracy=accuracy, answers=answers)
            )

    def _probe(self, member: Member, engine: PolicyEngine) -> tuple[float, int]:
        """Accuracy of one sample per curve prompt at temperature 1, with the same seeds at every step and in every cell."""
        prompts = curve_prompts(self.cell)
        seeds = np.stack(
            [derive_many(1, self.cell.seed, "curve", self.cell.group.name, member.name, p.id) for p in prompts]
        )
        with member.clock.phase("curve"):
            samples = engine.sample(prompts, seeds, Sampling(1.0, self.cell.training.max_new_tokens))
            flat = [s for group in samples for s in group]
            said = verdicts(
                self.verifier, [p.gold for p in prompts], [s.text for s in flat], [s.finished for s in flat]
            )
        rewards = [v.reward for v in said if v.valid]
        return (float(np.mean(rewards)) if rewards else metrics.NAN), len(rewards)

    def _strengths(self) -> dict[str, float]:
        """Held-out accuracy of each base policy, for directions between strong and weak."""
        found = self.engines.each(lambda m: self._probe(m, self.references[m.name]), self.members)
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
        with self.members[0].clock.phase("save"):
            checkpoint.save(self.folder, self.cell.key, step, self.members, self.exchange.state())
        self.costs()
        self.journal.commit(step)

    def costs(self) -> None:
        """Move the clocks' totals into the append-only ledger."""
        for member in self.members:
            for phase, spent in member.clock.take().items():
                self.journal.append(
                    CostRow(
                        attempt=self.attempt, policy=member.name, phase=phase, cpu_seconds=spent.cpu,
                        gpu_seconds=spent.gpu, wall_seconds=spent.wall,
                    )
                )  # fmt: skip
