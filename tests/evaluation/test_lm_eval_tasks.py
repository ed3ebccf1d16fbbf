"""lm-eval's own tasks by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.engines.embedded.engine import EmbeddedEngine
from harness.errors import DataError, PluginError, SuiteError
from harness.evaluation.backends import EngineBackend
from harness.evaluation.run import evaluate_tasks
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named
from harness.tasks import lm_eval_source
from harness.tasks.registry import get_task, results_versions, training_source
from harness.verification.verifier import Verifier

pytestmark = pytest.mark.slow

YAML = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: {kind}
test_split: test
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 12, do_sample: false}}
filter_list:
  - name: strict
    filter: [{{function: regex, regex_pattern: "is (\\\\d+)"}}, {{function: take_first}}]
  - name: flexible
    filter: [{{function: regex, regex_pattern: "(\\\\d+)"}}, {{function: take_first}}]
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: {higher}}}
metadata: {{version: 1.0}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = tmp_path / "sums.json"
    data.write_text("".join(json.dumps({"question": f"{i}+2", "answer": str(i + 2)}) + "\n" for i in range(4)))
    for name, kind, higher in (
        ("tiny_sums", "generate_until", "true"),
        ("tiny_choice", "multiple_choice", "true"),
        ("tiny_distance", "generate_until", "false"),
    ):
        (tmp_path / f"{name}.yaml").write_text(YAML.format(name=name, data=data, kind=kind, higher=higher))
    (tmp_path / "group.yaml").write_text("group: tiny_group\ntask: [tiny_sums]\n")
    monkeypatch.setenv(lm_eval_source.VARIABLE, str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lm_eval_source._build_task.cache_clear()
    return tmp_path


def test_a_key_holds_what_a_function_says_and_not_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version_in(name: str, code: str) -> str:
        (folder := tmp_path / name).mkdir()
        (folder / "utils.py").write_text(code)
        yaml = (tmp_path / "tiny_sums.yaml").read_text().replace("task: tiny_sums", "task: tiny_docs")
        (folder / "tiny_docs.yaml").write_text(yaml + "process_docs: !function utils.docs\n")
        monkeypatch.setenv(lm_eval_source.VARIABLE, str(folder))
        return results_versions("lm_eval:tiny_docs")["lm_eval:tiny_docs"]

    first = version_in("first", "def docs(every):\n    return every\n")
    assert version_in("second", "def docs(every):\n    return every\n") == first
    assert version_in("third", "def docs(every):\n    return every.select([0])\n") != first


def test_its_own_prompt_filter_and_metric_decide() -> None:
    task = get_task("lm_eval:tiny_sums")
    documents = task.documents(None)
    assert [(p.id, p.text, p.gold) for p in documents[:2]] == [("0", "Q: 0+2\nA:", "2"), ("1", "Q: 1+2\nA:", "3")]
    assert task.render(documents[0], "raw") == documents[0].text
    assert (task.stop("raw"), task.max_new_tokens) == (("\n",), 12)
    assert task.judge is not None
    said = task.judge(
        [(documents[0], "it is 2"), (documents[0], "2"), (documents[1], "it is 2"), (documents[1], "is 3")]
    )
    assert [v.value for v in said] == ["right", "wrong", "wrong", "right"]
    assert said[3].extracted == "3"


SHUFFLED = """
import random
def docs(every):
    return every.shuffle(seed=random.randrange(1 << 30))
