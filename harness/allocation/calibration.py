"""Hardware records: what `make gpu-check` found, as a JSON file whose figures, where not null, replace the plan's
priors. `results/hardware` keeps contributed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.allocation.cost_model import Device, device_of
from harness.allocation.inventory import Inventory, format_gigabytes
from harness.errors import UsageError
from harness.reading import in_words, read_text

MAX_BYTES = 1 << 20
ALIKE = 0.1  # by which a card's memory may differ between its maker and its driver

Kind = Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9]{0,23}\Z")]
Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z", max_length=500)]
Rate = Annotated[float, Meta(ge=1e7, le=1e17)]


class RecordedCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """kind: as in `harness plan --inventory`; CORE is a core of a CPU. memory: bytes, of a CPU those of the machine."""

    kind: Kind
    name: Line
    memory: Annotated[int, Meta(ge=1 << 28, le=1 << 50)]


class MeasuredSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the embedded engine, as in `Device`; FLOP/s by the plan's count, in bf16 on a GPU and fp32 on a core."""

    train: Rate | None = None
    score: Rate | None = None
    read: Rate | None = None
    layer: Annotated[float, Meta(ge=1e-7, le=1.0)] | None = None
    context: Annotated[int, Meta(ge=0, le=1 << 36)] | None = None
    link: Rate | None = None


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """words: what came out, or why it failed or was skipped. figures: by name, with the unit in it."""

    name: Line
    state: Literal["passed", "failed", "skipped"]
    seconds: Annotated[float, Meta(ge=0, le=1e6)]
    words: Line
    figures: dict[Line, float | Line | None] = {}


class HardwareRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """made: in UTC. versions: of packages. peak_memory: of the card, bytes; None without one."""

    format: Literal[1]
    made: Line
    harness: Line
    card: RecordedCard
    versions: dict[Line, Line] = {}
    measured: MeasuredSpeed = MeasuredSpeed()
    parts: Annotated[tuple[MeasuredPart, ...], Meta(max_length=100)] = ()
    peak_memory: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None


def read_record(path: Path) -> HardwareRecord:
    """Read a hardware record. Raises UsageError, one line with the place, for what no check writes."""
    try:
        return msgspec.json.decode(read_text(path, MAX_BYTES), type=HardwareRecord)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a hardware record: {in_words(error)}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: no hardware record of `make gpu-check`: {error}") from None


def measured_device(path: Path, inventory: Inventory, stands: str) -> Device:
    """Return what the inventory's GPUs do by a record. stands: the kind planned with where there are none. Raises UsageError for
    a record of another card."""
    record = read_record(path)
    card = record.card
    planned = {(n.gpu_kind, n.gpu_memory) for n in inventory.nodes if n.gpus} or {(stands.upper(), card.memory)}
    for kind, memory in sorted(planned):
        if kind != card.kind or abs(memory / card.memory - 1) > ALIKE:
            there = f"{kind[:40] or 'a GPU of no known kind'} with {format_gigabytes(memory)}"
            raise UsageError(
                f"{path}: the record is of {card.kind} with {format_gigabytes(card.memory)}, and the plan for {there}: a record "
                "replaces the priors of its own card alone"
            )
    rates = msgspec.structs.asdict(record.measured)
    return replace(device_of(card.kind), **{name: value for name, value in rates.items() if value is not None})
