"""Weights & Biases runs, one per cell whose id is the cell's key, in `<out>/wandb`.

Without a login they are written offline, for `wandb sync`: nothing leaves this machine, and no network is needed. What is new at a
later look is a further segment of the same run. W&B's history only grows, so a cell that is written anew becomes the run `<key>-2`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.errors import UsageError
from harness.formats.tracking import News, missing
from harness.store.manifest import Manifest

_SECONDS = 120
"""For a run to be opened, and for its last points to be sent."""


class Wandb:
    """Offline, unless WANDB_MODE says otherwise or somebody is logged in. Raises UsageError where it is not installed."""

    def __init__(self, out: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise missing("W&B", "wandb", error) from None
        self.folder = out / "wandb"
        self._wandb = wandb
        self._out = out
        self._mode = os.environ.get("WANDB_MODE") or None
        if self._mode is None:
            self._mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        self._settings = wandb.Settings(
            silent=True, console="off", init_timeout=_SECONDS, finish_timeout=_SECONDS, finish_timeout_raises=True,
            disable_code=True, disable_git=True, x_disable_machine_info=True, x_disable_meta=True, x_disable_stats=True,
            x_save_requirements=False,
        )  # fmt: skip

    def memory(self, manifest: Manifest) -> Path:
        return self.folder / "harness" / manifest.suite / f"{manifest.key}.json"

    def write(self, news: News) -> None:
        m = news.manifest
        if not news.since:
            for segment in self.folder.glob(f"offline-run-*-{m.key}*"):
                shutil.rmtree(segment, ignore_errors=True)
        self._out.mkdir(parents=True, exist_ok=True)
        try:
            run = self._wandb.init(
                project=m.suite, id=f"{m.key}-{news.renewed + 1}" if news.renewed else m.key, name=news.name, group=m.group,
                job_type=m.regime, config=news.details(), dir=self._out, mode=self._mode, resume="allow", settings=self._settings,
            )  # fmt: skip
            run.define_metric("*", step_metric="step")
            for step, _, values in news.rows():
                run.log({"step": step, **values})
            run.finish()
        except (self._wandb.Error, TimeoutError) as error:
            raise UsageError(f"W&B: {' '.join(str(error).split())}") from None
