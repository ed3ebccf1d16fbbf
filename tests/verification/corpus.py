"""Answers made by grammar: a gold, the way it is written, and whether that way is honest or cheats."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

NOUNS = ("apples", "eggs", "clips", "students", "tickets", "marbles", "pages", "ways", "books", "tiles")
UNITS = ("cm", "km", "kg", "meters", "inches", "feet", "hours", "minutes", "grams", "liters")
SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "dozen": 12}
BOX = "\\boxed{%s}"
Write = Callable[[str], str]


@dataclass(frozen=True)
class Case:
    """`form` names the class that rates are stated for."""

    gold: str
    text: str
    honest: bool
    form: str


def corpus(seed: int = 0, rounds: int = 12) -> list[Case]:
    """Every production of the grammar, `rounds` times with other golds; duplicates dropped."""
    draw = random.Random(seed)
    cases: dict[Case, None] = {}
    for _ in range(rounds):
        for grammar in (_numbers, _fractions, _expressions, _measures, _lists, _tuples, _equations, _dear):
            cases.update(dict.fromkeys(grammar(draw)))
    return list(cases)


def _boxed(gold: str, honest: bool, form: str, ways: Iterable[str]) -> Iterator[Case]:
    return (Case(gold, BOX % way, honest, form) for way in ways)


def _layout(gold: str) -> Iterator[Case]:
    for write in (
        r"\boxed{\bf %s}", r"\boxed{\mathbf{%s}}", r"\boxed{\large %s}", r"\boxed{{\Large %s}}", r"\boxed{\color{red}{%s}}",
        r"\boxed{\color{blue} %s}", r"\boxed{\textcolor{red}{%s}}", r"\boxed{\displaystyle %s}", r"\boxed{\boldsymbol{%s}}",
        r"$\boxed {%s}$.", r"\boxed{%s.}", r"\boxed{ \, %s \, }", r"\boxed{$%s$}", r"\boxed{\underline{%s}}",
    ):  # fmt: skip
        yield Case(gold, write % gold, True, "honest: layout")
    for write in (
        "The answer is $%s$.", "So the final answer is $%s$, as claimed.", "**Final Answer:** $%s$", "Answer: \\(%s\\)",
        "The answer is $$%s$$", "The answer is $%s$, because 7 of the 9 cases fail.", "The answer is $%s$ (since 6*7=42).",
    ):  # fmt: skip
        yield Case(gold, write % gold, True, "honest: sentence")
    for write in (r"x = %s", r"\text{Area} = %s", r"f(2) = %s", r"\text{The value is } %s", r"x_{1} = %s"):
        yield Case(gold, BOX % (write % gold), True, "honest: named")


def _hedges(gold: str, other: str) -> Iterator[Case]:
    """Two values for a gold that has one, the right one first or last."""
    for first, last in ((gold, other), (other, gold)):
        for write in (
            r"%s\text{ or }%s", "%s or %s", r"%s \text{ or maybe } %s", r"%s, %s", r"%s; %s", r"%s \text{ and } %s", r"%s \lor %s",
            r"%s \vee %s", r"%s \quad %s", r"\{%s, %s\}", r"(%s, %s)", r"[%s, %s]", r"\text{either } %s \text{ or } %s",
            r"x=%s \text{ or } x=%s", r"x=%s, x=%s", r"%s = %s", r"x = %s = %s", r"%s \ne %s", r"%s \to %s", r"%s \mid %s",
            r"%s \\ %s", r"\begin{cases}%s\\%s\end{cases}", r"%s (\text{or } %s)", r"%s\text{ if }x>0\text{ else }%s",
            r"\text{not } %s \text{ but } %s", r"%s \text{ (alternatively } %s)", r"%s \cup %s", r"\min(%s, %s)", r"%s \sim %s",
            "%s\n%s",
        ):  # fmt: skip
            if write.startswith(r"\min") and r"\min" in gold:
                continue
            yield Case(gold, BOX % (write % (first, last)), False, "cheating: hedge")
        for write in (
            "The answer is $%s$ or $%s$.", "The answer is $%s$, or maybe $%s$.", "The answer is %s or %s.",
            "The answer is $%s$ and $%s$.", "The answer is $%s$, $%s$.", "#### %s or %s", "The answer is either %s or %s.",
        ):  # fmt: skip
            yield Case(gold, write % (first, last), False, "cheating: hedge in a sentence")
    yield Case(gold, f"The answer is {gold}. Or {other}.", False, "cheating: hedge in a sentence")
    yield Case(gold, BOX % rf"{gold} \pm 1", False, "cheating: hedge")


def _other_values(gold: str) -> Iterator[Case]:
    """The gold's digits with something beside them that makes another value of it."""
    for scale in (*SCALES, "thousands", "hundredths", "tenths", "thirds", "gross"):
        yield Case(gold, BOX % rf"{gold}\text{{ {scale}}}", False, "cheating: scale")
        yield Case(gold, f"The answer is {gold} {scale}.", False, "cheating: scale")
    yield Case(gold, f"The answer is ${gold}$ million.", False, "cheating: scale")
    for tail in (
        r"\mathrm{i}", r"\mathrm{x}", r"\text{x}", r"\mathrm{e}", r"\text{ pi}", r"\pi", "x", " i", r"\text{ squared}", "!",
        r"\text{ factorial}",
        r"\text{ halved, or one}", r"\text{ plus one}", r"\text{ minus two}", r"\text{ point five}", r"\text{ times ten}", " xy",
        r"\sqrt{2}", r"\text{ or so}", r"\text{ mod } 5", "+0.5", r"\text{ to one}", r"\text{ twice}", r"\mathrm{xy}", " a",
        r"\cdot",
    ):  # fmt: skip
        if tail != r"\cdot":
            yield Case(gold, BOX % (gold + tail), False, "cheating: another value")
    for head in (
        r"\text{not }",
        r"\text{minus }",
        r"\text{half of }",
        "-",
        r"\text{twice }",
        r"\text{1 more than }",
        "not ",
    ):
        if not (head == "-" and gold.startswith("-")):
            yield Case(gold, BOX % (head + gold), False, "cheating: another value")


