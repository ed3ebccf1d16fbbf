"""Who helps whom: what policies sent, used and gained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import msgspec
import pandas as pd
import streamlit as st

from harness.statistics.comparison import INCONCLUSIVE
from harness.store.by_task import read_task_help, read_task_rewards
from harness.store.statistic import POINTS
from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.charts import LEGEND, SIGNS
from leaderboard.data import COUNTED, Store
from leaderboard.page import (
    Page,
    choose_one,
    draw_figures,
    draw_regime_links,
    draw_table,
    number_column,
    offer_downloads,
    show_empty,
)

_FLOWS = f"""
SELECT c.group_name AS "group", c.regime, f.author, f.receiver, f.kind, f.accepted, f.reason, sum(f.records) AS records,
    sum(f.bytes) AS bytes, sum(f.source_tokens) AS source_tokens, sum(f.receiver_tokens) AS receiver_tokens, sum(f.used) AS used,
    sum(f.peer_right) AS peer_right,
    sum(f.residual_text * f.records) / sum(f.records) FILTER (f.residual_text IS NOT NULL) AS residual_text,
    sum(f.residual_boundary * f.records) / sum(f.records) FILTER (f.residual_boundary IS NOT NULL) AS residual_boundary,
    sum(f.residual_mass * f.records) / sum(f.records) FILTER (f.residual_mass IS NOT NULL) AS residual_mass,
    sum(f.residual_length * f.records) / sum(f.records) FILTER (f.residual_length IS NOT NULL) AS residual_length,
    sum(f.residual_canonical * f.records) / sum(f.records) FILTER (f.residual_canonical IS NOT NULL) AS residual_canonical
FROM current_cells c JOIN flows f USING (suite, cell) WHERE c.suite = ? AND {COUNTED} GROUP BY ALL
"""
_TOTALS = f"""
SELECT c.group_name AS "group", c.regime, t.policy, sum(t.prompts) AS prompts, sum(t.prompts_all_wrong) AS all_wrong,
    sum(t.prompts_rescued) AS peer_solved, sum(t.peer_received) AS received, sum(t.peer_used) AS used
FROM current_cells c JOIN totals t USING (suite, cell) WHERE c.suite = ? AND {COUNTED} GROUP BY ALL
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
    """Draw the page."""
    flows = store.frame(_FLOWS, suite)
    totals = store.frame(_TOTALS, suite)
    sharing = totals[totals["received"] > 0]
    if flows.empty and sharing.empty:
        show_empty("Nothing was exchanged in this suite: none of its finished regimes shares anything.")
        return
    places = pd.concat([flows[["group", "regime"]], sharing[["group", "regime"]]])
    with st.container(horizontal=True, gap="small"):
        group = choose_one("Group", [g for g in store.groups(suite) if g in set(places["group"])], "group", width=220)
        order = [r for r in store.regimes(suite) if r in set(places.loc[places["group"] == group, "regime"])]
        gains = _select_gains(store.show(suite), group)
        best = gains.groupby("variant")["gain"].mean().reindex(order)
        default = str(best.idxmax()) if best.notna().any() else order[0]
        regime = choose_one("Regime", ["all", *order], "regime", default, width=220)
    chosen = order if regime == "all" else [regime]
    part = flows[(flows["group"] == group) & flows["regime"].isin(chosen)]
    totals = totals[(totals["group"] == group) & totals["regime"].isin(chosen)]
    figures = [_network(name, part, totals, gains) for name in chosen]
    draw_figures(figures, "network")
    st.caption(
        "An arrow: what one policy sent to another over all seeds, and how many answers of it gave a gradient (one that was sent "
        "several times counts once); the wider, the more did. Under a policy and in the arrow's colour: the policy's own gain in "
        f"points over training without sharing with the same rollouts, mean over seeds, with its verdict. {LEGEND}"
    )
    draw_regime_links(store, chosen)
    if part.empty:
        st.caption(
            "These results kept what each policy received and used, and not who sent it: of more than two policies, arrows have no "
            "numbers. A run of your own keeps both."
        )
    else:
        _draw_totals(part, totals)
        figures.append(_chart_fates(part, group, order))
        draw_figures(figures[len(chosen) :], "flows")
        _draw_residuals(part)
    _draw_all_wrong(totals.drop(columns=["group"]))
    _draw_tasks(store, suite, group, chosen)
    offer_downloads(f"exchange-{suite}-{group}", lambda: totals if part.empty else part, figures)


