"""The rows of `harness show` as text."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, PackageLoader
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.errors import UsageError
from harness.statistics.claims import INTERIM
from harness.statistics.comparison import DIFFERS_POLICIES, EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store.by_task import TaskHelp, TaskReward
from harness.store.checkpoint_choice import CheckpointRow
from harness.store.claims import ClaimAnswer
from harness.store.finished import ShowRow
from harness.store.manifest import EVALUATIONS
from harness.store.pace_table import HEADS, choose_rows, make_pace_line, write_pace_notes
from harness.store.ranking import MIN_RUNS, Heading, Headline
from harness.store.remarks import STARTED, STRICT, UNSTARTED, describe_gaps
from harness.store.retention import RetentionRow
from harness.store.roles import RoleRow
from harness.store.sentences import NO_TIES, TIES_FROM, explain_verdicts, verdict_mark
from harness.store.statistic import PERCENT, POINTS, SHARE, Statistic, select_columns
from harness.store.table import MEAN
from harness.store.text import harmless, visible
from harness.store.tuning_table import TuningResults, TuningRow

Rows = Sequence[ShowRow]
Cell = str | Text
_LEAST = 3
_COLOURS = {GAINS: "green", LOSES: "red"}
MEASURED = """no cells; the query for `harness sql` that shows what `harness eval` measured:
SELECT group_name, task, metric, accuracy FROM cells JOIN scores USING (suite, cell) WHERE suite = 'evaluations'"""
CLAIMS_NOTE = (
    "95 % intervals over seeds. p: two-sided, corrected by Holm's method among these claims alone. Seeds count in the suite's "
    f"order; before all are there a claim is answered only where p is at most {INTERIM:g} of one look."
)
CHECKPOINTS_NOTE = (
    "All other tables report the last checkpoint. best on validation: chosen by the rewards of training. flattered: by how much "
    "the best point of the curve lies above the last, which is what choosing on the reported questions would add."
)
TASKS_NOTE = (
    "Shares in %, over seeds. first, last: right answers in the first and the last fifth of the steps. all wrong: questions of "
    "which the policy solved none; of these, rescued by a peer. curve: held-out accuracy at the start and at the end."
)
HELP_NOTE = "Records that the receiver let in, over seeds; used: behind a nonzero gradient."
SIGNS = {GAINS: "▲", LOSES: "▼", DIFFERS_POLICIES: "✚", EQUIVALENT: "●", INCONCLUSIVE: "◆"}


def render_rows(
    suite: str,
    rows: Rows,
    form: str = "table",
    width: int = 120,
    colour: bool = False,
    head: Heading | None = None,
    tuned: TuningResults | None = None,
    brief: bool = False,
) -> str:
    """form: table, json, csv, markdown or latex. width, colour, brief: of a table; a brief one has the first metric's
    means alone. Raises UsageError."""
    head = head or Heading()
    if form == "json":
        document: dict[str, Any] = {"suite": suite, **msgspec.structs.asdict(head), "rows": list(rows)}
        if tuned:
            moved = {"transfer": tuned.transfer} if tuned.transfer else {}
            document["tuning"] = {"trials": tuned.tuning, "rows": tuned.rows, **moved}
        return msgspec.json.encode(document).decode()
    if form in ("csv", "latex"):
        return (_write_csv if form == "csv" else _write_latex)(suite, rows, head)
    if form not in ("table", "markdown"):
        raise UsageError(f"unknown format {form!r} (table, json, csv, markdown, latex)")
    page = _Page(form, width, colour)
    if form == "table" and brief and rows and head.sentences:
        page.brief(suite, rows, head)
        return page.text()
    (page.results if form == "table" else page.lines)(suite, rows, head)
    if tuned and tuned.rows:
        _render_tuning(page, tuned)
    return page.text()


def render_overview(heads: Mapping[str, Heading], width: int = 120, colour: bool = False) -> str:
    page = _Page("table", width, colour)
    for suite, head in heads.items():
        said = next((f"{h.metric}: {h.summary}" for h in head.sentences), "no cell has finished")
        page.say(suite, "bold")
        for line in (said, *describe_gaps(head.missing)):
            page.say(line, indent=2)
    return page.text()


class _Page:
    def __init__(self, form: str, width: int, colour: bool) -> None:
        self._markdown = form == "markdown"
        self._file = io.StringIO()
        self._console = Console(
            file=self._file, width=1 << 20 if self._markdown else width, force_terminal=colour, highlight=False,
            color_system="standard" if colour else None, markup=False, emoji=False,
        )  # fmt: skip

    def say(self, text: str, style: str = "", indent: int = 0) -> None:
        words = " ".join((_escape_cell if self._markdown else visible)(text).split())
        self._console.print(Padding(Text(words, style), (0, 0, 0, indent), expand=False) if words else "")

    def table(
        self, title: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], note: str = "", names: int = 2
    ) -> None:
        if self._markdown:
            cells = [[_escape_cell(str(cell)) for cell in row] for row in rows]
            self._console.print(f"**{_escape_cell(title)}**\n\n{make_pipe_table(heads, cells, 2)}")
            return
        lines = [[Text(visible(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
        table = Table(box=None, header_style="dim")
        for i, head in enumerate(heads):
            widest = max([cell_len(head), *(row[i].cell_len for row in lines)])
            if i < names:
                table.add_column(head, overflow="fold", min_width=min(4, widest))
            else:
                table.add_column(head, justify="right", no_wrap=True, min_width=widest)
        for row in lines:
            table.add_row(*row)
        self.say(title, "bold")
        self._console.print(table)
        if note:
            self.say(note, "dim")
        self.say("")

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._file.getvalue().splitlines()) + "\n"

    def results(self, suite: str, rows: Rows, head: Heading) -> None:
        if not rows:
            self.say(MEASURED if suite == EVALUATIONS else "no finished cells yet")
            self._print_beside_papers(head)
            return
        self._print_opening(
            suite, head, [h for h in head.sentences if (h.policy, h.task) == (head.sentences[0].policy, MEAN)]
        )
        self._print_panels(rows, head.margin)
        self._pace_and_end(choose_rows(rows))
        self._print_roles(head.roles)
        self._print_retention(head.retention)
        self._other_questions(rows)
        self._print_checkpoint_choice(head.checkpoints)
        self._by_task(head.task_rewards, head.task_help)
        for metric, across in head.across.items():
            title = f"all {across[0].tasks} panels, {metric}: interquartile mean in %, how often a run beats one of the baseline"
            note = "95 % stratified bootstrap intervals over seeds"
            note += "" if any(a.iqm_interval for a in across) else f" from {MIN_RUNS} seeds on"
            lines = (
                (a.regime, str(a.seeds), PERCENT.with_interval(a.iqm, a.iqm_interval),
                 f"{SHARE.text(a.better)} {PERCENT.interval(a.better_interval)}".rstrip()) for a in across
            )  # fmt: skip
            self.table(title, ("regime", "seeds", "IQM", "better than baseline"), lines, note)
        self._print_beside_papers(head)
        self.say(
            "gain: paired by seed with the baseline at the same rollout budget (Student t). used: share of the other policies' "
            f"answers that gave a gradient. {explain_verdicts(head.margin)}",
            "dim",
        )

    def _print_opening(self, suite: str, head: Heading, opening: Sequence[Headline], brief: bool = False) -> None:
        """Print what stands above a suite's tables. brief: the short sentences alone, not what is said of every regime."""
        if head.submission:
            self.say(f"{suite}: {head.submission}")
        self._print_claims(head.claims)
        if opening:
            self.say(suite, "bold")
            for headline in opening:
                self.say(f"{headline.metric}: {headline.summary}")
                if not brief and headline.sentence != headline.summary:
                    self.say(headline.sentence, "dim")
            self.say("")

    def brief(self, suite: str, rows: Rows, head: Heading) -> None:
        first = head.sentences[0]
        policies = Counter(group for group, _ in {(r.group, r.policy) for r in rows})
        means = [r for r in rows if r.metric == first.metric and (r.policy == first.policy or policies[r.group] == 1)]
        panels = list(dict.fromkeys((row.group, row.task) for row in means))
        tasks = {task for _, task in panels}
        self._print_opening(suite, head, [first], brief=True)
        matrix = list(_make_matrix(means, panels, len(tasks) > 1))
        width = sum(2 + max(map(cell_len, map(str, column))) for column in zip(*matrix, strict=True))
        if len(panels) > 1 and width <= self._console.width:
            task = "" if len(tasks) > 1 else f"{panels[0][1]}, "
            title = f"{task}{first.metric}; gain in points, of baselines accuracy in %"
            marks = ", ".join(f"{sign} {verdict_mark(verdict, head.margin)}" for verdict, sign in SIGNS.items())
            self.table(title, list(map(str, matrix[0])), matrix[1:], marks, names=1)
        else:
            self._print_panels(means, head.margin, named=False)
            if any(row.tie_group == NO_TIES for row in means):
                self.say(TIES_FROM, "dim")
                self.say("")
        self._pace_and_end(means)
        differing = {(row.group, row.task, row.regime) for row in means if row.verdict == DIFFERS_POLICIES}
        self._print_roles([role for role in head.roles if (role.group, role.task, role.regime) in differing])
        self._print_retention([row for row in head.retention if row.policy == MEAN and row.metric == first.metric])
        self._print_beside_papers(msgspec.structs.replace(head, starts=[]))

    def _print_panels(self, rows: Rows, margin: float, named: bool = True) -> None:
        """With the columns that fit. named: with the policies' names."""
        first = ["regime", "policy"][: 1 + named]
        columns = select_columns("terminal")
        own = (enumerate(part) for _, part in groupby(rows, key=attrgetter("group", "task", "metric", "regime")))
        cells = [_make_cells(row, columns, margin, i == 0) for part in own for i, row in part]
        lines = [[text for i, text in enumerate(line) if named or i != 1] for line in cells]
        heads = [*first, *(s.head for s in columns)]
        texts: list[list[str]] = [heads, *([str(cell) for cell in line] for line in lines)]
        ends = accumulate(2 + max(map(cell_len, column)) for column in zip(*texts, strict=True))
        fit = max(len(first) + _LEAST, sum(end <= self._console.width for end in ends))
        panels = groupby(zip(rows, lines, strict=True), key=lambda line: (line[0].group, line[0].task, line[0].metric))
        for (group, task, metric), members in panels:
            title = f"{group}: {task}, {metric}; accuracy in %, gain in points, 95 % intervals"
            self.table(title, heads[:fit], [line[:fit] for _, line in members], names=len(first))

    def _pace_and_end(self, rows: Rows) -> None:
        """Print pace, reach and gain at equal cost of these rows, a table a group, with the columns that fit."""
        compared = [row for row in rows if row.pace_curve or row.equal_cost_baseline]
        for (group, task, metric), own in groupby(compared, key=attrgetter("group", "task", "metric")):
            lines = [[*make_pace_line(row)] for row in own]
            columns = list(zip(HEADS, *lines, strict=True))
            columns = [column for column in columns if set(column[1:]) - {"–", ""}]
            ends = accumulate(2 + max(map(cell_len, column)) for column in columns)
            fit = max(_LEAST, sum(end <= self._console.width for end in ends))
            heads, *texts = zip(*columns[:fit], strict=True)
            self.table(
                f"{group}: pace and end; {task}, {metric}, gains in points, 95 % intervals", heads, texts, names=1
            )
        for note in write_pace_notes(compared):
            self.say(note, "dim")
        if compared:
            self.say("")

    def _other_questions(self, rows: Rows) -> None:
        """Print the gains for the questions that were asked, and for others of the same kind."""
        compared = [row for row in rows if row.gain_questions_interval]
        for (group, task, metric), own in groupby(compared, key=attrgetter("group", "task", "metric")):
            lines = [
                (
                    row.regime,
                    POINTS.with_interval(row.gain, row.gain_interval),
                    POINTS.interval(row.gain_questions_interval),
                )
                for row in own
            ]
            title = f"{group}: for other questions than these; {task}, {metric}, gains in points, 95 % intervals"
            self.table(title, ("regime", "over seeds", "over seeds and questions"), lines, names=1)

    def _print_checkpoint_choice(self, rows: Sequence[CheckpointRow]) -> None:
        """Print what the choice of a checkpoint would change, a table a group."""
        for group, own in groupby(rows, key=attrgetter("group")):
            lines = [
                (
                    row.regime,
                    PERCENT.text(row.last),
                    PERCENT.text(row.best_on_validation),
                    PERCENT.text(row.best_on_test),
                    POINTS.text(row.flattered),
                    str(row.curves),
                )
                for row in own
            ]
            title = f"{group}: the same runs by another checkpoint; held-out curve, accuracy in %"
            heads = ("regime", "last", "best on validation", "best on test", "flattered", "curves")
            self.table(title, heads, lines, CHECKPOINTS_NOTE)

    def _by_task(self, rewards: Sequence[TaskReward], helped: Sequence[TaskHelp]) -> None:
        """Print, of mixed training, the rewards by task and who helps whom on what, a table a group each."""
        for group, own in groupby(rewards, key=attrgetter("group")):
            lines = [
                (
                    *(one.regime, one.policy, one.task),
                    *map(
                        PERCENT.text, (one.first, one.last, one.all_wrong, one.rescued, one.curve_first, one.curve_last)
                    ),
                )
                for one in own
            ]
            heads = (
                "regime",
                "policy",
                "task",
                "first",
                "last",
                "all wrong",
                "rescued",
                "curve at 0",
                "curve at the end",
            )
            self.table(f"{group}: training by task", heads, lines, TASKS_NOTE, names=3)
        for group, of_group in groupby(helped, key=attrgetter("group")):
            counts = [
                (one.regime, one.author, one.receiver, one.task, *map(str, (one.received, one.right, one.used)))
                for one in of_group
            ]
            columns = ("regime", "from", "to", "task", "received", "right", "used")
            self.table(f"{group}: who helps whom on what", columns, counts, HELP_NOTE, names=4)

    def _print_roles(self, roles: Sequence[RoleRow]) -> None:
        """Print the gains of the stronger and of the weaker member at the start, a table a group."""
        for (group, task, metric), own in groupby(roles, key=attrgetter("group", "task", "metric")):
            lines = [
                (
                    role.regime,
                    POINTS.with_interval(role.stronger, role.stronger_interval),
                    POINTS.with_interval(role.weaker, role.weaker_interval),
                    POINTS.with_interval(role.apart, role.apart_interval),
                    str(role.seeds),
                )
                for role in own
            ]
            title = f"{group}: by role at the start; {task}, {metric}, gains in points, 95 % intervals"
            self.table(title, ("regime", "stronger", "weaker", "stronger less weaker", "seeds"), lines, names=1)

    def _print_retention(self, rows: Sequence[RetentionRow]) -> None:
        """Print what training left of tasks that it did not train, a table a group, task and metric."""
        for (group, task, metric), own in groupby(rows, key=attrgetter("group", "task", "metric")):
            lines = [
                (
                    row.regime,
                    "mean" if row.policy == MEAN else row.policy,
                    PERCENT.text(row.before),
                    PERCENT.text(row.after),
                    POINTS.with_interval(row.change, row.change_interval),
                    POINTS.with_interval(row.over_baseline, row.over_baseline_interval),
                    str(row.seeds),
                )
                for row in own
            ]
            title = (
                f"{group}: {task}, which was not trained; {metric}, accuracy in %, changes in points, 95 % intervals"
            )
            heads = ("regime", "policy", "before", "after", "change", "over baseline", "seeds")
            self.table(title, heads, lines, names=2)

    def _print_claims(self, claims: Sequence[ClaimAnswer]) -> None:
        """Print what was claimed before the suite ran, with the answers."""
        if not claims:
            return
        lines = [
            (
                one.claim.name,
                one.words,
                one.answer,
                one.number if one.value is not None else "–",
                "–" if one.p is None else f"{one.p:.3f}",
                f"{one.done} of {one.planned}",
            )
            for one in claims
        ]
        heads = ("claim", "says", "answer", "number", "p", "seeds")
        self.table("Claimed before it ran", heads, lines, CLAIMS_NOTE)
        for one in claims:
            if one.reason:
                self.say(f"{one.claim.name}: {one.reason}.", "dim")

    def lines(self, suite: str, rows: Rows, head: Heading) -> None:
        self._print_claims(head.claims)
        columns = select_columns("markdown")
        lines = []
        for row in rows:
            regime = _escape_cell(row.regime)
            names = [
                _escape_cell(row.group),
                _escape_cell(row.task),
                row.metric,
                f"**{regime}**" if row.best else regime,
            ]
            names.append("mean" if row.policy == MEAN else _escape_cell(row.policy))
            texts = ((s, _write_value(row, s, head.margin)) for s in columns)
            lines.append([*names, *(text if s.numeric or s.interval_of else _escape_cell(text) for s, text in texts)])
        heads = ["group", "task", "metric", "regime", "policy", *(s.head for s in columns)]
        words = [5 + i for i, s in enumerate(columns) if not (s.numeric or s.interval_of)]
        self._console.print(make_pipe_table(heads, lines, 5, words), end="")
        self._print_beside_papers(head)

    def _print_beside_papers(self, head: Heading) -> None:
        for (group, task, metric), stages in groupby(head.starts, key=attrgetter("group", "task", "metric")):
            title = f"{group}: {task}, {metric}; before the supervised start, after it, and after RL; accuracy in %"
            lines = [
                (
                    stage.policy if stage.moment == UNSTARTED else "",
                    stage.moment if stage.moment in (UNSTARTED, STARTED) else f"RL: {stage.moment}",
                    PERCENT.text(stage.strict),
                    PERCENT.text(stage.lenient),
                    f"{stage.answers:,}",
                    str(stage.seeds),
                )
                for stage in stages
            ]
            self.table(title, ("policy", "when", "strict", "lenient", "answers", "seeds"), lines, STRICT)
        for title, missing in describe_gaps(head.missing).items():
            self._console.print(f"\n{title}:\n" if self._markdown else title)
            for line in missing:
                self.say(f"- {line}")
            self.say("")
        if head.processors:
            self.say(head.processors)
            self.say("")