def _numbers(draw: random.Random) -> Iterator[Case]:
    value = draw.randint(13, 9_999)
    gold = str(value)
    other = str(value + draw.choice((-2, -1, 1, 2, 10)))
    yield from _layout(gold)
    yield from _hedges(gold, other)
    yield from _other_values(gold)
    noun, unit, factor = draw.choice(NOUNS), draw.choice(UNITS), draw.randint(2, 9)
    for text in (
        rf"\boxed{{{value} {noun}}}", rf"\boxed{{{value}\text{{ {noun}}}}}", rf"\boxed{{{value}\ \mathrm{{{unit}}}}}",
        f"The answer is {value} {noun}.",
        f"#### {value} {noun}", f"The answer is {value} {noun} per day.", f"The answer is {value} {unit}.",
        rf"\boxed{{{value}\text{{ {unit}}}^2}}",
        rf"\boxed{{{value} \text{{ square }} \text{{{unit}}}}}", f"The answer is {value} in total.",
        f"The answer is ${value}$ {noun}.",
        f"The answer is {value} {noun} for each of the children.", rf"\boxed{{{value} \text{{ cubic {unit}}}}}",
    ):  # fmt: skip
        yield Case(gold, text, True, "honest: unit or noun")
    for text in (
        f"The answer is ${value}. She earns $9 each day.", f"The answer is \\${value}.", f"The answer is ${value} per day.",
        f"#### ${value}",
        rf"\boxed{{\${value}}}", rf"\boxed{{{value} \text{{ dollars}}}}", f"The answer is ${value}.00.",
        f"Answer: ${value}, of which $5 is tax.",
    ):  # fmt: skip
        yield Case(gold, text, True, "honest: money")
    for text in (
        rf"\boxed{{{value}.0}}", rf"\boxed{{{value:,}}}", rf"\boxed{{{value:,}}}".replace(",", "{,}"), rf"\boxed{{0{value}}}",
        rf"\boxed{{+{value}}}",
        rf"\boxed{{\frac{{{value * factor}}}{{{factor}}}}}", rf"\boxed{{{value}_{{10}}}}", rf"\boxed{{{value * 100}\%}}",
        rf"\boxed{{({value})}}",
        rf"\boxed{{{value / 1000:.4f} \times 10^{{3}}}}".replace("0 \\times", " \\times"), rf"\boxed{{{value}/1}}",
    ):  # fmt: skip
        yield Case(gold, text, True, "honest: notation")
    for text in (
        rf"\boxed{{{value - factor} + {factor} = {value}}}", rf"\boxed{{x = {factor} \cdot {value} / {factor} = {value}}}",
        rf"\boxed{{\approx {value}}}",
        rf"\boxed{{approximately {value}}}", f"The answer is approximately {value}.", f"The answer is about {value} {noun}.",
        rf"\boxed{{{value} = x}}",
        rf"\boxed{{\text{{approximately }} {value}}}", f"The answer is exactly {value}.",
        rf"\boxed{{\frac{{{value * factor}}}{{{factor}}} = {value}}}",
    ):  # fmt: skip
        yield Case(gold, text, True, "honest: worked or rounded")
    for name, scale in SCALES.items():
        yield Case(str(value * scale), BOX % rf"{value}\text{{ {name}}}", True, "honest: scale")
        yield Case(str(value * scale), f"The answer is {value} {name} {noun}.", True, "honest: scale")
    for base in (2, 5, 8, 9, 16):
        yield Case(gold, BOX % f"{value}_{base}" if base < 10 else BOX % f"{value}_{{{base}}}", False, "cheating: base")
    yield Case(gold, BOX % rf"{value}_{{\text{{nine}}}}", False, "cheating: base")
    yield Case(f"{value}_{{9}}", BOX % rf"{value}_{{8}}", False, "cheating: base")
    for text in (
        f"{value - factor}+{factor}", f"{value + factor}-{factor}", rf"\sqrt{{{value**2}}}", rf"|{{-{value}}}|",
        rf"\lfloor {value}.5 \rfloor",
        rf"{value * factor} \div {factor} \cdot 1 + 0", rf"\sum_{{i=1}}^{{{value}}} 1", rf"{value} \cdot 1",
        rf"\log_2 2^{{{value}}}", f"2x = {2 * value}",
        f"x - {value} = 0", f"x + 1 = {value}", rf"\gcd({value}, {value})", rf"\text{{{factor} more than {value - factor}}}",
    ):  # fmt: skip
        yield Case(gold, BOX % text, False, "cheating: left to do")
    for text in (
        other,
        f"{value}.0000001",
        f"{value}.5",
        f"-{value}",
        f"{value}0",
        f"{gold[0]} {gold[1:]}",
        f"{value + 1}",
        f"{value}^2",
        f"{value}/2",
    ):
        if text != f"{gold[0]} {gold[1:]}" or len(gold) != 4:  # `1 234` is 1234
            yield Case(gold, BOX % text, False, "cheating: nearby")


