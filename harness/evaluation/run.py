"""Evaluate a model on tasks through lm-eval: our documents and prompts, k repeats, our verifier as the only scoring rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval import evaluate as lm_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import Task as LmEvalTask
from lm_eval.config.task import TaskConfig
from lm_eval.filters import build_filter_ensemble
from lm_eval.tasks import TaskManager

from harness.errors import UsageError
from harness.evaluation.backends import EngineLM
from harness.evaluation.metrics import Evaluation, EvaluationSample, Metric, MetricSpec, Mode, summarise
from harness.experience.answers import Prompt
from harness.phases import phase
from harness.scoring.catalogue import called
from harness.tasks.source import fair_part
from harness.tasks.task import Style, Task
from harness.verification.verifier import Verifier


class VerifiedTask(LmEvalTask):  # type: ignore[misc]  # lm-eval is untyped
    """`repeats` answers per document in one mode. After lm-eval has run it, `samples` holds every answer with its verdict.

    `count_tokens` gives an answer's length where the back end returns bare text.
    """

    VERSION = 1
    OUTPUT_TYPE = "generate_until"

    def __init__(
        self,
        task: Task,
        documents: list[Prompt],
        *,
        style: Style,
        mode: Mode,
        repeats: int,
        temperature: float,
        verifier: Verifier,
        count_tokens: Callable[[str], int],
    ) -> None:
        self.task, self.documents, self.style, self.mode = task, documents, style, mode
        self.verifier, self.count_tokens = verifier, count_tokens
        self._generation = {
            "until": list(task.stop(style)),
            "max_gen_toks": task.max_new_tokens,
            "do_sample": temperature > 0,
            "temperature": temperature,
        }
        super().__init__()
        self._config = TaskConfig(
            task=f"{task.name}:{mode}",
            output_type="generate_until",
            generation_kwargs=self._generation,
            repeats=repeats,
            num_fewshot=0,
        )
        self._filters = [build_filter_ensemble("all", [["take_first_k", {"k": repeats}]])]
        self.samples: list[EvaluationSample] = []

    def download(self, *args: Any, **kwargs: Any) -> None:
        """The documents are given."""

    def has_training_docs(self) -> bool:
        return False

    def has_validation_docs(self) -> bool:
        return False

    def has_test_docs(self) -> bool:
        return True

    def test_docs(self) -> list[Prompt]:
        return self.documents

    def doc_to_text(self, doc: Prompt) -> str:
        return self.task.render(doc, self.style)

    def doc_to_target(self, doc: Prompt) -> str:
        return doc.gold

    def build_all_requests(
        self,
        *,
        limit: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        chat_template: Callable[..., str] | None = None,
        **_: Any,
    ) -> None:
        """One request per document; `chat_template` is given for back ends that do not apply one themselves."""
        self._instances = []
        for index, doc in self.doc_iterator(rank=rank, limit=limit, world_size=world_size):
            text = self.doc_to_text(doc)
            if chat_template is not None:
                text = chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
            metadata = (self.config.task, index, self.config.repeats)
            self._instances.append(self.construct_requests(doc, text, metadata=metadata))

    def construct_requests(self, doc: Prompt, ctx: str, **kwargs: Any) -> Instance:
        return Instance(
            request_type="generate_until",
            doc=doc,
            arguments=(ctx, self._generation),
            idx=0,
            metadata=kwargs["metadata"],
        )

    def apply_filters(self) -> None:
        """Verify all answers of the task at once."""
        super().apply_filters()
        answers = [(i, repeat, text) for i in self._instances for repeat, text in enumerate(i.filtered_resps["all"])]
        with phase(f"verifying {len(answers):,} answers of {self.config.task}", quiet=True):
            if self.task.judge is not None:
                verdicts = self.task.judge([(i.doc, str(text)) for i, _, text in answers])
            else:
                verdicts = self.verifier.verify([(i.doc.gold, str(text)) for i, _, text in answers])
        self.samples = [
            EvaluationSample(
                task=self.task.name,
                mode=self.mode,
                document=i.doc.id,
                repeat=repeat,
                prompt=getattr(text, "prompt", i.args[0]),
                text=str(text),
                gold=i.doc.gold,
                verdict=verdict,
                tokens=getattr(text, "tokens", None) or self.count_tokens(text),
                finished=getattr(text, "finished", None),
                labels=dict(i.doc.labels),
                scorer=self.task.scorer,
            )
            for (i, repeat, text), verdict in zip(answers, verdicts, strict=True)
        ]

    def process_results(self, doc: Prompt, results: Any) -> dict[str, float]:
        """Nothing: the metrics are made of `samples`."""
        return {}

    def aggregation(self) -> dict[str, Callable[..., float]]:
        return {}

    def higher_is_better(self) -> dict[str, bool]:
        return {}


def evaluate(
    lm: LM,
    tasks: Sequence[Task],
    *,
    verifier: Verifier,
    metrics: Sequence[str] | None = None,
    limit: int | None = None,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
    style: Style | None = None,
    chat: bool | None = None,
    data_dir: Path | None = None,
) -> Evaluation:
    """Run `tasks` on `lm` and verify every answer.

    metrics: any of greedy, avg@K, best@K, maj@K; default greedy and avg@k with each task's own k (`metric_names` makes the list
    from a suite's settings). limit: documents per task (`fair_part`). max_new_tokens, style: None for each task's own: the first
    that it offers, as in training. chat: whether back ends other than the engines, which have their own, put prompts through the
    chat template; None where the tokenizer has one.

    Raises
    ------
    UsageError
        An unknown metric, or a style that a task does not offer.
    DataError
        A task's documents cannot be had.
    VerificationError
        The verifier's processes do not start.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if max_new_tokens is not None:
        tasks = [replace(task, max_new_tokens=max_new_tokens) for task in tasks]
    plans = [(task, _specs(metrics, task), _style(task, style)) for task in tasks]
    built: list[VerifiedTask] = []
    for task, specs, chosen in plans:
        documents = fair_part(task.documents(data_dir), limit)
        modes: dict[Mode, int] = {}
        for spec in specs:
            mode: Mode = "greedy" if spec.kind == "greedy" else "sampled"
            modes[mode] = max(modes.get(mode, 1), spec.k)
        for mode, repeats in modes.items():
            built.append(
                VerifiedTask(
                    task,
                    documents,
                    style=chosen,
                    mode=mode,
                    repeats=repeats,
                    temperature=0.0 if mode == "greedy" else temperature,
                    verifier=verifier if task.judge else verifier.by(called(task.scorer)),
                    count_tokens=_token_counter(lm),
                )
            )
    _run(lm, built, chat)
    samples: list[EvaluationSample] = []
    results: list[Metric] = []
    for task, specs, _ in plans:
        own = [sample for part in built if part.task is task for sample in part.samples]
        samples += own
        results += summarise(task.name, specs, own)
    return Evaluation(metrics=tuple(results), samples=tuple(samples))


