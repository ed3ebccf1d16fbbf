"""Hardware records in the place of the plan's priors, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import harness

from harness.allocation.calibration import measured_device, read_record
from harness.allocation.cost_model import Device, device_of
from harness.allocation.inventory import parse_inventory
from harness.errors import UsageError

H100 = {"kind": "H100", "name": "NVIDIA H100 80GB HBM3", "memory": 85_520_809_984}


def record(folder: Path, card: dict[str, Any] = H100, **measured: Any) -> Path:
    file = folder / "record.json"
    file.write_text(json.dumps({"format": 1, "made": "", "harness": "", "card": card, "measured": measured}))
    return file


def planned(inventory: str, *options: object, suite: str = "cross_family") -> dict[str, Any]:
    code, out, err = harness("plan", suite, "--inventory", inventory, "--json", *options)
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def test_measured_figures_replace_the_priors_and_the_others_stay(tmp_path: Path) -> None:
    measured = measured_device(
        record(tmp_path, train=1e14, layer=2e-4, context=3 * 10**9), parse_inventory("8xH100-80G"), "CORE"
    )
    assert measured == replace(device_of("H100"), train=1e14, layer=2e-4, context=3 * 10**9)
    assert measured_device(record(tmp_path), parse_inventory("8xH100-80G"), "CORE") == device_of("H100")
    core = record(tmp_path, {**H100, "kind": "CORE"}, read=5e9)
    assert measured_device(core, parse_inventory("4cpu-24G"), "CORE") == replace(device_of("CORE"), read=5e9)


def test_a_plan_by_a_slower_cards_record_takes_longer_and_leaves_less(tmp_path: Path) -> None:
    plain = planned("8xH100-80G")
    slow = record(tmp_path, train=device_of("H100").train / 3)
    assert (
        planned("8xH100-80G", "--calibration", slow)["predicted"]["wall_seconds"]
        > 1.2 * plain["predicted"]["wall_seconds"]
    )
    same = planned("8xH100-80G", "--calibration", record(tmp_path))
    assert same == plain
    large = planned("8xH100-80G", "--calibration", record(tmp_path, context=4 * 10**9))
    contexts = [
        {p["memory"]["rollout_context"] for k in one["kinds"] for p in k["layout"]["policies"]}
        for one in (plain, large)
    ]
    assert contexts == [{2 * 10**9}, {4 * 10**9}]
    gpu = ("1xRTX4090-24G", "--set", "engine_options.device=cuda")
    card = {**H100, "kind": "RTX4090", "memory": 25_757_220_864}
    slower = [], ["--calibration", record(tmp_path, card, layer=6e-3)]
    plans = (planned(*gpu, *more, suite="smoke")["kinds"] for more in slower)
    before, after = (sum(kind["seconds"] for kind in kinds if kind["kind"] != "base") for kinds in plans)
    assert after > 3 * before


def test_the_margin_is_what_the_fullest_gpu_has_left() -> None:
    said = planned("8xH100-80G")
    places = [policy for kind in said["kinds"] for policy in kind["layout"]["policies"]]
    margin = said["margin"]
    assert margin == {
        "memory": 80 * 10**9,
        "left": 80 * 10**9 - max(p["peak"] for p in places),
        "spare": 80 * 10**9 - max(p["needed"] for p in places),
    }
    assert margin["spare"] > margin["left"] >= 0.05 * margin["memory"]
    _, out, _ = harness("plan", "cross_family", "--inventory", "8xH100-80G")
    assert f"margin     {margin['left'] / 1e9:.1f} GB of 80.0 GB left on the fullest GPU; " in out
    shared = planned("1xH100-80G", suite="smoke")
    taken = max(kind["bundles"][0]["gpu_memory"] for kind in shared["kinds"])
    assert shared["margin"]["left"] == 80 * 10**9 - shared["resources"]["shared"] * taken
    assert planned("4cpu-24G", suite="smoke")["margin"] is None


@pytest.mark.parametrize(
    ("inventory", "card"),
    [("8xA100-80G", H100), ("8xH100-40G", H100), ("4cpu-900G", H100), ("1xH100-80G", {**H100, "kind": "CORE"})],
)
def test_a_record_of_another_card_is_refused(tmp_path: Path, inventory: str, card: dict[str, Any]) -> None:
    file = record(tmp_path, card)
    code, out, err = harness("plan", "cross_family", "--inventory", inventory, "--calibration", file)
    said = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert (code, out, len(said)) == (2, "", 1)
    assert f"{file}: the record is of {card['kind']} with 85.5 GB, and the plan for " in said[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format": 2}', r"Invalid enum value 2 - at `\$.format`"),
        ('{"format": 1, "made": "", "harness": ""}', "missing required field `card`"),
        ({"train": 1e18}, r"Expected `float` <= 1e.17 - at `\$.measured.train`"),
        ({"layer": -1}, "Expected `float` >= 1e-07"),
        ({"layer": "fast"}, "Expected `float | null`, got `str`"),
        ({"context": 1.5}, "Expected `int | null`, got `float`"),
        ({"figures": 1}, "unknown field `figures`"),
        ('{"card": {"kind": "H100\\u001b[31m"}}', "matching regex"),
        ("[" * 100_000, "no hardware record"),
        ('{"x": ' + "[" * 100_000, "no hardware record"),
        ("NaN", "invalid"),
        ("\x00", "control character"),
        ("1" * (2 << 20), "larger than"),
    ],
)  # fmt: skip
def test_what_no_check_writes_is_refused_in_one_line(tmp_path: Path, content: str | dict[str, Any], words: str) -> None:
    if isinstance(content, dict):
        file = record(tmp_path, **content)
    else:
        file = tmp_path / "record.json"
        file.write_text(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_record(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_cores_record_is_for_a_run_on_cores_beside_gpus(tmp_path: Path) -> None:
    core = record(tmp_path, {**H100, "kind": "CORE"}, train=1e7)
    cpu = ("1xH100-80G+4cpu-80G", "--set", "engine_options.device=cpu")
    plain, slow = (planned(*cpu, *more, suite="smoke")["predicted"] for more in ([], ["--calibration", core]))
    assert slow["wall_seconds"] > 2 * plain["wall_seconds"]
    assert harness("plan", "smoke", "--inventory", cpu[0], "--calibration", core)[0] == 2


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    for file in (tmp_path / "none.json", tmp_path, Path("/dev/zero")):
        code, _, err = harness("plan", "smoke", "--calibration", file)
        assert code == 2
        assert f"{file}: cannot be read as a hardware record: " in err


def test_a_gpu_and_a_core_differ_by_their_priors() -> None:
    assert device_of("H100-80G") == Device(0.35 * 989e12, 0.45 * 989e12, 0.6 * 3.35e12)
    assert not device_of("CORE").gpu
    assert device_of("A10G") == device_of("A10") != device_of("L4")
    assert device_of("A1000") == device_of("L40") == device_of("T400") == device_of("no such card")
    assert device_of("logical").context == 0 < device_of("no such card").context


def test_contributed_records_are_of_the_cards_that_name_them() -> None:
    files = sorted((Path(__file__).parents[2] / "results" / "hardware").glob("*.json"))
    assert files
    for file in files:
        measured_device(file, parse_inventory(f"1x{file.stem}G"), "CORE")