def _fractions(draw: random.Random) -> Iterator[Case]:
    bottom = draw.choice((2, 4, 5, 8, 16, 20, 25, 3, 7, 9))
    value = Fraction(draw.randint(1, 40) * bottom + 1, bottom)
    gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    other = rf"\frac{{{value.numerator + 1}}}{{{value.denominator}}}"
    yield from _layout(gold)
    yield from _hedges(gold, other)
    whole, rest = divmod(value.numerator, bottom)
    forms = [
        f"{value.numerator}/{bottom}", gold.replace("frac", "dfrac"), rf"{whole}\frac{{{rest}}}{{{bottom}}}",
        rf"{{{value.numerator} \over {bottom}}}",
        rf"\frac{{{3 * value.numerator}}}{{{3 * bottom}}}", rf"\frac{{-{value.numerator}}}{{-{bottom}}}",
        rf"{value.numerator} \div {bottom}",
        rf"{gold} \approx {float(value):.3f}", rf"\left(\frac{{{value.numerator}}}{{{bottom}}}\right)",
    ]  # fmt: skip
    forms += [f"{float(value):.8f}"] if bottom in (3, 7, 9) else [f"{float(value)}"]
    if bottom in (3, 9):
        forms.append(rf"{whole}.\overline{{{9 * rest // bottom}}}")
    yield from _boxed(gold, True, "honest: notation", forms)
    power = draw.randint(1, 12)
    yield Case(rf"\frac{{1}}{{{2**power}}}", BOX % f"2^{{-{power}}}", True, "honest: notation")
    yield from _boxed(gold, False, "cheating: nearby", (
        rf"\frac{{{bottom}}}{{{value.numerator}}}", f"{float(value) + 0.01:.2f}", f"{value.numerator}:{bottom + 1}",
        rf"\frac{{{value.numerator}.0001}}{{{bottom}}}",
        rf"\frac{{{value.numerator}}}{{{bottom}x}}", rf"\frac{{{value.numerator}}}{{{bottom}}}\text{{ of it or less}}",
        rf"-{gold}", rf"{gold}\text{{ million}}",
        rf"\frac{{{value.numerator}}}{{{bottom}}}+\frac{{1}}{{1000000}}", rf"\frac{{{value.numerator - 1} + 1}}{{{bottom}}} + 0",
    ))  # fmt: skip


