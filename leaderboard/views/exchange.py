"""Who helps whom: what policies sent, used and gained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import msgspec
import pandas as pd
import streamlit as st

from harness.statistics.comparison import INCONCLUSIVE
from harness.store.by_task import TaskHelp, TaskReward, read_task_help, read_task_rewards
from harness.store.statistic import POINTS
from harness.store.table import MEAN
from leaderboard import charts
from leaderboard.data import COUNTED, Store
from leaderboard.looks import LEGEND, SIGNS
from leaderboard.network import draw_network
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
from leaderboard.specification import Figure

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


class _ChosenExchange(NamedTuple):
    """What the page shows. order: the group's regimes that exchange; regimes: those chosen; gains: of the group's policies."""

    group: str
    order: list[str]
    regimes: list[str]
    gains: pd.DataFrame


def draw(store: Store, suite: str) -> None:
    """Draw the page."""
    flows = store.query_frame(_FLOWS, suite)
    totals = store.query_frame(_TOTALS, suite)
    sharing = totals[totals["received"] > 0]
    if flows.empty and sharing.empty:
        show_empty("Nothing was exchanged in this suite: none of its finished regimes shares anything.")
        return
    of_both = ["group", "regime"]
    places = pd.concat([flows[of_both], sharing[of_both]])
    chosen = _choose_exchange(store, suite, places)
    part = _select_rows(flows, chosen.group, chosen.regimes)
    totals = _select_rows(totals, chosen.group, chosen.regimes)
    figures = [_chart_network(name, part, totals, chosen.gains) for name in chosen.regimes]
    draw_figures(figures, "network")
    st.caption(
        "An arrow: what one policy sent to another over all seeds, and how many answers of it gave a gradient (one that was sent "
        "several times counts once); the wider, the more did. Under a policy and in the arrow's colour: the policy's own gain in "
        f"points over training without sharing with the same rollouts, mean over seeds, with its verdict. {LEGEND}"
    )
    draw_regime_links(store, chosen.regimes)
    if part.empty:
        st.caption(
            "These results kept what each policy received and used, and not who sent it: of more than two policies, arrows have no "
            "numbers. A run of your own keeps both."
        )
    else:
        _draw_totals(part, totals)
        fates = _chart_fates(part, chosen.group, chosen.order)
        figures.append(fates)
        draw_figures([fates], "flows")
        _draw_residuals(part)
    _draw_all_wrong(totals.drop(columns=["group"]))
    _draw_tasks(store, suite, chosen.group, chosen.regimes)
    offer_downloads(f"exchange-{suite}-{chosen.group}", lambda: totals if part.empty else part, figures)


def _choose_exchange(store: Store, suite: str, places: pd.DataFrame) -> _ChosenExchange:
    """Let the reader choose a group and a regime; at first it is the regime with the largest mean gain.

    places: group and regime of each exchange."""
    with st.container(horizontal=True, gap="small"):
        with_exchange = set(places["group"])
        groups = [group for group in store.list_groups(suite) if group in with_exchange]
        group = choose_one("Group", groups, "group", width=220)
        of_group = set(places.loc[places["group"] == group, "regime"])
        order = [regime for regime in store.list_regimes(suite) if regime in of_group]
        gains = _select_gains(store.show_table(suite), group)
        best = gains.groupby("variant")["gain"].mean().reindex(order)
        default = str(best.idxmax()) if best.notna().any() else order[0]
        regime = choose_one("Regime", ["all", *order], "regime", default, width=220)
    regimes = order if regime == "all" else [regime]
    return _ChosenExchange(group, order, regimes, gains)


def _select_rows(rows: pd.DataFrame, group: str, regimes: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a group's regimes."""
    here = (rows["group"] == group) & rows["regime"].isin(regimes)
    return rows[here]


def _chart_fates(flows: pd.DataFrame, group: str, order: Sequence[str]) -> Figure:
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
    alike = (rows["metric"] == first["metric"]) & (rows["task"] == first["task"])
    return rows[alike]


def _chart_network(regime: str, flows: pd.DataFrame, totals: pd.DataFrame, gains: pd.DataFrame) -> Figure:
    """Return the figure of who helps whom under a regime.

    flows: what was sent, by author and receiver; none where results did not keep it. totals: what each policy received. gains: rows
    of the policies' gains.
    """
    totals = totals[totals["regime"] == regime].set_index("policy")
    of_variant = gains[gains["variant"] == regime]
    of_regime = flows[flows["regime"] == regime]
    sent = of_regime.groupby(["author", "receiver"])[["records", "used"]].sum()
    authors = sent.index.get_level_values("author")  # of a replay others than the policies too
    names = list(dict.fromkeys([*totals.index, *authors]))
    nodes = _list_nodes(names, of_variant)
    if sent.empty and len(totals) > 2:
        nodes["gain"] += "\n" + pd.Series(_tell_received(totals))
    edges = _list_edges(names, sent, totals)
    return draw_network(nodes, pd.DataFrame(edges), f"{regime}: who helps whom")


