"""What sharing pays in noise for what it gains in support, measured on our cells."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from leaderboard import charts
from leaderboard.data import Store
from leaderboard.frames import SPREAD, over_seeds
from leaderboard.parts import choose, choose_some, downloads, draw_figure, empty, escaped
from leaderboard.view import Page, View


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured quantity: a column of `steps` (SQL), what it means, and its value where nothing was received from peers."""

    name: str
    sql: str
    meaning: str
    without_peers: float | None = None


MEASURES = {
    m.name: m
    for m in (
        Measure(
            "peer-only support",
            "peer_only_support_share",
            "share of the tokens with a gradient that lie in a peer's answers made likelier where no own answer was right",
            0.0,
        ),
        Measure(
            "hopeless prompts", "prompts_all_wrong / nullif(prompts, 0)", "share of prompts without any own success"
        ),
        Measure(
            "rescuable prompts",
            "prompts_rescued / nullif(prompts_all_wrong, 0)",
            "share of the hopeless prompts on which a peer succeeded",
        ),
        Measure(
            "peer data used",
            "peer_used / nullif(peer_received, 0)",
            "share of received peer answers with a nonzero gradient",
            0.0,
        ),
        Measure(
            "second moment of the weights",
            "weight_second_moment",
            "mean of the squared importance weights on peer data, before clipping; 1 without peers, and 1 for imitation (SGT), "
            "which uses no ratio and pays in bias instead",
            1.0,
        ),
        Measure(
            "effective sample size",
            "effective_sample_size",
            "share of the peer data that its importance weights leave; 1 without peers and for imitation (SGT)",
            1.0,
        ),
        Measure(
            "clipped peer data",
            "clipped_share",
            "share of the peer tokens with advantage and weight whose gradient a bound of the ratio took away",
            0.0,
        ),
        Measure("refused peer data", "refused_share", "share of peer records that the receiver refused", 0.0),
        Measure("gradient norm", "gradient_norm", "before clipping, mean over the step's updates"),
        Measure(
            "peer to own gradient",
            "peer_gradient_norm / nullif(own_gradient_norm, 0)",
            "norm of the peer terms' gradient over that of the own terms",
            0.0,
        ),
        Measure("cosine of own and peer", "own_peer_cosine", "between the gradients of own and of peer terms"),
        Measure("KL to the step's start", "kl_step", "nats per token"),
        Measure("KL to the base policy", "kl_base", "nats per token"),
        Measure("sampler drift", "sampler_drift", "nats per token between the sampler and the trainer, mean"),
        Measure("sampler drift, 99 %", "sampler_drift_p99", "nats per token that 99 % of the tokens stay below"),
        Measure(
            "answers the sampler puts outside the window",
            "sampler_drift_outside",
            "share of own answers whose first ratio to the sampler's log-probabilities is outside the regime's own bounds",
        ),
        Measure("entropy", "entropy", "nats per token of the sampling distribution, estimated from the sampled tokens"),
    )
}
NOISE = "gradient noise"
"""The second axis' own measure: relative spread of the gradient norm over steps."""

_CELLS = """
SELECT c.group_name AS "group", c.regime, c.seed, t.policy, {x} AS x, {y} AS y FROM current_cells c JOIN (
    SELECT suite, cell, policy, {columns} FROM steps WHERE suite = $1 GROUP BY suite, cell, policy
) t USING (suite, cell) WHERE c.suite = $1 AND c.kind = 'cell'
"""
_STEPS = """
SELECT c.group_name AS "group", c.regime, c.seed, t.step AS steps, {value} AS y
FROM current_cells c JOIN steps t USING (suite, cell) WHERE c.suite = ? AND c.kind = 'cell' AND y IS NOT NULL
"""


