"""A rehearsal takes a suite of real models to its table and says what the full run would fail with, each by its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from running import harness, here, installed

from harness.allocation.shapes import shipped_configs
from harness.experience.answers import Prompt
from harness.rehearsal import standins
from harness.rehearsal.rehearse import Rehearsal, examine_suite, name_of, rehearse_suite
from harness.session.cell.manifests import manifest_of, mark_state
from harness.session.driver.matrix import RunSummary
from harness.session.suite.planning import plan_for
from harness.session.suite.prepare import prepare_named
from harness.suite.schema import Policy

EQUAL = """
from regimes.naive import Naive

class Equal(Naive):
    \"\"\"Naive pooling of equal groups\"\"\"
    unequal_rollouts = False
    unequal_reason = "its pool counts every policy once"
"""
Spoil = Callable[[dict[str, Any], Path], None]


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """In a folder of its own, with data that lack every set and a regime `equal` that wants equal numbers of rollouts."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return installed(tmp_path / "site", "equalregime", EQUAL, {"equal": "Equal"})


@pytest.fixture
def raw(untrained, tmp_path):
    """A sound suite of two folders with tokenizers and configs, and no weights."""
    for family in ("llama", "qwen"):
        folder = Path(shutil.copytree(untrained(family), tmp_path / family))
        (folder / "model.safetensors").unlink()
        config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 4096}
        (folder / "config.json").write_text(json.dumps(config))
    lines = [json.dumps({"question": f"{i} plus two is", "answer": i + 2}) for i in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    held_out = {"file": "sums.jsonl", "scorer": "exact", "held_out": 0.3}
    return {
        "name": "lab",
        "engine": "openrlhf",
        "engine_options": {"dtype": "bf16", "max_length": 2000},
        "groups": [{"name": "pair", "policies": [{"name": n, "model": f"./{n}"} for n in ("llama", "qwen")]}],
        "regimes": ["independent", "hacpo", "sgt"],
        "seeds": [1, 2],
        "training": {
            "task": "micro",
            "steps": 50,
            "prompts": 16,
            "rollouts": 8,
            "max_new_tokens": 200,
            "measure_every": 0,
        },
        "evaluation": {"tasks": ["micro", held_out], "k": 4, "limit": 40, "max_new_tokens": 200, "curve_every": 0},
    }


def bad_template(raw: dict[str, Any], place: Path) -> None:
    (place / "llama/chat_template.jinja").write_text("{{ raise_exception('only tools may speak') }}")
    raw["groups"][0]["policies"][0]["chat"] = True


def no_eos(raw: dict[str, Any], place: Path) -> None:
    """Any of these files alone would name an end."""
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        file = place / "qwen" / name
        if file.exists():
            said = json.loads(file.read_text()).items()
            file.write_text(json.dumps({k: v for k, v in said if k not in ("eos_token", "eos_token_id")}))


def short_length(raw: dict[str, Any], place: Path) -> None:
    raw["engine_options"]["max_length"] = 204


def wrong_field(raw: dict[str, Any], place: Path) -> None:
    (place / "wrong.jsonl").write_text('{"question": "one plus two is", "result": 3}\n')
    raw["training"]["task"] = {"file": "wrong.jsonl", "scorer": "exact"}


def absent_set(raw: dict[str, Any], place: Path) -> None:
    raw["evaluation"]["tasks"].append("math500")


def unequal(raw: dict[str, Any], place: Path) -> None:
    raw["groups"][0]["policies"][0]["rollouts"] = 4
    raw["regimes"].append("equal")


def too_large(raw: dict[str, Any], place: Path) -> None:
    """Weights of 8 B parameters, of 100 cells with 3 regimes: some 10 TB."""
    (place / "qwen/config.json").write_text(json.dumps(dict(shipped_configs()["Qwen3-8B"])))
    raw["seeds"] = list(range(100))


def taken_key(raw: dict[str, Any], place: Path) -> None:
    """The results hold another cell under the key of one of these."""
    (place / "first.yaml").write_text(yaml.safe_dump(raw))
    prepared = prepare_named(str(place / "first.yaml"), place / "results")
    cell = prepared.all_cells[0]
    mark_state(prepared.folder / cell.key, msgspec.structs.replace(manifest_of(cell), regime="luffy"), "done")


FAULTS: dict[str, Spoil] = {
    "chat template": bad_template, "EOS": no_eos, "max_length": short_length, "task": wrong_field, "dataset": absent_set,
    "unequal rollouts": unequal, "disk": too_large, "key collision": taken_key,
}  # fmt: skip
WORDS = {
    "chat template": "only tools may speak",
    "EOS": "the tokenizer has no EOS token",
    "max_length": "204",
    "task": "wrong.jsonl:1: there is no `answer`",
    "dataset": "math500",
    "unequal rollouts": "counts every policy once",
    "disk": "GiB are free",
    "key collision": "pair/luffy/1",
}


def examined(raw: dict[str, Any], place: Path, inventory: str | None = None) -> Rehearsal:
    (place / "lab.yaml").write_text(yaml.safe_dump(raw))
    return examine_suite(str(place / "lab.yaml"), place / "results", place / "rehearsal", inventory=inventory)[0]


def test_the_plan_is_of_the_suite_as_given_although_its_data_is_absent(raw, tmp_path):
    raw["training"]["task"] = "gsm8k"
    raw["evaluation"]["tasks"] = ["math500", "micro", "gsm8k"]
    report = examined(raw, tmp_path, "8xH100-80G")  # whatever memory this machine has free
    places = [(finding.name, finding.place) for finding in report.findings]
    assert places == [("dataset", at) for at in ("training.task", "evaluation.tasks[0]", "evaluation.tasks[2]")]
    planned = plan_for(prepare_named(str(tmp_path / "lab.yaml"), tmp_path / "results"), "8xH100-80G")
    assert report.needs["predicted"] == msgspec.to_builtins(planned)["predicted"]


def test_a_sound_suite_has_no_findings_and_a_plan(raw, tmp_path):
    report = examined(raw, tmp_path)
    assert not report.findings
    assert report.needs["cells"] == 6
    assert [r for r in report.remarks if "no weights here" in r]


def test_folders_of_its_own_are_made_anew_and_the_user_s_stay(raw, tmp_path):
    mine = [tmp_path / "rehearsal" / name / "mine" for name in ("models", "tokenizers")]
    old = tmp_path / "rehearsal/rehearsal-models/old"
    for folder in (*mine, old):
        folder.mkdir(parents=True)
    examined(raw, tmp_path)
    assert [folder.exists() for folder in (*mine, old)] == [True, True, False]
    assert len(name_of("x" * 64)) == 64


def test_a_file_that_the_command_line_names_may_lie_anywhere(raw, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.delenv("HARNESS_MODELS")
    outside = tmp_path_factory.mktemp("outside") / "more.jsonl"
    outside.write_text((tmp_path / "sums.jsonl").read_text().replace("two", "2"))
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(raw))
    given = [f"training.task={{file: {os.path.relpath(outside)}, scorer: exact}}"]
    places = str(tmp_path / "lab.yaml"), tmp_path / "results", tmp_path / "rehearsal"
    assert not examine_suite(*places, given)[0].findings
    monkeypatch.setattr(standins, "teach_answers", lambda *_: None)
    monkeypatch.setattr("harness.rehearsal.rehearse.run_matrix", lambda *_: RunSummary(interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        rehearse_suite(*places, given, only=["pair/sgt/*"])


@pytest.mark.slow_but("template", "disk", "length")
@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found_by_its_name_and_nothing_else_is(raw, tmp_path, name):
    FAULTS[name](raw, tmp_path)
    findings = examined(raw, tmp_path).findings
    assert [f.name for f in findings] == [name]
    assert WORDS[name] in findings[0].place + findings[0].problem


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_faults_at_once_are_found_and_the_cells_still_run(raw, tmp_path, environment):
    for name, spoil in FAULTS.items():
        if name != "key collision":
            spoil(raw, tmp_path)
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(raw))
    code, out, err = harness("rehearse", "lab.yaml", "--only", "pair/hacpo/*", "--json", env=environment, timeout=500)
    assert code == 1, err
    report = json.loads(out)
    assert {f["name"] for f in report["findings"]} == set(FAULTS) - {"key collision"}
    assert [(c["cell"], c["state"]) for c in report["cells"]] == [("pair/hacpo/0", "done")]
    assert {row["regime"] for row in report["table"]} == {"hacpo"}
    assert report["models"] == {
        "llama": "llama, a stand-in for its tokenizer",
        "qwen": "qwen3, a stand-in for its tokenizer",
    }
    assert any("openrlhf" in line for line in report["not_rehearsed"])
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sound_suite_ends_with_0_and_its_results_stay_where_they_are_asked_for(raw, tmp_path):
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(raw))
    code, out, err = harness("rehearse", "lab.yaml", "--results", "kept")
    assert code == 0, err
    assert "3 of 3 kinds of cells" in out
    assert "nothing that was found" in out
    assert "The full run needs" in out
    assert here("show", "rehearsal-lab", "--results", "kept/results")[0] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_peers_who_refuse_everything_are_found(raw, tmp_path):
    raw["sharing"] = {"max_boundary_residual": 0.0}
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(raw))
    code, out, err = harness("rehearse", "lab.yaml", "--only", "hacpo", "--json")
    assert code == 1, err
    assert {f["name"] for f in json.loads(out)["findings"]} == {"peers refused"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_paper_suite_is_rehearsed_offline(tmp_path):
    code, out, err = harness("rehearse", "cross_family", "--only", "qwen4b-llama3b/hacpo/*", "--json")
    report = json.loads(out)
    assert code == 1, err
    assert {f["name"] for f in report["findings"]} - {"disk"} == {"dataset"}
    assert [(c["cell"], c["state"]) for c in report["cells"]] == [("qwen4b-llama3b/hacpo/11", "done")]
    assert report["cells"][0]["received"] > 0
    assert report["needs"]["feasible"]


def test_what_cannot_be_rehearsed_is_refused(raw, tmp_path):
    assert here("rehearse", "quickstart")[0] == 2
    assert here("rehearse", "nosuchsuite")[0] == 2
    for place in ("real/lab/suite.json", "altered/lab/altered-0.json", "beside/results/lab/suite.json"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("{}")
        code, _, err = here("rehearse", "one_gpu", "--results", place.partition("/")[0])
        assert code == 2
        assert "results of real runs" in err
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(raw))
    code, _, err = here("rehearse", "lab.yaml", "--only", "nothing/*")
    assert (code, "--only nothing/*: matches none" in err) == (2, True), err


@pytest.mark.parametrize("model", ["Qwen3-4B", "Llama-3.2-3B", "SmolLM3-3B", "gemma-3-270m", "h2o-danube3-500m-chat"])
def test_a_stand_in_has_the_architecture_and_a_chat_template(tmp_path, model):
    config = shipped_configs()[model]
    standins.write_tokenizer(tmp_path / "tokenizer", config, None)
    standins.write_model(tmp_path / "tiny", tmp_path / "tokenizer")
    made = json.loads((tmp_path / "tiny/config.json").read_text())
    assert made["model_type"] == config["model_type"]
    assert made["hidden_size"] < 100
    assert ("sliding_attention" in made.get("layer_types", [])) == (model == "gemma-3-270m")
    assert standins.fault_of(Policy(name="a", model="a", chat=True), tmp_path / "tiny") is None
    assert standins.takes_system(tmp_path / "tiny")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 2, "original_max_position_embeddings": 64,
         "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1.0] * 32}, "pad_token_id": 0},
        {"model_type": "deepseek_v3", "n_group": 8, "topk_group": 4, "n_routed_experts": 16, "q_lora_rank": 16, "kv_lora_rank": 16},
        {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 16, "alibi": False},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_a_stand_in_answers(tmp_path, config):
    standins.write_tokenizer(tmp_path / "tokenizer", config, None)
    standins.write_model(tmp_path / "tiny", tmp_path / "tokenizer")
    standins.teach_answers(tmp_path / "tiny", Policy(name="a", model="a"), [Prompt("q", "1 + 1 = ?", "2")])


def quantised(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": {"quant_method": "gptq"}}))


def adapter_alone(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink(missing_ok=True)


def own_code(folder: Path) -> None:
    file = folder / "config.json"
    changed = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own_kind"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (quantised, "cannot be trained"),
        (adapter_alone, "holds an adapter alone"),
        (own_code, "is code of the folder's own"),
    ],
)
def test_a_folder_that_is_no_model_is_a_finding_and_the_rest_is_examined(raw, tmp_path, spoil, words):
    spoil(tmp_path / "llama")
    report = examined(raw, tmp_path)
    (finding,) = report.findings
    assert (finding.name, finding.place) == ("model", "groups[0].policies[0].model")
    assert words in finding.problem
    assert report.needs["cells"] == 6
    assert not any("rehearsal-tokenizers" in words for words in report.remarks)


def test_what_cannot_be_replaced_ends_in_a_report_too(raw, tmp_path):
    file = tmp_path / "llama/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": 8}))
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump({**raw, "engine_options": {}, "engine": "embedded"}))
    report, plan = rehearse_suite(str(tmp_path / "lab.yaml"), tmp_path / "results", tmp_path / "rehearsal")
    assert plan is None
    assert report.findings[-1].name == "model"
    assert "positions" in report.findings[-1].problem
    assert len({finding.place for finding in report.findings}) == len(report.findings), (
        f"the stand-in's fault is the model's own: {report.findings}"
    )
    assert report.not_rehearsed == ["any cell, for what is named above"]
