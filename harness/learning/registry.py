"""Regimes by name, through the entry-point group `harness.regimes`; nothing is imported before it is used."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, get_args, get_type_hints

from harness.errors import PluginError
from harness.experience.records import SHIPPED, Record, Rollout, Success, TextRollout, bounded
from harness.learning.regime import Need, Regime
from harness.learning.terms import OldLogprobs
from harness.plugins import Door
from harness.suite.space import Space, as_dict, spaces_of

__all__ = [
    "DOOR",
    "RegimeInfo",
    "build",
    "check_declaration",
    "check_options",
    "installed",
    "listing",
    "load",
    "option_name",
    "resolved",
    "spaces",
]

DOOR: Door[Regime] = Door("harness.regimes", "regime", Regime)
"""Where regimes plug in."""


@dataclass(frozen=True, slots=True)
class RegimeInfo:
    """One installed regime, or the reason why it does not load.

    Attributes
    ----------
    name
        In suites.
    origin
        Package, version and place.
    summary
        First line of the docstring.
    shares
        Names of record types.
    needs
        With the default options.
    options
        Defaults by option.
    spaces
        What tuning may try, by option.
    old_logprobs
        As declared.
    error
        Why it does not load; empty where it does.
    """

    name: str
    origin: str
    summary: str = ""
    shares: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    spaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    old_logprobs: str = ""
    error: str = ""


def installed() -> dict[str, EntryPoint]:
    """Entry points by name. Importing nothing."""
    return DOOR.installed()


def load(name: str) -> type[Regime]:
    """The regime's class.

    Raises
    ------
    PluginError
        With the nearest name, or with the import's own error; or its Options is no dataclass.
    """
    regime = DOOR.load(name)
    if not dataclasses.is_dataclass(regime.Options):
        raise PluginError(f"regime {name!r} ({regime.__module__}:{regime.__name__}): Options is not a dataclass")
    return regime


def build(name: str, options: Mapping[str, Any]) -> Regime:
    """An instance with validated options, and with needs that its shares can meet.

    Parameters
    ----------
    name
        Of an installed regime.
    options
        As in a suite.

    Raises
    ------
    PluginError
        As `load` and `check_options`; or the plugin's own code fails.
    """
    regime = load(name)
    try:
        instance = regime(check_options(regime, options))
        check_declaration(instance)
    except PluginError:
        raise
    except Exception as error:  # the plugin's own code again
        raise PluginError(f"regime {name!r} cannot be built: {type(error).__name__}: {error}") from error
    return instance


def check_declaration(regime: Regime) -> None:
    """Whether what the regime needs can come from what it shares.

    Raises
    ------
    PluginError
        It cannot, or shares, needs or `old_logprobs` are not declared as they must be.
    """
    name, shares = type(regime).__name__, regime.shares
    if not isinstance(shares, frozenset) or not all(isinstance(k, type) and issubclass(k, Record) for k in shares):
        known = ", ".join(sorted(kind.__name__ for kind in SHIPPED))
        raise PluginError(f"{name} must declare `shares` as a frozenset of {known}, or of record types of its own")
    for kind in shares - SHIPPED:
        try:
            bounded(kind)
        except ValueError as error:
            raise PluginError(f"{name} shares a record that cannot travel: {error}") from None
    if not isinstance(regime.needs, frozenset) or not regime.needs <= set(Need):
        raise PluginError(f"{name} must declare `needs` as a frozenset of {', '.join(f'Need.{n.name}' for n in Need)}")
    if regime.old_logprobs not in get_args(OldLogprobs):
        raise PluginError(f"{name} must declare `old_logprobs` as one of {', '.join(get_args(OldLogprobs))}")
    if Need.ALIGNED in regime.needs and Rollout not in regime.shares:
        raise PluginError(
            f"{name} needs peers' log-probabilities (Need.ALIGNED) but does not share Rollout, their only carrier"
        )
    if Need.RECEIVER_OLD in regime.needs and not regime.shares & {Rollout, TextRollout, Success}:
        raise PluginError(f"{name} needs to score peers' answers (Need.RECEIVER_OLD) but shares none")


def check_options(regime: type[Regime], options: Mapping[str, Any]) -> Any:
    """`options` as the regime's Options.

    Parameters
    ----------
    regime
        A class.
    options
        As in a suite.

    Raises
    ------
    PluginError
        Starting with the option's name.
    """
    fields = {option_name(f): f.name for f in dataclasses.fields(regime.Options)}
    hints = get_type_hints(regime.Options)
    checked = {}
    for key, value in options.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            has = f"options: {', '.join(fields)}" if fields else "it has no options"
            raise PluginError(f"{key}: unknown key or option{f'; did you mean {near[0]!r}?' if near else ''} ({has})")
        checked[fields[key]] = _typed(key, value, hints[fields[key]])
    try:
        return regime.Options(**checked)
    except ValueError as error:
        raise PluginError(str(error)) from None


def spaces(regime: type[Regime]) -> dict[str, Space]:
    """The search spaces that the regime's options carry, by option.

    Raises
    ------
    PluginError
        A default lies outside its own.
    """
    fields = {f.name: f for f in dataclasses.fields(regime.Options)}
    try:
        default = regime.Options()
        found = spaces_of(regime.Options, {name: getattr(default, name) for name in fields})
    except (TypeError, ValueError) as error:
        raise PluginError(f"{regime.__name__}: options: {error}") from None
    return {option_name(fields[name]): space for name, space in found.items()}


def option_name(field: dataclasses.Field[Any]) -> str:
    """The option's key in a suite: the field's name, less the underscore that a Python keyword needs (`lambda_`)."""
    return field.name.rstrip("_")


def resolved(options: Any) -> dict[str, Any]:
    """All options with their values, as a suite would write them."""
    return {option_name(f): getattr(options, f.name) for f in dataclasses.fields(options)}


def _typed(key: str, value: Any, hint: Any) -> Any:
    """Strict, but for int where a float is due."""
    import msgspec

    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        allowed = f" (one of {', '.join(map(str, get_args(hint)))})" if get_args(hint) else ""
        raise PluginError(f"{key}: {error}{allowed}") from None


def listing() -> list[RegimeInfo]:
    """Every installed regime; a broken plugin is listed with its error."""
    found = []
    for name in DOOR.installed():
        origin = DOOR.origin(name)
        try:
            regime, instance = load(name), build(name, {})
            options = resolved(instance.options)
            searched = {name: as_dict(space) for name, space in spaces(regime).items()}
        except PluginError as error:
            found.append(RegimeInfo(name, origin, error=str(error)))
            continue
        summary = (regime.__doc__ or "").strip().splitlines()
        shares = tuple(sorted(r.__name__ for r in regime.shares))
        found.append(
            RegimeInfo(
                name,
                origin,
                summary[0] if summary else "",
                shares,
                tuple(sorted(instance.needs)),
                options,
                searched,
                regime.old_logprobs,
            )
        )
    return found
