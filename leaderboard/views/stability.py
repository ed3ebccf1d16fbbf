"""What sharing pays in noise for what it gains in support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import streamlit as st

from leaderboard import charts
from leaderboard.data import COUNTED, Store
from leaderboard.frames import SPREAD, over_seeds
from leaderboard.page import (
    Page,
    choose_key,
    choose_keys,
    choose_some,
    draw_figure,
    draw_regime_links,
    escape_markdown,
    offer_downloads,
    show_empty,
)
from leaderboard.specification import Figure


class Measure(NamedTuple):
    """A column of `steps` (SQL) under a title, its meaning, its value where no peer answer was let in and none was measured."""

    title: str
    sql: str
    meaning: str
    without_peers: float | None = None

    @property
    def unit(self) -> str:
        """Return the unit that the meaning begins with."""
        for unit in ("share", "nats per token"):
            if self.meaning.startswith(unit):
                return unit
        return "value"


# By their key in the address
MEASURES: dict[str, Measure] = {
    "support": Measure(
        "peer-only support",
        "peer_only_support_share",
        "share of the tokens with a gradient that lie in a peer's answers made likelier where no own answer was right",
        0.0,
    ),
    "all-wrong": Measure(
        "all-wrong prompts",
        "prompts_all_wrong / nullif(prompts, 0)",
        "share of prompts on which all own answers were wrong",
    ),
    "peer-solved": Measure(
        "peer-solved prompts",
        "prompts_rescued / nullif(prompts_all_wrong, 0)",
        "share of the all-wrong prompts that a peer solved",
    ),
    "peer-used": Measure(
        "peer data used",
        "peer_used / nullif(others, 0)",
        "share of the other policies' answers with a nonzero gradient",
        0.0,
    ),
    "second-moment": Measure(
        "second moment of the weights",
        "weight_second_moment",
        "mean of the squared importance weights on peer data, before clipping; 1 without peers, and 1 for imitation (SGT), "
        "which uses no ratio and pays in bias instead; of LUFFY and CHORD their tokens' weights, which are below 1",
        1.0,
    ),
    "effective-sample": Measure(
        "effective sample size",
        "effective_sample_size",
        "share of the peer data that its importance or token weights leave; 1 without peers and for imitation (SGT)",
        1.0,
    ),
    "clipped": Measure(
        "clipped peer data",
        "clipped_share",
        "share of the peer tokens with advantage and weight whose gradient a bound of the ratio took away",
        0.0,
    ),
    "refused": Measure("refused peer data", "refused_share", "share of peer records that the receiver refused", 0.0),
    "hinted": Measure(
        "second round", "hinted_answers / nullif(rollouts, 0)", "share of rollouts sampled with a hint", 0.0
    ),
    "hinted-right": Measure(
        "right with a hint", "hinted_right / nullif(hinted_answers, 0)", "share of the second round's answers"
    ),
    "gradient-norm": Measure("gradient norm", "gradient_norm", "before clipping, mean over the step's updates"),
    "peer-gradient": Measure(
        "peer to own gradient",
        "peer_gradient_norm / nullif(own_gradient_norm, 0)",
        "norm of the peer terms' gradient over that of the own terms",
        0.0,
    ),
    "cosine": Measure("cosine of own and peer", "own_peer_cosine", "between the gradients of own and of peer terms"),
    "kl-step": Measure("KL to the step's start", "kl_step", "nats per token"),
    "kl-base": Measure("KL to the base policy", "kl_base", "nats per token"),
    "drift": Measure("sampler drift", "sampler_drift", "nats per token between the sampler and the trainer, mean"),
    "drift-99": Measure(
        "sampler drift, 99 %", "sampler_drift_p99", "nats per token that 99 % of the tokens stay below"
    ),
    "drift-outside": Measure(
        "answers the sampler puts outside the window",
        "sampler_drift_outside",
        "share of own answers whose first ratio to the sampler's log-probabilities is outside the regime's own bounds",
    ),
    "entropy": Measure(
        "entropy", "entropy", "nats per token of the sampling distribution, estimated from the sampled tokens"
    ),
}

NOISE, SUPPORT, SECOND_MOMENT = "noise", "support", "second-moment"
_FIRST = (SUPPORT, SECOND_MOMENT, "all-wrong", "entropy")
"""Measures that are drawn over steps unless others are chosen."""
_PER_CELL = {key: m._replace(sql=f"avg({m.sql})") for key, m in MEASURES.items()} | {
    NOISE: Measure(
        "gradient noise",
        "stddev_samp(gradient_norm) / avg(gradient_norm)",
        "standard deviation of the gradient norm over steps, over its mean",
    )
}

# Steps with the number of answers that the other policies sampled, or where there are none, of those received
_OTHERS = """(
    SELECT *, coalesce(nullif(sum(answers) OVER (PARTITION BY suite, cell, step) - answers, 0), peer_received) AS others
    FROM steps WHERE suite = $1
)"""
_CELLS = f"""
SELECT c.group_name AS "group", c.regime, c.seed, t.policy, x, y FROM current_cells c JOIN (
    SELECT suite, cell, policy, {{x}} AS x, {{y}} AS y FROM {_OTHERS} GROUP BY suite, cell, policy
) t USING (suite, cell) WHERE c.suite = $1 AND {COUNTED}
"""
_STEPS = f"""
SELECT c.group_name AS "group", c.regime, c.seed, t.step AS steps, {{value}} AS y
FROM current_cells c JOIN {_OTHERS} t USING (suite, cell) WHERE c.suite = $1 AND {COUNTED} AND y IS NOT NULL
"""


def draw(store: Store, suite: str) -> None:
    """Draw the page."""
    with st.container(horizontal=True, gap="small"):
        across = choose_key("Support (across)", _list_titles(SUPPORT), "x", width=260)
        up = choose_key("Stability (up)", _list_titles(SECOND_MOMENT), "y", width=260)
    query = _CELLS.format(x=_write_sql(across), y=_write_sql(up))
    cells = store.query_frame(query, suite)
    groups = choose_some("Groups", list(dict.fromkeys(cells["group"])), "group")
    of_groups = cells["group"].isin(groups)
    cells = cells[of_groups]
    present = set(cells["regime"])
    order = [regime for regime in store.list_regimes(suite) if regime in present]
    known = cells.dropna(subset=["x", "y"])
    if known.empty:
        show_empty("No policy has both of these here. Choose others, or set `training.measure_every` in the suite.")
        return
    figures = [_draw_plane(cells, across, up, order)]
    st.header("Components over steps")
    figures += _draw_components(store, suite, groups, order)
    st.caption(
        "Lines: mean over seeds, of each seed over the groups and their policies, named below the first figure. Bars at the right, "
        f"or bands: {SPREAD}; none with a single seed."
    )
    draw_regime_links(store, order)
    offer_downloads(f"stability-{suite}", lambda: cells, figures)


def _draw_plane(cells: pd.DataFrame, across: str, up: str, order: Sequence[str]) -> Figure:
    """Draw cells and the regimes' means by both measures; return the figure."""
    known = cells.dropna(subset=["x", "y"])
    means = known.groupby("regime", as_index=False)[["x", "y"]].mean()
    means = means.assign(kind="mean", group="all")
    rows = pd.concat([known.assign(kind="cell"), means])
    positive = (known["y"] > 0).all()
    log_y = bool(positive and known["y"].max() > 20 * known["y"].min())
    x, y = _PER_CELL[across], _PER_CELL[up]
    figure = charts.draw_plane(rows, "Support gained, stability paid", x.title, y.title, order, log_y)
    draw_figure(figure, "plane")
    measured = set(known["regime"])
    absent = escape_markdown(", ".join(regime for regime in order if regime not in measured))
    without = f" Without a mark: {absent} (not measured, or no peer answer took part)." if absent else ""
    st.caption(
        f"Across: {x.meaning}. Up: {y.meaning}. Small marks: one policy of one cell, mean over its "
        f"steps. Large marks: the regime's mean.{without}"
    )
    return figure