def make_pipe_table(heads: Sequence[str], lines: Sequence[Sequence[str]], names: int, words: Sequence[int] = ()) -> str:
    """A table in Markdown, numbers to the right: all but the first `names` columns and those of `words`."""
    rules = ["---" if i < names or i in words else "---:" for i in range(len(heads))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rules, *lines))


def _make_matrix(means: Rows, panels: Sequence[tuple[str, str]], tasks: bool) -> Iterator[list[str | Text]]:
    by_panel = {(row.regime, row.group, row.task): row for row in means}
    yield ["regime", *(f"{group} {task}" if tasks else group for group, task in panels)]
    for regime in dict.fromkeys(row.regime for row in means):
        rows = [by_panel.get((regime, *panel)) for panel in panels]
        yield [
            visible(regime),
            *(Text(_shorten_row(row), _COLOURS.get(row.verdict, "")) if row else "" for row in rows),
        ]


def _shorten_row(row: ShowRow) -> str:
    if row.gain is None:
        return PERCENT.text(row.accuracy)
    return f"{POINTS.text(row.gain)} {SIGNS.get(row.verdict, '')}"


def _make_cells(row: ShowRow, columns: Sequence[Statistic], margin: float, first: bool) -> list[Cell]:
    style = _COLOURS.get(row.verdict, "")
    return [
        Text(visible(row.regime) if first else "", "bold" if row.best else ""),
        "mean" if row.policy == MEAN else visible(row.policy),
        *(Text(_write_value(row, s, margin), style if s.tinted else "") for s in columns),
    ]