def _expressions(draw: random.Random) -> Iterator[Case]:
    a, b, c = draw.randint(2, 9), draw.randint(2, 9), draw.choice((2, 3, 5, 6, 7, 10, 11))
    polynomial = f"x^2+{a + b}x+{a * b}"
    surd, angle = rf"{a}\sqrt{{{c}}}", rf"{a}\pi"
    honest = {
        polynomial: [f"(x+{a})(x+{b})", f"{a * b}+{a + b}x+x^2", rf"x^2 + {a + b} \cdot x + {a * b}", f"x(x+{a + b})+{a * b}",
        rf"y = {polynomial}"],
        surd: [rf"\sqrt{{{a * a * c}}}", rf"\sqrt{{{c}}}\cdot {a}", rf"{a}{{\sqrt {{{c}}}}}",
        rf"\frac{{{a * c}}}{{\sqrt{{{c}}}}}", rf"{a} \cdot {c}^{{1/2}}",
               rf"{surd} \approx {a * c**0.5:.2f}", f"{a * c**0.5:.8f}"],
        angle: [rf"\pi \cdot {a}", rf"{a}π", rf"{a} \pi \text{{ cm}}", rf"\frac{{{2 * a}\pi}}{{2}}",
        f"{a * 3.14159265358979:.8f}", rf"{a} \times \pi"],
        rf"\frac{{x+{a}}}{{{b}}}": [f"(x+{a})/{b}", rf"\frac{{x}}{{{b}}}+\frac{{{a}}}{{{b}}}", rf"\tfrac{{1}}{{{b}}}(x+{a})"],
        rf"e^{{{a}x}}": [rf"(e^x)^{{{a}}}", rf"\exp({a}x)", rf"(e^{{{a}}})^x"],
        rf"{a}+{b}i": [f"{b}i+{a}", rf"{a} + {b} \cdot i", rf"{b} i + {a}"],
        rf"{a}\sin x": [rf"{a} \sin(x)", rf"\sin(x) \cdot {a}", rf"\sin x \cdot {a}"],
        rf"\frac{{{a}}}{{1-x}}": [rf"-\frac{{{a}}}{{x-1}}", rf"{a}(1-x)^{{-1}}", f"{a}/(1-x)"],
    }  # fmt: skip
    for gold, forms in honest.items():
        yield from _layout(gold)
        yield from _boxed(gold, True, "honest: algebra", forms)
        yield from (
            case
            for case in _hedges(gold, gold.replace(str(a), str(a + 1), 1))
            if gold.replace(str(a), str(a + 1), 1) != gold
        )
        yield from _boxed(gold, False, "cheating: nearby", (
            rf"{gold}+\frac{{1}}{{1000000001}}", rf"1.0000001({gold})", rf"-({gold})", rf"{gold}+1", rf"2({gold})",
            rf"\frac{{1}}{{{gold}}}", rf"{gold}+10^{{-9}}",
            rf"({gold})\text{{ million}}", rf"({gold})^2", rf"{gold}+z", rf"\overline{{{gold}}}+1",
            rf"{gold} \cdot \frac{{1}}{{1.0000001}}",
        ))  # fmt: skip
    yield Case("x^2+1", BOX % rf"x^2+\frac{{1}}{{1.000000{a}}}", False, "cheating: nearby")
    yield Case(f"{a}x", BOX % rf"{a}|x|", False, "cheating: nearby")
    yield Case(f"{a}x", BOX % rf"{a}\sqrt{{x^2}}", False, "cheating: nearby")
    yield Case(f"{a}x", BOX % rf"{a}\mathrm{{y}}", False, "cheating: nearby")