def draw(store: Store, suite: str, view: View) -> None:
    """The plane, then its components over steps."""
    axes = [NOISE, *MEASURES]
    with st.container(horizontal=True, gap="small"):
        across = choose("Support (across)", axes, "x", "peer-only support", width=260)
        up = choose("Stability (up)", axes, "y", "second moment of the weights", width=260)
    cells = _plane_rows(store, suite, across, up)
    everyone = list(dict.fromkeys(cells["group"]))
    groups = choose_some("Groups", everyone, "group")
    cells = cells[cells["group"].isin(groups)]
    order = _order(store, suite, list(dict.fromkeys(cells["regime"])))
    known = cells.dropna(subset=["x", "y"])
    if known.empty:
        empty(
            "Neither of these two was measured in this suite. Choose others, or set `training.measure_every` in the suite."
        )
        return
    means = known.groupby("regime", as_index=False)[["x", "y"]].mean().assign(kind="mean", group="all")
    figure = charts.plane(
        pd.concat([known.assign(kind="cell"), means]),
        "Support gained, stability paid",
        across,
        up,
        order,
        log_y=bool((known["y"] > 0).all() and known["y"].max() > 20 * known["y"].min()),
    )
    draw_figure(figure, "plane")
    absent = [r for r in order if r not in set(known["regime"])]
    st.caption(
        f"Across: {_meaning(across)}. Up: {_meaning(up)}. Small marks: one policy of one cell, mean over its steps. "
        "Large marks: the regime's mean."
        + (
            f" Without a mark: {escaped(', '.join(absent))} (not measured, or no peer answer took part)."
            if absent
            else ""
        )
    )
    st.header("Components over steps")
    chosen = choose_some_measures()
    figures = []
    for start in range(0, len(chosen), 2):
        for column, name in zip(st.columns(2), chosen[start : start + 2], strict=False):
            rows = store.frame(_STEPS.format(value=f"({MEASURES[name].sql})"), suite)
            rows = rows[rows["group"].isin(groups)]
            if rows.empty:
                column.caption(f"{name}: not measured in this suite.")
                continue
            present = [r for r in order if r in set(rows["regime"])]
            points = over_seeds(rows, [], "steps", most=1.0 if _unit(name) == "share" else None)
            figures.append(charts.lines(points, name, "step", _unit(name), order, shown=present))
            draw_figure(figures[-1], f"component-{name}", column)
            column.caption(f"{MEASURES[name].meaning[0].upper()}{MEASURES[name].meaning[1:]}.")
    st.caption(
        f"Lines: mean over seeds, of each seed over the groups and their policies. Bars at the right, or bands: {SPREAD}; none "
        "with a single seed."
    )
    downloads(f"stability-{suite}", cells, [figure, *figures])


def choose_some_measures() -> list[str]:
    """Which components to draw; kept in the address."""
    defaults = ["peer-only support", "second moment of the weights", "hopeless prompts", "entropy"]
    chosen = st.multiselect("Measures", list(MEASURES), default=defaults, key="measures", bind="query-params")
    return list(chosen)


def _plane_rows(store: Store, suite: str, across: str, up: str) -> pd.DataFrame:
    columns, names = [], []
    for letter, name in (("x", across), ("y", up)):
        value = "stddev_samp(gradient_norm) / avg(gradient_norm)" if name == NOISE else f"avg({MEASURES[name].sql})"
        columns.append(f"{value} AS {letter}_")
        without = None if name == NOISE else MEASURES[name].without_peers
        names.append(
            f"CASE WHEN received = 0 THEN {without} ELSE {letter}_ END" if without is not None else f"{letter}_"
        )
    sql = _CELLS.format(x=names[0], y=names[1], columns=", ".join([*columns, "sum(peer_received) AS received"]))
    return store.frame(sql, suite)


def _unit(name: str) -> str:
    meaning = MEASURES[name].meaning
    return "share" if meaning.startswith("share") else "nats per token" if meaning.startswith("nats") else "value"


def _meaning(name: str) -> str:
    return (
        "standard deviation of the gradient norm over steps, over its mean" if name == NOISE else MEASURES[name].meaning
    )


def _order(store: Store, suite: str, regimes: list[str]) -> list[str]:
    return [r for r in store.regimes(suite) if r in regimes]


PAGE = Page(
    "stability",
    "Stability and support",
    ":material/scatter_plot:",
    "Peer data lets a policy learn what it never sampled itself (support) and makes its updates noisier (stability).",
    draw,
    order=30,
)