def _write_value(row: ShowRow, column: Statistic, margin: float) -> str:
    value = getattr(row, column.name)
    beside = column.interval
    if beside:
        return column.unit.with_interval(value, getattr(row, beside.name))
    return column.text(value, margin)


# What tuning changed --------------------------------------------------------------------------------------------------

_TUNED_HEADS = (
    "regime", "defaults", "gain", "tuned", "gain", "change", "over trials", "lead: promised", "kept", "CPU-s",
)  # fmt: skip
_TUNED_NOTE = (
    "gain: over the baseline with its defaults, and of tuned regimes over the *tuned* baseline; change: tuned less defaults. "
    "Defaults are published ones, or ours where a regime's paper gives none (`harness regimes` says which). Over trials: lowest to "
    "highest score on the tuning groups. Lead of the best trial over the defaults: promised by the trials, and kept on seeds that "
    "chose nothing. Points"
)


def _render_tuning(page: _Page, results: TuningResults) -> None:
    tuning = results.tuning
    rows = results.rows
    first = [r for r in rows if r.group == rows[0].group]
    trials = len(tuning.variants[0].trials)
    page.say("")
    page.say(f"Tuned under an equal budget: {trials} trials each, {tuning.metric} of {tuning.task}")
    for group, members in groupby(rows, key=attrgetter("group")):
        page.table(group, _TUNED_HEADS, map(_tuned_cells, members))
    for row in first:
        chosen = next(v for v in tuning.variants if (v.variant, v.on) == (row.variant, row.on))
        published = next(t.settings for t in chosen.trials if t.number == 0)
        changed = ", ".join(f"{k} {published[k]} -> {v}" for k, v in row.settings.items() if v != published[k])
        page.say(f"{chosen.label}: {f'trial {chosen.chosen}: {changed}' if changed else 'the defaults were best'}")
    leads = [(r.promised, r.kept) for r in first if r.kept is not None]
    if leads:
        promised, kept = (float(np.mean(each)) for each in zip(*leads, strict=True))
        page.say(
            f"Optimism of choosing the best of {trials} trials, mean of {len(leads)} choices: a lead of {POINTS.text(promised)} "
            f"points promised, {POINTS.text(kept)} kept, {POINTS.text(promised - kept)} of luck."
        )
    page.say(_TUNED_NOTE + ("" if "@" in tuning.suite else f"; trials are cells of the suite {tuning.trials_in}"))
    if results.transfer:
        page.say("")
        page.say("Transfer: settings that different tuning groups chose, used on the same group")
    for (group, one, other), moved in groupby(results.transfer, key=attrgetter("group", "first_on", "second_on")):
        heads = ("regime", f"tuned on {one}", f"tuned on {other}", "first less second")
        lines = [(r.variant, PERCENT.text(r.first), PERCENT.text(r.second), r.apart) for r in moved]
        page.table(group, heads, lines)


