"""The batch script: what it asks for, what it runs, that nothing of a suite or an option reaches the shell unquoted."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from running import harness

from harness.clusters import slurm
from harness.clusters.slurm import SlurmOptions, make_job, read_template
from harness.errors import UsageError
from harness.session.suite.files import VARIABLE
from harness.session.suite.prepare import prepare_named
from harness.session.suite.shards import Shard

EVIL = 'x\'; touch hacked; echo $(touch hacked) `touch hacked` "$(touch hacked)" #'

OWN = """
name: own
groups: [{{name: one, policies: [{{name: a, model: {model}}}]}}]
regimes: [independent]
seeds: [1]
training: {{task: {{file: my.jsonl, held_out: 0.0}}}}
"""


def written(
    name: str,
    results: Path,
    *overrides: str,
    asked: SlurmOptions | None = None,
    template: str | None = None,
    **options: str,
):
    prepared = prepare_named(name, results, overrides=overrides)
    text = template or read_template(None, prepared.suite.engine)
    more = [word for key, value in options.items() for word in (f"--{key}", value)]
    return prepared, make_job(prepared, results, more, overrides, asked or SlurmOptions(), text)


def run(script: str, folder: Path, stubs: dict[str, str], **environment: str) -> subprocess.Popen[str]:
    """The script in bash, with commands of ours in the place of some."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    for name, text in stubs.items():
        (place / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / name).chmod(0o755)
    ids = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    env = {"PATH": f"{place}:{os.environ['PATH']}", **ids, **environment}
    return subprocess.Popen(
        ["bash", "-c", script], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize(
    ("suite", "asked"),
    [("quickstart", SlurmOptions(cpus=4)), ("openrlhf_cpu", SlurmOptions(nodes=3, gpus=8, time="1-0"))],
)
def test_it_is_a_script_that_shells_and_checkers_take(tmp_path, suite, asked):
    _, made = written(suite, tmp_path / "a folder", f"title={EVIL}", asked=asked)
    subprocess.run(["bash", "-n"], input=made.script, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--severity=warning", "-"], input=made.script, text=True, check=True)
    made.write()
    assert os.access(made.file, os.X_OK)


def test_what_it_asks_for(tmp_path):
    asked = SlurmOptions("gpu,big", "lab", "12:00:00", 3, 8, 64, None, ("--qos=high", "--mail-user=a b"))
    _, made = written("openrlhf_cpu", tmp_path / "100% mine", asked=asked)
    asked = [shlex.split(line)[1] for line in made.script.splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        "--job-name=openrlhf_cpu", f"--output={made.folder}/%j.log".replace("100% mine", "100%% mine"), "--open-mode=append",
        "--requeue", "--signal=B:USR1@180", "--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=64", "--gpus-per-node=8",
        "--partition=gpu,big", "--account=lab", "--time=12:00:00", "--qos=high", "--mail-user=a b",
    ]  # fmt: skip
    assert made.script.index("#SBATCH") < made.script.index("\nset -u")


def test_an_array_has_a_task_for_each_part_and_no_empty_one(tmp_path):
    """No more parts than there are blocks of one group and seed, here three."""
    for asked, tasks in ((None, 3), (2, 2), (900, 3)):
        prepared, made = written("quickstart", tmp_path, asked=SlurmOptions(shards=asked))
        assert f"#SBATCH --array=1-{tasks}\n" in made.script
        assert f'--shard "$SLURM_ARRAY_TASK_ID/{tasks}"' in made.script
        assert all(Shard(i + 1, tasks).select_from(prepared).cells for i in range(tasks))


@pytest.mark.parametrize("overrides", [(), ("training.steps=7", "seeds=[5]")])
def test_the_suite_beside_it_has_the_cells_of_the_one_that_was_named(tmp_path, overrides):
    prepared, made = written("quickstart", tmp_path, *overrides)
    made.write()
    again = prepare_named(str(made.folder / "suite.yaml"), tmp_path, overrides=overrides)
    assert [c.key for c in again.all_cells] == [c.key for c in prepared.all_cells]
    assert (again.folder, again.altered, again.suite_file()) == (
        prepared.folder,
        prepared.altered,
        prepared.suite_file(),
    )


def test_settings_that_mean_something_else_in_the_job_s_copy_are_refused(tmp_path):
    for name, answer in (("my", 2), ("other", 3)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"question": "1+1?", "answer": {answer}}}')
    (tmp_path / "own.yaml").write_text(OWN.format(model="micro/llama"))
    for value in ("task={file: other.jsonl, held_out: 0.0}", f"task.file={tmp_path}/other.jsonl"):
        with pytest.raises(UsageError, match="--set: not the same in the job's copy"):
            written(str(tmp_path / "own.yaml"), tmp_path / "results", f"training.{value}")
    written(str(tmp_path / "own.yaml"), tmp_path / "results", "groups[0].policies[0].stage0.preset=matched")


def test_files_and_models_beside_a_suite_are_found_from_the_job_s_folder(tmp_path, monkeypatch):
    for folder in ("lab", "lab/model", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lab" / "my.jsonl").write_text('{"question": "1+1?", "answer": 2}')
    (tmp_path / "lab" / "model" / "config.json").write_text("{}")
    (tmp_path / "lab" / "own.yaml").write_text(OWN.format(model=tmp_path / "lab" / "model"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "my.jsonl").write_text('{"question": "another", "answer": 3}')
    prepared, made = written("../lab/own.yaml", tmp_path / "results")
    made.write()
    command = shlex.split(next(line for line in made.script.splitlines() if " --models " in line))
    monkeypatch.setenv(VARIABLE, command[command.index("--models") + 1])
    again = prepare_named(str(made.folder / "suite.yaml"), tmp_path / "results")
    assert [c.key for c in again.all_cells] == [c.key for c in prepared.all_cells]


def test_nothing_of_an_option_is_run_by_the_shell(tmp_path):
    _, made = written(
        "quickstart",
        tmp_path / EVIL.replace("/", ""),
        f"title={EVIL}",
        only="*",
        template=read_template(None, "embedded"),
    )
    script = made.script.replace(shlex.quote(os.sys.executable), "show")
    out, _ = run(
        script, tmp_path, {"show": 'printf "%s\\n" "$@"', "scontrol": "true"}, SLURM_CPUS_ON_NODE="3"
    ).communicate(timeout=20)
    said = out.splitlines()
    assert f"title={EVIL}" in said
    assert said[said.index("--results") + 1] == str(tmp_path / EVIL)
    assert said[-4:] == ["--jobs", "3", "--shard", "2/3"]
    assert not [*tmp_path.rglob("hacked"), *Path().glob("hacked")]


@pytest.mark.slow_but("RUNNING-USR1")
@pytest.mark.parametrize(
    ("state", "sent", "requeued"),
    [("RUNNING", "USR1", True), ("COMPLETING", "TERM", False), ("RUNNING", None, False)],
)
def test_a_signal_reaches_the_run_and_only_a_job_that_is_to_run_on_is_requeued(tmp_path, state, sent, requeued):
    _, made = written("quickstart", tmp_path)
    stubs = {
        "run": f"trap 'echo checkpoint; exit 130' TERM; touch {tmp_path}/up; sleep 1 & wait; exit 3",
        "scontrol": f'[ "$*" = "requeue 7_2" ] && echo "requeue $2" || echo "JobId=7 JobState={state} Reason=None"',
    }
    process = run(made.script.replace(shlex.quote(os.sys.executable), "run"), tmp_path, stubs)
    end = time.monotonic() + 20
    while not (tmp_path / "up").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    if sent:
        process.send_signal(getattr(signal, f"SIG{sent}"))
    out, _ = process.communicate(timeout=20)
    said = "checkpoint" in out, "requeue 7_2" in out, process.returncode
    assert said == (sent is not None, requeued, 130 if sent else 3)


@pytest.mark.parametrize(
    "wish",
    [
        {"partition": "a b"},
        {"partition": "a\n#SBATCH --uid=0"},
        {"account": "$(id)"},
        {"time": "soon"},
        *({"time": limit} for limit in ("4", "3:59", "0:04:00", "0-0:04")),
        {"others": ("qos",)},
        {"others": ("--a\nb",)},
    ],
)
def test_wishes_that_are_none(wish):
    for limit in ("0", "5", "4:01", "1:00:00", "0-1"):
        SlurmOptions(time=limit)
    with pytest.raises(UsageError):
        SlurmOptions(**wish)


def test_templates_of_ones_own(tmp_path):
    file = tmp_path / "mine.sh"
    file.write_text("#!/bin/sh\n@DIRECTIVES@\nmodule load cuda\n@RUN@ --address @ADRESS@\n")
    with pytest.raises(UsageError, match="unknown word @ADRESS@; there are @DIRECTIVES@"):
        written("openrlhf_cpu", tmp_path, template=read_template(file, "openrlhf"))
    file.write_text("echo")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("mine.sh", "#!"), ("none", "no such file"), ("pipe", "not a regular file")):
        with pytest.raises(UsageError, match=words):
            read_template(tmp_path / name, "openrlhf")


def test_an_engine_of_ones_own_has_the_script_of_its_kind(monkeypatch):
    for clustered, engine in ((False, "embedded"), (True, "openrlhf")):
        own = read_template(None, engine)
        with monkeypatch.context() as patch:
            patch.setattr(slurm, "backend_of", lambda name, kind=clustered: SimpleNamespace(clustered=kind))
            assert read_template(None, "plain-torch") == own


def test_folders_of_the_command_line_reach_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("data", "models"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"HARNESS_{name.upper()}", "")  # options set them for this process
    folders = ("--data-dir", "~/data", "--models", "~/models")
    code, out, err = harness("submit", "quickstart", "--slurm", "--dry-run", *folders)
    assert (code, f"--data-dir {tmp_path}/data --models {tmp_path}/models" in out) == (0, True), err


def test_the_command_prints_and_writes_nothing_or_says_what_is_missing(tmp_path, monkeypatch):
    words = ("submit", "quickstart", "--slurm", "--results", tmp_path / "results")
    code, out, err = harness(*words, "--dry-run")
    assert (code, out.startswith("#!/bin/bash\n#SBATCH"), words[-1].exists()) == (0, True, False), err
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = harness(*words)
    assert (code, out, err.count("\n"), "sbatch is not on this machine" in err) == (2, "", 1, True), err
    assert harness("submit", "quickstart") == (2, "", "harness: submit: name a scheduler: --slurm\n")
    (tmp_path / "sbatch").write_text("#!/bin/bash\necho 'invalid partition' >&2\nexit 1")
    (tmp_path / "sbatch").chmod(0o755)
    code, out, err = harness(*words)
    assert (code, "invalid partition" in err) == (1, True), err
    (tmp_path / "sbatch").write_text("#!/bin/bash\n")
    (tmp_path / "own.yaml").write_text(
        OWN.format(model="micro/llama").replace("{file: my.jsonl, held_out: 0.0}", "micro")
    )
    code, out, err = harness("submit", tmp_path / "own.yaml", *words[2:], "--set", "training.steps=7")
    assert (code, harness(*shlex.split(err.split("`")[1])[1:])[0]) == (0, 0), err
