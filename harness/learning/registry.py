"""Regimes by name, through the entry-point group `harness.regimes`."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from harness.errors import PluginError
from harness.experience.records import SHIPPED, AnswerRecord, Draft, Record, Rollout, require_bounded
from harness.learning.regime import Need, Regime
from harness.learning.terms import OldLogprobs
from harness.plugins import PluginRegistry, blame_plugin
from harness.suite.space import Space, as_dict, spaces_of

__all__ = [
    "RegimeInfo",
    "build",
    "check_declaration",
    "check_options",
    "list_regimes",
    "load",
    "option_name",
    "resolve_options",
    "search_spaces",
]

PLUGINS: PluginRegistry[Regime] = PluginRegistry("harness.regimes", "regime", Regime)
installed = PLUGINS.installed


_PAPER = re.compile(r"\b\d{4}\.\d{5}\b")


@dataclass(frozen=True, slots=True)
class RegimeInfo:
    """As listings show it. source: what its module says of itself. status: published, or with defaults of ours. error: why
    it does not load."""

    name: str
    origin: str
    summary: str = ""
    source: str = ""
    status: str = ""
    shares: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    spaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    old_logprobs: str = ""
    error: str = ""

    @property
    def papers(self) -> tuple[str, ...]:
        """Numbers of the papers on arXiv that its module names."""
        return tuple(dict.fromkeys(_PAPER.findall(self.source)))


def load(name: str) -> type[Regime]:
    """Return the regime's class. Raises PluginError."""
    regime = PLUGINS.load(name)
    if not dataclasses.is_dataclass(regime.Options):
        raise PluginError(f"regime {name!r} ({regime.__module__}:{regime.__name__}): Options is not a dataclass")
    return regime


def build(name: str, options: Mapping[str, Any]) -> Regime:
    """Return an instance with validated options. Raises PluginError."""
    regime = load(name)
    with blame_plugin(f"regime {name!r} cannot be built"):
        instance = regime(check_options(regime, options))
        check_declaration(instance)
        return instance


def check_declaration(regime: Regime) -> None:
    """Check what a regime declares. Raises PluginError."""
    name = type(regime).__name__
    if not isinstance(getattr(regime, "options", None), regime.Options):
        raise PluginError(f"{name} must keep its Options as `options`: call super().__init__(options)")
    _check_shares(name, regime.shares)
    _check_needs(name, regime)
    has_hints = type(regime).hints is not Regime.hints
    if (has_hints and regime.hint_tokens < 1) or regime.hint_tokens < 0:
        raise PluginError(f"{name} has `hints` and must say in `hint_tokens` how long they may be")


def _check_shares(name: str, shares: object) -> None:
    """Require types of records that can travel. name: of the regime's class. Raises PluginError."""
    are_kinds = isinstance(shares, frozenset) and all(isinstance(k, type) and issubclass(k, Record) for k in shares)
    if not are_kinds:
        known = ", ".join(sorted(kind.__name__ for kind in SHIPPED))
        raise PluginError(f"{name} must declare `shares` as a frozenset of {known}, or of record types of its own")
    assert isinstance(shares, frozenset)
    try:
        for kind in shares - SHIPPED:
            require_bounded(kind)
        # A decoder of all of them is made only to be refused here: types that cannot be told apart in a message
        msgspec.msgpack.Decoder(Union[tuple(SHIPPED | shares)])  # noqa: UP007  # the types are known only now
    except (TypeError, ValueError) as error:
        said = str(error).partition(" - type ")[0]  # without the union of all types, which msgspec writes behind it
        raise PluginError(f"{name} shares a record that cannot travel: {said}") from None


def _check_needs(name: str, regime: Regime) -> None:
    """Require needs that exist and that the shared records can meet. name: of the regime's class. Raises PluginError."""
    needs = regime.needs
    shares = regime.shares
    if not isinstance(needs, frozenset) or not needs <= set(Need):
        known = ", ".join(f"Need.{need.name}" for need in Need)
        raise PluginError(f"{name} must declare `needs` as a frozenset of {known}")
    if regime.old_logprobs not in get_args(OldLogprobs):
        known = ", ".join(get_args(OldLogprobs))
        raise PluginError(f"{name} must declare `old_logprobs` as one of {known}")
    if Need.ALIGNED in needs and Rollout not in shares:
        raise PluginError(
            f"{name} needs peers' log-probabilities (Need.ALIGNED) but does not share Rollout, their only carrier"
        )
    if (Need.SCORES in needs) != (Draft in shares):
        raise PluginError(
            f"{name}: Need.SCORES and Draft, what peers score, belong together; one of them is not declared"
        )
    if Need.START_SCORES in needs and Need.SCORES not in needs:
        raise PluginError(f"{name} needs peers' scores at their start (Need.START_SCORES) without Need.SCORES")
    carries_answers = any(issubclass(kind, AnswerRecord) for kind in shares)
    if Need.RECEIVER_OLD in needs and not carries_answers:
        raise PluginError(f"{name} needs to score peers' answers (Need.RECEIVER_OLD) but shares none")