def _tuned_cells(row: TuningRow) -> list[str]:
    return [
        f"{row.variant}, tuned on {row.on}" if row.on else row.variant, PERCENT.text(row.published),
        POINTS.with_interval(row.published_gain, row.published_interval), PERCENT.text(row.tuned),
        POINTS.with_interval(row.tuned_gain, row.tuned_interval), POINTS.with_interval(row.change, row.change_interval),
        f"{PERCENT.text(row.lowest)} to {PERCENT.text(row.highest)}" + (f", {row.failed} failed" if row.failed else ""),
        POINTS.text(row.promised), POINTS.text(row.kept), f"{row.cpu_seconds:,.0f}",
    ]  # fmt: skip


# For programs and papers ----------------------------------------------------------------------------------------------


def _write_csv(suite: str, rows: Rows, head: Heading) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = {name: (f"{name}_low", f"{name}_high") for name in ShowRow.__struct_fields__ if name.endswith("interval")}
    writer.writerow(["suite", *(part for name in ShowRow.__struct_fields__ for part in ends.get(name, (name,)))])
    for row in rows:
        values: list[object] = [suite]
        for name, value in msgspec.structs.asdict(row).items():
            values += (value or (None, None)) if name in ends else [value if value == MEAN else harmless(value)]
        writer.writerow(values)
    return out.getvalue()


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>()#+!|~$"} | {"\n": " ", "\r": " ", "\t": " "})


def _escape_cell(text: str) -> str:
    return visible(text).translate(_MARKDOWN)


def _write_latex(suite: str, rows: Rows, head: Heading) -> str:
    parts = []
    for task, metric in sorted({(row.task, row.metric) for row in rows}):
        by_column = {
            (row.regime, (row.group, row.policy)): row for row in rows if (row.task, row.metric) == (task, metric)
        }
        regimes, columns = (list(dict.fromkeys(key[i] for key in by_column)) for i in (0, 1))
        parts.append((task, metric, regimes, columns, by_column))
    remarks = [f"{title}: {line}" for title, missing in describe_gaps(head.missing).items() for line in missing]
    remarks += [head.processors] if head.processors else []
    return _TEMPLATES.get_template("show.tex.tmpl").render(suite=suite, parts=parts, remarks=remarks, MEAN=MEAN)


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
