"""The OpenRLHF engine's door: what it offers, without importing Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.allocation import inventory
from harness.allocation.inventory import Inventory
from harness.allocation.shapes import Precision
from harness.engines.kind import Engines
from harness.engines.openrlhf import keeper
from harness.engines.openrlhf.settings import Settings, settings_of
from harness.engines.protocol import PolicyEngine
from harness.exchange.wire import Transport
from harness.suite.schema import Policy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

    from harness.engines.openrlhf.cluster import Reservation
    from harness.engines.openrlhf.engine import OpenRLHFEngine

A = TypeVar("A")
B = TypeVar("B")
LAYOUT = frozenset({"trainers", "rollout_engines", "tensor_parallel", "colocate"})
"""Engine options with which a suite takes the layout into its own hands."""


class OpenRLHF(Engines):
    """OpenRLHF's Ray trainers with DeepSpeed and vLLM

    All that the policies need is reserved at once, and they start and work side by side, or one after another where they share
    their devices.
    """

    packages = ("openrlhf", "ray", "deepspeed", "vllm")
    advice = "docs/openrlhf.md"
    Options = Settings
    clustered = True

    @classmethod
    def precision(cls, policy: Policy, options: Mapping[str, Any]) -> Precision:
        asked: Precision = options.get("dtype") or "bf16"
        return asked

    @classmethod
    def devices(cls, options: Mapping[str, Any], source: str) -> int | None:
        return settings_of(options, source).devices if LAYOUT & options.keys() else None

    @classmethod
    def inventory(cls, address: str | None) -> Inventory:
        address = address or os.environ.get("RAY_ADDRESS")
        if not address or any(find_spec(package) is None for package in cls.packages):
            return inventory.local()
        from harness.engines.openrlhf.cluster import inventory as of_cluster

        return of_cluster(address)

    @classmethod
    @contextmanager
    def cluster(cls, address: str | None) -> Iterator[dict[str, str]]:
        with keeper.cluster(address) as found:
            yield {"RAY_ADDRESS": found}

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
        from harness.engines.openrlhf.see_actor import RayTransport

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
