"""The leaderboard: a Streamlit app over the store, without torch and engines."""

from __future__ import annotations

import sys
from pathlib import Path

RESULTS_VARIABLE = "HARNESS_RESULTS"

_OPTIONS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "runner.postScriptGC": "false",  # takes longer than a page does
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "viewer",
    "theme.paddingTop": "3rem",
    "theme.light.primaryColor": "#0b6e69",
    "theme.dark.primaryColor": "#0f8078",
}
APP = Path(__file__).parent / "app.py"


def command(results: Path, port: int = 8501, address: str = "localhost", app: Path = APP) -> list[str]:
    """Return the command line that serves the board of a results folder."""
    options = {**_OPTIONS, "server.port": str(port), "server.address": address}
    flags = [f"--{name}={value}" for name, value in options.items()]
    streamlit = [sys.executable, "-m", "streamlit", "run", str(app)]
    return [*streamlit, *flags, "--", "--results", str(results)]
