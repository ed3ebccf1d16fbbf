"""What an engine declares, and how it opens a cell's policies (docs/engines.md)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta

from harness.allocation import inventory
from harness.allocation.cost_model import CellDemand, Device, Memory, PhaseSeconds
from harness.allocation.inventory import Inventory
from harness.allocation.layout import PolicyAccount
from harness.allocation.shapes import MICRO, Precision, load_config, precision_of_config
from harness.engines.embedded import account as embedded_account
from harness.engines.openrlhf import account as openrlhf_account
from harness.engines.protocol import PolicyEngine
from harness.errors import SuiteError, UsageError
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

__all__ = ["Backend", "CellAccount", "Lora", "NoEngineOptions", "read_options"]

A = TypeVar("A")
B = TypeVar("B")
Options = TypeVar("Options", bound=msgspec.Struct)


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters beside frozen linear layers; their product, of rank `rank`, counts alpha / rank times."""

    rank: Annotated[int, Meta(ge=1, le=4096)]
    alpha: Annotated[float, Meta(gt=0, le=1e6)]


class NoEngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an engine that has none."""


def read_options(kind: type[Options], options: Mapping[str, Any], source: str = "suite") -> Options:
    """Read `engine_options` into the class that declares them. Raises SuiteError with the place inside `engine_options`."""
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise SuiteError(source, f"engine_options{path.rstrip('`')}", problem) from None


class CellAccount(Protocol):
    """What plans ask of an engine about a cell that is one process; a module with these functions is one."""

    def process_memory(self, cell: CellDemand, micro_tokens: int = ..., on: Device = ...) -> Memory:
        """Return the bytes of the process at its fullest. micro_tokens: of a micro-batch. on: the device that trains."""

    def phases(self, cell: CellDemand, on: Device) -> PhaseSeconds:
        """Return the seconds of each phase on a device."""

    def cores(self, cell: CellDemand, most: int) -> int:
        """Return how many cores the cell is worth. most: those that are idle."""


class Backend(ABC):
    """A cell's engines, closed together. The entry-point group `harness.engines` names a subclass, whose module imports nothing
    heavy."""

    # Modules needed, and how to install them.
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    advice: ClassVar[str] = "pip install -e . -c constraints.txt"
    # A suite's `engine_options`.
    Options: ClassVar[type[msgspec.Struct]] = NoEngineOptions
    # Of half-precision models unless `dtype` is set; in all keys but micro ones'
    half_precision: ClassVar[str] = ""
    # Raised by the author when results change; None takes the code's digest.
    results_version: ClassVar[int | None] = None
    # Whether each policy spreads over a cluster's devices; else a cell is one process
    clustered: ClassVar[bool] = False
    # Memory and time of a cell that is one process, for plans
    account: ClassVar[CellAccount] = embedded_account
    # Memory of a policy's trainers, for plans of a `clustered` engine
    policy_account: ClassVar[PolicyAccount] = openrlhf_account
    # Policies have devices of their own: `each` runs them concurrently.
    side_by_side = False
    # Whether tokens that end an answer are one action, whose log-probability is that of ending by any of `PolicyEngine.stop`;
    # `open_backend` sets it, by the suite's `sharing.ends`
    ends_are_one = True

    def __init__(self, options: Mapping[str, Mapping[str, Any]], temperature: float) -> None:
        self._options = {name: dict(own) for name, own in options.items()}
        self._temperature = temperature
        self._opened = ExitStack()

    @classmethod
    def precision(cls, policy: Policy, options: Mapping[str, Any]) -> Precision:
        """Return the number format of a policy's weights, the same on every machine. Raises UsageError without the model's
        configuration."""
        asked: Precision | None = options.get("dtype")
        if asked or policy.model.startswith(MICRO):
            return asked or "fp32"
        return precision_of_config(load_config(policy.model, policy.revision))

    @classmethod
    def devices(cls, options: Mapping[str, Any], source: str) -> int | None:
        """Return how many devices a policy has, where the suite says; None leaves that to the plan."""
        return None

    @classmethod
    def inventory(cls, address: str | None) -> Inventory:
        """Describe the machines at a cluster's address, else here. Raises UsageError where it cannot be joined."""
        if address is not None:
            raise UsageError(f"--address {address}: this engine joins no cluster")
        return inventory.inventory_of_machine()

    @classmethod
    def lacking(cls, options: Mapping[str, Any]) -> str:
        """Return what this machine lacks of `engine_options`, in a line."""
        return ""

    @classmethod
    def with_defaults_filled(cls, options: Mapping[str, Any], models: Iterable[str]) -> dict[str, Any]:
        """Return `engine_options` with what models and this machine decide filled in."""
        return dict(options)

    @classmethod
    def settled(cls, options: Mapping[str, Any], models: Iterable[str]) -> dict[str, Any]:
        """Do the same under the earlier name of `with_defaults_filled`, which plug-ins may still define."""
        return dict(options)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Take a plug-in's `settled` for `with_defaults_filled`."""
        super().__init_subclass__(**settings)
        if "settled" in vars(cls) and "with_defaults_filled" not in vars(cls):
            setattr(cls, "with_defaults_filled", vars(cls)["settled"])  # noqa: B010  # mypy refuses to assign a method

    @classmethod
    def remark(cls, options: Mapping[str, Any], models: Iterable[str]) -> str:
        """Return what a run says first of how it computes its rows; may be empty."""
        return ""

    @classmethod
    @contextmanager
    def cluster(cls, address: str | None) -> Iterator[dict[str, str]]:
        """Give the environment that leads workers to their cluster; inside, that cluster is up. Raises EngineError where it does
        not start."""
        yield {}

    @staticmethod
    @abstractmethod
    def check(folder: Path, options: Mapping[str, Any]) -> tuple[PretrainedConfig, PreTrainedTokenizerFast]:
        """Check, in seconds, a folder that `open` will take. Raises EngineError."""

    @abstractmethod
    def open(self, policy: Policy, folder: Path) -> PolicyEngine:
        """Open a policy to be trained. Raises EngineError."""

    @abstractmethod
    def reference(self, policy: Policy, folder: Path) -> PolicyEngine:
        """Open a policy only to be sampled and scored."""

    def cpu_seconds(self, policy: str) -> float:
        """Return the CPU-seconds spent on a policy so far."""
        return time.process_time()

    def each(self, work: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """Call `function` for each item, and return the results in order. All end before an error is raised."""
        return [work(item) for item in items]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()