"""


def test_examples_and_choices_are_the_same_however_often_a_task_is_asked(folder: Path) -> None:
    (folder / "shuffled.py").write_text(SHUFFLED)
    yaml = (folder / "tiny_sums.yaml").read_text()
    few = "test_split: test\nfewshot_split: test\nnum_fewshot: 2\nprocess_docs: !function shuffled.docs"
    (folder / "tiny_shots.yaml").write_text(yaml.replace("test_split: test", few).replace("_sums", "_shots"))
    task = get_task("lm_eval:tiny_shots")
    assert task.judge is not None
    asked = []
    for _ in range(2):
        lm_eval_source._build_task.cache_clear()  # as in another process
        asked += [task.documents(None) for _ in range(2)]
        said = task.judge([(p, f"is {p.gold}") for p in asked[-1]])
        assert {v.value for v in said} == {"right"}
    assert asked[0] == asked[1] == asked[2] == asked[3]
    assert all(p.text.count("Q: ") == 3 for p in asked[0])


@pytest.mark.parametrize(
    ("said", "until"),
    [
        ("until: [], max_gen_toks: 12", ()),
        ("until: [], max_new_tokens: 12", ()),
        ("until: null, max_gen_toks: 12", ()),
        ("max_gen_toks: 12", ("##",)),
        ('until: "Q:"', ("Q:",)),
    ],
)
def test_no_stop_string_is_the_end_token_alone(folder: Path, said: str, until: tuple[str, ...]) -> None:
    yaml = (folder / "tiny_sums.yaml").read_text().replace("_sums", "_stops")
    settings = 'until: ["\\n"], max_gen_toks: 12'
    assert settings in yaml
    (folder / "tiny_stops.yaml").write_text(yaml.replace(settings, said) + 'fewshot_delimiter: "##"\n')
    task = get_task("lm_eval:tiny_stops")
    assert task.stop("raw") == until
    assert task.max_new_tokens == (12 if "12" in said else lm_eval_source.LENGTH)


def test_it_runs_as_any_other_task(checkpoint: Path, verifier: Verifier) -> None:
    engine = EmbeddedEngine("tiny", checkpoint)
    evaluation = evaluate_tasks(
        EngineBackend(engine), [get_task("lm_eval:tiny_sums")], verifier=verifier, metrics=["greedy", "avg@2"], limit=3
    )
    assert {s.task for s in evaluation.samples} == {"lm_eval:tiny_sums"}
    assert len(evaluation.samples) == 3 + 6
    assert [m.documents for m in evaluation.metrics] == [3, 3]
    assert all(s.prompt.endswith("\nA:") and s.tokens <= 12 for s in evaluation.samples)
    assert not [s for s in evaluation.samples if "\n" in s.text]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny_sum", "has no such task; did you mean 'tiny_sums'?"),
        ("tiny_choice", "asks for multiple_choice; only tasks that generate an answer"),
        ("tiny_group", "a group of lm-eval's; name one task"),
        ("hellaswag", "asks for multiple_choice"),
    ],
)
def test_others_are_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(PluginError) as caught:
        get_task(f"lm_eval:{name}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lm_eval_source.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(PluginError, match=r"HARNESS_LM_EVAL_TASKS: .*/none: no such folder"):
        get_task("lm_eval:tiny_sums")


def test_a_metric_that_says_no_right_and_data_that_is_not_there(folder: Path) -> None:
    with pytest.raises(DataError, match="does not say which answers are right"):
        get_task("lm_eval:tiny_distance").documents(None)
    (folder / "sums.json").unlink()
    with pytest.raises(DataError, match="does not load") as caught:
        get_task("lm_eval:tiny_sums").documents(None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("max_gen_toks: many", "ValueError: invalid literal"),
        ("max_gen_toks: -3", "answers of -3 tokens"),
        ("max_gen_toks: 12}\nprocess_docs: !function faulty.fails\nmetadata: {", "AssertionError"),
        ("max_gen_toks: 12}\nprocess_docs: !function faulty.leaves\nmetadata: {", "SystemExit: 3"),
        ("max_gen_toks: 12}\nnum_fewshot: 9\nfewshot_split: test\nmetadata: {", "ValueError: Sample larger"),
    ],
)
def test_a_task_that_is_at_fault_is_one_line(folder: Path, said: str, words: str) -> None:
    (folder / "faulty.py").write_text(
        "def fails(docs):\n    assert False\n\ndef leaves(docs):\n    raise SystemExit(3)\n"
    )
    yaml = (folder / "tiny_sums.yaml").read_text().replace("_sums", "_fault").replace("metadata: {version: 1.0}", "")
    (folder / "tiny_fault.yaml").write_text(yaml.replace('until: ["\\n"], max_gen_toks: 12, do_sample: false', said))
    with pytest.raises(DataError, match=rf"^lm_eval:tiny_fault does not load: .*{words}") as caught:
        get_task("lm_eval:tiny_fault").documents(None)
    assert "\n" not in str(caught.value)


SUITE = """
groups: [{name: one, policies: [{name: a, model: micro/llama}]}]
regimes: [independent]
seeds: [1]
evaluation: {tasks: [TASKS], k: 1, limit: 4}
"""


def test_in_a_suite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "s.yaml"
    file.write_text(SUITE.replace("TASKS", "micro, 'lm_eval:tiny_sums'"))
    cell = prepare_named(str(file), folder / "r").cells[0]
    for limit, remarked in (("4", []), ("null", ["lm_eval:tiny_sums"])):
        prepared = prepare_named(str(file), folder / "r", overrides=[f"evaluation.limit={limit}"])
        assert [remark.split(": ")[0] for remark in check_before_run(prepared, about_to_run=False)] == remarked
    (said,) = results_versions("lm_eval:tiny_sums").values()
    assert cell.identity.versions["lm_eval:tiny_sums"] == said
    (folder / "other").mkdir()
    yaml = (folder / "tiny_sums.yaml").read_text()
    (folder / "other" / "tiny_sums.yaml").write_text(yaml.replace("max_gen_toks: 12", "max_gen_toks: 13"))
    monkeypatch.setenv(lm_eval_source.VARIABLE, str(folder / "other"))
    assert prepare_named(str(file), folder / "r").cells[0].key != cell.key
    for tasks, words in (
        ("'lm_eval:tiny_sums'", "gives no learning curve"),
        ("micro, 'lm_eval:tiny_sum'", r"evaluation.tasks\[1\]: unknown task lm_eval:tiny_sum"),
    ):
        file.write_text(SUITE.replace("TASKS", tasks))
        with pytest.raises(SuiteError, match=words):
            prepare_named(str(file), folder / "r")
    with pytest.raises(PluginError, match="unknown training task"):
        training_source("lm_eval:tiny_sums")
