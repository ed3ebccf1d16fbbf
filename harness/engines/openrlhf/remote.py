"""Waiting for Ray actors: every wait has a deadline, and whoever is dead or silent is named.

A broken peer shows first as its neighbours' broken connection, and a stopped one as everybody's wait. So actors answer
`pulse` beside their work, and a failure is put down to the actor that gives no sign of life before anyone else's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness import phases
from harness.errors import EngineError, HarnessError

PATIENCE_AFTER_FAILURE = 5.0
PATIENCE_AT_THE_END = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the cluster; the time of creation tells it from a later one with the same id."""

    node: str
    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class RemoteActor:
    """An actor and the name that a message gives it, e.g. ``policy 'llama': trainer rank 1``."""

    name: str
    handle: Any
    sign: str = "pulse"
    """The method that it gives a sign of life by."""

    def pulse(self) -> Any:
        """Ask for one."""
        return getattr(self.handle, self.sign).remote()


@dataclass(frozen=True, slots=True)
class Call:
    """A running remote call of one member."""

    member: RemoteActor
    ref: Any


def gather(
    calls: Sequence[Call],
    *,
    doing: str,
    deadline: float,
    silence: float,
    watch: Sequence[RemoteActor],
    suspects: Sequence[RemoteActor] | None = None,
) -> list[Any]:
    """Results in the order of `calls`.

    Parameters
    ----------
    deadline
        Seconds for all calls together.
    silence
        Seconds without a sign of life after which a member of `watch` counts as hung.
    suspects
        Who is asked for a sign of life once something has gone wrong; by default those of `watch`.

    Raises
    ------
    EngineError
        A call failed, a member died or hangs, or the deadline passed; the message names the member.
    """
    end = monotonic() + deadline
    suspects = watch if suspects is None else suspects
    results: dict[Any, Any] = {}
    pending = {call.ref: call.member for call in calls}
    pulses = Pulses(watch, silence)
    while pending:
        left = end - monotonic()
        if left <= 0:
            late = ", ".join(dict.fromkeys(member.name for member in pending.values()))
            raise EngineError(_blame(suspects, f"{doing}: no answer within {deadline:g} s from {late}"))
        ready, _ = ray.wait([*pending, *pulses.refs], timeout=min(left, 1.0))
        for ref in ready:
            if ref in pending:
                member = pending.pop(ref)
                results[ref] = _result(ref, member, doing, max(left, 1.0), suspects)
        pulses.check(doing)
        phases.beat()  # whoever works is looked after here, by its own signs of life and by the deadline
    return [results[call.ref] for call in calls]


class Pulses:
    """Signs of life of some members, asked for again and again without ever blocking."""

    def __init__(self, members: Sequence[RemoteActor], silence: float) -> None:
        self._silence, self._asked = silence, monotonic()
        self._members = list(members)
        self._open: dict[Any, tuple[RemoteActor, float]] = {}

    @property
    def refs(self) -> list[Any]:
        """Questions still open."""
        return list(self._open)

    def check(self, doing: str) -> None:
        """Ask anew where it is time. Raises EngineError for members that answer as dead or are silent over the limit."""
        now = monotonic()
        if self._open:
            answered, _ = ray.wait(list(self._open), num_returns=len(self._open), timeout=0)
            dead = [member.name for ref in answered for member, _ in [self._open.pop(ref)] if not _alive(ref)]
            if dead:
                raise EngineError(f"{', '.join(dead)} died while {doing}")
        if not self._open and now - self._asked > self._silence / 4:
            self._asked = now
            self._open = {member.pulse(): (member, now) for member in self._members}
        hung = [member.name for member, asked in self._open.values() if now - asked > self._silence]
        if hung:
            raise EngineError(f"{', '.join(hung)} hangs: no sign of life for {self._silence:g} s while {doing}")


def _result(ref: Any, member: RemoteActor, doing: str, left: float, watch: Sequence[RemoteActor]) -> Any:
    try:
        return ray.get(ref, timeout=left)
    except RayTaskError as error:
        if isinstance(error.cause, HarnessError):
            raise error.cause from None
        problem = f"{member.name} failed while {doing}: {_reason(error.cause or error)}"
    except RayActorError:
        problem = f"{member.name} died while {doing}"
    except GetTimeoutError:
        problem = f"{member.name}: its answer did not arrive within {left:g} s while {doing}"
    except RayError as error:
        problem = f"{member.name} was lost while {doing}: {_reason(error)}"
    raise EngineError(_blame(watch, problem)) from None


def _blame(watch: Sequence[RemoteActor], problem: str) -> str:
    """The problem, headed by the members that are dead or silent where there are any."""
    asked = {member.pulse(): member for member in watch}
    if not asked:
        return problem
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE_AFTER_FAILURE)
    dead = [asked[ref].name for ref in answered if not _alive(ref)]
    quiet = [asked[ref].name for ref in silent]
    causes = [f"{name} is dead" for name in dead] + [f"{name} gives no sign of life" for name in quiet]
    return f"{'; '.join(causes)} ({problem})" if causes else problem


def _alive(ref: Any) -> bool:
    try:
        ray.get(ref, timeout=1.0)
    except RayError:
        return False
    return True


def _reason(error: BaseException) -> str:
    """Last line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300]}" if lines else type(error).__name__


def processes() -> list[Process]:
    """The calling process and all it started."""
    me, node = psutil.Process(), ray.get_runtime_context().get_node_id()
    return [Process(node, p.pid, p.create_time()) for p in (me, *me.children(recursive=True))]


def cpu_seconds() -> float:
    """CPU time, user's and system's, of the calling process and all it started."""
    me, used = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def end(members: Sequence[RemoteActor], known: Sequence[Process]) -> None:
    """Kill the actors, and whatever of their known processes is still there: a stopped actor does not hear Ray, and a
    killed one leaves its children behind."""
    for member in members:
        ray.kill(member.handle, no_restart=True)
    here = ray.get_runtime_context().get_node_id()
    by_node: dict[str, list[Process]] = {}
    for process in known:
        by_node.setdefault(process.node, []).append(process)
    _kill(by_node.pop(here, []))
    task = ray.remote(num_cpus=0)(_kill)
    refs = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)).remote(found)
        for node, found in by_node.items()
    ]
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=PATIENCE_AT_THE_END)


def _kill(known: Sequence[Process]) -> None:
    found = []
    for process in known:
        try:
            candidate = psutil.Process(process.pid)
            if abs(candidate.create_time() - process.created) < 1.0:
                candidate.kill()
                found.append(candidate)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(found, timeout=PATIENCE_AT_THE_END)
