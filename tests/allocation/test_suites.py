"""From suites to plans, and no torch on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.allocation.cost_model import CellDemand, Lengths
from harness.allocation.inventory import parse_inventory
from harness.allocation.planner import Disk, plan_cells
from harness.engines.openrlhf import account
from harness.session.suite.demand import demand_of
from harness.session.suite.disk import cell_disk
from harness.session.suite.prepare import prepare_named
from harness.suite.cells import Cell
from harness.suite.load import load_suite, shipped_suites


class Cells(dict[str, Cell]):
    """The first cell of each kind of a suite, with what it asks for."""

    def __init__(self, name: str, *overrides: str) -> None:
        prepared = prepare_named(name, Path("nowhere"), overrides=("evaluation.limit=100", *overrides))
        super().__init__({cell.kind: cell for cell in reversed(prepared.all_cells)})
        self.resolved = prepared.resolved

    def demand(self, kind: str, lengths: Lengths | None = None) -> CellDemand:
        return demand_of(self[kind], self.resolved, lengths=lengths)

    def disk(self, kind: str) -> Disk:
        return cell_disk(self[kind], self.resolved)


def test_a_cell_in_figures() -> None:
    cells = Cells("cross_family", "training.kl=0.001")
    naive, single, double = (cells.demand(f"qwen4b-llama3b/{name}") for name in ("naive", "gspo", "gspo-2x"))
    assert [p.model.parameters for p in naive.policies] == [4022468096, 3212749824]
    assert all(p.reference and p.penalised and p.measured for p in (*naive.policies, *single.policies))
    assert (naive.workload.trained, naive.workload.scored) == (3.0, 1.0)  # own answers once more, for the KL term
    assert (single.workload.trained, single.workload.scored) == (2.0, 0.0)
    more, plain = (by_name.disk("qwen4b-llama3b/gspo") for by_name in (cells, Cells("cross_family")))
    assert 0 < more.kept - plain.kept < 10_000  # rows of a term, and no records
    assert double.policies[0].rollouts == 2 * single.policies[0].rollouts
    assert (naive.workload.sequence, naive.workload.measured) == (5120, 5)
    assert naive.workload.longest == 1024 + naive.workload.evaluation_tokens
    work = cells.demand("qwen4b-llama3b/grpo", lengths=Lengths(2000, 10_000)).workload
    assert (work.sequence, work.longest) == (6096, 10_000)
    alone = Cells("cross_family", "sharing.direction=none")
    assert all(alone.demand(kind).workload.trained == 1 for kind in alone), "nobody trains on peers"


def test_what_a_regimes_declarations_imply() -> None:
    names = {"map": ("independent", "naive", "sgt", "hacpo"), "beyond": ("xgrpo", "luffy", "chord", "graft-luffy")}
    suites = {suite: Cells(suite) for suite in names}
    loads = {
        name: suites[suite].demand(f"matched/{name}").workload for suite, own in names.items() for name in own
    }  # of two policies: one peer
    assert {name: (load.trained, load.scored) for name, load in loads.items()} == {
        "independent": (1.0, 0.0), "naive": (2.0, 1.0), "sgt": (1.1, 0.0), "hacpo": (2.0, 0.0), "xgrpo": (1.0, 0.0),
        "luffy": (2.0, 0.0), "chord": (2.0, 0.0), "graft-luffy": (2.0, 0.0),
    }  # fmt: skip


GPU_SUITES = sorted(n for n in shipped_suites() if n != "bandit" and load_suite(n).engine == "openrlhf")


@pytest.mark.parametrize("name", GPU_SUITES)
@pytest.mark.parametrize("gpus", [8, 16])
def test_every_place_of_a_shipped_suite_holds_reference_and_measuring(name: str, gpus: int) -> None:
    """24.1: memory is for the lengths that each side has: trainers hold what is trained on, rollout engines what evaluation asks
    too; a prior for a prompt limits nobody."""
    cells = Cells(name)
    plan = plan_cells(
        len(cells), {kind: (cells.demand(kind), 1) for kind in cells}, parse_inventory(f"{gpus}xH100-80G"), account
    )
    assert plan.feasible, plan.shortfall
    for kind in plan.kinds:
        asked = cells.demand(kind.kind)
        work, measured = asked.workload, cells[kind.kind].training.measure_every > 0
        assert kind.layout is not None
        for place, policy in zip(kind.layout.policies, asked.policies, strict=True):
            memory = place.memory
            assert bool(memory.measuring) == measured
            assert memory.reference == 0  # the base borrows the trainer's memory; its own weights wait in the host
            assert place.host >= place.gpus * (account.HOST_BYTES + 4 * measured * memory.weights // (8 * place.gpus))
            blocks = -(-work.longest // 16) * 16
            held = policy.model.kv_bytes(blocks, policy.value_bytes, place.tensor_parallel)
            assert memory.kv_cache == place.concurrent * held
            options = place.engine_options()
            assert options["micro_batch_tokens"] == place.micro_batch * work.sequence
            assert "max_length" not in options
