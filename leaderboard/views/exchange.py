"""Who sent what to whom, what was refused, and what it was good for."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from harness.store.reference_results import MARK
from leaderboard import charts
from leaderboard.data import Store
from leaderboard.page import Page, choose, downloads, draw_figures, draw_table, empty, number

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
_RESIDUALS = {
    "text": "byte edit distance after decode, encode, decode, over the length",
    "boundary": "share of the receiver's tokens in chunks that are not 1-1 or n-1",
    "mass": "difference of the summed log-probabilities, nats",
    "length": "relative difference of the numbers of tokens",
    "canonical": "share of source tokens that re-encoding the author's own text does not give",
}


def draw(store: Store, suite: str) -> None:
    flows, rescues = store.frame(_FLOWS, suite), store.frame(_RESCUES, suite)
    if flows.empty and not rescues["received"].sum():
        empty("Nothing was exchanged in this suite: none of its finished regimes shares anything.")
        return
    if flows.empty:
        empty(
            "Who sent which answer to whom was not kept with these results; a run of your own keeps it. What came of it:",
            f"harness run {suite.removesuffix(MARK)}",
        )
        _draw_rescues(rescues)
        return
    order = store.regimes(suite)
    with st.container(horizontal=True, gap="small"):
        group = choose("Group", [g for g in store.groups(suite) if g in set(flows["group"])], "group", width=220)
        part = flows[flows["group"] == group]
        regime = choose("Regime", ["all", *(r for r in order if r in set(part["regime"]))], "regime", width=220)
    every = regime == "all"
    chosen, rescues = part[every | (part["regime"] == regime)], rescues[rescues["group"] == group]
    rescues = rescues[every | (rescues["regime"] == regime)]
    _draw_totals(chosen, rescues)
    chosen = chosen.assign(
        edge=chosen["author"] + " → " + chosen["receiver"],
        share=chosen["regime"] + ": " + chosen["kind"],
        fate=("refused: " + chosen["reason"].replace("", "no reason")).mask(chosen["accepted"], "accepted"),
        megabytes=chosen["bytes"] / 1e6,
    )
    edges, fates = (
        chosen.groupby(by, as_index=False, sort=False)[of].sum().rename(columns={of: "value"})
        for by, of in ((["edge", "share"], "megabytes"), (["regime", "fate"], "records"))
    )
    colours = dict(zip(chosen["share"], map(charts.colour_of, chosen["regime"]), strict=True))
    figures = [
        charts.bars(edges, f"{group}: who sent what to whom", "megabytes, all seeds", "edge", "share", colours=colours),
        charts.bars(fates, f"{group}: accepted, or refused and why", "messages, all seeds", "regime", "fate", order),
    ]
    draw_figures(figures, "flows")
    _draw_residuals(chosen)
    _draw_rescues(rescues.drop(columns=["group"]))
    downloads(f"exchange-{suite}-{group}", lambda: part, figures)


def _draw_totals(flows: pd.DataFrame, rescues: pd.DataFrame) -> None:
    total, received, size = flows["records"].sum(), rescues["received"].sum(), float(flows["bytes"].sum())
    power = min(4, int(math.log10(max(size, 1.0))) // 3)
    help = "Share of the received peer answers of which a token had a nonzero gradient, as `used` in the ranking."
    with st.container(horizontal=True):
        st.metric("Messages", f"{total:,.0f}")
        st.metric("Accepted", f"{flows.loc[flows['accepted'], 'records'].sum() / total:.2%}" if total else "–")
        st.metric("Gave a gradient", f"{rescues['used'].sum() / received:.1%}" if received else "–", help=help)
        st.metric("Sent", f"{size / 1000**power:,.0f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}")


def _draw_rescues(rescues: pd.DataFrame) -> None:
    st.header("Rescues")
    st.caption("Hopeless: prompts on which all own answers failed. Rescuable: those of them on which a peer succeeded.")
    rescues = rescues.assign(share=rescues["rescuable"] / rescues["hopeless"].where(rescues["hopeless"] > 0))
    titles = {"group": "Group", "received": "Peer answers received", "used": "Peer answers used"}
    titles |= {"share": number("Rescuable, share", "percent")}
    draw_table(rescues, "rescues", "Hopeless and rescuable prompts by regime and policy", titles)


def _draw_residuals(chosen: pd.DataFrame) -> None:
    st.header("Residuals of carrying text between tokenizers")
    names = {f"residual_{name}": name for name in _RESIDUALS}
    known = chosen[chosen["accepted"]].dropna(subset=["residual_boundary"])
    if known.empty:
        st.caption("No text travelled here.")
        return
    weighted = known.assign(**{name: known[name] * known["records"] for name in names})
    sums = weighted.groupby(["author", "receiver"], sort=False)[[*names, "records"]].sum(min_count=1)
    means = sums[[*names]].div(sums["records"], axis=0).rename(columns=names).assign(records=sums["records"])
    titles = {name: number(None, "%.3g", help) for name, help in _RESIDUALS.items()}
    draw_table(means.reset_index(), "residuals", "Mean residuals by author and receiver", titles)


PAGE = Page(
    "exchange",
    "Exchange",
    ":material/swap_horiz:",
    "Who sent what to whom, what was refused, and what it was good for.",
    draw,
    order=60,
)
