"""What an evaluation leaves behind: every sample, and the metrics made from them."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.verification.verdict import Verdict

Mode = Literal["greedy", "sampled"]


class EvaluationSample(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of one policy to one document.

    repeat: 0 for greedy; 0 .. k-1 for samples at temperature. tokens: answer length in the policy's tokens, EOS included.
    finished: whether the policy ended its answer; None where the back end does not tell. scorer: whose the verdict is.
    """

    task: str
    mode: Mode
    document: str
    repeat: int
    prompt: str
    text: str
    gold: str
    verdict: Verdict
    tokens: int
    finished: bool | None
    labels: dict[str, str] = {}
    scorer: str = "math"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over documents. `name` is greedy, avg@k, best@k or maj@k; `invalid` counts answers left out."""

    task: str
    name: str
    value: float
    documents: int
    samples: int
    invalid: int


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Samples in task, mode, document, repeat order."""

    metrics: tuple[Metric, ...]
    samples: tuple[EvaluationSample, ...]

    def metric(self, task: str, name: str) -> Metric:
        """Raises KeyError when that metric was not computed."""
        for metric in self.metrics:
            if metric.task == task and metric.name == name:
                return metric
        raise KeyError(f"{task}: {name}")
