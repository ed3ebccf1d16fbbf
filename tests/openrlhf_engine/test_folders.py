"""Model folders of unusual make: ends, openings and saved settings are those of the embedded engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from alone import Alone

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.openrlhf.plugin import Settings

sys.path.append(str(Path(__file__).parents[1] / "engines"))
import models

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(1200)]
SETTINGS = {
    "dtype": "fp32", "start_seconds": 500.0, "call_seconds": 240.0, "rollout_memory": 0.05, "max_length": 160,
    "rollout_sequences": 64,
}  # fmt: skip
TWO_ENDS = models.TURNS.replace("<|done|>", "<|said|><|done|>")
UNSAVABLE = {"do_sample": False, "temperature": 0.6}  # transformers refuses to write it back


@pytest.fixture(scope="module")
def engine(ray_cluster, tmp_path_factory):
    """Of a chat whose template writes two closing tokens, with its ends in config.json alone and settings that do not save."""
    folder = tmp_path_factory.mktemp("models") / "two"
    core = models.byte_level([*models.SPECIAL, "<|said|>"])
    models.write(folder, core, TWO_ENDS, listed=["<|done|>"], generation=UNSAVABLE, eos_token="<|eos|>")
    opened = Alone("a", folder, settings=Settings(**SETTINGS), chat=True)
    yield opened, folder
    opened.close()


def test_ends_and_openings_are_the_embedded_engines(engine, prompts):
    ours, folder = engine
    embedded = EmbeddedEngine("b", folder, chat=True, device="cpu")
    assert (ours.stop, ours.closing, ours.positions) == (embedded.stop, embedded.closing, embedded.positions)
    assert len(ours.closing) == 2
    assert [ours.reads(prompt) for prompt in prompts] == [embedded.reads(prompt) for prompt in prompts]


def test_settings_that_transformers_refuses_are_saved_as_they_were(engine, tmp_path):
    ours, folder = engine
    ours.save(tmp_path / "saved")
    name = "generation_config.json"
    saved = next((tmp_path / "saved").rglob(name))
    assert saved.read_bytes() == (folder / name).read_bytes()