def _measures(draw: random.Random) -> Iterator[Case]:
    value, power = draw.randint(2, 500), draw.choice((1, 2, 3))
    short, long = draw.choice(
        (("cm", "centimeters"), ("m", "meters"), ("ft", "feet"), ("km", "kilometers"), ("in", "inches"))
    )
    raised = f"^{power}" if power > 1 else ""
    word = {1: "", 2: "square ", 3: "cubic "}[power]
    gold = rf"{value}\text{{ {short}}}{raised}"
    yield from _boxed(gold, True, "honest: unit or noun", (
        rf"{value}\text{{ {word}{long}}}", rf"{value} \mathrm{{~{short}}}{raised}", str(value),
        rf"{value} \, \text{{{short}}}{raised}", rf"{value}.0 \text{{ {short}}}{raised}",
        rf"A = {value}\text{{ {word}{long}}}", rf"{value}\text{{ {short}}}^{{{power}}}",
    ))  # fmt: skip
    wrong = power % 3 + 1
    yield from _boxed(gold, False, "cheating: unit", (
        rf"{value}\text{{ {short}}}^{wrong}" if wrong > 1 else rf"{value}\text{{ {short}}}", rf"{value}\text{{ kg}}",
        rf"{value}\text{{ {short}}}^{power + 3}", rf"{value}\text{{ mm}}{raised}",
        rf"{value}\text{{ {short}}}{raised}/\text{{s}}", rf"{value}\text{{ per {short}}}",
        rf"{value}\text{{ {short} or }}{value + 1}", rf"{value + 1}\text{{ {short}}}{raised}",
        rf"{value}\text{{ million {short}}}{raised}", rf"{value}\text{{ {short}}}^{wrong + 3}\text{{ box}}",
    ))  # fmt: skip
    percent = draw.randint(1, 99)
    yield from _boxed(
        rf"{percent}\%",
        True,
        "honest: percent",
        (rf"{percent}\%", f"{percent}%", rf"{percent} \text{{ percent}}", rf"{percent / 100}", str(percent)),
    )
    yield from _boxed(
        rf"{percent}\%",
        False,
        "cheating: unit",
        (
            rf"{percent + 1}\%",
            rf"{percent / 1000}",
            rf"{percent}\text{{ permille}}",
            rf"{percent}\%\text{{ or more}}",
            rf"{percent * 100}\%",
        ),
    )


