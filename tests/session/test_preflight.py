"""What cannot run is refused before anything starts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
from running import here
from tasks.benchmark_data import data_folder
from tokenizers import Regex, decoders
from transformers import AutoTokenizer

from harness.allocation import inventory
from harness.engines.catalogue import MICRO_FAMILIES
from harness.engines.embedded.families import FAMILIES
from harness.errors import SuiteError
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named, prepare_suite
from harness.session.suite.resolved import list_remarks
from harness.tuning.derived import foreseen_suites

SUITE = """
groups:
  - name: pair
    policies:
      - {{name: a, model: {a}}}
      - {{name: b, model: {b}}}
regimes: [independent, {regime}]
seeds: [1]
training: {{steps: 1, prompts: 2, rollouts: 2, max_new_tokens: 8, learning_rate: 1.0e-4, measure_every: 0}}
evaluation: {{k: 0, limit: 2, curve_every: 0}}
"""


@pytest.fixture(scope="module")
def model(untrained):
    return untrained("llama")


@pytest.fixture
def broken(model, tmp_path):
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.fixture
def suite(tmp_path):
    def write(a: object, b: object = "micro/qwen", regime: str = "hacpo") -> str:
        file = tmp_path / "x.yaml"
        file.write_text(SUITE.format(a=a, b=b, regime=regime))
        return str(file)

    return write


def remarks(file: str, *overrides: str, engine: str = "embedded", run: bool = True) -> list[str]:
    return check_before_run(prepare_named(file, Path("nowhere"), overrides=overrides, engine=engine), about_to_run=run)


def refusal(file: str, *overrides: str, engine: str = "embedded", run: bool = True) -> str:
    with pytest.raises(SuiteError) as refused:
        remarks(file, *overrides, engine=engine, run=run)
    source, text = f"{file}: ", str(refused.value)
    for key in (setting.partition("=")[0] for setting in overrides):
        if text.removeprefix(source).removeprefix("--set ").startswith((f"{key}:", f"{key}.", f"{key}[")):
            source = "--set "
    assert text.startswith(source)
    assert "\n" not in text
    return text.removeprefix(source)


def test_portable_numerics_of_half_precision_are_asked_for_in_fp32(suite, broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    file = suite(broken)
    said = refusal(file, "engine_options.numerics=portable")
    assert said.startswith(f"groups[0].policies[0].model: {broken}: ")
    assert said.endswith("numerics: portable needs engine_options.dtype: fp32")
    remarks(file, "engine_options={numerics: portable, dtype: fp32}")
    remarks(file, "engine_options.numerics=fast")


@pytest.mark.parametrize(("verb", "engine"), [("plan", "openrlhf"), ("run", "embedded")])
def test_a_missing_folder_is_one_line_and_nothing_is_written(suite, tmp_path, verb, engine):
    file, results = suite("micro/llama", "./does-not-exist"), tmp_path / "results"
    code, out, err = here(verb, file, "--engine", engine, "--results", results)
    assert (code, out) == (2, "")
    assert err == f"harness: {file}: groups[0].policies[1].model: no such folder: ./does-not-exist\n"
    assert not results.exists()


def lacks(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def holds(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def one_of_two(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / SHARDS[0])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lacks("config.json"), ": there is no config.json"),
        (lacks("model.safetensors"), ": there are no weights (model.safetensors)"),
        (lacks("tokenizer.json", "tokenizer_config.json"), ": there is no tokenizer (tokenizer.json)"),
        (cut_off, "/model.safetensors: "),
        (one_of_two, f": 1 of 2 files of weights are missing ({SHARDS[1]})"),
        (holds("tokenizer.json", "[]"), ": "),
        (holds("tokenizer_config.json", "[]"), ": "),
        (holds("generation_config.json", "["), ": "),
        (holds("config.json", "{}"), ": "),
        (holds("config.json", "["), ": "),
        (holds("config.json", '{"model_type": "t5"}'), ": "),
        (holds("config.json", '{"model_type": "llama", "hidden_size": "wide"}'), ": "),
    ],
)
@pytest.mark.parametrize("engine", ["embedded", "openrlhf"])
def test_what_a_folder_lacks_is_named(suite, broken, monkeypatch, breaks, words, engine):
    monkeypatch.setattr("harness.session.suite.preflight.cpu_bf16", lambda: "AMX")  # else that is a remark
    assert remarks(suite(broken), engine=engine) == []
    breaks(broken)
    assert refusal(suite(broken), engine=engine).startswith(f"groups[0].policies[0].model: {broken}{words}")


def test_a_plan_of_another_machine_needs_neither_weights_nor_tokenizer(suite, broken):
    file = suite(broken)
    for name, lacks in (
        ("model.safetensors", "weights"),
        ("tokenizer.json", ""),
        ("tokenizer_config.json", "weights and no tokenizer"),
    ):
        (broken / name).unlink()
        code, out, err = here("plan", file, "--inventory", "8cpu-24G", "--json")
        assert code == 0, err
        assert json.loads(out)["feasible"]
        assert f"groups[0].policies[0].model: {broken} has no {lacks}" in err
        assert here("plan", file)[0] == here("run", file)[0] == 2
    (broken / "config.json").unlink()
    assert here("plan", file, "--inventory", "8cpu-24G")[0] == 2


@pytest.fixture
def uncarried(broken):
    """A folder whose tokenizer decodes in a way that THL cannot follow."""
    tokenizer = AutoTokenizer.from_pretrained(broken)
    core = tokenizer.backend_tokenizer
    core.decoder = decoders.Sequence([core.decoder, decoders.Replace(Regex("x+"), "y")])
    core.save(str(broken / "tokenizer.json"))
    return broken


@pytest.mark.parametrize("regime", ["hacpo", "sgt"])
def test_a_tokenizer_that_texts_cannot_be_carried_to(suite, uncarried, regime):
    text = refusal(suite("micro/qwen", uncarried, regime))
    assert text.startswith(f"groups[0].policies[1].model: '{regime}' shares text, which cannot be carried")
    assert remarks(suite(uncarried, regime="xgrpo")) == remarks(suite(uncarried), "sharing.direction=none") == []


def test_chat_needs_a_template(suite, broken):
    file = suite(broken)
    chat = "groups[0].policies[0].chat=true"
    assert refusal(file, chat) == f"groups[0].policies[0].chat: the tokenizer of {broken} has no chat template"
    (broken / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert remarks(file, chat) == []
    assert refusal(file, "groups[0].policies[1].chat=true").startswith("groups[0].policies[1].chat: ")


def test_answers_longer_than_the_model(suite, model):
    words = f"training.max_new_tokens: 256 leave no room for a prompt: {model} has 256 positions"
    assert refusal(suite(model), "training.max_new_tokens=256") == words
    assert "engine_options.max_length" in refusal(suite(model), "engine_options.max_length=257", engine="openrlhf")


def test_micro_names_and_presets(suite):
    assert set(MICRO_FAMILIES) == set(FAMILIES)
    assert "unknown micro model 'micro/lama'" in refusal(suite("micro/lama"))
    assert refusal(suite("micro/llama"), "groups[0].policies[1].stage0.preset=trip").startswith(
        "groups[0].policies[1].stage0.preset: unknown preset 'trip'"
    )


def test_micro_defaults_on_another_model_are_remarked(suite, model, tmp_path):
    file = Path(suite(model))
    file.write_text(file.read_text().replace("max_new_tokens: 8, learning_rate: 1.0e-4, ", ""))
    said = remarks(str(file))
    assert [text.split(":")[0] for text in said] == ["training.max_new_tokens", "training.learning_rate"]
    assert all(str(model) in text for text in said)
    assert len(remarks(str(file), "training.max_new_tokens=44")) == 1
    file.write_text(file.read_text().replace(str(model), "micro/llama"))
    assert remarks(str(file)) == []


COMMIT = "a" * 40


def test_hub_models_without_a_network(suite, model, tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    file = suite("some-lab/some-model")
    assert "(not in this machine's cache, and HF_HUB_OFFLINE is set)" in refusal(file)
    assert f": {file}: groups[0].policies[0].model: " in here("run", file, "--results", tmp_path / "r")[2]
    assert remarks(file, run=False) == [
        "not in this machine's cache: some-lab/some-model; `harness run` fetches and checks them"
    ]
    entry = cache / "models--some-lab--some-model"
    snapshot = entry / "snapshots" / COMMIT
    shutil.copytree(model, snapshot)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    pinned = f"groups[0].policies[0].revision={COMMIT}"
    assert remarks(file) == remarks(file, run=False) == remarks(file, pinned) == []
    (snapshot / "model.safetensors").unlink()
    assert refusal(file).endswith("there are no weights (model.safetensors)")


@pytest.mark.slow
def test_hub_models_where_the_network_does_not_answer(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "not a local folder, and not available from the hub" in refusal(suite("some-lab/other"))


@pytest.mark.parametrize("run", [True, False])
def test_absent_data(suite, tmp_path, monkeypatch, run):
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    assert refusal(suite("micro/llama"), "evaluation.tasks=[micro, math500]", run=run).startswith(
        f"evaluation.tasks[1]: math500: there is no math500.jsonl in {tmp_path}"
    )
    assert refusal(suite("micro/llama"), "training.task=gsm8k", run=run).startswith("training.task: gsm8k_train: ")


def test_data_not_fetched_yet_is_a_remark_of_a_plan(suite, tmp_path, monkeypatch):
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    tasks = "evaluation.tasks=[aime24, amc23]"
    (remark,) = remarks(suite("micro/llama"), tasks, run=False)
    assert remark.startswith("not on this machine: aime24, amc23; `harness run` fetches them")
    assert "--data-dir" in refusal(suite("micro/llama"), tasks)


FOLDER = data_folder()
needs_data = pytest.mark.skipif(FOLDER is None, reason="no benchmark folder (HARNESS_DATA)")


@needs_data
def test_prompts_that_the_pool_does_not_hold(suite, monkeypatch):
    monkeypatch.setenv("HARNESS_DATA", str(FOLDER))
    assert refusal(suite("micro/llama"), "training.task=gsm8k", "training.min_level=3").startswith("training.min_level")
    text = refusal(suite("micro/llama"), "training.task=gsm8k", "training.prompts=9000")
    assert text.startswith("training.prompts: 9000 prompts a step asked for; the pool of gsm8k holds 7")


@pytest.mark.parametrize(
    ("task", "more", "place"),
    [
        ("ladder.legs", ["training.prompts=200"], "training.prompts: ladder: 200 distinct prompts"),
        ("ladder.legs", ["regimes=[independent, {regime: hacpo, training: {prompts: 200}}]"], "regimes[1].training.prompts: "),
        ("ladder.legs", ["training.part=tuning"], "training.task: "),
        ("ladder.legs", ["training.min_level=3"], "training.min_level: ladder.legs has no levels of MATH"),
        ("micro", ["training.min_level=3"], "training.min_level: micro has no levels of MATH"),
        ("{file: four.jsonl, scorer: exact}", ["training.prompts=5"], "training.prompts: 5 prompts a step asked for; "),
        ("{file: four.jsonl, scorer: exact}", ["regimes=[{regime: independent, training: {prompts: 5}}]"], "regimes[0].training."),
    ],
)  # fmt: skip
def test_prompts_that_code_or_a_file_does_not_hold(suite, tmp_path, task, more, place):
    rows = (json.dumps({"question": f"What is {n} and {n}?", "answer": str(2 * n)}) for n in range(4))
    (tmp_path / "four.jsonl").write_text("\n".join(rows))
    file = suite("micro/llama")
    assert refusal(file, f"training.task={task}", *more, run=False).startswith(place)
    assert remarks(file, "training.task=ladder.legs", "training.prompts=100") == []


TUNE = """
tune:
  seeds: [101]
  groups:
    - name: other
      policies: [{name: a, model: OUTSIDE}, {name: b, model: micro/qwen, stage0: {preset: trap, seed: 1}}]
  evaluation: {tasks: [micro_dev], curve_every: 0}