def check_options(regime: type[Regime], options: Mapping[str, Any]) -> Any:
    """Return a suite's `options` as the regime's Options. Raises PluginError."""
    fields = {option_name(field): field.name for field in dataclasses.fields(regime.Options)}
    hints = get_type_hints(regime.Options, include_extras=True)
    checked = {}
    for key, value in options.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            has = f"options: {', '.join(fields)}" if fields else "it has no options"
            raise PluginError(f"{key}: unknown key or option{meant} ({has})")
        name = fields[key]
        try:
            checked[name] = msgspec.convert(value, hints[name], strict=True)
        except msgspec.ValidationError as error:
            allowed = _describe_choices(hints[name])
            raise PluginError(f"{key}: {error}, got {value!r}{allowed}") from None
    try:
        return regime.Options(**checked)
    except ValueError as error:
        raise PluginError(str(error)) from None


def _describe_choices(hint: Any) -> str:
    """Return the values that an option's type allows, as they follow an error; empty where they cannot be listed."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    choices = get_args(kind)
    return f" (one of {', '.join(map(str, choices))})" if choices else ""


def search_spaces(regime: type[Regime]) -> dict[str, Space]:
    """Search spaces by option. Raises PluginError where a default lies outside."""
    fields = {f.name: f for f in dataclasses.fields(regime.Options)}
    try:
        default = regime.Options()
        by_field = spaces_of(regime.Options, {name: getattr(default, name) for name in fields})
    except (TypeError, ValueError) as error:
        raise PluginError(f"{regime.__name__}: options: {error}") from None
    return {option_name(fields[name]): space for name, space in by_field.items()}


def option_name(field: dataclasses.Field[Any]) -> str:
    """Return the key in a suite: `lambda` of `lambda_`."""
    return field.name.rstrip("_")


def resolve_options(options: Any) -> dict[str, Any]:
    """Return all options, as a suite would write them; without those of `younger` at these values, so that cells which were
    trained before there were such options keep their keys."""
    younger: Mapping[str, Any] = getattr(options, "younger", {})
    ordered: dict[str, Any] = {}
    for option in dataclasses.fields(options):
        value = getattr(options, option.name)
        if option.name in younger and value == younger[option.name]:
            continue
        if isinstance(value, set | frozenset):  # without an order of its own; keys hash what is written
            value = sorted(value, key=repr)
        ordered[option_name(option)] = value
    plain: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(ordered, enc_hook=str))
    return plain


def list_regimes() -> list[RegimeInfo]:
    """List the installed regimes, broken ones with their error."""
    regimes = []
    for name in PLUGINS.installed():
        origin = PLUGINS.origin(name)
        try:
            regimes.append(_describe_regime(name, origin))
        except PluginError as error:
            regimes.append(RegimeInfo(name, origin, error=str(error)))
    return regimes


def _describe_regime(name: str, origin: str) -> RegimeInfo:
    """Return a regime as listings show it. origin: of its package. Raises PluginError where it does not load."""
    regime = load(name)
    instance = build(name, {})
    options = resolve_options(instance.options)
    searched = {option: as_dict(space) for option, space in search_spaces(regime).items()}
    status = "with defaults of ours: formula or defaults are our reading in part"
    if regime.published:
        status = "published: formula and defaults"
    module = sys.modules[regime.__module__]
    shares = sorted(kind.__name__ for kind in regime.shares)
    return RegimeInfo(
        name=name,
        origin=origin,
        summary=_first_line(regime.__doc__),
        source=_first_line(module.__doc__),
        status=status,
        shares=tuple(shares),
        needs=tuple(sorted(instance.needs)),
        options=options,
        spaces=searched,
        old_logprobs=regime.old_logprobs,
    )


def _first_line(text: str | None) -> str:
    """Return the first line of a docstring, empty where there is none."""
    return (text or "").strip().partition("\n")[0]


# Earlier names, which packages of others may import
resolved = resolve_options
spaces = search_spaces
listing = list_regimes
