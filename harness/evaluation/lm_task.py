"""A task of ours as an lm-eval task: our documents and prompts, k repeats, our verifier as the only scoring rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task as LmEvalTask
from lm_eval.config.task import TaskConfig
from lm_eval.filters import build_filter_ensemble

from harness.evaluation.samples import EvaluationSample, Mode
from harness.experience.answers import Prompt
from harness.phases import phase
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
        self._verdicts: dict[str, list[float]] = {}
        for sample in self.samples:
            self._verdicts.setdefault(sample.document, []).append(sample.verdict.reward)

    def process_results(self, doc: Prompt, results: Any) -> dict[str, float]:
        rewards = [reward for reward in self._verdicts[doc.id] if reward == reward]
        return {"accuracy": sum(rewards) / len(rewards)} if rewards else {}

    def aggregation(self) -> dict[str, Callable[[Iterable[float]], float]]:
        return {"accuracy": _mean}

    def higher_is_better(self) -> dict[str, bool]:
        return {"accuracy": True}


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every) if every else float("nan")
