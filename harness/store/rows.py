"""Everything that a cell writes, one struct per table, and its Arrow schema.

Floats are NaN where not measured (null in Arrow). Shares are in [0, 1], log-probabilities and entropies in nats, times
in seconds of CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import msgspec
import pyarrow as pa

__all__ = [
    "LATER",
    "NAN",
    "PUBLISHED",
    "SCHEMAS",
    "SHARE",
    "TABLES",
    "TABLE_OF",
    "CostRow",
    "CurveRow",
    "ExchangeRow",
    "Row",
    "SampleRow",
    "StepRow",
    "TaskCurveRow",
    "TaskRow",
    "TermRow",
    "TraceRow",
    "conform_table",
    "marked_columns",
    "to_arrow",
    "up_to",
    "without_nan",
]

NAN = float("nan")
"""Not measured."""
SHARE = "share"
"""Mark of a column in [0, 1]."""
LATER = "later"
"""Mark of a column that is null in journals of older versions."""
Share = Annotated[float, SHARE]
Later = Annotated[int, LATER]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all rows."""

    @property
    def at(self) -> int | None:
        """The training step after which a resumed cell drops the row; None keeps it."""
        step: int | None = getattr(self, "step", None)
        return step


class StepRow(Row, frozen=True, kw_only=True):
    """One policy at one training step; docs/store.md defines each column.

    Over the steps the view `totals` sums whole numbers and averages the others. A column for which that is wrong, as a maximum, is
    named in `_of_steps` of `harness/store/database.py`.
    """

    policy: str
    step: int
    version: int = 0
    reward_mean: Share = NAN
    right: int = 0
    wrong: int = 0
    invalid: int = 0
    truncated: int = 0
    empty: Later = 0
    unboxed: Later = 0
    answers: int = 0
    answer_tokens_mean: float = NAN
    entropy: float = NAN
    loss: float = NAN
    gradient_norm: float = NAN
    updates: int = 0
    own_gradient_norm: float = NAN
    peer_gradient_norm: float = NAN
    own_peer_cosine: float = NAN
    kl_step: float = NAN
    kl_base: float = NAN
    sampler_drift: float = NAN
    sampler_drift_p99: float = NAN
    sampler_drift_outside: float = NAN
    weight_second_moment: float = NAN
    effective_sample_size: Share = NAN
    clipped_share: Share = NAN
    refused_share: Share = NAN
    peer_received: int = 0
    peer_used: int = 0
    prompts: int = 0
    prompts_all_wrong: int = 0
    prompts_rescued: int = 0
    hinted_prompts: Later = 0
    hinted_answers: Later = 0
    hinted_right: Later = 0
    peer_only_support_share: Share = NAN
    rollouts: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    exchanged_tokens: int = 0
    exchanged_bytes: int = 0
    generate_seconds: float = NAN
    verify_seconds: float = NAN
    exchange_seconds: float = NAN
    score_seconds: float = NAN
    train_seconds: float = NAN


class TermRow(Row, frozen=True, kw_only=True):
    """One policy's `engines.protocol.TermReport` of one step."""

    policy: str
    step: int
    name: str
    source: str
    answers: int
    active: int
    tokens: int
    active_tokens: int
    clipped_tokens: Later = 0
    loss: float
    ratios: Later = 0
    ratio_mean: float = NAN
    ratio_second: float = NAN
    gradient_norm: float = NAN


class ExchangeRow(Row, frozen=False, kw_only=True, gc=False):  # type: ignore[misc]  # filled in until it is journalled
    """A record as its receiver saw it. messages: how many alike the row sums up, 0 for an author that sent nothing.
    made: -1 where the header could not be read. reason: of a refusal."""

    step: int
    author: str
    receiver: str
    kind: str = ""
    prompt_id: str = ""
    index: int = 0
    made: int = -1
    version: int = 0
    messages: int = 1
    bytes: int = 0
    source_tokens: int = 0
    receiver_tokens: int = 0
    accepted: bool = True
    reason: str = ""
    residual_text: float = NAN
    residual_boundary: Share = NAN
    residual_mass: float = NAN
    residual_length: float = NAN
    residual_canonical: float = NAN
    marks_spelled: int = 0
    verdict: str = ""
    used: bool = False

    def measured(self, residuals: Mapping[str, float]) -> None:
        """Keep what retokenising lost."""
        for name, residual in residuals.items():
            setattr(self, f"residual_{name}", residual)

    def refuse(self, reason: str) -> None:
        """Take the acceptance back."""
        self.accepted = False
        self.reason = str(reason)
        self.used = False


class TraceRow(Row, frozen=True, kw_only=True):
    """An exchanged answer in full, for readers; a few per step. *_pieces: byte length of each token's text."""

    step: int
    author: str
    receiver: str
    prompt_id: str
    prompt: str
    gold: str
    own_text: str
    own_verdict: str
    peer_text: str
    peer_verdict: str
    used: bool = False
    index: int = 0
    source_pieces: list[int] = []
    source_logprobs: list[float] = []
    receiver_pieces: list[int] = []
    aligned: list[float] = []
    receiver_logprobs: list[float] = []