def _chart_fates(flows: pd.DataFrame, group: str, order: Sequence[str]) -> charts.Figure:
    """Return how many messages were accepted, or refused for each reason, by regime."""
    reason = "refused: " + flows["reason"].replace("", "no reason")
    fates = flows.assign(fate=reason.mask(flows["accepted"], "accepted"))
    counts = fates.groupby(["regime", "fate"], as_index=False, sort=False)["records"].sum()
    counts = counts.rename(columns={"records": "value"})
    title = f"{group}: accepted, or refused and why"
    return charts.draw_bars(counts, title, "messages, all seeds", "regime", "fate", order)


def _select_gains(table: pd.DataFrame, group: str) -> pd.DataFrame:
    """Return the rows of the group's policies by its first metric and task."""
    rows = table[(table["group"] == group) & (table["policy"] != MEAN)]
    if rows.empty:
        return rows
    first = rows.iloc[0]
    return rows[(rows["metric"] == first["metric"]) & (rows["task"] == first["task"])]


def _network(regime: str, flows: pd.DataFrame, totals: pd.DataFrame, gains: pd.DataFrame) -> charts.Figure:
    totals = totals[totals["regime"] == regime].set_index("policy")
    own = gains[gains["variant"] == regime].drop_duplicates("policy").set_index("policy")
    sent = flows[flows["regime"] == regime].groupby(["author", "receiver"])[["records", "used"]].sum()
    names = list(dict.fromkeys([*totals.index, *sent.index.get_level_values("author")]))  # of a replay others too
    nodes = pd.DataFrame({"name": names}).assign(gain="", verdict=INCONCLUSIVE)
    for i, policy in enumerate(names):
        if policy in own.index and pd.notna(own.loc[policy, "gain"]):
            verdict = own.loc[policy, "verdict"]
            nodes.loc[i, ["gain", "verdict"]] = f"{POINTS.text(own.loc[policy, 'gain'])} {SIGNS[verdict]}", verdict
    edges, verb = [], "received" if sent.empty else "sent"
    for author, receiver in permutations(names, 2):
        if (author, receiver) in sent.index:
            records, used = sent.loc[(author, receiver), ["records", "used"]]
        elif sent.empty and len(totals) == 2:  # of two, the other one sent it
            records, used = totals.loc[receiver, ["received", "used"]]
        elif sent.empty:
            records, used = math.nan, math.nan
        else:
            continue
        label = f"{records:,.0f} {verb}, {used:,.0f} used" if records > 0 else ""
        edges.append({"author": author, "receiver": receiver, "used": used, "label": label})
    if sent.empty and len(totals) > 2:
        counts = zip(totals["received"], totals["used"], strict=True)
        told = [
            f"{received:,.0f} received, {used:,.0f} used" if received else "nothing received"
            for received, used in counts
        ]
        nodes["gain"] += "\n" + pd.Series(told)
    return charts.draw_network(nodes, pd.DataFrame(edges), f"{regime}: who helps whom")


