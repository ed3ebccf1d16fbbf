"""A command's JSON document is alone on stdout, whatever else is printed while it runs."""

from __future__ import annotations

import json
from pathlib import Path

from running import harness, installed

TALKATIVE = """
import logging, sys
from harness.learning.regime import Regime

print("loaded")
logging.getLogger("talkative").addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger("talkative").warning("no accelerator")

class Talks(Regime):
    '''A regime whose module prints when it is imported.'''

    def learn(self, own, inbox, context):
        return []
"""


def test_what_a_library_prints_is_no_part_of_the_document(tmp_path: Path) -> None:
    environment = installed(tmp_path, "talkative", TALKATIVE, {"talks": "Talks"})
    code, out, err = harness("regimes", "talks", "--json", env=environment)
    assert code == 0, err
    assert json.loads(out)["regimes"][0]["name"] == "talks"
    assert "loaded" in err
    assert "no accelerator" in err


def test_a_refusal_is_a_document_too(tmp_path: Path) -> None:
    environment = installed(tmp_path, "talkative", TALKATIVE, {"talks": "Talks"})
    (tmp_path / "one.yaml").write_text("groups: [{name: g}]\nregimes: [talks]\nseeds: [1]\n")
    code, out, _ = harness("plan", tmp_path / "one.yaml", "--json", env=environment)
    assert code == 2
    assert json.loads(out)["exit_code"] == 2
