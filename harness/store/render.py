"""The rows of `harness show` as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec
from rich.text import Text

from harness.errors import UsageError
from harness.statistics.claims import INTERIM
from harness.statistics.comparison import ALPHA, DIFFERS_POLICIES, EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store.by_task import TaskHelp, TaskReward
from harness.store.checkpoint_choice import CheckpointRow
from harness.store.claims import ClaimAnswer
from harness.store.finished import ShowRow
from harness.store.manifest import EVALUATIONS
from harness.store.pace_table import HEADS, choose_rows, make_pace_line, write_pace_notes
from harness.store.ranking import MIN_RUNS, Aggregate, Heading, Headline
from harness.store.remarks import STARTED, STRICT, UNSTARTED, describe_gaps
from harness.store.render_files import write_csv, write_json, write_latex
from harness.store.render_tuning import render_tuning
from harness.store.retention import RetentionRow
from harness.store.roles import RoleRow
from harness.store.sentences import NO_TIES, TIES_FROM, explain_verdicts, verdict_mark
from harness.store.statistic import PERCENT, POINTS, SHARE, Statistic, select_columns
from harness.store.table import MEAN
from harness.store.text import visible
from harness.store.text_page import Cell, TextPage, drop_empty_columns, escape_cell, make_pipe_table, measure_widths
from harness.store.tuning_table import TuningResults

Rows = Sequence[ShowRow]
# Columns behind the names that a table keeps even where they are wider than the page
_LEAST = 3
_COLOURS = {GAINS: "green", LOSES: "red"}
MEASURED = """no cells; the query for `harness sql` that shows what `harness eval` measured:
SELECT group_name, task, metric, accuracy FROM cells JOIN scores USING (suite, cell) WHERE suite = 'evaluations'"""
CLAIMS_NOTE = (
    "95 % intervals over seeds, not corrected. p: two-sided, corrected by Holm's method among these claims alone; at most "
    f"{ALPHA:g} answers a claim. Seeds count in the suite's order; before all are there p is {ALPHA / INTERIM:g} times that of one "
    "look."
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
_FIRST_HEADS = ("regime", "policy")
_TASK_HEADS = (
    "regime", "policy", "task", "first", "last", "all wrong", "rescued", "curve at 0", "curve at the end",
)  # fmt: skip
_HELP_HEADS = ("regime", "from", "to", "task", "received", "right", "used")


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
    """Write the rows of a suite in a form: table, json, csv, markdown or latex.

    width, colour, brief: of a table; a brief one has the first metric's means alone. Raises UsageError.
    """
    head = head or Heading()
    if form == "json":
        return write_json(suite, rows, head, tuned)
    if form == "csv":
        return write_csv(suite, rows)
    if form == "latex":
        return write_latex(suite, rows, head)
    if form not in ("table", "markdown"):
        raise UsageError(f"unknown format {form!r} (table, json, csv, markdown, latex)")
    page = _ResultsPage(form, width, colour)
    if form == "table" and brief and rows and head.sentences:
        page.print_brief(suite, rows, head)
        return page.get_text()
    if form == "table":
        page.print_results(suite, rows, head)
    else:
        page.print_lines(rows, head)
    if tuned and tuned.rows:
        render_tuning(page, tuned)
    return page.get_text()


def render_overview(heads: Mapping[str, Heading], width: int = 120, colour: bool = False) -> str:
    """Write a sentence for each suite, and how many of its cells are missing."""
    page = TextPage("table", width, colour)
    for suite, head in heads.items():
        said = "no cell has finished"
        if head.sentences:
            first = head.sentences[0]
            said = f"{first.metric}: {first.summary}"
        page.say(suite, "bold")
        for line in (said, *describe_gaps(head.missing)):
            page.say(line, indent=2)
    return page.get_text()


class _ResultsPage(TextPage):
    """A suite's results on a page: what stands above its tables, the tables, and what stands below."""

    def print_results(self, suite: str, rows: Rows, head: Heading) -> None:
        """Print every policy and metric of a suite, with all that is said of them."""
        if not rows:
            self.say(MEASURED if suite == EVALUATIONS else "no finished cells yet")
            self._print_starts_and_gaps(head)
            return
        opening = []
        for headline in head.sentences:
            # of the first policy, or of the mean, which is that of several benchmarks too
            if (headline.policy, headline.task) == (head.sentences[0].policy, MEAN):
                opening.append(headline)
        self._print_opening(suite, head, opening)
        self._print_panels(rows, head.margin)
        self._print_pace_and_end(choose_rows(rows))
        self._print_roles(head.roles)
        self._print_retention(head.retention)
        self._print_other_questions(rows)
        self._print_checkpoint_choice(head.checkpoints)
        self._print_by_task(head.task_rewards, head.task_help)
        for metric, across in head.across.items():
            self._print_across(metric, across)
        self._print_starts_and_gaps(head)
        self.say(
            "gain: paired by seed with the baseline at the same rollout budget (Student t). used: share of the other policies' "
            f"answers that gave a gradient. {explain_verdicts(head.margin)}",
            "dim",
        )

    def _print_across(self, metric: str, across: Sequence[Aggregate]) -> None:
        """Print how each regime does over all panels together, by one metric."""
        title = f"all {across[0].tasks} panels, {metric}: interquartile mean in %, how often a run beats one of the baseline"
        note = "95 % stratified bootstrap intervals over seeds"
        if not any(one.iqm_interval for one in across):
            note += f" from {MIN_RUNS} seeds on"
        lines = []
        for one in across:
            better = f"{SHARE.text(one.better)} {PERCENT.interval(one.better_interval)}".rstrip()
            iqm = PERCENT.with_interval(one.iqm, one.iqm_interval)
            lines.append((one.regime, str(one.seeds), iqm, better))
        self.print_table(title, ("regime", "seeds", "IQM", "better than baseline"), lines, note)

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

    def print_brief(self, suite: str, rows: Rows, head: Heading) -> None:
        """Print the first metric's means: the answer, then gains side by side, or where they do not fit panel by panel."""
        first = head.sentences[0]
        self._print_opening(suite, head, [first], brief=True)
        means = _select_means(rows, first)
        if not self._print_matrix(means, first.metric, head.margin):
            self._print_panels(means, head.margin, named=False)
            if any(row.tie_group == NO_TIES for row in means):
                self.say(TIES_FROM, "dim")
                self.say("")
        self._print_pace_and_end(means)
        # who gains is of interest where the mean hides it
        differing = {(row.group, row.task, row.regime) for row in means if row.verdict == DIFFERS_POLICIES}
        self._print_roles([role for role in head.roles if (role.group, role.task, role.regime) in differing])
        self._print_retention([row for row in head.retention if row.policy == MEAN and row.metric == first.metric])
        self._print_starts_and_gaps(msgspec.structs.replace(head, starts=[]))

    def _print_matrix(self, means: Rows, metric: str, margin: float) -> bool:
        """Print a line for each regime and a column for each panel; return whether there are several panels, and they fit."""
        panels = list(dict.fromkeys((row.group, row.task) for row in means))
        tasks = {task for _, task in panels}
        heads, *lines = _make_matrix(means, panels, len(tasks) > 1)
        width = measure_widths([heads, *lines])[-1]
        if len(panels) < 2 or width > self.width:
            return False
        task = "" if len(tasks) > 1 else f"{panels[0][1]}, "
        title = f"{task}{metric}; gain in points, of baselines accuracy in %"
        marks = ", ".join(f"{sign} {verdict_mark(verdict, margin)}" for verdict, sign in SIGNS.items())
        self.print_table(title, list(map(str, heads)), lines, marks, names=1)
        return True

    def _print_panels(self, rows: Rows, margin: float, named: bool = True) -> None:
        """Print a table for each panel, with the columns that fit. named: with the policies' names."""
        columns = select_columns("terminal")
        heads = [*_FIRST_HEADS, *(statistic.head for statistic in columns)]
        lines = []
        for _, of_regime in groupby(rows, key=attrgetter("group", "task", "metric", "regime")):
            for place, row in enumerate(of_regime):
                lines.append(_make_cells(row, columns, margin, place == 0))
        if not named:
            del heads[1]
            for line in lines:
                del line[1]
        first = len(_FIRST_HEADS) if named else 1
        fit = self.count_fitting([heads, *lines], first + _LEAST)
        panels = groupby(zip(rows, lines, strict=True), key=lambda line: (line[0].group, line[0].task, line[0].metric))
        for (group, task, metric), members in panels:
            title = f"{group}: {task}, {metric}; accuracy in %, gain in points, 95 % intervals"
            shown = [line[:fit] for _, line in members]
            self.print_table(title, heads[:fit], shown, names=first)

    def _print_pace_and_end(self, rows: Rows) -> None:
        """Print pace, reach and gain at equal cost of these rows, a table a group, with the columns that fit."""
        compared = [row for row in rows if row.pace_curve or row.equal_cost_baseline]
        for (group, task, metric), own in groupby(compared, key=attrgetter("group", "task", "metric")):
            lines = [make_pace_line(row) for row in own]
            heads, *texts = drop_empty_columns([HEADS, *lines])
            fit = self.count_fitting([heads, *texts], _LEAST)
            title = f"{group}: pace and end; {task}, {metric}, gains in points, 95 % intervals"
            self.print_table(title, heads[:fit], [line[:fit] for line in texts], names=1)
        for note in write_pace_notes(compared):
            self.say(note, "dim")
        if compared:
            self.say("")

    def _print_other_questions(self, rows: Rows) -> None:
        """Print the gains for the questions that were asked, and for others of the same kind."""
        heads = ("regime", "over seeds", "over seeds and questions")
        compared = [row for row in rows if row.gain_questions_interval]
        for (group, task, metric), own in groupby(compared, key=attrgetter("group", "task", "metric")):
            lines = []
            for row in own:
                over_seeds = POINTS.with_interval(row.gain, row.gain_interval)
                over_both = POINTS.interval(row.gain_questions_interval)
                lines.append((row.regime, over_seeds, over_both))
            title = f"{group}: for other questions than these; {task}, {metric}, gains in points, 95 % intervals"
            self.print_table(title, heads, lines, names=1)

    def _print_checkpoint_choice(self, rows: Sequence[CheckpointRow]) -> None:
        """Print what the choice of a checkpoint would change, a table a group."""
        heads = ("regime", "last", "best on validation", "best on test", "flattered", "curves")
        for group, own in groupby(rows, key=attrgetter("group")):
            lines = []
            for row in own:
                accuracies = [PERCENT.text(one) for one in (row.last, row.best_on_validation, row.best_on_test)]
                lines.append((row.regime, *accuracies, POINTS.text(row.flattered), str(row.curves)))
            title = f"{group}: the same runs by another checkpoint; held-out curve, accuracy in %"
            self.print_table(title, heads, lines, CHECKPOINTS_NOTE)

    def _print_by_task(self, rewards: Sequence[TaskReward], helped: Sequence[TaskHelp]) -> None:
        """Print, of mixed training, the rewards by task and who helps whom on what, a table a group each."""
        for group, own in groupby(rewards, key=attrgetter("group")):
            lines = []
            for one in own:
                shares = (one.first, one.last, one.all_wrong, one.rescued, one.curve_first, one.curve_last)
                percent = [PERCENT.text(share) for share in shares]
                lines.append((one.regime, one.policy, one.task, *percent))
            self.print_table(f"{group}: training by task", _TASK_HEADS, lines, TASKS_NOTE, names=3)
        for group, of_group in groupby(helped, key=attrgetter("group")):
            counts = []
            for helper in of_group:
                numbers = [str(number) for number in (helper.received, helper.right, helper.used)]
                counts.append((helper.regime, helper.author, helper.receiver, helper.task, *numbers))
            self.print_table(f"{group}: who helps whom on what", _HELP_HEADS, counts, HELP_NOTE, names=4)

    def _print_roles(self, roles: Sequence[RoleRow]) -> None:
        """Print the gains of the stronger and of the weaker member at the start, a table a group."""
        heads = ("regime", "stronger", "weaker", "stronger less weaker", "seeds")
        for (group, task, metric), own in groupby(roles, key=attrgetter("group", "task", "metric")):
            lines = []
            for role in own:
                stronger = POINTS.with_interval(role.stronger, role.stronger_interval)
                weaker = POINTS.with_interval(role.weaker, role.weaker_interval)
                apart = POINTS.with_interval(role.apart, role.apart_interval)
                lines.append((role.regime, stronger, weaker, apart, str(role.seeds)))
            title = f"{group}: by role at the start; {task}, {metric}, gains in points, 95 % intervals"
            self.print_table(title, heads, lines, names=1)

    def _print_retention(self, rows: Sequence[RetentionRow]) -> None:
        """Print what training left of tasks that it did not train, a table a group, task and metric."""
        heads = ("regime", "policy", "before", "after", "change", "over baseline", "seeds")
        for (group, task, metric), own in groupby(rows, key=attrgetter("group", "task", "metric")):
            lines = []
            for row in own:
                policy = "mean" if row.policy == MEAN else row.policy
                accuracies = PERCENT.text(row.before), PERCENT.text(row.after)
                change = POINTS.with_interval(row.change, row.change_interval)
                over_baseline = POINTS.with_interval(row.over_baseline, row.over_baseline_interval)
                lines.append((row.regime, policy, *accuracies, change, over_baseline, str(row.seeds)))
            title = (
                f"{group}: {task}, which was not trained; {metric}, accuracy in %, changes in points, 95 % intervals"
            )
            self.print_table(title, heads, lines, names=2)

    def _print_claims(self, claims: Sequence[ClaimAnswer]) -> None:
        """Print what was claimed before the suite ran, with the answers."""
        if not claims:
            return
        lines = []
        for one in claims:
            number = one.number if one.value is not None else "–"
            p = _write_p(one.p)
            lines.append((one.claim.name, one.words, one.answer, number, p, f"{one.done} of {one.planned}"))
        heads = ("claim", "says", "answer", "number", "p", "seeds")
        self.print_table("Claimed before it ran", heads, lines, CLAIMS_NOTE)
        for one in claims:
            if one.reason:
                self.say(f"{one.claim.name}: {one.reason}.", "dim")

    def print_lines(self, rows: Rows, head: Heading) -> None:
        """Print all rows as one table in Markdown."""
        self._print_claims(head.claims)
        columns = select_columns("markdown")
        lines = [_make_markdown_line(row, columns, head.margin) for row in rows]
        names = ["group", "task", "metric", "regime", "policy"]
        heads = [*names, *(statistic.head for statistic in columns)]
        words = []
        for place, statistic in enumerate(columns, start=len(names)):
            if not (statistic.numeric or statistic.interval_of):
                words.append(place)
        self.print_as_it_is(make_pipe_table(heads, lines, len(names), words))
        self._print_starts_and_gaps(head)

    def _print_starts_and_gaps(self, head: Heading) -> None:
        """Print accuracies before and after the supervised starts, the cells that are missing, and whether processors of several
        kinds were used."""
        heads = ("policy", "when", "strict", "lenient", "answers", "seeds")
        for (group, task, metric), stages in groupby(head.starts, key=attrgetter("group", "task", "metric")):
            title = f"{group}: {task}, {metric}; before the supervised start, after it, and after RL; accuracy in %"
            lines = []
            for stage in stages:
                policy = stage.policy if stage.moment == UNSTARTED else ""
                moment = stage.moment if stage.moment in (UNSTARTED, STARTED) else f"RL: {stage.moment}"
                shares = PERCENT.text(stage.strict), PERCENT.text(stage.lenient)
                lines.append((policy, moment, *shares, f"{stage.answers:,}", str(stage.seeds)))
            self.print_table(title, heads, lines, STRICT)
        for title, missing in describe_gaps(head.missing).items():
            self.print_as_it_is(f"\n{title}:\n\n" if self.in_markdown else f"{title}\n")
            for line in missing:
                self.say(f"- {line}")
            self.say("")
        if head.processors:
            self.say(head.processors)
            self.say("")


