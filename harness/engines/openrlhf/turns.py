"""Who has the device: policies that share one take turns, and whoever does not work gives its memory back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum

from harness.engines.openrlhf.settings import Settings
from harness.errors import EngineError


class Held(IntEnum):
    """How much of its memory a trainer or a rollout engine has on the device: nothing; its weights, to score or to be synced;
    all of it, optimiser or KV cache included."""

    NOTHING = 0
    WEIGHTS = 1
    ALL = 2


class Turns:
    """Turns of policies on one set of devices. A policy keeps its memory there until another one's turn comes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._awake: Residence | None = None

    @contextmanager
    def of(self, policy: Residence, deadline: float) -> Iterator[None]:
        """Inside, the devices are the policy's alone; its own calls may nest.

        Raises EngineError where the turn does not come within `deadline` seconds, or the one before does not fall asleep.
        """
        if not self._lock.acquire(timeout=deadline):
            raise EngineError(
                f"policy {policy.name!r}: its turn on the shared devices did not come within {deadline:g} s"
            )
        try:
            if self._awake is not policy:
                if self._awake is not None:
                    self._awake.rest()
                self._awake = policy
            yield
        finally:
            self._lock.release()

    def leave(self, policy: Residence) -> None:
        """It is closed and has no memory any more."""
        if self._awake is policy:
            self._awake = None


class Residence:
    """What one policy has on its devices, and when.

    With `settings.sleep` trainers and rollout engines take turns with each other too; where policies only share devices, all of
    a policy comes and goes together. trainers, rollouts: make the one or the other hold so much.
    """

    def __init__(
        self,
        name: str,
        turns: Turns,
        settings: Settings,
        trainers: Callable[[Held], None],
        rollouts: Callable[[Held], None],
    ) -> None:
        self.name = name
        self._turns, self._settings = turns, settings
        self._make = (trainers, rollouts)
        self._held = (Held.ALL, Held.ALL)

    @contextmanager
    def turn(self, trainer: Held, rollout: Held) -> Iterator[None]:
        """Inside, trainers and rollout engines have so much on the devices, which are this policy's."""
        with self.whole_turn():
            if self._settings.sleep:
                self._hold(trainer, rollout)
            else:
                self._hold(Held.ALL, Held.ALL)
            yield

    def whole_turn(self) -> AbstractContextManager[None]:
        """Inside, no other policy's turn comes in between several of this one's."""
        return self._turns.of(self, self._settings.call_seconds)

    def opened(self) -> None:
        """The rollout engines are up; the trainers' weights come next."""
        if self._settings.sleep:
            self._hold(Held.ALL, Held.NOTHING)

    def rest(self) -> None:
        """Give all memory back; the next turn takes it again."""
        self._hold(Held.NOTHING, Held.NOTHING)

    def leave(self) -> None:
        """The policy is closed."""
        self._turns.leave(self)

    def _hold(self, *wanted: Held) -> None:
        """Whoever needs less gives memory back before anyone takes more."""
        for index in sorted((0, 1), key=lambda i: wanted[i] - self._held[i]):
            if wanted[index] != self._held[index]:
                self._make[index](wanted[index])
        self._held = (wanted[0], wanted[1])
