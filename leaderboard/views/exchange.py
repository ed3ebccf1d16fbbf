"""Who sent what to whom, what was refused, and what it was good for."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from harness.store.reference_results import MARK
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.parts import choose, downloads, draw_figure, empty
from leaderboard.view import Page, View

_FLOWS = """
SELECT c.group_name AS "group", c.regime, f.author, f.receiver, f.kind, f.accepted, f.reason, sum(f.records) AS records,
    sum(f.bytes) AS bytes, sum(f.source_tokens) AS source_tokens, sum(f.receiver_tokens) AS receiver_tokens, sum(f.used) AS used,
    sum(f.peer_right) AS peer_right,
    sum(f.residual_text * f.records) / sum(f.records) FILTER (f.residual_text IS NOT NULL) AS residual_text,
    sum(f.residual_boundary * f.records) / sum(f.records) FILTER (f.residual_boundary IS NOT NULL) AS residual_boundary,
    sum(f.residual_mass * f.records) / sum(f.records) FILTER (f.residual_mass IS NOT NULL) AS residual_mass,
    sum(f.residual_length * f.records) / sum(f.records) FILTER (f.residual_length IS NOT NULL) AS residual_length,
    sum(f.residual_canonical * f.records) / sum(f.records) FILTER (f.residual_canonical IS NOT NULL) AS residual_canonical
FROM current_cells c JOIN flows f USING (suite, cell) WHERE c.suite = ? AND c.kind = 'cell' GROUP BY ALL
"""
_RESCUES = """
SELECT c.group_name AS "group", c.regime, t.policy, sum(t.prompts) AS prompts, sum(t.prompts_all_wrong) AS hopeless,
    sum(t.prompts_rescued) AS rescuable, sum(t.peer_received) AS received, sum(t.peer_used) AS used
FROM current_cells c JOIN totals t USING (suite, cell) WHERE c.suite = ? AND c.kind = 'cell' GROUP BY ALL
ORDER BY 1, 2, 3
"""
RESIDUALS = ("text", "boundary", "mass", "length", "canonical")


def draw(store: Store, suite: str, view: View) -> None:
    """Flows, refusals, residuals, rescues."""
    flows = store.frame(_FLOWS, suite)
    rescues = store.frame(_RESCUES, suite)
    if flows.empty and not rescues["received"].sum():
        empty("Nothing was exchanged in this suite: none of its finished regimes shares anything.")
        return
    if flows.empty:
        empty(
            "Who sent which answer to whom was not kept with these results; a run of your own keeps it. What came of it:",
            f"harness run {suite.removesuffix(MARK)}",
        )
        _rescues(rescues)
        return
    with st.container(horizontal=True, gap="small"):
        group = choose("Group", [g for g in store.groups(suite) if g in set(flows["group"])], "group", width=220)
        regimes = ["all", *(r for r in store.regimes(suite) if r in set(flows.loc[flows["group"] == group, "regime"]))]
        regime = choose("Regime", regimes, "regime", width=220)
    part = flows[flows["group"] == group]
    chosen = part if regime == "all" else part[part["regime"] == regime]
    total, accepted = chosen["records"].sum(), chosen.loc[chosen["accepted"], "records"].sum()
    rescues = rescues[(rescues["group"] == group) & ((regime == "all") | (rescues["regime"] == regime))]
    received = rescues["received"].sum()
    with st.container(horizontal=True):
        st.metric("Messages", f"{total:,.0f}")
        st.metric("Accepted", f"{accepted / total:.2%}" if total else "–")
        st.metric(
            "Gave a gradient",
            f"{rescues['used'].sum() / received:.1%}" if received else "–",
            help="Share of the received peer answers of which a token had a nonzero gradient, as `used` in the ranking.",
        )
        st.metric("Sent", _bytes(float(chosen["bytes"].sum())))
    chosen = chosen.assign(
        edge=chosen["author"] + " → " + chosen["receiver"],
        fate=[_fate(r.accepted, r.reason) for r in chosen.itertuples()],
        share=chosen["regime"] + ": " + chosen["kind"],
    )
    edges = (
        chosen.groupby(["edge", "share"], as_index=False, sort=False)["bytes"].sum().rename(columns={"bytes": "value"})
    )
    edges["value"] /= 1e6
    fates = (
        chosen.groupby(["regime", "fate"], as_index=False, sort=False)["records"]
        .sum()
        .rename(columns={"records": "value"})
    )
    order = store.regimes(suite)
    colours = dict(zip(chosen["share"], map(charts.colour_of, chosen["regime"]), strict=True))
    figures = [
        charts.bars(edges, f"{group}: who sent what to whom", "megabytes, all seeds", "edge", "share", colours=colours),
        charts.bars(fates, f"{group}: accepted, or refused and why", "messages, all seeds", "regime", "fate", order),
    ]
    for column, figure, key in zip(st.columns(2), figures, ("edges", "fates"), strict=True):
        draw_figure(figure, key, column)
    st.header("Residuals of carrying text between tokenizers")
    _residuals(chosen)
    _rescues(rescues.drop(columns=["group"]))
    downloads(f"exchange-{suite}-{group}", part, figures)


def _rescues(rescues: pd.DataFrame) -> None:
    st.header("Rescues")
    st.caption("Hopeless: prompts on which all own answers failed. Rescuable: those of them on which a peer succeeded.")
    rescues = rescues.assign(share=rescues["rescuable"] / rescues["hopeless"].where(rescues["hopeless"] > 0))
    st.dataframe(
        rescues,
        hide_index=True,
        key="rescues",
        placeholder="–",
        alt="Hopeless and rescuable prompts by regime and policy",
        column_config={
            "group": "Group",
            "share": st.column_config.NumberColumn("Rescuable, share", format="percent"),
            "received": "Peer answers received",
            "used": "Peer answers used",
        },
    )


def _residuals(chosen: pd.DataFrame) -> None:
    names = [f"residual_{name}" for name in RESIDUALS]
    known = chosen[chosen["accepted"]].dropna(subset=["residual_boundary"])
    if known.empty:
        st.caption("No text travelled here.")
        return
    weighted = (
        known[names]
        .multiply(known["records"], axis=0)
        .assign(author=known["author"], receiver=known["receiver"], records=known["records"])
    )
    sums = weighted.groupby(["author", "receiver"], as_index=False, sort=False).sum(min_count=1)
    sums[names] = sums[names].div(sums["records"], axis=0)
    st.dataframe(
        sums.rename(columns={f"residual_{name}": name for name in RESIDUALS}),
        hide_index=True,
        key="residuals",
        placeholder="–",
        alt="Mean residuals by author and receiver",
        column_config={name: st.column_config.NumberColumn(format="%.3g", help=_HELP[name]) for name in RESIDUALS},
    )


_HELP = {
    "text": "byte edit distance after decode, encode, decode, over the length",
    "boundary": "share of the receiver's tokens in chunks that are not 1-1 or n-1",
    "mass": "difference of the summed log-probabilities, nats",
    "length": "relative difference of the numbers of tokens",
    "canonical": "share of source tokens that re-encoding the author's own text does not give",
}


def _fate(accepted: bool, reason: str) -> str:
    return "accepted" if accepted else f"refused: {reason or 'no reason'}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


PAGE = Page(
    "exchange",
    "Exchange",
    ":material/swap_horiz:",
    "Who sent what to whom, what was refused, and what it was good for.",
    draw,
    order=60,
)