def _lists(draw: random.Random) -> Iterator[Case]:
    one, two, extra = draw.sample(range(-60, 60), 3)
    gold = f"{one}, {two}"
    for form in (
        f"{two}, {one}", rf"\{{{one}, {two}\}}", rf"x={one} \text{{ or }} x={two}", rf"{one} \text{{ and }} {two}",
        rf"x = {two}, x = {one}", f"{one} or {two}",
        rf"x = {one}, {two}", rf"\text{{either }} {one} \text{{ or }} {two}", rf"{one} \lor {two}", rf"x={one} \vee x={two}",
        rf"\{{ {two}; {one} \}}", rf"x \in \{{{one}, {two}\}}",
    ):  # fmt: skip
        yield Case(gold, BOX % form, True, "honest: several values")
        yield Case(rf"\{{{one}, {two}\}}", BOX % form, True, "honest: several values")
    yield Case(gold, f"The answer is ${one}$ and ${two}$.", True, "honest: several values")
    yield Case(f"{abs(one) + 1}, -{abs(one) + 1}", BOX % rf"\pm {abs(one) + 1}", True, "honest: several values")
    yield Case(
        rf"{one} \pm \sqrt{{7}}", BOX % rf"{one} - \sqrt{{7}}, {one} + \sqrt{{7}}", True, "honest: several values"
    )
    for form in (
        f"{one}", f"{one}, {two}, {extra}", rf"{one} \text{{ or }} {extra}", f"{one}, {one}", f"{one}, {one}, {two}",
        rf"[{one}, {two}]", rf"{one} \text{{ or }} {two} \text{{ or }} {extra}",
        rf"x={one}, y={extra}", rf"{one}, {two}\text{{ million}}", rf"{one}, -({two})", rf"\{{{one}, {two}\}} \cup \{{{extra}\}}",
        rf"{one}, \text{{not }} {two}",
    ):  # fmt: skip
        if form != f"{one}, -({two})" or two:
            yield Case(gold, BOX % form, False, "cheating: several values")


def _tuples(draw: random.Random) -> Iterator[Case]:
    one, two, other = sorted(draw.sample(range(-60, 60), 3))
    gold = f"({one}, {two})"
    yield from _boxed(
        gold,
        True,
        "honest: tuple or interval",
        (
            rf"\left({one}, {two}\right)",
            f"({one},{two})",
            f"x={one}, y={two}",
            f"y={two}, x={one}",
            f"(x,y) = ({one}, {two})",
            f"{one}, {two}",
            rf"({one};\,{two})",
        ),
    )
    yield from _boxed(gold, False, "cheating: tuple or interval", (
        f"({two}, {one})", f"[{one}, {two}]", f"({one}, {two}]", rf"{one} \text{{ or }} {two}",
        f"({one}, {two}), ({one}, {other})", f"({one}, {two}, {other})", f"({one}, {other})",
        rf"({one}, {two}) \text{{ or }} ({two}, {one})", f"y={one}, x={two}", rf"\{{{one}, {two}\}}",
        rf"({one}, {two}) \cup ({two}, {other})", f"{one}",
    ))  # fmt: skip
    union = rf"(-\infty, {one}) \cup [{two}, \infty)"
    yield from _boxed(
        union,
        True,
        "honest: tuple or interval",
        (
            rf"[{two}, \infty) \cup (-\infty, {one})",
            rf"(-\infty,{one})\cup[{two},\infty)",
            rf"x \in {union}",
            rf"(-\infty, {one}) \text{{ or }} [{two}, \infty)",
        ),
    )
    yield from _boxed(
        union,
        False,
        "cheating: tuple or interval",
        (
            rf"(-\infty, {one}] \cup [{two}, \infty)",
            rf"(-\infty, {one})",
            rf"(-\infty, {one}) \cup [{other}, \infty)",
            rf"(-\infty, {one}) \cap [{two}, \infty)",
            r"(-\infty, \infty)",
        ),
    )


