"""What the driver and its worker processes say to each other: one JSON object a line."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.errors import Fault
from harness.session.cell.manifests import Base
from harness.suite.cells import Cell, read, written


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class CellJob(_Message, frozen=True, tag="cell"):
    """Train and evaluate a cell. layout: engine options that the plan has chosen, by policy."""

    id: str
    folder: str
    cell: Cell
    layout: dict[str, dict[str, Any]] = {}


class BaseJob(_Message, frozen=True, tag="base"):
    """Make and evaluate a base checkpoint. layout: engine options that the plan has chosen."""

    id: str
    folder: str
    base: Base
    layout: dict[str, Any] = {}


class Leave(_Message, frozen=True, tag="leave"):
    """Write a checkpoint at the next step's end and leave."""


class Progress(_Message, frozen=True, tag="progress"):
    """`done` of `total` steps; `words` on the last one."""

    id: str
    done: float
    total: float
    words: str


class Alive(_Message, frozen=True, tag="alive"):
    """A sign of life: the worker got on since the last one. phase: what it does, with its own count."""

    phase: str


class Said(_Message, frozen=True, tag="said"):
    """A line of the job's log. topic: what it is about, where whoever watches the run should read it too, once."""

    text: str
    topic: str = ""


class Finished(_Message, frozen=True, tag="finished"):
    """outcome: `done`, `failed` (`reason`, and the word for it), `interrupted`, `disk` (the disk is full)."""

    id: str
    outcome: str
    reason: str = ""
    fault: Fault = Fault.ERROR
    cpu_seconds: float = 0.0


Job = CellJob | BaseJob
ToWorker = CellJob | BaseJob | Leave
FromWorker = Progress | Alive | Said | Finished

encoder = msgspec.json.Encoder(enc_hook=written)
to_worker = msgspec.json.Decoder(ToWorker, dec_hook=read)
from_worker = msgspec.json.Decoder(FromWorker)
