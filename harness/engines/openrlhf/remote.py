"""Waiting for Ray actors with deadlines. A broken actor shows first as a failure of those that wait for it. Actors
therefore answer `pulse` during their work; the silent one is blamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """created: tells it from a later one with the same id."""

    node: str
    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class RemoteActor:
    """name: in messages. sign: the method that only answers."""

    name: str
    handle: Any
    sign: str = "pulse"

    def call(self, method: str, *arguments: Any) -> Call:
        return Call(self, getattr(self.handle, method).remote(*arguments))

    def pulse(self) -> Any:
        return self.call(self.sign).ref


@dataclass(frozen=True, slots=True)
class Call:
    member: RemoteActor
    ref: Any


def gather_results(
    calls: Sequence[Call],
    *,
    doing: str,
    deadline: float,
    silence: float,
    watch: Sequence[RemoteActor],
    suspects: Sequence[RemoteActor] | None = None,
    reported_state: Callable[[Any], str],
) -> list[Any]:
    """Wait for results, and return them in order. silence: seconds after which a silent member of `watch` hangs. suspects: those
    asked after a failure. reported_state: what is known of an actor that is late. Raises EngineError."""
    end = monotonic() + deadline
    suspects = watch if suspects is None else suspects
    results: dict[Any, Any] = {}
    pending = {call.ref: call.member for call in calls}
    pulses = Pulses(watch, silence)
    while pending:
        left = end - monotonic()
        if left <= 0:
            members = {member.name: member for member in pending.values()}
            late = ", ".join(f"{name} ({reported_state(member.handle)})" for name, member in members.items())
            raise EngineError(_name_cause(suspects, f"{doing}: no answer within {deadline:g} s from {late}"))
        ready, _ = ray.wait([*pending, *pulses.open], timeout=min(left, 1.0))
        for ref in ready:
            if ref in pending:
                results[ref] = _wait_result(ref, pending.pop(ref), doing, max(left, 1.0), suspects)
        pulses.check(doing)
        phases.report_progress()  # pulse and deadline watch working actors
    return [results[call.ref] for call in calls]


class Pulses:
    """Signs of life, without blocking. open: unanswered questions."""

    def __init__(self, members: Sequence[RemoteActor], silence: float) -> None:
        self._members = members
        self._silence = silence
        self._asked = monotonic()
        self.open: dict[Any, RemoteActor] = {}

    def check(self, doing: str) -> None:
        """Check that members are alive. Raises EngineError for members that are dead or silent too long."""
        now = monotonic()
        if self.open:
            answered, _ = ray.wait(list(self.open), num_returns=len(self.open), timeout=0)
            dead = [member.name for ref in answered for member in [self.open.pop(ref)] if not _is_alive(ref)]
            if dead:
                raise EngineError(f"{', '.join(dead)} died while {doing}")
        elif now - self._asked > self._silence / 4:
            self._asked = now
            self.open = {member.pulse(): member for member in self._members}
        if self.open and now - self._asked > self._silence:
            hung = ", ".join(member.name for member in self.open.values())
            raise EngineError(f"{hung} hangs: no answer for {self._silence:g} s while {doing}")


def _wait_result(ref: Any, member: RemoteActor, doing: str, left: float, watch: Sequence[RemoteActor]) -> Any:
    """Wait for the result of a call. Raises EngineError with the cause: the actor died, is silent, or the time is up."""
    try:
        return ray.get(ref, timeout=left)
    except RayTaskError as error:
        if isinstance(error.cause, HarnessError):
            raise error.cause from None
        problem = f"{member.name} failed while {doing}: {_describe_error(error.cause or error)}"
    except RayActorError:
        problem = f"{member.name} died while {doing}"
    except GetTimeoutError:
        problem = f"{member.name}: its answer did not arrive within {left:g} s while {doing}"
    except RayError as error:
        problem = f"{member.name} was lost while {doing}: {_describe_error(error)}"
    raise EngineError(_name_cause(watch, problem)) from None


def _name_cause(watch: Sequence[RemoteActor], problem: str) -> str:
    """Name the problem, behind the causes that the watched actors tell."""
    asked = {member.pulse(): member for member in watch}
    if not asked:
        return problem
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE_AFTER_FAILURE)
    dead = [asked[ref].name for ref in answered if not _is_alive(ref)]
    quiet = [asked[ref].name for ref in silent]
    causes = [f"{name} is dead" for name in dead] + [f"{name} does not answer" for name in quiet]
    return f"{'; '.join(causes)} ({problem})" if causes else problem


def _is_alive(ref: Any) -> bool:
    """Whether the actor of a call still answers."""
    try:
        ray.get(ref, timeout=1.0)
    except RayError:
        return False
    return True


def _describe_error(error: BaseException) -> str:
    """Describe the kind of an error and the last line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        return f"{type(error).__name__}: {lines[-1][:300]}"
    return type(error).__name__


def list_own_processes() -> list[Process]:
    me = psutil.Process()
    node = ray.get_runtime_context().get_node_id()
    return [Process(node, p.pid, p.create_time()) for p in (me, *me.children(recursive=True))]


def cpu_seconds() -> float:
    """Return the CPU-seconds of the calling process and all it started."""
    me = psutil.Process()
    used = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def end_actors(members: Sequence[RemoteActor], known: Sequence[Process]) -> None:
    """Kill the actors and their known processes: a stopped actor does not hear Ray, a killed one leaves children."""
    for member in members:
        ray.kill(member.handle, no_restart=True)
    here = ray.get_runtime_context().get_node_id()
    refs = []
    for node in {process.node for process in known}:
        there = [process for process in known if process.node == node]
        if node == here:
            _kill_processes(there)
        else:
            task = ray.remote(num_cpus=0)(_kill_processes)
            place = NodeAffinitySchedulingStrategy(node, soft=True)
            refs.append(task.options(scheduling_strategy=place).remote(there))
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=PATIENCE_AT_THE_END)


def _kill_processes(known: Sequence[Process]) -> None:
    """End processes and wait until they are gone."""
    killed = []
    for process in known:
        with suppress(psutil.NoSuchProcess):
            candidate = psutil.Process(process.pid)
            if abs(candidate.create_time() - process.created) < 1.0:
                candidate.kill()
                killed.append(candidate)
    psutil.wait_procs(killed, timeout=PATIENCE_AT_THE_END)