"""


def test_models_and_files_of_an_imported_search_lie_in_declared_folders_too(suite, tmp_path, monkeypatch):
    monkeypatch.delenv("HARNESS_MODELS", raising=False)
    outside, file = tmp_path / "outside", tmp_path / "own" / "x.yaml"
    outside.mkdir()
    file.parent.mkdir()
    (file.parent / "submission.json").write_text("{}")
    file.write_text(Path(suite("micro/llama")).read_text() + TUNE.replace("OUTSIDE", str(outside)))
    with pytest.raises(SuiteError, match=r"tune\.groups\[0\]\.policies\[0\]\.model: .* is outside the folders"):
        prepare_named(str(file), tmp_path / "results")
    said = f"tune.groups[0].policies[0].model={outside}"
    assert prepare_named(str(file), tmp_path / "results", overrides=[said]).cells  # the user's own word
    (outside / "own.jsonl").write_text('{"question": "1 + 1", "answer": 2}')
    given = [said, f"training.task={{file: {os.path.relpath(outside)}/own.jsonl}}"]
    tuned = prepare_named(str(file), tmp_path / "results", overrides=given)
    assert all(prepare_suite(stage, str(file), tmp_path, given).cells for stage in foreseen_suites(tuned.suite))


def test_a_model_of_the_cache_that_is_not_there(suite, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = suite("pretrained/smollm2-135m-instruct")
    assert "`make pretrained` fetches and converts it" in refusal(file)
    (remark, *_) = [r for r in remarks(file, run=False) if "make pretrained" in r]
    assert remark.startswith("groups[0].policies[0].model: pretrained/smollm2-135m-instruct is not in the cache")
    shutil.copytree(model, tmp_path / "cache" / "models" / "smollm2-135m-instruct")
    assert not any("make pretrained" in r for r in remarks(file))
    prepared = prepare_named(file, Path("nowhere"))
    assert prepared.cells[0].identity.models["a"].startswith("content ")
    assert prepared.cells[0].key == prepare_named(suite(model), Path("nowhere")).cells[0].key


@pytest.mark.parametrize("name", ["pretrained/../../../outside", "pretrained/link"])
def test_a_name_in_the_cache_leads_nowhere_else(suite, model, tmp_path, monkeypatch, name):
    place = tmp_path / "a" / "b" / "cache"
    (place / "models").mkdir(parents=True)
    monkeypatch.setenv("HARNESS_CACHE", str(place))
    monkeypatch.delenv("HARNESS_MODELS", raising=False)
    shutil.copytree(model, tmp_path / "a" / "outside")
    (place / "models" / "link").symlink_to(tmp_path / "a" / "outside")
    sub = tmp_path / "sub"
    sub.mkdir()
    file = sub / "x.yaml"
    (sub / "submission.json").write_text("{}")
    file.write_text(Path(suite(name)).read_text())
    with pytest.raises(SuiteError, match="is outside the folders that a suite may name"):
        prepare_named(str(file), tmp_path / "results")


@pytest.mark.skipif(inventory.inventory_of_machine().gpus > 0, reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_a_device_that_is_not_here_is_refused_before_the_bases_are_trained(suite, tmp_path, device):
    file = Path(suite("micro/llama"))
    file.write_text(file.read_text() + f"engine_options: {{device: {device}}}\n")
    prepared = prepare_named(str(file), tmp_path / "results")
    assert not [
        remark for remark in check_before_run(prepared, about_to_run=False) if device in remark
    ]  # planned for another machine
    with pytest.raises(SuiteError, match=rf"engine_options: device: {device}: there is no {device.upper()} device"):
        check_before_run(prepared, about_to_run=True)


def test_an_address_is_refused_where_no_cluster_is_joined(suite, tmp_path):
    code, _, err = here("run", suite("micro/llama"), "--results", tmp_path / "results", "--address", "nowhere:1")
    assert (code, err.splitlines()[-1]) == (2, "harness: --address nowhere:1: this engine joins no cluster")


def test_a_recording_of_no_suite_is_said_before_anything_is_trained(suite):
    file = suite("micro/llama", regime="{regime: sgt, replay: {suite: elsewhere, regime: sgt}}")
    said = "regimes[1].replay.suite: there are no results of elsewhere here"
    assert refusal(file).startswith(said)
    assert [remark for remark in remarks(file, run=False) if remark.startswith(said)]


def test_a_run_on_a_cpu_that_emulates_bf16_is_remarked(suite, broken, monkeypatch):
    """24.6: the precision stays what the key says; that it takes longer here is said."""
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    monkeypatch.setattr("harness.session.suite.preflight.cpu_bf16", lambda: "AMX")
    assert remarks(suite(broken)) == []
    monkeypatch.setattr("harness.session.suite.preflight.cpu_bf16", lambda: "")
    (said,) = remarks(suite(broken))
    assert said.startswith(f"{broken}: on this CPU bf16 takes 2.5 to 5 times as long as fp32")
    assert remarks(suite(broken), "engine_options.dtype=fp32") == remarks(suite(broken), run=False) == []


@pytest.mark.parametrize(("all_of_them", "own"), [(1, 4), (4, 1)])
def test_what_is_said_of_a_variant_is_of_its_own_updates(suite, all_of_them, own):
    file = suite("micro/llama", regime=f"{{regime: hacpo, training: {{updates: {own}}}}}")
    said = list_remarks(prepare_named(file, Path("nowhere"), overrides=[f"training.updates={all_of_them}"]).resolved)
    assert [remark.startswith("hacpo: one update a step") for remark in said] == [True] * (own == 1)


TURNS = (
    "{% for m in messages %}<|turn|>{{ m.role }} {{ m.content }}<|done|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>{% endif %}"
)
CHAT = "groups[0].policies[0].chat"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no') }}", "the chat template fails: no"),
        ("{{ bos_token }}hello", "the chat template leaves the question out"),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('who') }}{% endif %}" + TURNS,
            "`chat: {system: ...}`",
        ),
    ],
)
@pytest.mark.parametrize("engine", ["embedded", "openrlhf"])
def test_a_template_that_cannot_ask_is_refused_with_a_remedy(suite, broken, template, words, engine):
    (broken / "chat_template.jinja").write_text(template)
    said = refusal(suite(broken), f"{CHAT}=true", engine=engine, run=False)
    assert said.startswith(f"{CHAT}: {broken}: the chat template ")
    assert words in said


def test_a_system_turn_mends_a_template_that_demands_one(suite, broken):
    (broken / "chat_template.jinja").write_text(
        "{% if messages[0].role != 'system' %}{{ raise_exception('who') }}{% endif %}" + TURNS
    )
    assert remarks(suite(broken), f"{CHAT}={{system: You add.}}") == []


def test_an_open_thought_and_a_day_are_remarked(suite, broken):
    (broken / "chat_template.jinja").write_text(TURNS.replace("<|turn|>{% endif", "<|turn|><think>{% endif"))
    (said,) = remarks(suite(broken), f"{CHAT}=true")
    assert said.startswith(
        f"{CHAT}: a's prompts open a thought: </think> closes it before a peer's answer that closes none"
    )
    assert remarks(suite(broken, regime="xgrpo"), f"{CHAT}=true") == [], "no answers travel"
    (broken / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}" + TURNS)
    (said,) = remarks(suite(broken), f"{CHAT}=true")
    assert "each cell keeps that of its start" in said
    assert remarks(suite(broken), f"{CHAT}={{date: 2026-01-31}}") == []


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ("{tokenize: true}", "'tokenize' cannot be set"),
        ("{date: 31.1.2026}", "`date` is a day"),
        ("{system: 7}", "`system` is the text"),
        ("{a b: 1}", "'a b' cannot be set"),
    ],
)
def test_settings_that_no_template_has(suite, broken, chat, words):
    with pytest.raises(SuiteError, match=r"groups\[0\]\.policies\[0\]\.chat") as caught:
        prepare_named(suite(broken), Path("nowhere"), overrides=[f"{CHAT}={chat}"])
    assert words in str(caught.value)


def test_a_chat_without_settings_keeps_its_keys(suite, broken):
    (broken / "chat_template.jinja").write_text(TURNS)
    file = suite(broken)
    with_chat = [prepare_named(file, Path("nowhere"), overrides=[f"{CHAT}={said}"]).cells[0] for said in ("true", "{}")]
    assert with_chat[0].key == with_chat[1].key
    assert with_chat[0].group.policies[0].model_dump(mode="json")["chat"] is True
    assert prepare_named(file, Path("nowhere"), overrides=[f"{CHAT}={{system: a}}"]).cells[0].key != with_chat[0].key


def test_too_few_positions_for_a_question_and_its_answer(suite, model):
    said = refusal(suite(model), "training.max_new_tokens=250", run=False)
    assert said.startswith("training.max_new_tokens: the longest question of a takes ")
    assert said.endswith("fit")
    said = refusal(suite(model), "evaluation.max_new_tokens=250", run=False)
    assert said.startswith("evaluation.max_new_tokens: ")


def test_a_relative_folder_is_looked_for_beside_the_suite(suite, broken, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("HARNESS_MODELS", raising=False)
    absolute = prepare_named(suite(broken), Path("nowhere")).cells[0]
    for name in ("./model", "model", "elsewhere/../model"):
        prepared = prepare_named(suite(name), Path("nowhere"))
        assert Path(prepared.cells[0].group.policies[0].model) == broken.resolve()
        assert prepared.cells[0].key == absolute.key
        assert not prepared.altered
    assert here("plan", suite("./model"), "--results", tmp_path / "r")[0] == 0


def test_ones_own_suite_names_folders_anywhere(suite, broken, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.delenv("HARNESS_MODELS", raising=False)
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    own = tmp_path_factory.mktemp("own") / "x.yaml"
    own.write_text(Path(suite(broken)).read_text())
    assert prepare_named(str(own), tmp_path / "results").cells
    (own.parent / "submission.json").write_text("{}")
    with pytest.raises(SuiteError, match="is outside the folders that a suite may name"):
        prepare_named(str(own), tmp_path / "results")
