"""The checks of a full run, part by part. What is at fault is noted by its name and replaced by what is known to work, so that
each later check finds the earlier parts sound and every fault is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from harness.allocation.plan_text import first_of
from harness.allocation.planner import Plan
from harness.allocation.shapes import load_config, load_shape, shipped_configs
from harness.errors import DataError, HarnessError, PluginError, SuiteError, UsageError
from harness.plugins import blame_plugin
from harness.rehearsal import standins
from harness.session.policy import at_hand
from harness.session.suite.files import places_of_training
from harness.session.suite.places import faults_at, policies_by_place, with_policies
from harness.session.suite.planning import plan_for
from harness.session.suite.preflight import (
    check_before_run,
    check_policy,
    check_repeated,
    check_training_questions,
    pretrained_policies,
)
from harness.session.suite.prepare import prepare_suite
from harness.session.suite.prepared import Prepared
from harness.session.suite.resolved import resolve_suite
from harness.session.suite.validation import validate_suite
from harness.suite.schema import FileTask, Policy, Suite
from harness.tasks.data import load_set as load_data
from harness.tasks.jsonl import pin_file as pinned_file
from harness.tasks.registry import get_task, training_source
from harness.tasks.sets import SETS, SOURCES

# Stand-ins' tokenizers, in a folder that is the user's: made anew each time
TOKENIZERS = "rehearsal-tokenizers"
# Planned for where the full run does not fit this machine
LARGE = "8xH100-80G"
# Of the longest answer in a rehearsal
TOKENS = 32
# Replaces a task that is at fault: its questions are made by code
SOUND_TASK = "ladder"
# Places of faults that a model may have and no stand-in mends
OF_A_MODEL = re.compile(r"groups\[\d+\]\.policies|(training|evaluation)\.max_new_tokens")
_POLICY = re.compile(r"(groups\[\d+\]\.policies\[\d+\])\.(model|chat)")
_TASK = re.compile(r"evaluation\.tasks\[(\d+)\]")
_MAX_LENGTH = "engine_options.max_length"


class RehearsalFault(msgspec.Struct, frozen=True):
    """What the full run would fail with. name: of the fault. place: in the suite, or a cell."""

    name: str
    place: str
    problem: str


class UnmendableError(Exception):
    """A fault that nothing can replace: it was noted, and no cell can be rehearsed."""


class Examination:
    """A suite whose parts are checked in turn. given: as it was written. suite: with what was at fault replaced. faults, remarks,
    not_rehearsed: what is to be reported."""

    def __init__(self, suite: Suite, source: str, results: Path, root: Path, overrides: Sequence[str]) -> None:
        """Begin an examination. results: of the full run, left alone. root: where stand-ins are written."""
        self.given = suite
        self.suite = suite
        self.source = source
        self.faults: list[RehearsalFault] = []
        self.remarks: list[str] = []
        self.not_rehearsed: list[str] = []
        self._results = results
        self._root = root
        self._overrides = overrides

    def check_tokenizers(self) -> None:
        """Replace each tokenizer or chat template that a run would fail with."""

        def checked(policy: Policy, place: str) -> Policy:
            """Return the policy, with a stand-in for a model at fault, which is noted."""
            own = at_hand(policy)
            if own is None or not _is_known_kind(policy):
                return policy
            fault = standins.fault_of(policy, own)
            if fault is not None:
                self.faults.append(RehearsalFault(fault[0], place, fault[1]))
                return self._with_stand_in(policy, place)
            if policy.chat and not standins.takes_system(own):
                remark = f"{place}.chat: the template of {policy.model} rejects a system turn; runs send none"
                self.remarks.append(remark)
            return policy

        self.suite = with_policies(self.suite, checked)

    def check_tasks(self) -> None:
        """Replace the training task where its questions cannot be had, and leave out such tasks of evaluation."""
        try:
            self._check_training_task()
        except SuiteError as error:
            self._note_fault(_kind_of(*self.suite.training.tasks), error)
            self._change_training(task=SOUND_TASK, min_level=None)
        sound = []
        for i, task in enumerate(self.suite.evaluation.tasks):
            try:
                self._check_evaluation_task(task, f"evaluation.tasks[{i}]")
                sound.append(task)
            except SuiteError as error:
                self._note_fault(_kind_of(task), error)
        if len(sound) < len(self.suite.evaluation.tasks):
            self._leave_out_tasks(sound)

    def check_rollouts(self) -> None:
        """Make numbers of rollouts equal where a regime wants them so. Raises as `check_models` for another fault."""
        try:
            validate_suite(self.suite, self.source)
        except SuiteError as error:
            unequal = any(policy.rollouts for _, policy in policies_by_place(self.suite))
            if not unequal or not re.fullmatch(r"groups\[\d+\]\.policies", error.path):
                self._note_unmendable(error)
            self._note_fault("unequal rollouts", error)
            self.suite = with_policies(self.suite, lambda policy, _: policy.model_copy(update={"rollouts": None}))

    def check_options(self) -> None:
        """Leave `max_length` out where it has no room for an answer. Raises as `check_models` for another fault."""
        try:
            resolve_suite(validate_suite(self.suite, self.source), self.source)
        except SuiteError as error:
            if not error.path.startswith(_MAX_LENGTH):
                self._note_unmendable(error)
            self._note_fault("max_length", error)
            self._leave_out_max_length()

    def check_models(self) -> Prepared:
        """Check questions and models as a run does, once for each policy, and replace what is at fault. Returns the suite,
        prepared. Raises UnmendableError where a stand-in has the fault too, SuiteError for a fault that no model has."""
        prepared = self._prepare_suite()
        cells = prepared.cells_to_run()
        self._check_questions(prepared)
        for place, policy, own in pretrained_policies(prepared, cells):
            try:
                check_policy(prepared, place, policy, own, about_to_run=False, elsewhere=True)
            except SuiteError as error:
                self._replace_of_model(error)
        prepared = self._prepare_suite()
        try:
            remarks = check_before_run(prepared, about_to_run=False, elsewhere=True)
        except SuiteError as error:
            self._note_unmendable(error)
        self.remarks += [remark for remark in remarks if str(self._root) not in remark]  # none on what stands in
        return prepared

    def plan(self, prepared: Prepared, inventory: str | None) -> tuple[Prepared, Plan]:
        """Plan the full run: of the suite as given where that can be planned. Where it does not fit this machine, the plan is for
        a large one. Returns the suite that cells are rehearsed of, too."""
        try:
            plan = self._plan_suite(prepared, inventory)
        except SuiteError as error:
            if not (error.path or error.problem).startswith(_MAX_LENGTH):
                self._note_unmendable(error)
            self._note_fault("max_length", error)
            self._leave_out_max_length()
            prepared = self._prepare_suite()
            plan = self._plan_suite(prepared, inventory)
        if not plan.feasible and inventory is None:
            words = f"a run on this machine, which is too small; the plan below is for {LARGE}"
            self.not_rehearsed.append(words)
            plan = self._plan_suite(prepared, LARGE)
        if not plan.feasible:
            self.faults.append(RehearsalFault("plan", inventory or LARGE, first_of(plan.shortfall or "")))
        return prepared, plan

    # How a part is checked and replaced

    def _check_training_task(self) -> None:
        """Check that the training questions can be made or read. Raises SuiteError with the place in the suite."""
        min_level = self.suite.training.min_level
        for place, task in places_of_training(self.suite.training):
            pinned = self._pin_and_load(task, place, SOURCES.get(str(task), str(task)))
            with faults_at(self.source, place, (DataError, PluginError)), blame_plugin(f"task {task}"):
                source = training_source(pinned)
                if source.generated:
                    source.draw(0, 1, min_level=min_level)
                elif isinstance(pinned, FileTask):
                    source.pool(min_level)

    def _check_evaluation_task(self, task: str | FileTask, place: str) -> None:
        pinned = self._pin_and_load(task, place, str(task))
        with faults_at(self.source, place, (DataError, PluginError)):
            made = get_task(pinned)
            if isinstance(pinned, FileTask):
                made.documents(None, fetch=False)

    def _pin_and_load(self, task: str | FileTask, place: str, data_set: str) -> str | FileTask:
        """Return a file with its whole path; of another task the data set is loaded. Raises SuiteError."""
        if isinstance(task, FileTask):
            with faults_at(self.source, f"{place}.scorer"), faults_at(self.source, f"{place}.file", DataError):
                return pinned_file(task, Path(self.source).parent)
        if data_set in SETS:
            with faults_at(self.source, place, DataError):
                load_data(data_set)
        return task

    def _check_questions(self, prepared: Prepared) -> None:
        """Ask for one question a step where there are too few, and leave out tasks of evaluation that repeat training
        questions."""
        try:
            pool = check_training_questions(prepared, [])
        except SuiteError as error:
            if error.path.endswith(".prompts"):
                self._note_fault("too few questions", error)
                self._change_training(prompts=1)
            else:
                self._note_fault(_kind_of(*self.suite.training.tasks), error)
                self._change_training(task=SOUND_TASK, min_level=None)
            return
        if pool is None or not prepared.has_files:
            return
        sound = []
        for i, task in enumerate(self.suite.evaluation.tasks):
            try:
                check_repeated(prepared, pool, i)
                sound.append(task)
            except SuiteError as error:
                self._note_fault(_kind_of(task), error)
        if len(sound) < len(self.suite.evaluation.tasks):
            self._leave_out_tasks(sound)

    def _replace_of_model(self, error: SuiteError) -> None:
        """Replace what a model does not fit: the length of answers, or the model's tokenizer."""
        if error.path in {fault.place for fault in self.faults}:
            return  # another policy has it too
        if error.path.startswith("training.max_new_tokens"):
            self._note_fault("max_new_tokens", error)
            self._change_training(max_new_tokens=TOKENS)
        elif error.path.startswith("evaluation.max_new_tokens"):
            self._note_fault("max_new_tokens", error)
            self._change_evaluation(max_new_tokens=TOKENS)
        else:
            match = _POLICY.fullmatch(error.path)
            if match is None or (self._root / TOKENIZERS / match[1]).exists():
                self._note_unmendable(error)
            self._note_fault("model", error)
            place = match[1]
            self.suite = with_policies(
                self.suite, lambda policy, at: self._with_stand_in(policy, at) if at == place else policy
            )

    def _with_stand_in(self, policy: Policy, place: str) -> Policy:
        """Give a policy a stand-in, with a tokenizer of the same kind as the model's, and its config, in a folder of the
        rehearsal's own."""
        folder = self._root / TOKENIZERS / place
        standins.write_tokenizer(folder, _usable_config(policy), None)
        chat = bool(policy.chat)  # settings of a chat are for the own template
        return policy.model_copy(update={"model": str(folder), "revision": None, "chat": chat})

    def _change_training(self, **fields: Any) -> None:
        """Change the suite's settings of training, for all variants."""
        training = self.suite.training.model_copy(update=fields)
        variants = []
        for variant in self.suite.regimes:
            own = variant.training
            if own is not None:
                own = own.model_copy(update={name: None for name in fields if hasattr(own, name)})
            variants.append(variant.model_copy(update={"training": own}))
        self.suite = self.suite.model_copy(update={"training": training, "regimes": variants})

    def _change_evaluation(self, **fields: Any) -> None:
        evaluation = self.suite.evaluation.model_copy(update=fields)
        self.suite = self.suite.model_copy(update={"evaluation": evaluation})

    def _leave_out_tasks(self, sound: Sequence[str | FileTask]) -> None:
        """Keep the sound tasks of evaluation; one that is sound stands for them where there are none."""
        curve_every = self.suite.evaluation.curve_every if sound else 0
        self._change_evaluation(tasks=[*sound] or [SOUND_TASK], curve_every=curve_every)

    def _leave_out_max_length(self) -> None:
        options = {name: value for name, value in self.suite.engine_options.items() if name != "max_length"}
        self.suite = self.suite.model_copy(update={"engine_options": options})

    def _prepare_suite(self) -> Prepared:
        return prepare_suite(self.suite, self.source, self._results, self._overrides).with_states()

    def _plan_suite(self, prepared: Prepared, inventory: str | None) -> Plan:
        with suppress(UsageError):  # SuiteError, or a config that says nothing of its size
            given = prepare_suite(self.given, self.source, self._results, self._overrides)
            return plan_for(given.with_states(), inventory)
        return plan_for(prepared, inventory)

    def _note_fault(self, name: str, error: SuiteError) -> None:
        self.faults.append(RehearsalFault(name, self._place_in_given(error.path), error.problem))

    def _note_unmendable(self, error: SuiteError) -> NoReturn:
        """Note a fault that cannot be mended, and give up. Raises UnmendableError; SuiteError for a fault that no model has."""
        if not OF_A_MODEL.match(error.path):
            raise error
        place = self._place_in_given(error.path)
        noted = next((fault for fault in self.faults if fault.place == place), None)
        if noted is None:
            self._note_fault("model", error)
        else:
            # What was put there fails too: told once, in the words about what the suite's author wrote
            self.faults.remove(noted)
            self.faults.append(RehearsalFault("model", place, noted.problem))
        raise UnmendableError from None

    def _place_in_given(self, path: str) -> str:
        """Return a place by the suite as given, of whose evaluation tasks some may have been left out since."""
        match = _TASK.match(path)
        if match is None:
            return path
        task = self.suite.evaluation.tasks[int(match[1])]
        if task not in self.given.evaluation.tasks:
            return path
        return f"evaluation.tasks[{self.given.evaluation.tasks.index(task)}]{path[match.end() :]}"


def _kind_of(*tasks: str | FileTask) -> str:
    """Return the name of a task's fault: of a file of the user's own, also in a mixture, or of a data set."""
    return "task" if any(isinstance(task, FileTask) for task in tasks) else "dataset"


def _is_known_kind(policy: Policy) -> bool:
    """Whether the model's config says what transformers can build."""
    with suppress(HarnessError):
        return bool(load_shape(policy.model, policy.revision))
    return False


def _usable_config(policy: Policy) -> Mapping[str, Any]:
    """Return the model's own config without what makes it another kind, or a small published one where it has none that can be
    used."""
    if not _is_known_kind(policy):
        return min(shipped_configs().values(), key=lambda config: config.get("hidden_size", 1 << 20))
    config = load_config(policy.model, policy.revision)
    return {name: value for name, value in config.items() if name != "quantization_config"}
