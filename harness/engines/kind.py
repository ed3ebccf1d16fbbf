"""What an engine is to the harness: one class that says what it needs and how it opens a cell's policies (docs/engines.md)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import msgspec

from harness.allocation import embedded, inventory
from harness.allocation.cost_model import Device, Memory, Phases
from harness.allocation.demand import CellDemand
from harness.allocation.inventory import Inventory
from harness.allocation.shapes import MICRO, Precision, chosen, load_config
from harness.engines.protocol import PolicyEngine
from harness.errors import UsageError
from harness.exchange.wire import InProcess, Transport
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

__all__ = ["Account", "Engines", "NoOptions"]

A = TypeVar("A")
B = TypeVar("B")


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an engine that has none."""


class Account(Protocol):
    """What a cell in one process takes, before it runs: `harness.allocation.embedded` is one."""

    def process_memory(self, cell: CellDemand, micro_tokens: int = ..., gpu: bool = ..., /) -> Memory:
        """Bytes, by phase.

        Parameters
        ----------
        cell
            What is asked for.
        micro_tokens
            Padded tokens of one forward and backward pass.
        gpu
            Whether it runs on one.
        """

    def phases(self, cell: CellDemand, on: Device, gpu: bool, /) -> Phases:
        """Seconds by phase, on one core or on one GPU.

        Parameters
        ----------
        cell
            What is asked for.
        on
            The device.
        gpu
            Whether it is one.
        """

    def cores(self, cell: CellDemand, most: int, /) -> int:
        """How many cores it makes use of.

        Parameters
        ----------
        cell
            What is asked for.
        most
            Cores that there are.
        """


class Engines(ABC):
    """A cell's engines, closed together.

    A subclass is what the entry-point group `harness.engines` names; its module imports nothing heavy, for it is asked about
    options and needs before anything runs.

    Parameters
    ----------
    options
        Engine options by policy name.
    temperature
        Of training; scores are at it.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    """Modules without which it does not run."""
    advice: ClassVar[str] = "pip install -e . -c constraints.txt"
    """How they are had."""
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    """A suite's `engine_options`, checked before anything is opened."""
    half_precision: ClassVar[str] = ""
    """What it computes models in that come in half precision where `engine_options.dtype` is not set, for the keys of other than
    micro cells; empty leaves it out of them."""
    results_version: ClassVar[int | None] = None
    """Raised by the author when the engine computes something else, so that cells get new keys; None takes the code's digest."""
    clustered: ClassVar[bool] = False
    """Whether it spreads each policy over trainers and rollout engines on a cluster's devices, as planned (`harness.allocation`).
    Else a cell is one worker process, on its cores or one GPU."""
    account: ClassVar[Account] = embedded
    """Of an engine that is not clustered."""
    side_by_side = False
    """Whether the policies have devices of their own, so that `each` runs them at the same time."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]], temperature: float) -> None:
        self._options = {name: dict(own) for name, own in options.items()}
        self._temperature = temperature
        self._opened = ExitStack()

    @classmethod
    def precision(cls, policy: Policy, options: Mapping[str, Any]) -> Precision:
        """What it computes a policy in, whatever machine it runs on.

        Parameters
        ----------
        policy
            Of a suite.
        options
            The suite's `engine_options`.

        Raises
        ------
        UsageError
            The model's configuration cannot be had.
        """
        asked: Precision | None = options.get("dtype")
        if asked or policy.model.startswith(MICRO):
            return asked or "fp32"
        return chosen(load_config(policy.model, policy.revision))

    @classmethod
    def devices(cls, options: Mapping[str, Any], source: str) -> int | None:
        """Devices of a policy where a suite has laid out a clustered engine itself; None leaves that to the plan.

        Parameters
        ----------
        options
            The suite's `engine_options`.
        source
            The suite's file, for messages.
        """
        return None

    @classmethod
    def inventory(cls, address: str | None) -> Inventory:
        """What there is to run on: at the address of a cluster that the engine knows how to join, else here.

        Raises
        ------
        UsageError
            An address, of an engine that joins none.
        """
        if address is not None:
            raise UsageError(f"--address {address}: this engine joins no cluster")
        return inventory.local()

    @classmethod
    def lacking(cls, options: Mapping[str, Any]) -> str:
        """What the suite's `engine_options` ask for and this machine has not, in a line; empty where there is nothing.

        Parameters
        ----------
        options
            The suite's `engine_options`.
        """
        return ""

    @classmethod
    @contextmanager
    def cluster(cls, address: str | None) -> Iterator[dict[str, str]]:
        """Environment that leads a run's workers to the cluster on which they meet.

        Raises
        ------
        EngineError
            It does not start.
        """
        yield {}

    @staticmethod
    @abstractmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        """Configuration and tokenizer of a folder that `open` will take, as far as can be said in seconds.

        Parameters
        ----------
        folder
            Of Hugging Face's layout.
        options
            The suite's `engine_options`.

        Raises
        ------
        EngineError
            In one line: what the engine cannot run.
        """

    @abstractmethod
    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        """A policy that can be trained.

        Parameters
        ----------
        policy
            Of a suite.
        folder
            Its weights and tokenizer, of Hugging Face's layout.

        Raises
        ------
        EngineError
            It does not open.
        """

    @abstractmethod
    def reference(self, policy: Policy, folder: Path) -> PolicyEngine:
        """The same, frozen: it is only sampled and scored.

        Parameters
        ----------
        policy
            Of a suite.
        folder
            As in `open`.
        """

    def transport(self, endpoints: Sequence[str]) -> Transport:
        """How the policies' messages travel."""
        return InProcess(endpoints)

    def cpu_seconds(self, policy: str) -> float:
        """CPU time spent on a policy so far: this process's, in which its engine runs."""
        return time.process_time()

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """Work on all items: one after another, or side by side where policies have their own devices.

        Side by side all have ended before the first error is raised.

        Parameters
        ----------
        work
            Called once per item.
        items
            Policies, or what stands for them.

        Returns
        -------
        :
            Results in order.
        """
        return [work(item) for item in items]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()
