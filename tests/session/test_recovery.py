"""A cell that is killed at any point, and whose files are damaged, ends with the rows of one that was left alone, or says which
file is at fault and what to do; docs/recovery.md."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from damages import DAMAGES, OF_COMPACT_JOURNALS, Damage
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from running import TABLES, Killed, rows, run, weights

from harness.errors import HarnessError
from harness.phases import Interrupted
from harness.session.cell import cell as training
from harness.session.cell import resume_point
from harness.session.suite.prepared import Prepared
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest

TINY = [
    "regimes=[independent, hacpo, sgt]", "training.prompts=3", "training.rollouts=3", "training.checkpoint_every=1",
    "training.measure_every=2", "evaluation.k=1", "evaluation.limit=2", "evaluation.curve_every=2",
    "evaluation.curve_prompts=2",
]  # fmt: skip
STEPS = 3
KILLS = {
    "before a checkpoint": (resume_point, "save_resume_point", False),
    "after a checkpoint": (resume_point, "save_resume_point", True),
    "in its evaluation": (training, "sample_rows", True),
    "before its last weights are kept": (resume_point, "finish_checkpoint", False),
    "after its last weights were kept": (resume_point, "finish_checkpoint", True),
}
"""A function of a module by which a cell comes, and whether it has done its work when the process is gone."""


@contextmanager
def killed(kill: str, call: int) -> Iterator[None]:
    """Inside, the process that runs a cell is gone at this call of the function."""
    module, name, afterwards = KILLS[kill]
    original: Callable[..., Any] = getattr(module, name)
    calls = 0

    def end_here(*arguments: object) -> Any:
        nonlocal calls
        calls += 1
        if calls < call:
            return original(*arguments)
        if afterwards:
            original(*arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, end_here)
        yield


class LeftAlone:
    """Cells that nothing happens to, each trained once."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file = file
        self.folder = folder
        self._done: dict[tuple[str, int], Prepared] = {}

    def train(self, regime: str, steps: int) -> Prepared:
        if (regime, steps) not in self._done:
            self._done[regime, steps] = self.run_in(self.folder / f"{regime}-{steps}", regime, steps)
        return self._done[regime, steps]

    def run_in(self, results: Path, regime: str, steps: int, stop_after: int | None = None) -> Prepared:
        options = [*TINY, f"training.steps={steps}"]
        return run(self.file, results, options, only=regime, stop_after=stop_after)


class TroubledCell:
    """One cell in results of its own, and what was done to its files since it last ran."""

    def __init__(self, alone: LeftAlone, results: Path, regime: str = "hacpo", steps: int = STEPS) -> None:
        self._alone = alone
        self._results = results
        self._regime = regime
        self._steps = steps
        (cell,) = alone.train(regime, steps).cells
        self.folder = results / "tiny" / cell.key
        self._refusals: list[tuple[type[HarnessError], Path]] = []

    def run(self, stop_after: int | None = None) -> Prepared:
        """Run it on. A damage that cannot be made good must be named with its file, and the remedy brings the cell back."""
        if self._refusals:
            kinds = tuple(kind for kind, _ in self._refusals)
            with pytest.raises(kinds) as refused:
                self._alone.run_in(self._results, self._regime, self._steps)
            assert any(str(file) in str(refused.value) for _, file in self._refusals), refused.value
            manifest = read_manifest(self.folder)
            assert manifest.state == "failed"
            assert manifest.reason.endswith(f"; remove {self.folder} and run the suite again")
            shutil.rmtree(self.folder)
            self._refusals = []
        return self._alone.run_in(self._results, self._regime, self._steps, stop_after)

    def run_until_killed(self, kill: str, call: int = 1) -> None:
        """The cell may be over before this call."""
        with suppress(Killed), killed(kill, call):
            self.run()

    def run_until_stopped(self, after: int) -> None:
        with suppress(Interrupted):
            self.run(stop_after=after)

    def damage(self, damage: Damage) -> bool:
        """Whether there was such a file."""
        file = damage.apply(self.folder)
        if file is not None and damage.refused is not None:
            self._refusals.append((damage.refused, file))
        return file is not None

    def finish(self) -> None:
        """Run it to its end: rows and weights are those of the cell that was left alone, no file is left over, no cost lost."""
        resumed = self.run()
        expected = self._alone.train(self._regime, self._steps)
        for table in TABLES:
            theirs = rows(expected, expected.cells[0], table)
            assert rows(resumed, resumed.cells[0], table) == theirs, table
        assert weights(resumed, self._regime) == weights(expected, self._regime)
        assert not list(resumed.folder.rglob("*.tmp"))
        assert read_manifest(self.folder).state == "done"
        tables = read_journal(self.folder).tables
        steps = tables["steps"].to_pylist() if "steps" in tables else []
        costs = tables["costs"].to_pylist()
        for phase in ("generate", "train"):  # what was lost with a checkpoint was spent, too
            kept = sum(row[f"{phase}_seconds"] for row in steps)
            spent = sum(row["cpu_seconds"] for row in costs if row["phase"] == phase)
            assert spent >= kept - 1e-9


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, suite_text: str) -> LeftAlone:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "tiny.yaml").write_text(suite_text)
    return LeftAlone(folder / "tiny.yaml", folder)


