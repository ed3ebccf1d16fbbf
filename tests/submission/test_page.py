"""docs/submit.md as a stranger follows it, command by command, and what the workflow does with the pull request at its end."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import added_bundles
import pytest
import yaml

from harness.errors import UsageError
from harness.submission.check import check_bundle
from harness.submission.rerun import RerunRequest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)
GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c"}


def commands() -> list[str]:
    return [line.strip() for line in (ROOT / "docs/submit.md").read_text().splitlines() if line.startswith("    ")]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment of its own, in which pip asks nobody, with this harness in it."""
    root = tmp_path_factory.mktemp("stranger")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=200)
    own = next((root / "venv/lib").glob("python*/site-packages"))
    places = [str(ROOT), *site.getsitepackages(), *(p for p in sys.path if p.endswith("site-packages"))]
    (own / "harness.pth").write_text("\n".join(dict.fromkeys(places)))
    python = root / "venv/bin/python"
    for name, code in (
        ("pip", "import sys; from pip._internal.cli.main import main; sys.exit(main())"),
        ("harness", "from harness.cli import main; main()"),
        ("pytest", "import sys, pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', '-n', '0', *sys.argv[1:]]))"),
    ):
        (root / "venv/bin" / name).write_text(f"#!{python}\n{code}\n")
        (root / "venv/bin" / name).chmod(0o755)
    work = root / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q", work / "clone"], check=True, timeout=60)
    subprocess.run(
        ["git", "-C", work / "clone", "commit", "-q", "--allow-empty", "-m", "base"],
        check=True,
        timeout=60,
        env=os.environ | GIT,
    )
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = f"{root / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | GIT | pip | {"PATH": path, "PWD": str(work)}


@pytest.fixture(scope="module")
def walked(stranger: dict[str, str]) -> list[tuple[str, str]]:
    pages = []
    for command in commands():
        done = subprocess.run(
            command,
            shell=True,  # as printed: the page is ours, and its reader has a shell
            executable="/bin/bash",
            cwd=stranger["PWD"],
            env=stranger,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        pages.append((command, done.stdout))
    return pages


@pytest.mark.slow
def test_every_command_runs_as_printed(walked: list[tuple[str, str]]) -> None:
    said = dict(walked)
    assert len(walked) >= 16
    assert "accepted: re-executed (llama-qwen/" in said["harness submit-check halves-*.zip --re-execute 1"]
    assert said["harness show halves@my-lab --results seen"].startswith(
        "halves@my-lab: re-scored; unpublished defaults: halves\n"
    )


@pytest.mark.slow
def test_who_has_not_the_regime_judges_everything_and_trains_what_is_known(
    walked: list[tuple[str, str]], stranger: dict[str, str], tmp_path: Path
) -> None:
    assert walked
    bundle = next(Path(stranger["PWD"]).glob("halves-*.zip"))
    with check_bundle(bundle, tmp_path, RerunRequest(4, seed=0)) as (_, report):
        pass
    assert report.submission is not None, report.describe()
    assert set(report.submission.re_executed) == {"llama-qwen/independent/1", "llama-qwen/independent/2"}
    assert report.submission.category == "not installed here: halves"


def test_a_commit_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^git diff: "):
        added_bundles.added("nonsense", "HEAD", tmp_path)


@pytest.mark.slow
def test_the_pull_request_adds_one_bundle_and_nothing_else(
    walked: list[tuple[str, str]], stranger: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert walked
    clone = Path(stranger["PWD"]) / "clone"
    bundle = next((clone / "submissions").glob("*.zip"))
    monkeypatch.chdir(clone)
    assert added_bundles.added("HEAD~1", "HEAD", tmp_path) == [tmp_path / bundle.name]
    assert (tmp_path / bundle.name).read_bytes() == bundle.read_bytes()

    def commit(what: str) -> str:
        for words in (["add", "-A"], ["commit", "-q", "-m", what]):
            subprocess.run(["git", *words], check=True, timeout=60, env=stranger)
        with pytest.raises(UsageError) as refused:
            added_bundles.added("HEAD~1", "HEAD", tmp_path)
        return str(refused.value)

    (clone / "harness.py").write_text("import os")
    assert "adds submissions/<suite>-<digest>.zip, and changes nothing (A)" in commit("code too")
    other = bundle.with_name("other-0123456789abcdef.zip")
    other.write_bytes(bundle.read_bytes())
    assert f"its content is that of {bundle.name}" in commit("another name")
    other.unlink()
    other.symlink_to("/etc/passwd")
    assert "(T)" in commit("a link in its place")
    bundle.write_bytes(bundle.read_bytes() + b"x")
    assert "changes nothing (M)" in commit("somebody's bundle")
    bundle.unlink()
    assert "changes nothing (D)" in commit("somebody's bundle away")
    (clone / "submissions/new-0123456789abcdef.zip").symlink_to("/etc/passwd")
    assert "not a plain file" in commit("a new link")


@pytest.mark.slow
def test_the_workflow_runs_the_base_and_reads_the_bundles_alone() -> None:
    flow = yaml.safe_load((ROOT / ".github/workflows/submission.yml").read_text())
    assert flow["permissions"] == {"contents": "read"}
    steps = flow["jobs"]["check"]["steps"]
    assert steps[0]["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    scripts = "\n".join(step.get("run", "") for step in steps)
    subprocess.run(
        ["bash", "-n"], input=scripts.replace("${{", "").replace("}}", ""), text=True, check=True, timeout=10
    )
    assert 'harness submit-check "$bundle" --re-execute 1' in scripts
    assert "checkout" not in scripts
