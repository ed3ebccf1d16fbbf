"""Parts of a suite and altered runs: what is finished stays in the tables, and the suite stays as it is written."""

from __future__ import annotations

import json

import pytest

from harness.store.manifest import read_suite

from .running import harness

pytestmark = pytest.mark.slow

SEEDS = """
name: bop3
groups:
  - name: pair
    policies:
      - {{name: a, model: {llama}}}
      - {{name: b, model: {qwen}}}
regimes: [independent, sgt]
seeds: [1, 2, 3]
training: {{steps: 1, prompts: 4, rollouts: 4, max_new_tokens: 8, measure_every: 0}}
evaluation: {{k: 0, limit: 4, curve_every: 0}}
"""


@pytest.mark.timeout(900)
def test_parts_and_alterations_lose_nothing(tmp_path, folders):
    file, results = tmp_path / "bop3.yaml", tmp_path / "results"
    file.write_text(SEEDS.format(**folders))

    def run(*options):
        code, _, err = harness("run", file, "--results", results, "--json", *options)
        assert code == 0, err
        return err

    def shown(*options):
        code, out, err = harness("show", "bop3", "--results", results, "--format", "json", *options)
        assert code == 0, err
        means = [row for row in json.loads(out)["rows"] if row["policy"] == "*"]
        return {row["regime"]: (row["seeds"], row["baseline"]) for row in means}, err

    run("--only", "*/[12]")
    assert shown()[0] == {"independent": (2, None), "sgt": (2, "independent")}
    assert "bop3: a part of the suite: 2 of 6 cells (--only */3)" in run("--only", "*/3")
    whole = {"independent": (3, None), "sgt": (3, "independent")}
    assert shown() == (whole, "")
    assert "nothing left to do" in run()
    stored = read_suite(results / "bop3")
    assert len(stored.cells) == 6
    assert len(stored.bases) == 2

    for options in (["--set", "baseline=sgt"], ["--set", "evaluation.limit=2", "--only", "*/3"]):
        err = run(*options)
        assert f"bop3: altered by --set {options[1]}: its cells are stored under their own keys" in err
        assert "the suite as written is unchanged" in err
    assert read_suite(results / "bop3") == stored
    found, err = shown()
    assert found == whole
    assert "not in this table: harness show bop3 --set 'baseline=sgt'" in err
    assert shown("--set", "baseline=sgt")[0] == {"independent": (3, "sgt"), "sgt": (3, None)}
    assert shown("--set", "evaluation.limit=2")[0] == {"independent": (1, None), "sgt": (1, "independent")}
    states = json.loads(harness("status", "bop3", "--results", results, "--json")[1])["cells"]
    assert [c["state"] for c in states] == ["done"] * 6


@pytest.mark.timeout(600)
def test_an_altered_run_stands_for_a_suite_that_was_never_run_as_written(tmp_path, folders):
    file, results = tmp_path / "bop3.yaml", tmp_path / "results"
    file.write_text(SEEDS.format(**folders))
    settings = ["--set", "seeds=[7]", "--set", "regimes=[independent]"]
    code, _, err = harness("run", file, "--results", results, "--json", *settings)
    assert code == 0, err
    code, out, err = harness("show", "bop3", "--results", results, "--format", "json")
    assert {row["seeds"] for row in json.loads(out)["rows"]} == {1}
    assert "not run as written yet" in err
    states = json.loads(harness("status", "bop3", "--results", results, "--json")[1])["cells"]
    assert [(c["regime"], c["seed"], c["state"]) for c in states] == [("independent", 7, "done")]
