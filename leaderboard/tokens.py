"""The retokenised view of a peer's answer: both tokenizers' cuts, their common edges, and log-probabilities."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from harness.store.text import visible

TOKEN_STYLE = """<style>
.tokens {font-family: ui-monospace, monospace; font-size: .82rem; line-height: 1.3; overflow-wrap: anywhere; margin: .2rem 0 .6rem}
.tokens span {display: inline-block; text-align: center; padding: .1rem .18rem; margin: .06rem; border-radius: .2rem;
white-space: pre}
.tokens span.edge {border-right: 3px solid rgba(11,110,105,.9)}
.tokens small {display: block; font-size: .66rem; opacity: .85}
</style>"""
_MOST = 400
"""Tokens drawn."""


def token_view(trace: Mapping[str, Any]) -> str:
    """HTML of both segmentations of `peer_text`. Every value is escaped.

    `source_pieces` and `receiver_pieces` are byte lengths; the chunk edges are the offsets that end a token in both.
    """
    content = str(trace["peer_text"]).encode()
    source, receiver = _numbers(trace["source_pieces"]), _numbers(trace["receiver_pieces"])
    edges = set(accumulate(source)) & set(accumulate(receiver))
    upper = _line(content, source, edges, _numbers(trace["source_logprobs"]), (), "Tokens of the author")
    lower = _line(
        content,
        receiver,
        edges,
        _numbers(trace["aligned"]),
        _numbers(trace["receiver_logprobs"]),
        "Tokens of the receiver",
    )
    return upper + lower


def _line(
    content: bytes,
    pieces: Sequence[float],
    edges: set[float],
    first: Sequence[float],
    second: Sequence[float],
    label: str,
) -> str:
    spans, start = [], 0
    for i, size in enumerate(pieces[:_MOST]):
        end = start + int(size)
        text = html.escape(visible(content[start:end].decode(errors="replace")).replace("\n", "⏎")) or "∅"
        values = [f"{v[i]:z.2f}" if k == 0 else f"({v[i]:z.2f})" for k, v in enumerate((first, second)) if i < len(v)]
        likely = math.exp(min(first[i], 0.0)) if i < len(first) and not math.isnan(first[i]) else 1.0
        style = f"background: rgba(59,111,212,{0.08 + 0.5 * (1 - likely):.2f})"
        kind = ' class="edge"' if end in edges else ""
        spans.append(f'<span{kind} style="{style}">{text}<small>{" ".join(values) or "&nbsp;"}</small></span>')
        start = end
    more = f" … {len(pieces) - _MOST} more tokens" if len(pieces) > _MOST else ""
    return f'<div class="tokens" role="group" aria-label="{label}">{"".join(spans)}{more}</div>'


def _numbers(values: Any) -> list[float]:
    return [] if values is None else [float(v) for v in values]
