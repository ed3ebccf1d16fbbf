"""Where a cell's policies run: in this process, taking turns, or side by side on a Ray cluster."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from harness.engines.protocol import PolicyEngine
from harness.errors import PluginError
from harness.exchange.transport import InProcess, Transport
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

    from harness.engines.openrlhf.cluster import Reservation
    from harness.engines.openrlhf.engine import OpenRLHFEngine

A = TypeVar("A")
B = TypeVar("B")


class Engines(ABC):
    """A cell's engines, closed together.

    options: engine options by policy name. temperature: of training; scores are at it.
    """

    side_by_side = False
    """Whether the policies have devices of their own, so that `each` runs them at the same time."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]], temperature: float) -> None:
        self._options = {name: dict(own) for name, own in options.items()}
        self._temperature = temperature
        self._opened = ExitStack()

    @staticmethod
    @abstractmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        """Configuration and tokenizer of a folder that `open` will take, as far as can be said in seconds.

        options: the suite's. Raises EngineError, in one line, for what the engine cannot run.
        """

    @abstractmethod
    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        """A policy from a Hugging Face folder. Raises EngineError if it does not open."""

    @abstractmethod
    def reference(self, policy: Policy, folder: Path) -> PolicyEngine:
        """The same, frozen: it is only sampled and scored."""

    def transport(self, endpoints: Sequence[str]) -> Transport:
        """How the policies' messages travel."""
        return InProcess(endpoints)

    def cpu_seconds(self, policy: str) -> float:
        """CPU time spent on a policy so far: this process's, in which its engine runs."""
        return time.process_time()

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """`work` of every item, results in order: one after another, or side by side where policies have their own devices.

        Side by side all have ended before the first error is raised.
        """
        return [work(item) for item in items]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()


class InThisProcess(Engines):
    """The embedded engine."""

    @staticmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        from harness.engines.embedded.loading import check_layers
        from harness.engines.folder import read_folder

        config, tokenizer = read_folder(folder)
        check_layers(folder, config)
        return config, tokenizer

    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        from harness.engines.embedded.engine import EmbeddedEngine

        own = self._options[policy.name]
        engine = EmbeddedEngine(policy.name, folder, temperature=self._temperature, chat=policy.chat, **own)
        self._opened.callback(engine.close)
        return engine

    reference = open


class OnRay(Engines):
    """The OpenRLHF engine: all that the policies need is reserved at once, and they start and work side by side, or one after
    another where they share their devices."""

    @staticmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        from harness.engines.folder import read_folder
        from harness.engines.openrlhf import check_length

        config, tokenizer = read_folder(folder)
        check_length(folder, config, options)
        return config, tokenizer

    def __init__(self, options: Mapping[str, Mapping[str, Any]], temperature: float) -> None:
        from harness.engines.openrlhf import reserve

        super().__init__(options, temperature)
        self._reservation: Reservation = reserve(self._options)
        self._opened.callback(self._reservation.release)
        self.side_by_side = not self._reservation.shared
        self._turn_back = False
        self._engines: dict[str, list[OpenRLHFEngine]] = {name: [] for name in options}

    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        from harness.engines.openrlhf import open_engine

        return self._place(open_engine, policy, folder)

    def reference(self, policy: Policy, folder: Path) -> PolicyEngine:
        from harness.engines.openrlhf import open_base, open_reference

        opened = self._engines[policy.name]
        return open_base(opened[0]) if opened else self._place(open_reference, policy, folder)

    def transport(self, endpoints: Sequence[str]) -> Transport:
        from harness.engines.openrlhf.settings import settings_of
        from harness.engines.openrlhf.transport import RayTransport

        patience = max(settings_of(own).silence_seconds for own in self._options.values())
        transport = RayTransport(endpoints, deadline=patience)
        self._opened.callback(transport.close)
        return transport

    def cpu_seconds(self, policy: str) -> float:
        """Of the policy's actors, its reference's among them, and of the calling thread."""
        return time.thread_time() + sum(engine.cpu_seconds() for engine in self._engines[policy])

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        listed = list(items)
        if not self.side_by_side:
            # Back and forth: whose memory is on the devices goes first, and nobody's goes there twice.
            order = range(len(listed))[:: -1 if self._turn_back else 1]
            self._turn_back = not self._turn_back
            done = {index: work(listed[index]) for index in order}
            return [done[index] for index in range(len(listed))]
        with ThreadPoolExecutor(max(1, len(listed))) as pool:
            running = [pool.submit(work, item) for item in listed]
        return [one.result() for one in running]

    def _place(self, how: Callable[..., OpenRLHFEngine], policy: Policy, folder: Path) -> PolicyEngine:
        own = self._options[policy.name]
        engine = how(
            policy.name, folder, temperature=self._temperature, chat=policy.chat, reservation=self._reservation, **own
        )
        self._opened.callback(engine.close)
        self._engines[policy.name].append(engine)
        return engine


def engines_of(name: str) -> type[Engines]:
    """By the engine's name. Raises PluginError for an unknown one."""
    kinds: dict[str, type[Engines]] = {"embedded": InThisProcess, "openrlhf": OnRay}
    if name not in kinds:
        raise PluginError(f"unknown engine {name!r} (installed: {', '.join(kinds)})")
    return kinds[name]


def open_engines(name: str, options: Mapping[str, Mapping[str, Any]], temperature: float) -> Engines:
    """Raises PluginError for an unknown engine, else as the engine."""
    return engines_of(name)(options, temperature)
