"""Which folders a suite may name as models: a suite is data, perhaps someone else's, and reaches no further than its user said.

They are the suite's own folder, the working folder, the data folder, the harness's and the hub's caches, and what `--models`
or HARNESS_MODELS name. What stands in a setting on the command line is the user's own word and needs no leave.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from harness.cache import cache_folder
from harness.errors import SuiteError
from harness.session.policy.models import MAX_FILES, local_folder
from harness.suite.schema import Suite
from harness.tasks.data import folder_in_use

VARIABLE = "HARNESS_MODELS"


def check_roots(suite: Suite, source: Path, overrides: Sequence[str] = ()) -> None:
    """Raises SuiteError for a model's folder, or a link in one, that leads out of the declared folders."""
    roots: list[Path] = []
    settings = [setting.partition("=")[2] for setting in overrides if setting.startswith("groups")]
    for g, group in enumerate(suite.groups):
        for p, policy in enumerate(group.policies):
            folder = local_folder(policy.model)
            if folder is None or any(policy.model in said for said in settings):
                continue
            roots = roots or _roots(source)
            outside = _outside(folder, roots)
            if outside is not None:
                raise SuiteError(
                    str(source),
                    f"groups[{g}].policies[{p}].model",
                    f"{outside} lies outside the folders that a suite may name (docs/suites.md); if it is meant: "
                    f"--models {outside.parent if outside.is_file() else outside}, or {VARIABLE}",
                )


def check_file_root(file: str, source: Path, at: str, overrides: Sequence[str] = ()) -> None:
    """The same of a task's file. Raises SuiteError."""
    if any(file in setting.partition("=")[2] for setting in overrides) or not source.is_file():
        return
    path = Path(file).expanduser()
    place = (path if path.is_absolute() or not (source.parent / path).exists() else source.parent / path).resolve()
    if not any(place.is_relative_to(root) for root in _roots(source)):
        raise SuiteError(
            str(source),
            f"{at}.file",
            f"{place} lies outside the folders that a suite may name (docs/suites.md); if it is meant: "
            f"--models {place.parent}, or {VARIABLE}",
        )


def undeclared(models: Sequence[str], source: Path) -> list[Path]:
    """The parents of those of `models`' folders that a suite in the file `source` may name only with `--models`."""
    folders = [Path(model).expanduser() for model in models]
    roots = _roots(source)
    outside = [folder.resolve() for folder in folders if folder.is_dir() and _outside(folder, roots) is not None]
    return list(dict.fromkeys(folder.parent for folder in outside))


def _roots(source: Path) -> list[Path]:
    from huggingface_hub import constants

    named = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    data = folder_in_use(None)
    own = [source.parent, Path(), cache_folder(), Path(constants.HF_HUB_CACHE), *([data] if data else [])]
    return [folder.expanduser().resolve() for folder in (*own, *named)]


def _outside(folder: Path, roots: list[Path]) -> Path | None:
    """Where the folder or one of its links leads, if that is outside."""
    place = folder.resolve()
    if not any(place.is_relative_to(root) for root in roots):
        return place
    links = (file for file in itertools.islice(folder.rglob("*"), MAX_FILES) if file.is_symlink())
    targets = (link.resolve() for link in links)
    return next((t for t in targets if not any(t.is_relative_to(root) for root in (*roots, place))), None)