def metric_names(greedy: bool, k: int) -> list[str]:
    """The metrics that a suite's `greedy` and `k` ask for: avg@k, best@k and maj@k come from the same k samples."""
    sampled = [f"{kind}@{k}" for kind in (("avg", "best", "maj") if k > 1 else ("avg",))] if k else []
    return (["greedy"] if greedy else []) + sampled


def _run(lm: LM, tasks: list[VerifiedTask], chat: bool | None) -> None:
    """`lm_eval.evaluate` rather than `simple_evaluate`, which also reseeds the process's generators and lists every installed
    package (a second of CPU time each call)."""
    if chat is None:
        chat = bool(_tokenizer_of(lm).chat_template)
    lm_evaluate(
        lm=lm,
        task_dict=TaskManager(include_defaults=False).load(list(tasks)),
        bootstrap_iters=0,
        log_samples=False,
        apply_chat_template=chat and not isinstance(lm, EngineLM),
    )


def _specs(metrics: Sequence[str] | None, task: Task) -> list[MetricSpec]:
    names = list(metrics) if metrics is not None else ["greedy", f"avg@{task.k}"]
    if not names:
        raise UsageError(f"{task.name}: no metric asked for")
    return [MetricSpec.parse(name) for name in dict.fromkeys(names)]


def _style(task: Task, style: Style | None) -> Style:
    if style is None:
        return task.styles[0]
    if style not in task.styles:
        raise UsageError(f"{task.name} has no prompt style {style!r}; it offers {', '.join(task.styles)}")
    return style


def _tokenizer_of(lm: LM) -> Any:
    return lm.engine.tokenizer if isinstance(lm, EngineLM) else lm.tokenizer


def _token_counter(lm: LM) -> Callable[[str], int]:
    return lambda text: len(_tokenizer_of(lm).encode(text, add_special_tokens=False))