PUBLISHED = -1
"""The `checkpoint_step` of a pretrained model before its supervised start."""


class SampleRow(Row, frozen=True, kw_only=True):
    """An evaluation answer. checkpoint_step: 0 for the base, or PUBLISHED. vote: for maj@k, the `repeat` of the first
    valid answer that says the same; -1 where nothing was extracted or the verdict is invalid."""

    policy: str
    checkpoint_step: int
    task: str
    metric: str
    doc_id: str
    repeat: int = 0
    labels: dict[str, str] = {}
    prompt: str = ""
    text: str = ""
    extracted: str = ""
    vote: Later = -1
    gold: str = ""
    verdict: str = ""
    reason: str = ""
    tokens: int = 0
    finished: bool = True

    @property
    def at(self) -> int | None:
        """The step after its checkpoint's."""
        return self.checkpoint_step + 1  # an evaluation comes after its checkpoint


class CurveRow(Row, frozen=True, kw_only=True):
    """Held-out accuracy during training, by `greedy` or `sampled` answers."""

    policy: str
    step: int
    metric: str
    accuracy: Share
    answers: int


class TaskRow(Row, frozen=True, kw_only=True):
    """Mixed training: one policy's answers to one task's questions at one step. prompts_all_wrong: of which it solved none;
    prompts_rescued: of these, such as a peer solved."""

    policy: str
    step: int
    task: str
    prompts: int = 0
    answers: int = 0
    right: int = 0
    wrong: int = 0
    invalid: int = 0
    truncated: int = 0
    prompts_all_wrong: int = 0
    prompts_rescued: int = 0


class TaskCurveRow(Row, frozen=True, kw_only=True):
    """Mixed training: a point of `curves` on one task's held-out questions."""

    policy: str
    step: int
    task: str
    accuracy: Share
    answers: int


class CostRow(Row, frozen=True, kw_only=True):
    """What one attempt (from 1) spent, repeated work included. policy: empty for what no single one caused."""

    attempt: int
    policy: str
    phase: str
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    rollouts: int = 0
    tokens: int = 0


TABLES: dict[str, type[Row]] = {
    "steps": StepRow,
    "terms": TermRow,
    "exchanges": ExchangeRow,
    "traces": TraceRow,
    "samples": SampleRow,
    "curves": CurveRow,
    "costs": CostRow,
    "task_steps": TaskRow,
    "task_curves": TaskCurveRow,
}
"""Rows by table."""
TABLE_OF: dict[type[Row], str] = {row: name for name, row in TABLES.items()}
"""Tables by row."""
_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    list[int]: pa.list_(pa.int32()),
    list[float]: pa.list_(pa.float32()),
    dict[str, str]: pa.map_(pa.string(), pa.string()),
}


def _schema_of(row: type[Row]) -> pa.Schema:
    """Return the Arrow schema of a row, its columns in the order of the fields."""
    kinds = get_type_hints(row)  # evaluates every annotation: once for a row, not for each of its columns
    return pa.schema([(field, _TYPES[kinds[field]]) for field in row.__struct_fields__])


SCHEMAS: dict[str, pa.Schema] = {name: _schema_of(row) for name, row in TABLES.items()}
"""By table. Everything is nullable; NaN is stored as null."""


def marked_columns(mark: str) -> set[str]:
    """Return the columns with SHARE or LATER."""
    hints = [get_type_hints(row, include_extras=True) for row in TABLES.values()]
    return {name for row in hints for name, kind in row.items() if mark in getattr(kind, "__metadata__", ())}


def to_arrow(table: str, rows: Sequence[Row]) -> pa.Table:
    """Return rows of one table as Arrow."""
    columns = []
    for column in SCHEMAS[table]:
        values: list[Any] = [getattr(row, column.name) for row in rows]
        if pa.types.is_map(column.type):
            values = [list(value.items()) for value in values]
        columns.append(pa.array(values, column.type, from_pandas=pa.types.is_floating(column.type)))
    return pa.Table.from_arrays(columns, schema=SCHEMAS[table])


def conform_table(table: str, data: pa.Table) -> pa.Table:
    """Fit a table to today's schema: absent columns are null, unknown ones dropped. Raises pyarrow.ArrowException where
    a column has another type."""
    columns = [
        data.column(field.name).cast(field.type)
        if field.name in data.schema.names
        else pa.nulls(data.num_rows, field.type)
        for field in SCHEMAS[table]
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS[table])


def without_nan(data: pa.Table) -> pa.Table:
    """Return a table with null for NaN, as `to_arrow` has it."""
    import pyarrow.compute as pc

    for i, column in enumerate(data.schema):
        if pa.types.is_floating(column.type):
            values = data.column(i)
            data = data.set_column(i, column, pc.if_else(pc.is_nan(values), pa.scalar(None, column.type), values))
    return data


def up_to(table: str, data: pa.Table, step: int) -> pa.Table:
    """Return the rows that a cell resumed at `step` keeps."""
    import pyarrow.compute as pc

    names = SCHEMAS[table].names
    if "checkpoint_step" in names:
        return data.filter(pc.less(data.column("checkpoint_step"), step))
    if "step" in names:
        return data.filter(pc.less_equal(data.column("step"), step))
    return data