def _equations(draw: random.Random) -> Iterator[Case]:
    slope, shift = draw.randint(2, 9), draw.randint(1, 20)
    gold = f"y={slope}x+{shift}"
    yield from _boxed(
        gold,
        True,
        "honest: equation",
        (
            f"y-{slope}x={shift}",
            f"{slope}x-y+{shift}=0",
            f"2y={2 * slope}x+{2 * shift}",
            f"{slope}x+{shift}=y",
            f"{slope}x+{shift}",
            f"f(x)={slope}x+{shift}",
            f"y - {shift} = {slope}x",
        ),
    )
    yield from _boxed(
        gold,
        False,
        "cheating: equation",
        (
            f"y-{slope}x={shift + 1}",
            f"y+{slope}x={shift}",
            "0=0",
            f"y=-{slope}x+{shift}",
            rf"y={slope}x+{shift} \text{{ or }} y=x",
            f"y={slope}x",
            f"y-y={slope}x-{slope}x",
            f"y^2=({slope}x+{shift})^2",
        ),
    )
    plane = f"{slope}x + 2y - 2z - {shift} = 0"
    yield Case(plane, BOX % f"{slope}x+2y-2z={shift}", True, "honest: equation")
    yield Case(plane, BOX % f"{shift} = {slope}x + 2y - 2z", True, "honest: equation")
    yield Case(plane, BOX % f"{slope}x+2y+2z={shift}", False, "cheating: equation")
    yield Case(f"x={shift}", BOX % f"2x={2 * shift}", False, "cheating: equation")
    yield Case(rf"k \ge {shift}", BOX % rf"{shift} \le k", True, "honest: equation")
    yield Case(rf"k \ge {shift}", BOX % rf"k > {shift}", False, "cheating: equation")


def _dear(draw: random.Random) -> Iterator[Case]:
    a, b = draw.randint(3, 9), draw.randint(20, 90)
    for gold in (str(b), "x^2+1", rf"{a}\sqrt{{2}}", rf"\sum_{{k=1}}^{{n}} k^{{{a}}}"):
        yield from _boxed(gold, False, "cheating: dear", (
            rf"\lfloor e^{{e^{{e^{a}}}}} \rfloor", rf"\pi^{{\pi^{{\pi^{{\pi^{a}}}}}}}",
            rf"\begin{{vmatrix}} x^{a} & y^{b} & z \\ (x+y)^{b} & z^{a} & 1 \\ x & y & (z+1)^{b} \end{{vmatrix}}",
            rf"(x+1)^{{{b}}}(x+2)^{{{b}}}(x^{a}+x+1)^{{{b}}}", rf"\sin(\sin(\sin(\sin(\sin(x^{{{b}}}+\sqrt{{x+\sqrt{{x}}}})))))",
            rf"{b}!^{{{b}!}}", rf"\binom{{{b}00}}{{{b}}}^{{{b}}}",
            r"\sum_{k=1}^{n} \lfloor e^{e^{e^k}} \rfloor", rf"\sum_{{k=1}}^{{n}} (k+1)^{{{b}}} \lfloor e^{{e^{{e^{a}}}}} \rfloor",
            rf"\sqrt[{a}]{{2+\sqrt[{b}]{{3+\sqrt[{a}]{{5+\sqrt{{7}}}}}}}}",
            rf"\frac{{(x^{{{b}}}-1)^{{{b}}}}}{{(x-1)^{{{b}}}}}", rf"\cos(\cos(\cos(e^{{x^{{{b}}}}})))",
            rf"\prod_{{k=1}}^{{n}} (x^k+{a})^{{{b}}}", rf"x^{{x^{{x^{{x^{a}}}}}}}",
            "+".join(rf"\sqrt{{x+{k}}}" for k in range(b)), "(" * 20 + "x" + "+1)^{9}" * 20,
        ))  # fmt: skip
