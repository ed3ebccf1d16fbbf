"""SEE's mailboxes in a Ray actor. Ray is only as safe as the cluster is private; a policy that is not trusted so far belongs
behind another transport."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray

from harness.engines.openrlhf import cluster
from harness.engines.openrlhf.remote import Call, Process, RemoteActor, end, gather, processes
from harness.errors import ExchangeError
from harness.exchange.wire import MAILBOX_BYTES, MAILBOX_MESSAGES, Delivery, InProcess
from harness.experience.records import Refusal

NAME = "the SEE actor"


class Mailboxes(InProcess):
    """The actor: a thread per endpoint that may wait, and some for what never does."""

    @ray.method(concurrency_group="waiting")  # type: ignore[untyped-decorator]
    def receive(self, receiver: str, timeout: float) -> list[Delivery]:
        return super().receive(receiver, timeout)

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def pulse(self) -> int:
        return os.getpid()

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def processes(self) -> list[Process]:
        return processes()


class RayTransport:
    """For several threads and, pickled by Ray, processes. Every method raises EngineError where the actor died, hangs or missed
    the deadline."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        deadline: float = 60.0,
        max_bytes: int = MAILBOX_BYTES,
        max_messages: int = MAILBOX_MESSAGES,
    ) -> None:
        cluster.connect()
        groups = {"waiting": max(1, len(endpoints)), "pulse": 1}
        actor: Any = ray.remote(num_cpus=0, concurrency_groups=groups)(Mailboxes)
        self._deadline, self._endpoints = deadline, frozenset(endpoints)
        self._member = RemoteActor(NAME, actor.remote(list(endpoints), max_bytes, max_messages))
        (self._processes,) = self._gather(self._member.handle.processes.remote(), "starting", deadline)

    def send(self, sender: str, receiver: str, step: int, messages: Sequence[bytes]) -> None:
        if sender not in self._endpoints or receiver not in self._endpoints:
            raise ExchangeError(Refusal.UNKNOWN_AUTHOR, f"{sender} -> {receiver}")
        ref = self._member.handle.send.remote(sender, receiver, step, list(messages))
        self._gather(ref, "sending", self._deadline)

    def receive(self, receiver: str, timeout: float) -> list[Delivery]:
        ref = self._member.handle.receive.remote(receiver, timeout)
        found: list[Delivery] = self._gather(ref, "receiving", timeout + self._deadline)[0]
        return found

    def close(self) -> None:
        end([self._member], self._processes)

    def _gather(self, ref: Any, doing: str, deadline: float) -> list[Any]:
        calls = [Call(self._member, ref)]
        return gather(calls, doing=doing, deadline=deadline, silence=self._deadline, watch=[self._member])
