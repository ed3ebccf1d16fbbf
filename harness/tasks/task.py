"""Evaluation tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.experience.answers import Prompt
from harness.suite.schema import Style
from harness.verification.verdict import Verdict

__all__ = ["STEP_BY_STEP", "Documents", "Example", "Style", "Task"]

STEP_BY_STEP = "Please reason step by step, and put your final answer within \\boxed{}."


class Documents(Protocol):
    """data_dir None: HARNESS_DATA, else the public source, fetched if `fetch`."""

    def __call__(self, data_dir: Path | None, fetch: bool = True) -> list[Prompt]: ...


Judge = Callable[[Sequence[tuple[Prompt, str]]], list[Verdict]]


@dataclass(frozen=True, slots=True)
class Example:
    """A worked example of a few-shot prompt."""

    problem: str
    solution: str


@dataclass(frozen=True, slots=True)
class Task:
    """One evaluation set.

    styles: the default first; `raw` the problem itself, `zero-shot` with training's instruction, `few-shot` after worked
    examples. frame: of a problem between examples, up to its solution. k: samples for avg@k. checksum: of its file. until:
    strings that end any answer. judge: decides instead of a scorer.
    """

    name: str
    title: str
    documents: Documents
    styles: tuple[Style, ...] = ("zero-shot", "few-shot")
    max_new_tokens: int = 2_048
    k: int = 4
    source: str = ""
    licence: str = ""
    size: int | None = None
    checksum: str | None = None
    instruction: str = STEP_BY_STEP
    examples: tuple[Example, ...] = field(default=(), repr=False)
    frame: str = "Problem: {}\nSolution:"
    scorer: str = "math"
    until: tuple[str, ...] = ()
    judge: Judge | None = field(default=None, repr=False, compare=False)

    def render(self, prompt: Prompt, style: Style) -> str:
        """Return the text before the chat template."""
        if style == "raw":
            return prompt.text
        problem = self.bare(prompt.text)
        if style == "zero-shot":
            return f"{problem}\n\n{self.instruction}"
        shots = "".join(f"{self.frame.format(shot.problem)} {shot.solution}\n\n" for shot in self.examples)
        return shots + self.frame.format(problem)

    def stop(self, style: Style) -> tuple[str, ...]:
        """Return the strings that end an answer in a style: without them a base model would go on with another question."""
        if self.until:
            return self.until
        head = self.frame.partition("{")[0].strip()
        return (f"\n\n{head}", f"\n{head}") if style == "few-shot" else ()

    def bare(self, text: str) -> str:
        """Return a prompt without frame or instruction."""
        head, _, tail = self.frame.partition("{}")
        text = text.removesuffix(f"\n\n{self.instruction}")
        return text[len(head) : len(text) - len(tail)] if text.startswith(head) and text.endswith(tail) else text
