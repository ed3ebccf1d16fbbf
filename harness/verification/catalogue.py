"""The scorers by name; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import PluginError
from harness.plugins import PluginRegistry, blame_plugin
from harness.verification.scorer import Called, Same, Scorer

PLUGINS: PluginRegistry[Scorer] = PluginRegistry("harness.scorers", "scorer", Scorer)


@dataclass(frozen=True, slots=True)
class ScorerInfo:
    """error: why it does not load. remark: `Scorer.remark`."""

    name: str
    summary: str
    origin: str
    error: str = ""
    remark: str = ""


def scorer_called(name: str) -> Called:
    scorer = PLUGINS.load(name)
    return Called(f"{scorer.__module__}:{scorer.__qualname__}", scorer.cpu_seconds, scorer.wall_seconds)


def scorer_of(name: str) -> Scorer:
    """Make the scorer of a name. Raises PluginError."""
    return PLUGINS.make(name)


def same_by(name: str) -> Same:
    """Return how a scorer tells votes apart. Votes of lm-eval's own rules, and of a scorer that is not installed, are told by
    their text."""
    try:
        scorer = scorer_of(name)
    except PluginError:
        return str.__eq__

    def same(a: str, b: str) -> bool:
        try:
            return bool(scorer.same(a, b))
        except Exception:  # a plugin raises anything, on texts that peers wrote; a vote is no reason to end a cell
            return a == b

    return same


def list_scorers() -> list[ScorerInfo]:
    return [_describe_scorer(name) for name in PLUGINS.installed()]


def _describe_scorer(name: str) -> ScorerInfo:
    """Return what the listing says of a scorer."""
    try:
        scorer = scorer_of(name)
        with blame_plugin(f"scorer {name!r}: `remark`"):
            remark = scorer.remark()
    except PluginError as error:
        return ScorerInfo(name, "", PLUGINS.origin(name), str(error))
    summary = (type(scorer).__doc__ or "").strip().partition("\n")[0]
    return ScorerInfo(name, summary, PLUGINS.origin(name), remark=remark)
