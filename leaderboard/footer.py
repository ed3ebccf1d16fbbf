"""What stands below every page: version, commit, licence, citation, documentation."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import streamlit as st

from leaderboard.templating import fill_template
from leaderboard.texts import ROOT, is_checkout

PACKAGE = "experience-sharing-harness"
LICENCE = "Apache-2.0"
_DEADLINE = 5.0  # seconds for git to answer


@cache
def read_version() -> str:
    """Return the installed version; empty where the package is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return ""


@cache
def read_commit(root: Path = ROOT) -> str:
    """Return the first twelve digits of the checkout's commit; empty outside a checkout and without git."""
    if not is_checkout(root):
        return ""
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=_DEADLINE
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip()[:12] if asked.returncode == 0 else ""


def draw_footer() -> None:
    """Draw the line below a page."""
    commit = read_commit()
    parts = [
        (f"Version {read_version() or 'unknown'}{f', commit {commit}' if commit else ''}", ""),
        (f"Licence {LICENCE}", ""),
        ("Add a regime", "about#add"),
        ("Cite", "about#cite"),
        ("Trained weights", "about#weights"),
        ("Documentation", "about#documentation"),
    ]
    st.html(fill_template("footer.html.tmpl", parts=parts))
