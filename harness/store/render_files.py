"""The rows of `harness show` for programs and papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader

from harness.store.finished import ShowRow
from harness.store.ranking import Heading
from harness.store.remarks import describe_gaps
from harness.store.table import MEAN
from harness.store.text import harmless, visible
from harness.store.tuning_table import TuningResults

Rows = Sequence[ShowRow]


def write_json(suite: str, rows: Rows, head: Heading, tuned: TuningResults | None) -> str:
    """Write all that is known of a suite for a program."""
    heading = msgspec.structs.asdict(head)
    document: dict[str, Any] = {"suite": suite, **heading, "rows": list(rows)}
    if tuned:
        tuning: dict[str, Any] = {"trials": tuned.tuning, "rows": tuned.rows}
        if tuned.transfer:
            tuning["transfer"] = tuned.transfer
        document["tuning"] = tuning
    encoded = msgspec.json.encode(document)
    return encoded.decode()


def write_csv(suite: str, rows: Rows) -> str:
    """Write a line for each row, its intervals in two columns; no text is a formula to a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ["suite"]
    for name in ShowRow.__struct_fields__:
        names += [f"{name}_low", f"{name}_high"] if name.endswith("interval") else [name]
    writer.writerow(names)
    for row in rows:
        values: list[object] = [suite]
        for name, value in msgspec.structs.asdict(row).items():
            if name.endswith("interval"):
                values += value or (None, None)
            else:
                # the mean's name would be a formula, too
                values.append(value if value == MEAN else harmless(value))
        writer.writerow(values)
    return out.getvalue()


def write_latex(suite: str, rows: Rows, head: Heading) -> str:
    """Write a table for each benchmark and metric: a line for each regime, a column for each policy of each group."""
    parts = []
    for task, metric in sorted({(row.task, row.metric) for row in rows}):
        of_part = [row for row in rows if (row.task, row.metric) == (task, metric)]
        by_column = {(row.regime, (row.group, row.policy)): row for row in of_part}
        regimes = list(dict.fromkeys(regime for regime, _ in by_column))
        columns = list(dict.fromkeys(column for _, column in by_column))
        parts.append((task, metric, regimes, columns, by_column))
    remarks = []
    for title, missing in describe_gaps(head.missing).items():
        remarks += [f"{title}: {line}" for line in missing]
    if head.processors:
        remarks.append(head.processors)
    template = _TEMPLATES.get_template("show.tex.tmpl")
    return template.render(suite=suite, parts=parts, remarks=remarks, MEAN=MEAN)


_TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\\": "\\textbackslash{}"}
)


def _escape_latex(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value).replace("\n", " ").translate(_TEX)
    return value


_TEMPLATES = Environment(
    loader=PackageLoader(__package__), finalize=_escape_latex, trim_blocks=True, autoescape=False,
    block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>",
)  # fmt: skip
