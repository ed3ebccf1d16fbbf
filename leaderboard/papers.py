"""Published numbers, as their papers print them (accuracy in percent), with the baseline of the same table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One number. regime: our name for it; baseline: the row of the same table that its gain is measured against."""

    paper: str
    setting: str
    model: str
    regime: str
    value: float
    baseline: float
    against: str

    @property
    def gain(self) -> float:
        """Points."""
        return self.value - self.baseline


HACPO, MUTUAL, GRAFT = "HACPO (arXiv 2603.02604)", "Mutual RL (arXiv 2605.07244)", "GRAFT (arXiv 2609.37868)"
_SEVEN = "mean of 7 benchmarks (AIME 2025 as best@30)"
_MATH = "MATH, reward@1 at step 105, read off the author's figure"
_FIVE = "mean of 5 benchmarks"


def _rows(
    paper: str, setting: str, model: str, against: str, baseline: float, values: dict[str, float]
) -> tuple[Published, ...]:
    return tuple(Published(paper, setting, model, regime, value, baseline, against) for regime, value in values.items())


PUBLISHED: tuple[Published, ...] = (
    *_rows(
        HACPO,
        _SEVEN,
        "Qwen3-1.7B-Base with Qwen3-4B-Base",
        "GSPO",
        46.7,
        {"independent-2x": 47.5, "naive": 42.5, "hacpo": 49.3},
    ),
    *_rows(
        HACPO,
        _SEVEN,
        "Qwen3-4B-Base with Qwen3-1.7B-Base",
        "GSPO",
        57.8,
        {"independent-2x": 57.5, "naive": 52.6, "hacpo": 60.1},
    ),
    *_rows(
        HACPO,
        _SEVEN,
        "Llama-3.2-3B-Instruct with Qwen3-4B-Base",
        "GSPO",
        35.1,
        {"independent-2x": 33.4, "naive": 29.4, "hacpo": 39.0},
    ),
    *_rows(MUTUAL, _MATH, "Qwen2.5-Math with Qwen3-1.7B", "GRPO", 68.1, {"prp": 69.1, "xgrpo": 68.4, "sgt": 68.7}),
    *_rows(MUTUAL, _MATH, "Qwen3-1.7B with Qwen2.5-Math", "GRPO", 63.1, {"prp": 54.9, "xgrpo": 63.8, "sgt": 65.0}),
    *_rows(
        GRAFT,
        _FIVE,
        "SmolLM3-3B with Qwen3-1.7B",
        "GRPO, 8 rollouts",
        32.60,
        {"independent-2x": 33.38, "independent-4x": 35.71, "hacpo": 31.51, "sgt": 34.88, "graft": 37.06},
    ),
    *_rows(
        GRAFT,
        _FIVE,
        "Qwen3-1.7B with SmolLM3-3B",
        "GRPO, 8 rollouts",
        31.20,
        {"independent-2x": 32.15, "independent-4x": 32.43, "hacpo": 27.24, "sgt": 31.24, "graft": 33.44},
    ),
)