def _list_nodes(names: Sequence[str], gains: pd.DataFrame) -> pd.DataFrame:
    """Return the policies with their gain in words and its verdict; without words where it is not known. gains: of one regime."""
    nodes = pd.DataFrame({"name": names}).assign(gain="", verdict=INCONCLUSIVE)
    own = gains.drop_duplicates("policy").set_index("policy")
    for place, policy in enumerate(names):
        if policy in own.index and pd.notna(own.loc[policy, "gain"]):
            verdict = own.loc[policy, "verdict"]
            gain = POINTS.text(own.loc[policy, "gain"])
            nodes.loc[place, ["gain", "verdict"]] = f"{gain} {SIGNS[verdict]}", verdict
    return nodes


def _list_edges(names: Sequence[str], sent: pd.DataFrame, totals: pd.DataFrame) -> list[dict[str, object]]:
    """Return an arrow for each author and receiver. sent: answers and used ones by author and receiver; totals: by policy."""
    verb = "received" if sent.empty else "sent"
    edges: list[dict[str, object]] = []
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
    return edges


def _tell_received(totals: pd.DataFrame) -> list[str]:
    """Say of each policy what it received, from whomever, and what of it was used."""
    told = []
    for received, used in zip(totals["received"], totals["used"], strict=True):
        told.append(f"{received:,.0f} received, {used:,.0f} used" if received else "nothing received")
    return told


def _draw_totals(flows: pd.DataFrame, totals: pd.DataFrame) -> None:
    """Draw how much was sent, let in and used. totals: of the policies, where an answer that arrives several times counts once."""
    total = flows["records"].sum()
    accepted = flows.loc[flows["accepted"], "records"].sum()
    used = totals["used"].sum()
    size = float(flows["bytes"].sum())
    power = min(4, int(math.log10(max(size, 1.0))) // 3)
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    help = "Peers' answers of which a token had a nonzero gradient; one that arrived several times counts once."
    with st.container(horizontal=True):
        st.metric("Messages", f"{total:,.0f}")
        st.metric("Accepted", f"{accepted / total:.2%}" if total else "–")
        st.metric("Gave a gradient", f"{used:,.0f}", help=help)
        st.metric("Sent", f"{size / 1000**power:,.0f} {unit}")


def _draw_all_wrong(prompts: pd.DataFrame) -> None:
    """Draw on how many prompts all own answers were wrong, and how many of these a peer solved."""
    st.header("All-wrong prompts")
    st.caption("All wrong: prompts on which all own answers were wrong. Peer-solved: those of them that a peer solved.")
    all_wrong = prompts["all_wrong"].where(prompts["all_wrong"] > 0)  # of none there is no share
    prompts = prompts.assign(share=prompts["peer_solved"] / all_wrong)
    titles = {"group": "Group", "received": "Peer answers received", "used": "Peer answers used"}
    titles |= {"share": number_column("Peer-solved, share", "percent")}
    draw_table(prompts, "all-wrong", "All-wrong and peer-solved prompts by regime and policy", titles)


def _draw_tasks(store: Store, suite: str, group: str, regimes: Sequence[str]) -> None:
    """Draw, of mixed training, who helps whom on which task, and each policy's rewards by task; nothing of suites with one task."""
    every_reward = read_task_rewards(store.snapshot, suite)
    rewards = [one for one in every_reward if one.group == group and one.regime in regimes]
    if not rewards:
        return
    st.header("Who helps whom on what")
    every_help = read_task_help(store.snapshot, suite)
    _draw_help([one for one in every_help if one.group == group and one.regime in regimes])
    _draw_rewards(rewards)


def _draw_help(helped: Sequence[TaskHelp]) -> None:
    """Draw, by task, how many of an author's answers each receiver got, were right and were used."""
    if not helped:
        st.caption("Nobody was sent an answer here.")
        return
    rows = []
    for one in helped:
        who = {"regime": one.regime, "author": one.author, "receiver": one.receiver, "task": one.task}
        right = one.right / one.received
        rows.append({**who, "received": one.received, "right": right, "used": one.used})
    titles = {
        "task": "Task",
        "received": "Answers received",
        "right": number_column("Of these right", "percent"),
        "used": number_column("Answers used", "%d", "Answers of which a token had a nonzero gradient."),
    }
    alt = "Answers received and used by author, receiver and task"
    draw_table(pd.DataFrame(rows), "help-by-task", alt, titles)


def _draw_rewards(rewards: Sequence[TaskReward]) -> None:
    """Draw each policy's right answers by task, in training and held out."""
    rows = [msgspec.structs.asdict(one) for one in rewards]
    by_task = pd.DataFrame(rows).drop(columns=["group"])
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
    """Draw how much text changes on its way from one tokenizer to another: means over messages, by author and receiver."""
    st.header("Residuals of carrying text between tokenizers")
    names = {f"residual_{name}": name for name in _RESIDUALS}
    columns = [*names]
    known = chosen[chosen["accepted"]].dropna(subset=columns, how="all")
    if known.empty:
        st.caption("No text travelled here.")
        return
    # a row is of many messages, and each residual of those of them that have it
    records = known["records"]
    weights = known[columns].notna().mul(records, axis=0)
    weighted = known[columns] * weights
    places = [known["author"], known["receiver"]]
    sums = weighted.groupby(places, sort=False).sum()
    sizes = weights.assign(records=records).groupby(places, sort=False).sum()
    means = sums.div(sizes[columns]).rename(columns=names).assign(records=sizes["records"])
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