def _write_p(p: float | None) -> str:
    """Write a p-value with three decimals: a small one is not 0."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def _select_means(rows: Rows, first: Headline) -> list[ShowRow]:
    """Return the rows of a headline's metric and policy, and of groups of one policy, which have no mean."""
    policies = Counter(group for group, _ in {(row.group, row.policy) for row in rows})
    of_metric = [row for row in rows if row.metric == first.metric]
    return [row for row in of_metric if row.policy == first.policy or policies[row.group] == 1]


def _make_matrix(means: Rows, panels: Sequence[tuple[str, str]], tasks: bool) -> Iterator[list[Cell]]:
    """Yield the heads, then a line for each regime with its gain on each panel. tasks: panels are named with their benchmarks."""
    by_panel = {(row.regime, row.group, row.task): row for row in means}
    yield ["regime", *(f"{group} {task}" if tasks else group for group, task in panels)]
    for regime in dict.fromkeys(row.regime for row in means):
        line: list[Cell] = [visible(regime)]
        for panel in panels:
            row = by_panel.get((regime, *panel))
            line.append(Text(_shorten_row(row), _COLOURS.get(row.verdict, "")) if row else "")
        yield line


def _shorten_row(row: ShowRow) -> str:
    """Write a gain with the sign of its verdict, of a baseline its accuracy."""
    if row.gain is None:
        return PERCENT.text(row.accuracy)
    return f"{POINTS.text(row.gain)} {SIGNS.get(row.verdict, '')}"


