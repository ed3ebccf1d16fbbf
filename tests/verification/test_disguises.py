"""A random search for disguises: answers that are the gold but for a sign, a scale, a letter or a far digit (28), each beside an
honest answer of the same make.

`DISGUISES=100000 pytest -n 0 tests/verification/test_disguises.py` searches longer; a truth is known for each, by how it is made.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from harness.verification.equivalence import same_answer
from harness.verification.expression import read_expression
from harness.verification.notation import normalise_answer

COUNT = int(os.environ.get("DISGUISES", "500"))
Points = dict[str, np.ndarray]


class Written(NamedTuple):
    """An expression as TeX and as a function of points."""

    tex: str
    value: Callable[[Points], np.ndarray]


class Pair(NamedTuple):
    form: str
    gold: str
    answer: str
    right: bool


def _points(draw: random.Random, names: str) -> Points:
    """Ordinary ones and ones of all sizes, of either sign."""
    dice = np.random.default_rng(draw.randrange(1 << 32))
    size = 10 ** dice.uniform(-12, 12, (len(names), 400)) * dice.choice((-1, 1), (len(names), 400))
    return dict(zip(names, np.hstack([dice.uniform(-11, 11, (len(names), 800)), size]), strict=True))


def _gold(draw: random.Random, v: str, w: str) -> Written:
    a, b, c = draw.randint(2, 9), draw.randint(1, 9), draw.randint(-9, 9) or 4
    signed = f"{c:+d}"
    return draw.choice(
        (
            Written(v, lambda p: p[v]),
            Written(f"{a}{v}{signed}", lambda p: a * p[v] + c),
            Written(f"{v}^2{signed}{v}-{a}", lambda p: p[v] ** 2 + c * p[v] - a),
            Written(f"({v}-{b})({v}-{b + 1})", lambda p: (p[v] - b) * (p[v] - b - 1)),
            Written(f"{v}^3-{a}{v}", lambda p: p[v] ** 3 - a * p[v]),
            Written(rf"\frac{{{a}}}{{{v}{signed}}}", lambda p: a / (p[v] + c)),
            Written(rf"{a}\sin {v}", lambda p: a * np.sin(p[v])),
            Written(f"e^{{{v}}}-{a}", lambda p: np.exp(p[v]) - a),
            Written(f"2^{{{v}}}{signed}", lambda p: 2 ** p[v] + c),
            Written(rf"{v}\sqrt{{{a}}}", lambda p: p[v] * a**0.5),
            Written(rf"{a}\sqrt{{{v}}}-{b}", lambda p: a * np.sqrt(p[v]) - b),
            Written(rf"\ln {v}", lambda p: np.log(p[v])),
            Written(f"{v} {w}", lambda p: p[v] * p[w]),
            Written(f"{v}-{a}{w}", lambda p: p[v] - a * p[w]),
            Written(rf"\frac{{{v}}}{{{w}}}+{a}", lambda p: p[v] / p[w] + a),
            Written(f"{v}^2-{w}^2", lambda p: p[v] ** 2 - p[w] ** 2),
            Written(rf"\frac{{{a}}}{{{b}}}{v} {w}^2", lambda p: a / b * p[v] * p[w] ** 2),
        )
    )


def _disguises(
    draw: random.Random, gold: Written, v: str, w: str
) -> list[tuple[str, str, Callable[[Points], np.ndarray]]]:
    g, at = gold
    c, scale = draw.randint(-20, 20), draw.randint(1, 10)
    s = 10**scale
    sign = f"{-c:+d}"
    far = draw.choice((9, 20, 40, 80, 150, 300))
    return [
        ("absolute", f"|{g}|", lambda p: at(p) < 0),
        ("root of a square", rf"\sqrt{{({g})^2}}", lambda p: at(p) < 0),
        ("fourth root", rf"\sqrt[4]{{({g})^4}}", lambda p: at(p) < 0),
        ("square of a root", rf"(\sqrt{{{g}}})^2", lambda p: at(p) < 0),
        ("exponential of a logarithm", rf"e^{{\frac{{1}}{{2}}\ln(({g})^2)}}", lambda p: at(p) < 0),
        ("arcsine of the sine", rf"\arcsin(\sin({g}))", lambda p: np.abs(at(p)) > 1.6),
        ("arctangent of the tangent", rf"\arctan(\tan({g}))", lambda p: np.abs(at(p)) > 1.6),
        ("arccosine of the cosine", rf"\arccos(\cos({g}))", lambda p: at(p) < 0),
        ("floor of a square", rf"{g}+\lfloor \frac{{{v}^2}}{{{s}}} \rfloor", lambda p: p[v] ** 2 >= s),
        ("floor", rf"{g}+\lfloor \frac{{|{v}|}}{{{s}}} \rfloor", lambda p: np.abs(p[v]) >= s),
        ("ceiling", rf"{g}-\lceil -\frac{{{v}^2}}{{{s}}} \rceil", lambda p: p[v] ** 2 >= s),
        ("floor near zero", rf"{g}+\lfloor \frac{{1}}{{{s}{v}^2}} \rfloor", lambda p: p[v] ** 2 * s <= 1),
        ("corner", rf"{g}+|{v}{sign}|-({v}{sign})", lambda p: p[v] < c),
        ("other corner", rf"{g}+\sqrt{{({v}{sign})^2}}+({v}{sign})", lambda p: p[v] > c),
        ("sign", rf"\frac{{|{v}|}}{{{v}}}({g})", lambda p: (p[v] < 0) & (at(p) != 0)),
        ("logarithm of a square", rf"{g}+\ln({v}^2)-2\ln {v}", lambda p: p[v] < 0),
        ("two letters", rf"{g}+|{v}-{w}|-({v}-{w})", lambda p: p[v] < p[w]),
        ("product", rf"{g}+|{v}{w}|-{v}{w}", lambda p: p[v] * p[w] < 0),
        (
            "ratio",
            rf"{g}+\lfloor \frac{{|{v}|}}{{{s}(1+{w}^2)}} \rfloor",
            lambda p: np.abs(p[v]) >= s * (1 + p[w] ** 2),
        ),
        ("exponentials", rf"{g}+e^{{{v}^3}}-e^{{|{v}|^3}}", lambda p: p[v] < 0),
        ("far digit", rf"{g}+10^{{-{far}}}", lambda p: p[v] == p[v]),
        ("far factor", rf"(1+10^{{-{far}}})({g})", lambda p: at(p) != 0),
        ("far term", rf"{g}+10^{{-{far}}}{v}", lambda p: p[v] == p[v]),
        (
            "letter",
            re.sub(rf"(?<![\\a-zA-Z]){v}(?![a-zA-Z])", f"|{v}|", g),
            lambda p: np.abs(at(p) - at({**p, v: np.abs(p[v])})) > 1e-9 * np.abs(at(p)),
        ),
    ]


def _honest(gold: Written, v: str, w: str) -> list[tuple[str, str]]:
    g = gold.tex
    return [
        ("honest: positive inside", rf"{g}+|{v}^2+1|-{v}^2-1"),
        ("honest: root", rf"{g}+\sqrt{{({v}^2+2)^2}}-({v}^2+2)"),
        ("honest: floor", rf"{g}+\lfloor \frac{{1}}{{2+{v}^2}} \rfloor"),
        ("honest: product", rf"\frac{{({g})({w}^2+1)}}{{1+{w}^2}}"),
        ("honest: factor", rf"\frac{{1}}{{3}}({g})+\frac{{2}}{{3}}({g})"),
        ("honest: identity", rf"({g})(\sin^2 {v}+\cos^2 {v})"),
        ("honest: exponentials", rf"{g}+e^{{2{v}}}-(e^{{{v}}})^2"),
    ]


def _closed(draw: random.Random) -> list[Pair]:
    a, b, n = draw.randint(2, 30), draw.randint(2, 30), draw.randint(60, 3_000)
    far = draw.choice((20, 40, 60, 99, 150, 400, 900))
    nested, surd = rf"\sqrt{{{a + b}+2\sqrt{{{a * b}}}}}", rf"\sqrt{{{a}}}+\sqrt{{{b}}}"
    return [
        Pair("honest: surds", nested, surd, True),
        Pair("surds and a far digit", nested, rf"{surd}+10^{{-{far}}}", False),
        Pair("surds and a far digit", nested, rf"{surd}+\sin(10^{{-{far}}})", False),
        Pair("surds and a far factor", nested, rf"({surd})(1+10^{{-{far}}})", False),
        Pair("surds and a far cosine", nested, rf"({surd})\cos(10^{{-{far}}})", False),
        Pair("honest: large number", f"{a}^{{{n}}}+{b}", rf"{b}+{a} \cdot {a}^{{{n - 1}}}", True),
        Pair("large number", f"{a}^{{{n}}}+{b}", f"{a}^{{{n}}}+{b + draw.choice((-1, 1))}", False),
        Pair("large fraction", rf"\frac{{{a}^{{{n}}}+1}}{{{b}}}", rf"\frac{{{a}^{{{n}}}+2}}{{{b}}}", False),
    ]


def _with_letters(gold: str, answer: str) -> str:
    """The gold with nothing added in the letters that the answer has besides: others are another question."""
    ours, theirs = (read_expression(normalise_answer(text)) for text in (gold, answer))
    assert ours is not None, gold
    assert theirs is not None, answer  # what is not even read would be refused for nothing
    return gold + "".join(f"+{name}-{name}" for name in sorted(theirs.symbols - ours.symbols))


def search(seed: int, count: int) -> Iterator[Pair]:
    """Disguises that are known to differ somewhere from golds that have a value there, and honest answers."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        v, w = draw.sample("abnrtxyz", 2)
        gold = _gold(draw, v, w)
        points = _points(draw, v + w)
        for form, tex, other in _disguises(draw, gold, v, w):
            with np.errstate(all="ignore"):
                differs = (other(points) & np.isfinite(gold.value(points))).any()
            if differs:
                yield Pair(form, _with_letters(gold.tex, tex), tex, False)
                made += 1
        for form, tex in _honest(gold, v, w):
            yield Pair(form, _with_letters(gold.tex, tex), tex, True)
        if draw.random() < 0.2:
            yield from _closed(draw)


@pytest.mark.timeout(max(300, COUNT // 20))
def test_no_disguise_is_right_and_no_honest_answer_wrong() -> None:
    """28: absolute values, roots of squares, floors, inverse functions, logarithms of squares, far digits; at any scale."""
    pairs = list(search(int(os.environ.get("SEED", "0")), COUNT))
    assert len({pair.form for pair in pairs}) >= 35
    false = {pair.form: pair for pair in pairs if same_answer(pair.gold, pair.answer) is not pair.right}
    assert not false
