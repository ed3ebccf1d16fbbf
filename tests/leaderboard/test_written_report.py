"""The report in one file, and the commands that the board tells."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic_results import REGIMES, write_results

from harness.store.ingest import ingest_journals

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")


from drawn_pages import page, write_report
from drawn_stores import DUO

from leaderboard import looks


def test_the_report_is_one_file_without_scripts_that_follows_light_and_dark(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    text = write_report(stores["one"], tmp_path)
    assert text.count('class="forest"') == 4, "avg@2, best@2, maj@2 and greedy"
    assert not [
        word for word in ("<script", "http://", "src=", "@import", "url(", "background: #ffffff") if word in text
    ]
    assert "color: var(--ink); background: var(--page)" in text
    assert re.search(r"\.forest th, \.forest td \{[^}]*color: inherit", text)
    figures = re.findall('<figure class="forest">.*?</figure>', write_report(stores["large"], tmp_path), re.S)
    assert len(figures) == 4 * (4 * 2 + 1), "each group and benchmark by each metric, and their mean"
    for figure in figures:
        drawn = ElementTree.fromstring(figure)
        colours = [part for e in drawn.iter() for part in e.attrib.get("style", "").split(";") if "#" in part]
        assert {*colours} <= {f"--c:{colour}" for colour in looks.COLOURS.values()}
        assert len(colours) == len(drawn.findall("table/tbody/tr")) - 1 > 1


@pytest.mark.slow
def test_the_report_has_groups_of_one_policy_too(tmp_path: Path) -> None:
    groups = {"duo": DUO["duo"], "one": ("llama",), "other": ("qwen",), "same": ("llama",)}
    write_results(tmp_path, "s", groups, REGIMES[:3], (1, 2), steps=2, questions=6)
    ingest_journals(tmp_path)
    text = write_report(tmp_path, tmp_path)
    parts = re.findall(r"<h3>greedy(.*?)</h3>(.*?)(?=<h3>|<p class=soft>)", text, re.S)
    assert [heading for heading, _ in parts] == ["", ", llama", ", qwen"]
    drawn = [set(re.findall("<figcaption>(.*?): micro, greedy", body)) for _, body in parts]
    assert drawn == [{"duo"}, {"one", "same"}, {"other"}]


def test_no_character_of_a_name_ends_the_export(tmp_path: Path) -> None:
    evil = "\x07\u202e\u2028\uffff"
    regime, groups = replace(REGIMES[0], name=f"own{evil}"), {f"pair{evil}": ("llama", "qwen")}
    write_results(tmp_path, "s", groups, [regime], (1,), steps=1, questions=2, tasks=(f"task{evil}",))
    ingest_journals(tmp_path)
    text = write_report(tmp_path, tmp_path)
    assert not set(evil) & set(text)
    assert "pair\\x07\\x202e\\x2028\\xffff" in text


@pytest.mark.slow
def test_commands_on_the_about_page_run_as_printed(stores: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(stores["one"], tmp_path / "runs")
    shutil.copytree(stores["evil"], tmp_path / "their_results")
    about = page(stores["one"], "about", state={"at": " --results runs"})
    lines = [line for code in about.code for line in code.value.splitlines() if line.startswith("harness ")]
    for line in lines:
        words = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert len(lines) == 5
    assert (tmp_path / "report.html").is_file()
