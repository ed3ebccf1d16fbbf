r"""Sets of real numbers and residue classes, each of which people write in several ways.

`x \ge 1`, `[1, \infty)` and `\{x : x \ge 1\}` are one set, and so are `x \ne 2`, `\mathbb{R} \setminus \{2\}` and
`(-\infty, 2) \cup (2, \infty)`. A set is read into intervals whose ends are kept as they were written; how ends are compared is
the caller's affair. Two ordinary brackets alone, as in `(1, 2)`, are a point as well as an interval: `is_certain` tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from harness.verification.notation import Items, split_items, without_blanks

__all__ = ["Congruence", "Interval", "RealSet", "read_congruence", "read_real_set"]

LOW, HIGH = r"-\infty", r"\infty"
_MOST_INTERVALS = 20
_MEMBER = re.compile(r"(?P<name>[A-Za-z](?:_\{?\w+\}?)?)\s*\\in(?![a-zA-Z])\s*")
_BUILDER = re.compile(
    r"\\\{\s*(?P<name>[A-Za-z])\s*(?:\\in(?![a-zA-Z])\s*(?:\\mathbb\s*\{?R\}?|R)\s*)?(?:\\mid(?![a-zA-Z])|\||:)\s*(?P<rule>.*)\\\}"
)
_REALS = re.compile(
    r"(?:\\mathbb\s*\{?\s*R\s*\}?|\(\s*-\s*\\infty\s*,\s*\+?\s*\\infty\s*\)|\\text\s*\{\s*all real numbers\s*\})"
)
_WITHOUT = re.compile(
    r"(?P<reals>.*?)\s*(?:\\setminus(?![a-zA-Z])|\\backslash(?![a-zA-Z])|-|\\)\s*\\\{(?P<points>.*)\\\}"
)
_UNION = re.compile(
    r"\\cup(?![a-zA-Z])|\\text\s*\{\s*,?\s*or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])"
)
_SIGN = re.compile(r"\\(?:leq?|geq?|lt|gt|neq?)(?![a-zA-Z])|[<>]")
_SIGNS = {r"\leq": r"\le", r"\geq": r"\ge", r"\lt": "<", r"\gt": ">", r"\neq": r"\ne"}
_NAME = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?")


class Interval(NamedTuple):
    """low, high: as written, or an infinity. closed: whether the low and the high end belong to it."""

    low: str
    high: str
    closed: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class RealSet:
    """A union of intervals, a point being one whose ends are the same.

    holes: points that are left out of a line without ends. name: of the variable, where one is named. is_certain: whether it can
    be nothing but a set (`(1, 2)` may be a point of the plane).
    """

    intervals: tuple[Interval, ...]
    holes: tuple[str, ...] = ()
    name: str = ""
    is_certain: bool = True


def read_real_set(text: str) -> RealSet | None:
    """Read a normalised text as a set of real numbers: an inequality, an interval, a set of points, their union, or the line
    without points.

    None where it is none in these notations.
    """
    text = text.strip()
    name = ""
    builder = _BUILDER.fullmatch(text)
    if builder:
        inner = _read_relation(builder["rule"].strip())
        if inner is not None and inner.name == builder["name"]:
            return inner
        return None
    member = _MEMBER.match(text)
    if member:
        name = member["name"]
        text = text[member.end() :]
    if _REALS.fullmatch(text):
        return RealSet((Interval(LOW, HIGH, (False, False)),), name=name)
    without = _WITHOUT.fullmatch(text)
    if without and _REALS.fullmatch(without["reals"].strip()):
        points = split_items(without["points"]).items
        return RealSet((Interval(LOW, HIGH, (False, False)),), tuple(points), name)
    parts = _split_union(text)
    if len(parts) > _MOST_INTERVALS:
        return None
    read = [_read_part(part) for part in parts]
    known = [part for part in read if part is not None]
    if len(known) < len(read):
        return None
    names = {part.name for part in known if part.name} | ({name} if name else set())
    if len(names) > 1 or (len(known) > 1 and any(part.holes for part in known)):
        return None
    intervals = tuple(interval for part in known for interval in part.intervals)
    certain = bool(name) or len(known) > 1 or known[0].is_certain
    return _join_around_holes(RealSet(intervals, known[0].holes, next(iter(names), ""), certain))


def _split_union(text: str) -> list[str]:
    r"""Return the parts of a union, cut at `\cup` and `or` outside braces."""
    parts = list[str]()
    start = 0
    for joint in _UNION.finditer(text):
        before = text[start : joint.start()]
        if before.count("{") - before.count("\\{") != before.count("}") - before.count("\\}"):
            continue
        parts.append(before.strip())
        start = joint.end()
    return [*parts, text[start:].strip()]


def _read_part(text: str) -> RealSet | None:
    r"""Read a part of a union: `x \in [0, 1]`, an inequality, `\{1, 2\}` or an interval; None where it is none."""
    member = _MEMBER.match(text)
    if member:
        inner = _read_part(text[member.end() :])
        return None if inner is None else RealSet(inner.intervals, inner.holes, member["name"])
    if _SIGN.search(text):
        return _read_relation(text)
    if text.startswith(r"\{") and text.endswith(r"\}"):
        points = split_items(text).items
        return RealSet(tuple(Interval(point, point, (True, True)) for point in points), is_certain=False)
    return _read_brackets(text)


def _read_brackets(text: str) -> RealSet | None:
    """Read an interval; one with two round brackets and two finite ends may be a point of the plane, so it is not certain."""
    if not re.fullmatch(r"[(\[].*[)\]]", text):
        return None
    # brackets of two kinds are no pair to `split_items`; the kinds are kept apart here
    items = split_items("(" + text[1:-1] + ")")
    if items.brackets != "()" or len(items.items) != 2 or not items.separators <= {",", ";"}:
        return None
    low, high = (_plain_infinity(end) for end in items.items)
    closed = (text[0] == "[", text[-1] == "]")
    certain = text[0] == "[" or text[-1] == "]" or low == LOW or high == HIGH
    return RealSet((Interval(low, high, closed),), is_certain=certain)


def _plain_infinity(end: str) -> str:
    """Return the end of an interval, with the one spelling of each infinity."""
    spelling = end.replace(" ", "").replace("{", "").replace("}", "")
    return {r"+\infty": HIGH, r"\infty": HIGH, r"-\infty": LOW}.get(spelling, end)


def _read_relation(text: str) -> RealSet | None:
    r"""Read an inequality of a name and numbers: `x < 2`, `2 < x`, `1 \le x < 2`, `x \ne 2`; None for another text."""
    signs = [_SIGNS.get(match.group(), match.group()) for match in _SIGN.finditer(text)]
    sides = [side.strip() for side in _SIGN.split(text)]
    if len(signs) == 1:
        left, right = sides
        if _NAME.fullmatch(left) and left not in ("e", "i") and not _has_name(right, left):
            return _one_sided(left, signs[0], right)
        if _NAME.fullmatch(right) and right not in ("e", "i") and not _has_name(left, right):
            return _one_sided(right, {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}.get(signs[0], signs[0]), left)
        return None
    if len(signs) != 2 or not _NAME.fullmatch(sides[1]) or "" in sides:
        return None
    low = sides[0]
    high = sides[2]
    if set(signs) <= {">", r"\ge"}:
        low, high, signs = high, low, [{">": "<", r"\ge": r"\le"}[sign] for sign in reversed(signs)]
    if not set(signs) <= {"<", r"\le"}:
        return None
    closed = (signs[0] == r"\le", signs[1] == r"\le")
    return RealSet((Interval(_plain_infinity(low), _plain_infinity(high), closed),), name=sides[1])


def _has_name(text: str, name: str) -> bool:
    """Return whether a name stands in a text as a letter of its own, not within a word or command."""
    return re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", text) is not None


def _one_sided(name: str, sign: str, value: str) -> RealSet | None:
    """Return the numbers that stand in a relation to a value: the ray behind it, or the line without it."""
    if not value:
        return None
    if sign == r"\ne":
        points = split_items(value).items
        return RealSet((Interval(LOW, HIGH, (False, False)),), tuple(points), name)
    if sign in ("<", r"\le"):
        return RealSet((Interval(LOW, value, (False, sign == r"\le")),), name=name)
    return RealSet((Interval(value, HIGH, (sign == r"\ge", False)),), name=name)


def _join_around_holes(real: RealSet) -> RealSet:
    r"""Join neighbours that leave out one point around it: `(-\infty, 2) \cup (2, \infty)` is the line without 2.

    Other unions stay as they are.
    """
    if len(real.intervals) < 2 or real.holes:
        return real
    left = list(real.intervals)
    first = next((interval for interval in left if interval.low == LOW), None)
    if first is None:
        return real
    holes = list[str]()
    current = first
    left.remove(first)
    while left:
        end = without_blanks(current.high)
        following = next((i for i in left if without_blanks(i.low) == end and not i.closed[0]), None)
        if following is None or current.closed[1]:
            return real
        left.remove(following)
        holes.append(current.high)
        current = following
    if current.high != HIGH:
        return real
    return RealSet((Interval(LOW, HIGH, (False, False)),), tuple(holes), real.name)


# Residue classes ---------------------------------------------------------------------------------------------------------

_CONGRUENCE = re.compile(
    r"(?:(?P<name>[A-Za-z])\s*(?:\\equiv(?![a-zA-Z])|=)\s*)?(?P<residues>.*?)\s*\\pmod\{(?P<modulus>[^{}]+)\}"
)


class Congruence(NamedTuple):
    """residues: as written. name: of what is congruent, where it is named."""

    name: str
    residues: tuple[str, ...]
    modulus: str


def read_congruence(text: str) -> Congruence | None:
    r"""Read residue classes: `n \equiv 0, 1 \pmod 4`, also several joined by `or` or commas; None for another text."""
    if "\\pmod" not in text:
        return None
    parts: list[Congruence] = []
    for part in _congruences_of(text):
        match = _CONGRUENCE.fullmatch(part)
        if match is None or "\\pmod" in match["residues"]:
            return None
        residues: Items = split_items(match["residues"].strip(" ,"))
        if residues.brackets or not residues.separators <= {",", "or", "and"}:
            return None
        parts.append(Congruence(match["name"] or "", tuple(residues.items), match["modulus"].strip()))
    names = {part.name for part in parts if part.name}
    moduli = {without_blanks(part.modulus) for part in parts}
    if len(names) > 1 or len(moduli) > 1:
        return None
    every = tuple(residue for part in parts for residue in part.residues)
    return Congruence(next(iter(names), ""), every, parts[0].modulus)


def _congruences_of(text: str) -> list[str]:
    """Return the congruences of a text, cut behind each modulus."""
    parts = list[str]()
    start = 0
    for modulus in re.finditer(r"\\pmod\{[^{}]+\}", text):
        part = text[start : modulus.end()]
        parts.append(
            re.sub(r"^(?:\s|,|;|\\text\s*\{\s*,?\s*(?:or|and)\s*\}|(?:or|and)(?![A-Za-z])|\\lor|\\vee)*", "", part)
        )
        start = modulus.end()
    if text[start:].strip():
        return [*parts, text[start:].strip()]
    return parts
