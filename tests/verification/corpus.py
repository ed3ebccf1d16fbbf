"""Answers made by grammar: a gold, the ways in which it is written, and whether they are honest or cheat.

`== form | gold | gold` is followed by ways of writing each gold, a line each: what begins with `@` is a whole response, the rest
is boxed. `<...>` is computed from a round's random numbers; `<g>` is the gold.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

BOX = "\\boxed{%s}"
GRAMMAR = r"""
== honest: layout | <n> | \frac{<2*n+1>}{2} | x^2+<a>x+<b> | <a>\sqrt{<c>} | \frac{x+<a>}{<b>} | e^{<a>x} | <a>+<b>i | <a>\sin x
@\boxed{\bf <g>}
@\boxed{\mathbf{<g>}}
@\boxed{{\Large <g>}}
@\boxed{\color{blue} <g>}
@\boxed{\textcolor{red}{<g>}}
@\boxed{\displaystyle <g>}
@$\boxed {<g>}$.
@\boxed{<g>.}
@\boxed{ \, <g> \, }
@\boxed{$<g>$}
@\boxed{\underline{<g>}}
@The answer is $<g>$.
@So the final answer is $<g>$, as claimed.
@**Final Answer:** $<g>$
@Answer: \(<g>\)
@The answer is $$<g>$$
@The answer is $<g>$, because 7 of the 9 cases fail.
@The answer is $<g>$ (since 6*7=42).
x = <g>
\text{Area} = <g>
f(2) = <g>
\text{The value is } <g>
x_{1} = <g>
== honest: unit or noun | <n>
<n> <noun>
<n>\text{ <noun>}
<n>\ \mathrm{<unit>}
<n>\text{ <unit>}^2
<n> \text{ square } \text{<unit>}
<n> \text{ cubic <unit>}
@The answer is <n> <noun>.
@#### <n> <noun>
@The answer is <n> <noun> per day.
@The answer is <n> in total.
@The answer is $<n>$ <noun>.
@The answer is <n> <noun> for each of the children.
== honest: money | <n>
@The answer is $<n>. She earns $9 each day.
@The answer is \$<n>.
@The answer is $<n> per day.
@#### $<n>
\$<n>
<n> \text{ dollars}
@The answer is $<n>.00.
@Answer: $<n>, of which $5 is tax.
== honest: notation | <n>
<n>.0
<f'{n:,}'>
<f'{n:,}'.replace(',','{,}')>
0<n>
+<n>
\frac{<n*k>}{<k>}
<n>_{10}
<n*100>\%
(<n>)
<n>/1
<n/1000> \times 10^{3}
== honest: worked or rounded | <n>
<n-k> + <k> = <n>
x = <k> \cdot <n> / <k> = <n>
\approx <n>
approximately <n>
\text{approximately } <n>
@The answer is approximately <n>.
@The answer is exactly <n>.
<n> = x
\frac{<n*k>}{<k>} = <n>
== honest: scale | <n*1000>
<n>\text{ thousand}
@The answer is <n> thousand <noun>.
== honest: scale | <n*12>
<n>\text{ dozen}
== honest: notation | \frac{<7*a+1>}{7}
<7*a+1>/7
\dfrac{<7*a+1>}{7}
<a>\frac{1}{7}
{<7*a+1> \over 7}
\frac{<21*a+3>}{21}
\frac{-<7*a+1>}{-7}
<7*a+1> \div 7
<f'{(7*a+1)/7:.8f}'>
\left(\frac{<7*a+1>}{7}\right)
== honest: algebra | x^2+<a+b>x+<a*b>
(x+<a>)(x+<b>)
<a*b>+<a+b>x+x^2
x(x+<a+b>)+<a*b>
y = x^2+<a+b>x+<a*b>
== honest: algebra | <a>\sqrt{<c>}
\sqrt{<a*a*c>}
\sqrt{<c>}\cdot <a>
\frac{<a*c>}{\sqrt{<c>}}
<a> \cdot <c>^{1/2}
<f'{a*c**0.5:.8f}'>
== honest: algebra | <a>\pi
\pi \cdot <a>
<a>π
<a> \pi \text{ cm}
\frac{<2*a>\pi}{2}
== honest: algebra | \frac{<a>}{1-x}
-\frac{<a>}{x-1}
<a>(1-x)^{-1}
<a>/(1-x)
== honest: unit or noun | <v>\text{ cm}^2
<v>\text{ square centimeters}
<v> \mathrm{~cm}^2
<v>
<v>.0 \text{ cm}^2
A = <v>\text{ square centimeters}
== honest: percent | <q>\%
<q>%
<q> \text{ percent}
<q/100>
<q>
== honest: several values | <i>, -<j> | \{<i>, -<j>\}
-<j>, <i>
\{<i>, -<j>\}
x=<i> \text{ or } x=-<j>
<i> \text{ and } -<j>
x = -<j>, x = <i>
<i> or -<j>
\text{either } <i> \text{ or } -<j>
<i> \lor -<j>
\{ -<j>; <i> \}
x \in \{<i>, -<j>\}
== honest: tuple or interval | (<i>, <j>)
\left(<i>, <j>\right)
x=<i>, y=<j>
y=<j>, x=<i>
(x,y) = (<i>, <j>)
<i>, <j>
== honest: tuple or interval | (-\infty, <i>) \cup [<j>, \infty)
[<j>, \infty) \cup (-\infty, <i>)
x \in (-\infty, <i>) \cup [<j>, \infty)
(-\infty, <i>) \text{ or } [<j>, \infty)
== honest: equation | y=<a>x+<s>
y-<a>x=<s>
<a>x-y+<s>=0
2y=<2*a>x+<2*s>
<a>x+<s>
f(x)=<a>x+<s>
== honest: equation | k \ge <s>
<s> \le k
== cheating: hedge | <n> | x^2+<n>x
<g>\text{ or }<o>
<o>, <g>
<g>; <o>
\{<g>, <o>\}
(<g>, <o>)
x=<o> \text{ or } x=<g>
<g> = <o>
<g> \ne <o>
<o> \to <g>
<g> \\ <o>
\begin{cases}<g>\\<o>\end{cases}
<g>\text{ if }x>0\text{ else }<o>
\text{not } <o> \text{ but } <g>
<g> \cup <o>
\min(<g>, <o>)
<g> \pm 1
@The answer is $<g>$ or $<o>$.
@The answer is $<o>$, or maybe $<g>$.
@The answer is either <g> or <o>.
@#### <o> or <g>
@The answer is <g>. Or <o>.
== cheating: scale | <n> | \frac{<2*n+1>}{2}
<g>\text{ thousand}
<g>\text{ hundredths}
<g>\text{ dozen}
@The answer is <g> million.
@The answer is $<g>$ million.
== cheating: another value | <n> | <a>\sqrt{<c>}
<g>\mathrm{i}
<g>\mathrm{x}
<g>\text{ pi}
<g>\pi
<g> xy
<g>\text{ squared}
<g>!
<g>\text{ plus one}
<g>\text{ point five}
<g>\text{ or so}
<g>\text{ mod } 5
<g>+0.5
<g>\text{ to one}
\text{not }<g>
\text{minus }<g>
\text{half of }<g>
-<g>
== cheating: base | <n>
<n>_8
<n>_{16}
<n>_{\text{nine}}
== cheating: left to do | <n>
<n-k>+<k>
\sqrt{<n**2>}
|{-<n>}|
\lfloor <n>.5 \rfloor
\sum_{i=1}^{<n>} 1
<n> \cdot 1
\log_2 2^{<n>}
2x = <2*n>
x - <n> = 0
\gcd(<n>, <n>)
\text{<k> more than <n-k>}
== cheating: nearby | <n>
<o>
<n>.0000001
<n>0
<n>^2
<n>/2
== cheating: nearby | x^2+<a+b>x+<a*b> | <a>\pi | <a>\sin x
<g>+\frac{1}{1000000001}
1.0000001(<g>)
-(<g>)
\frac{1}{<g>}
<g>+10^{-9}
(<g>)^2
<g>+z
== cheating: nearby | <a>x
<a>|x|
<a>\sqrt{x^2}
<a>\mathrm{y}
== cheating: unit | <v>\text{ cm}^2
<v>\text{ cm}
<v>\text{ kg}
<v>\text{ cm}^5
<v>\text{ mm}^2
<v>\text{ cm}^2/\text{s}
<v>\text{ million cm}^2
== cheating: unit | <q>\%
<q+1>\%
<q/1000>
<q>\text{ permille}
== cheating: several values | <i>, -<j>
<i>
<i>, -<j>, <l>
<i> \text{ or } <l>
<i>, <i>
[<i>, -<j>]
x=<i>, y=<l>
<i>, -<j>\text{ million}
<i>, \text{not } -<j>
== cheating: tuple or interval | (<i>, <j>)
(<j>, <i>)
[<i>, <j>]
<i> \text{ or } <j>
(<i>, <j>, <l>)
(<i>, <j>) \text{ or } (<j>, <i>)
y=<i>, x=<j>
== cheating: tuple or interval | (-\infty, <i>) \cup [<j>, \infty)
(-\infty, <i>] \cup [<j>, \infty)
(-\infty, <i>)
(-\infty, <i>) \cap [<j>, \infty)
== cheating: equation | y=<a>x+<s>
y-<a>x=<s+1>
0=0
y=<a>x+<s> \text{ or } y=x
y-y=<a>x-<a>x
y^2=(<a>x+<s>)^2
== cheating: equation | k \ge <s>
k > <s>
== cheating: dear | <n> | x^2+1 | \sum_{k=1}^{n} k^{<a>}
\lfloor e^{e^{e^<a>}} \rfloor
\begin{vmatrix} x^<a> & y^<v> & z \\ (x+y)^<v> & z^<a> & 1 \\ x & y & (z+1)^<v> \end{vmatrix}
(x+1)^{<v>}(x+2)^{<v>}(x^<a>+x+1)^{<v>}
\sin(\sin(\sin(\sin(\sin(x^{<v>}+\sqrt{x+\sqrt{x}})))))
<v>!^{<v>!}
\sum_{k=1}^{n} \lfloor e^{e^{e^k}} \rfloor
\sqrt[<a>]{2+\sqrt[<v>]{3+\sqrt[<a>]{5+\sqrt{7}}}}
\prod_{k=1}^{n} (x^k+<a>)^{<v>}
x^{x^{x^{x^<a>}}}
"""


@dataclass(frozen=True)
class Case:
    gold: str
    text: str
    form: str

    @property
    def honest(self) -> bool:
        return self.form.startswith("honest")


def corpus(seed: int = 0, rounds: int = 6) -> list[Case]:
    """Every production of the grammar, `rounds` times with other numbers; duplicates dropped."""
    draw = random.Random(seed)
    cases: dict[Case, None] = {}
    for _ in range(rounds):
        known = {name: draw.randint(low, high) for name, (low, high) in NUMBERS.items()}
        known |= dict(zip("ijl", sorted(draw.sample(range(1, 60), 3)), strict=True))
        known |= {"o": known["n"] + draw.choice((-2, -1, 1, 2, 10)), "c": draw.choice((2, 3, 5, 6, 7, 10, 11))}
        words = {"noun": draw.choice(("apples", "eggs", "clips", "ways")), "unit": draw.choice(("cm", "km", "feet"))}
        for part in GRAMMAR.strip().removeprefix("== ").split("\n== "):
            (form, *golds), ways = part.splitlines()[0].split(" | "), part.splitlines()[1:]
            for gold in (_filled(gold, known | words) for gold in golds):
                texts = (_filled(way, known | words | {"g": gold}) for way in ways)
                cases |= {Case(gold, text[1:] if text[0] == "@" else BOX % text, form): None for text in texts}
    return list(cases)


NUMBERS = {"n": (13, 9_999), "k": (2, 9), "a": (2, 9), "b": (2, 9), "v": (20, 90), "q": (1, 99), "s": (1, 20)}


def _filled(template: str, known: dict[str, object]) -> str:
    return re.sub(r"<([^<>\s]+)>", lambda code: str(eval(code[1], {}, known)), template)