def _make_cells(row: ShowRow, columns: Sequence[Statistic], margin: float, first: bool) -> list[Cell]:
    """Return a row's cells on a terminal. first: of its regime, whose name stands once."""
    style = _COLOURS.get(row.verdict, "")
    regime = Text(visible(row.regime) if first else "", "bold" if row.best else "")
    policy = "mean" if row.policy == MEAN else visible(row.policy)
    cells: list[Cell] = [regime, policy]
    for statistic in columns:
        value = _write_value(row, statistic, margin)
        cells.append(Text(value, style if statistic.tinted else ""))
    return cells


def _make_markdown_line(row: ShowRow, columns: Sequence[Statistic], margin: float) -> list[str]:
    """Return a row's cells in Markdown; names are others' words, which it must not obey."""
    regime = escape_cell(row.regime)
    shown = f"**{regime}**" if row.best else regime
    policy = "mean" if row.policy == MEAN else escape_cell(row.policy)
    line = [escape_cell(row.group), escape_cell(row.task), row.metric, shown, policy]
    for statistic in columns:
        value = _write_value(row, statistic, margin)
        is_number = statistic.numeric or statistic.interval_of
        line.append(value if is_number else escape_cell(value))
    return line


def _write_value(row: ShowRow, column: Statistic, margin: float) -> str:
    """Write a row's value of a statistic, with its interval where one stands beside it."""
    value = getattr(row, column.name)
    beside = column.interval
    if beside:
        return column.unit.with_interval(value, getattr(row, beside.name))
    return column.text(value, margin)