def _draw_totals(flows: pd.DataFrame, totals: pd.DataFrame) -> None:
    total, size = flows["records"].sum(), float(flows["bytes"].sum())
    power = min(4, int(math.log10(max(size, 1.0))) // 3)
    help = "Peers' answers of which a token had a nonzero gradient; one that arrived several times counts once."
    with st.container(horizontal=True):
        st.metric("Messages", f"{total:,.0f}")
        st.metric("Accepted", f"{flows.loc[flows['accepted'], 'records'].sum() / total:.2%}" if total else "–")
        st.metric("Gave a gradient", f"{totals['used'].sum():,.0f}", help=help)
        st.metric("Sent", f"{size / 1000**power:,.0f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}")


def _draw_all_wrong(prompts: pd.DataFrame) -> None:
    """Draw on how many prompts all own answers were wrong, and how many of these a peer solved."""
    st.header("All-wrong prompts")
    st.caption("All wrong: prompts on which all own answers were wrong. Peer-solved: those of them that a peer solved.")
    prompts = prompts.assign(share=prompts["peer_solved"] / prompts["all_wrong"].where(prompts["all_wrong"] > 0))
    titles = {"group": "Group", "received": "Peer answers received", "used": "Peer answers used"}
    titles |= {"share": number_column("Peer-solved, share", "percent")}
    draw_table(prompts, "all-wrong", "All-wrong and peer-solved prompts by regime and policy", titles)


def _draw_tasks(store: Store, suite: str, group: str, regimes: Sequence[str]) -> None:
    """Draw, of mixed training, who helps whom on which task, and each policy's rewards by task; nothing of suites with one task."""
    rewards = [one for one in read_task_rewards(store.snapshot, suite) if one.group == group and one.regime in regimes]
    if not rewards:
        return
    st.header("Who helps whom on what")
    helped = pd.DataFrame(
        [
            {
                "regime": one.regime,
                "author": one.author,
                "receiver": one.receiver,
                "task": one.task,
                "received": one.received,
                "right": one.right / one.received,
                "used": one.used,
            }
            for one in read_task_help(store.snapshot, suite)
            if one.group == group and one.regime in regimes
        ]
    )
    if helped.empty:
        st.caption("Nobody was sent an answer here.")
    else:
        titles = {
            "task": "Task",
            "received": "Answers received",
            "right": number_column("Of these right", "percent"),
            "used": number_column("Answers used", "%d", "Answers of which a token had a nonzero gradient."),
        }
        draw_table(helped, "help-by-task", "Answers received and used by author, receiver and task", titles)
    by_task = pd.DataFrame([msgspec.structs.asdict(one) for one in rewards]).drop(columns=["group"])
    percent = {
        "first": "Right, first fifth",
        "last": "Right, last fifth",
        "all_wrong": "All-wrong prompts",
        "rescued": "Of these peer-solved",
        "curve_first": "Held out, first",
        "curve_last": "Held out, last",
    }
    columns = {"task": "Task"} | {name: number_column(title, "percent") for name, title in percent.items()}
    st.caption(
        "Below: right answers to each task's training questions in the first and the last fifth of the steps, all-wrong prompts, "
        "those of them that a peer solved, and held-out accuracy at the first and the last point of the curve."
    )
    draw_table(by_task, "rewards-by-task", "Rewards by regime, policy and task", columns)


def _draw_residuals(chosen: pd.DataFrame) -> None:
    st.header("Residuals of carrying text between tokenizers")
    names = {f"residual_{name}": name for name in _RESIDUALS}
    known = chosen[chosen["accepted"]].dropna(subset=[*names], how="all")
    if known.empty:
        st.caption("No text travelled here.")
        return
    weights = known[[*names]].notna().mul(known["records"], axis=0).assign(records=known["records"])
    places = [known["author"], known["receiver"]]
    sums, sizes = (part.groupby(places, sort=False).sum() for part in (known[[*names]] * weights[[*names]], weights))
    means = sums.div(sizes[[*names]]).rename(columns=names).assign(records=sizes["records"])
    titles = {name: number_column(None, "%.3g", help) for name, help in _RESIDUALS.items()}
    draw_table(means.reset_index(), "residuals", "Mean residuals by author and receiver", titles)


PAGE = Page(
    "exchange",
    "Exchange",
    ":material/swap_horiz:",
    "Who helps whom: what was sent, what of it was used, and what the receiver gained.",
    draw,
    order=60,
)
