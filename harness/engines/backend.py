"""What an engine declares, and how it opens a cell's policies (docs/engines.md)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta

from harness.allocation import embedded, inventory
from harness.allocation.inventory import Inventory
from harness.allocation.shapes import MICRO, Precision, chosen, load_config
from harness.engines.protocol import PolicyEngine
from harness.errors import SuiteError, UsageError
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

__all__ = ["Backend", "Lora", "NoOptions", "read_options"]

A = TypeVar("A")
B = TypeVar("B")
Options = TypeVar("Options", bound=msgspec.Struct)


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters beside frozen linear layers. rank: of their product. alpha: it counts alpha / rank times."""

    rank: Annotated[int, Meta(ge=1, le=4096)]
    alpha: Annotated[float, Meta(gt=0, le=1e6)]


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an engine that has none."""


def read_options(kind: type[Options], options: Mapping[str, Any], source: str = "suite") -> Options:
    """Raises SuiteError with the place inside `engine_options`."""
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise SuiteError(source, f"engine_options{path.rstrip('`')}", problem) from None


class Backend(ABC):
    """A cell's engines, closed together. The entry-point group `harness.engines` names a subclass, whose module imports nothing
    heavy."""

    # Modules that it needs, and how to install them.
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    advice: ClassVar[str] = "pip install -e . -c constraints.txt"
    # A suite's `engine_options`, checked before anything is opened.
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    # What it computes half-precision models in where `engine_options.dtype` is not set, as keys of other than micro cells hold it.
    half_precision: ClassVar[str] = ""
    # Raised by the author when the engine computes something else, so that cells get new keys; None takes the code's digest.
    results_version: ClassVar[int | None] = None
    # Whether it spreads each policy over a cluster's devices, as planned. Else a cell is one process, on cores or one GPU, and
    # `account` says what it takes.
    clustered: ClassVar[bool] = False
    account: ClassVar[Any] = embedded
    # Whether the policies have devices of their own, so that `each` runs them at the same time.
    side_by_side = False

    def __init__(self, options: Mapping[str, Mapping[str, Any]], temperature: float) -> None:
        self._options = {name: dict(own) for name, own in options.items()}
        self._temperature = temperature
        self._opened = ExitStack()

    @classmethod
    def precision(cls, policy: Policy, options: Mapping[str, Any]) -> Precision:
        """Of a policy, on every machine. Raises UsageError where the model's configuration cannot be had."""
        asked: Precision | None = options.get("dtype")
        if asked or policy.model.startswith(MICRO):
            return asked or "fp32"
        return chosen(load_config(policy.model, policy.revision))

    @classmethod
    def devices(cls, options: Mapping[str, Any], source: str) -> int | None:
        """Of a policy, where a suite lays out a clustered engine; None leaves that to the plan."""
        return None

    @classmethod
    def inventory(cls, address: str | None) -> Inventory:
        """At a cluster's address, else here. Raises UsageError for an address that the engine cannot join."""
        if address is not None:
            raise UsageError(f"--address {address}: this engine joins no cluster")
        return inventory.local()

    @classmethod
    def lacking(cls, options: Mapping[str, Any]) -> str:
        """What `engine_options` ask for and this machine has not, in a line."""
        return ""

    @classmethod
    def settled(cls, options: Mapping[str, Any], models: Iterable[str]) -> dict[str, Any]:
        """A suite's `engine_options` with what its models and this machine decide."""
        return dict(options)

    @classmethod
    def remark(cls, options: Mapping[str, Any], models: Iterable[str]) -> str:
        """What a run says first of how it computes its rows; empty where there is nothing to say."""
        return ""

    @classmethod
    @contextmanager
    def cluster(cls, address: str | None) -> Iterator[dict[str, str]]:
        """Environment that leads workers to their cluster. Raises EngineError where it does not start."""
        yield {}

    @staticmethod
    @abstractmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        """Of a folder that `open` will take, as far as can be said in seconds. Raises EngineError."""

    @abstractmethod
    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        """A policy that can be trained. Raises EngineError where it does not open."""

    @abstractmethod
    def reference(self, policy: Policy, folder: Path) -> PolicyEngine:
        """The same, frozen: it is only sampled and scored."""

    def cpu_seconds(self, policy: str) -> float:
        """Spent on a policy so far."""
        return time.process_time()

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """Results in order; at the same time where policies have their own devices: all end before an error is raised."""
        return [work(item) for item in items]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()