@pytest.fixture(scope="module")
def interrupted(alone: LeftAlone) -> Path:
    """The results of a cell that was killed behind its second checkpoint."""
    cell = TroubledCell(alone, alone.folder / "interrupted")
    cell.run_until_killed("after a checkpoint", call=2)
    assert list(cell.folder.glob("resume/step-00000002"))
    return alone.folder / "interrupted"


@pytest.mark.timeout(300)
@pytest.mark.slow_but("flip_bit")
@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_each_damage_is_made_good_or_named(alone: LeftAlone, interrupted: Path, tmp_path: Path, damage: Damage) -> None:
    is_of_finished = damage in OF_COMPACT_JOURNALS
    source = alone.train("hacpo", STEPS).folder.parent if is_of_finished else interrupted
    cell = TroubledCell(alone, Path(shutil.copytree(source, tmp_path / "results")))
    assert cell.damage(damage)
    cell.finish()


@pytest.mark.timeout(300)
@pytest.mark.slow_but("before a checkpoint", "in its evaluation")
@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_at_each_point_is_made_good(alone: LeftAlone, tmp_path: Path, kill: str) -> None:
    cell = TroubledCell(alone, tmp_path)
    cell.run_until_killed(kill)
    assert read_manifest(cell.folder).state == "running"
    cell.finish()


class Recovery(RuleBasedStateMachine):
    """A cell is started, killed, stopped and damaged in any order, and then left to end."""

    alone: ClassVar[LeftAlone]

    def __init__(self) -> None:
        super().__init__()
        self._results = Path(tempfile.mkdtemp(dir=self.alone.folder))

    @initialize(regime=st.sampled_from(["hacpo", "sgt"]), steps=st.sampled_from([STEPS, 0]))
    def begin(self, regime: str, steps: int) -> None:
        self._cell = TroubledCell(self.alone, self._results, regime, steps)

    @rule(kill=st.sampled_from(list(KILLS)), call=st.integers(1, 2))
    def run_until_killed(self, kill: str, call: int) -> None:
        self._cell.run_until_killed(kill, call)

    @rule(after=st.integers(1, STEPS - 1))
    def run_until_stopped(self, after: int) -> None:
        self._cell.run_until_stopped(after)

    @rule(damage=st.sampled_from(DAMAGES))
    def damage_a_file(self, damage: Damage) -> None:
        assume(self._cell.damage(damage))

    @rule()
    def finish(self) -> None:
        self._cell.finish()

    def teardown(self) -> None:
        try:
            self._cell.finish()
        finally:
            shutil.rmtree(self._results)


def run_machine(alone: LeftAlone, examples: int, rules: int) -> None:
    Recovery.alone = alone
    chosen = settings(
        max_examples=examples,
        stateful_step_count=rules,
        derandomize=True,  # a failure comes again
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # to make a failure smaller would train hundreds of cells
    )
    run_state_machine_as_test(Recovery, settings=chosen)


@pytest.mark.timeout(300)
def test_a_cell_ends_alike_whatever_happens_to_it(alone: LeftAlone) -> None:
    run_machine(alone, examples=2, rules=3)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_cell_ends_alike_whatever_happens_to_it_at_length(alone: LeftAlone) -> None:
    run_machine(alone, examples=12, rules=6)