def _draw_components(store: Store, suite: str, groups: Sequence[str], order: Sequence[str]) -> list[Figure]:
    """Draw the measures and regimes that the reader chooses over steps, two figures beside each other; return the figures."""
    titles = {key: measure.title for key, measure in MEASURES.items()}
    chosen = choose_keys("Measures", titles, "measures", _FIRST)
    regimes = choose_some("Regimes (none: all)", order, "regime", store.choose_two(suite, order))
    places = (place for _ in chosen[::2] for place in st.columns(2))
    figures = list[Figure]()
    for place, key in zip(places, chosen, strict=False):
        measure = MEASURES[key]
        name = measure.title
        rows = store.query_frame(_STEPS.format(value=f"({measure.sql})"), suite)
        of_choice = rows["group"].isin(groups) & rows["regime"].isin(regimes)
        rows = rows[of_choice]
        if rows.empty:
            place.caption(f"{name}: not measured of these regimes.")
            continue
        most = 1.0 if measure.unit == "share" else None
        points = over_seeds(rows, [], "steps", most=most)
        named = () if figures else regimes  # the first figure has the legend of all
        figure = charts.draw_lines(points, name, "step", measure.unit, order, shown=named)
        draw_figure(figure, f"component-{key}", place)
        first_letter = measure.meaning[0].upper()
        place.caption(f"{first_letter}{measure.meaning[1:]}.")
        figures.append(figure)
    return figures


def _list_titles(first: str) -> dict[str, str]:
    """Return the titles of what a plane can show, one before the others."""
    keys = dict.fromkeys((first, NOISE, *MEASURES))
    return {key: _PER_CELL[key].title for key in keys}


def _write_sql(key: str) -> str:
    """Return the SQL of a measure over a cell's steps."""
    measure = _PER_CELL[key]
    known = measure.without_peers
    alone = f"CASE WHEN sum(peer_received) = 0 THEN {known} END"
    return measure.sql if known is None else f"coalesce({measure.sql}, {alone})"


PAGE = Page(
    "stability",
    "Stability and support",
    ":material/scatter_plot:",
    "Peer data lets a policy learn what it never sampled itself (support) and makes its updates noisier (stability).",
    draw,
    order=30,
    part_of="curves",
)
