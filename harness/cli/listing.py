"""Commands that list and check."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from harness.allocation.inventory import VISIBLE, list_visible_gpus
from harness.allocation.shapes import EMULATED, cpu_bf16
from harness.cache import cache_folder, expand_user
from harness.cli.arguments import RESULTS, DataDir, Json, Results, fold_text, print_json, print_table
from harness.cli.tables import print_findings
from harness.clusters.nodes import Check, examine_nodes, make_check
from harness.engines import catalogue
from harness.errors import StoreError, UsageError
from harness.learning import registry
from harness.limits import UNUSED, available_memory, count_cores, without_collection
from harness.store.database import kind_of_mount, store_path
from harness.store.text import visible as shown
from harness.suite.schema import Suite, Training
from harness.suite.space import Space, as_dict, spaces_of
from harness.tasks import gym
from harness.tasks.data import folder_in_use, list_sets
from harness.tasks.registry import TaskInfo, list_tasks
from harness.verification.catalogue import list_scorers as scorers

if TYPE_CHECKING:
    from harness.session.single.calibrate import Calibration, Rescue
    from harness.session.single.levels import LevelResult

GIB = 2**30
DEFAULT_ENGINE = Suite.model_fields["engine"].default


RegimeName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="One regime, with the search space of each option.")
]


def regimes(
    name: RegimeName = None,
    json: Json = False,
) -> None:
    """Installed regimes, whose defaults they have, and their papers; a broken plugin is listed with its error. With NAME: its
    source and options, and what tuning may try."""
    known = registry.list_regimes()
    if name is None:
        rows = [_regime_line(regime) for regime in known]
        heads = ["regime", "defaults", "arXiv", "what it does"]
        print_table("", heads, rows, json={"regimes": known} if json else None)
        return
    searched = registry.search_spaces(type(registry.build(name, {})))
    info = next(regime for regime in known if regime.name == name)
    _print_regime(info, searched, json)


def _regime_line(regime: registry.RegimeInfo) -> list[str]:
    """Return a regime's row: of a broken plugin the error in place of what it does."""
    defaults = ""
    if regime.status:
        defaults = "published" if regime.status.startswith("published") else "ours"
    what = f"BROKEN: {regime.error}" if regime.error else regime.summary
    return [regime.name, defaults, ", ".join(regime.papers), what]


def _print_regime(info: registry.RegimeInfo, searched: Mapping[str, Space], json: bool) -> None:
    """Print one regime with its options, and the settings of training that are searched for every regime."""
    defaults = Training().model_dump()
    common = spaces_of(Training, defaults)
    if json:
        training = {key: as_dict(space) for key, space in common.items()}
        print_json({"regimes": [info], "training": training})
        return
    shares = ", ".join(info.shares) or "nothing"
    print(f"{info.name}: {info.summary}\n{info.source} {info.status.capitalize()}.\n{info.origin}")
    print(f"shares {shares}; log-probabilities before the update: {info.old_logprobs}\n")
    rows = []
    for key, value in info.options.items():
        space = searched.get(key, "not searched")
        rows.append([key, str(value), str(space)])
    for key, space in common.items():
        rows.append([f"training.{key}", str(defaults[key]), str(space)])
    print_table("", ["option", "default", "what tuning may try"], rows)
    print("\nThe settings of `training` are searched for every regime alike, the baseline included (docs/tuning.md).")


PolicyNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[POLICY]...", help="With --calibrate: folders, pretrained/NAME, micro/FAMILY, hub names."),
]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Measure the policies' accuracy on each level.")]
MeasuredTask = Annotated[str, typer.Option("--task", help="ladder, micro, countdown, gym.NAME, or 'gym.*'.")]
LevelNames = Annotated[
    str, typer.Option("--levels", metavar="A,B", help="Measure these levels only; default all of the task.")
]
QuestionsOfLevel = Annotated[int, typer.Option("--prompts", min=1, max=10_000, help="Questions of each level.")]
AnswersToQuestion = Annotated[
    int, typer.Option("--answers", min=1, max=1024, help="Answers to each question, sampled at temperature 1.")
]
LongestAnswer = Annotated[
    int | None, typer.Option("--max-new-tokens", min=1, help="Longest answer in tokens; default the task's own.")
]
WorkedQuestions = Annotated[int, typer.Option("--few-shot", min=0, max=32, help="Worked questions before each.")]
WithoutTemplates = Annotated[bool, typer.Option("--plain", help="Leave out chat templates.")]
Word = Annotated[
    str, typer.Option("--like", metavar="WORD", help="List tasks alone whose row has this word, e.g. puzzle.")
]
ScorersInstead = Annotated[bool, typer.Option("--scorers", help="List the scorers instead of the tasks.")]


def tasks(
    context: typer.Context,
    policies: PolicyNames = None,
    calibrate: Calibrate = False,
    task: MeasuredTask = "ladder",
    levels: LevelNames = "",
    prompts: QuestionsOfLevel = 200,
    answers: AnswersToQuestion = 8,
    max_new_tokens: LongestAnswer = None,
    few_shot: WorkedQuestions = 0,
    plain: WithoutTemplates = False,
    like: Word = "",
    scorers_too: ScorersInstead = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Evaluation tasks: size, source, licence, score of perfect and of empty answers; with --calibrate,
    the policies' accuracy on each level."""
    if calibrate and policies:
        if scorers_too:
            raise UsageError("--scorers: works only without --calibrate")
        _calibrate(policies, task, levels, prompts, answers, few_shot, plain, max_new_tokens, json)
        return
    if calibrate or policies:
        raise UsageError(
            "give both to measure policies (harness tasks --calibrate POLICY...), or neither to list tasks"
        )
    for name in ("task", "levels", "prompts", "answers", "few_shot", "plain", "max_new_tokens"):
        if "COMMANDLINE" in str(context.get_parameter_source(name)):
            raise UsageError(f"--{name.replace('_', '-')}: works only with --calibrate")
    if scorers_too:
        _list_scorers(json)
    else:
        _list_tasks(data_dir, like, json)


def _list_scorers(json: bool) -> None:
    """Print the scorers, broken ones with their error."""
    known = scorers()
    rows = []
    for scorer in known:
        what = f"BROKEN: {scorer.error}" if scorer.error else scorer.summary
        rows.append([scorer.name, what, scorer.remark or scorer.origin])
    print_table("", ["scorer", "what is right", "from"], rows, json={"scorers": known} if json else None)


def _list_tasks(data_dir: Path | None, like: str, json: bool) -> None:
    """Print the tasks with all that is known of them, then the puzzles by what they ask for. like: a word of the rows to
    print."""
    puzzles = dict(gym.ALLOWED) if _is_like(like, "puzzle", *_puzzle_words()) else {}
    known: list[TaskInfo] = []
    wants_puzzles_alone = like and _is_like(like, "puzzle")
    if not wants_puzzles_alone:
        known = [task for task in list_tasks(data_dir) if _is_like(like, *_words_of(task))]
    absent = {one.name for one in list_sets() if one.state == "absent"}
    columns = ["task", "title", "questions", "perfect", "empty", "licence", "source"]
    rows = [_task_line(task, task.name in absent) for task in known]
    if json:
        print_json({"tasks": known, "puzzles": puzzles})
        return
    if rows:
        print_table("", columns, rows)
    if puzzles:
        title = "\nPuzzles of reasoning-gym, e.g. {name: gym.knights_knaves, n_people: 2..3} (docs/tasks.md)"
        lines = []
        for group, names in puzzles.items():
            tasks_of_group = ", ".join(f"{gym.NAME}.{name}" for name in names)
            lines.append([group, tasks_of_group])
        print_table(title, ["puzzles", "tasks"], lines)
    if not rows and not puzzles:
        raise UsageError(f"--like {like}: no task has this word (harness tasks lists all)")


def _is_like(word: str, *texts: str) -> bool:
    """Whether a text holds the word, whatever its case."""
    return any(word.lower() in text.lower() for text in texts)


def _words_of(task: TaskInfo) -> list[str]:
    """Return what `--like` searches of a task."""
    return [task.name, task.title, task.source, task.scorer, task.summary]


def _puzzle_words() -> list[str]:
    """Return what `--like` searches of puzzles: their groups and names."""
    words: list[str] = []
    for group, names in gym.ALLOWED.items():
        words += [group, *names]
    return words


def _task_line(task: TaskInfo, is_absent: bool) -> list[str]:
    """Return a task's row: of a broken plugin the error and where it comes from."""
    if task.error:
        return [task.name, f"BROKEN: {task.error}", "", "", "", "", task.origin]
    shares = ["" if share is None else f"{share:.1%}" for share in (task.perfect, task.empty)]
    is_ours = task.origin.startswith("experience-sharing-harness ")
    source = task.source if is_ours else task.origin
    if task.scorer != "math":
        source += f"; scorer {task.scorer}"
    where = "absent: harness data" if is_absent else task.problem or source
    return [task.name, task.title, str(task.size or "?"), *shares, task.licence, where]


def _calibrate(
    policies: list[str], task: str, levels: str, prompts: int, answers: int, few_shot: int, plain: bool,
    max_new_tokens: int | None, json: bool,
) -> None:  # fmt: skip
    """Measure policies on the levels of a task, and print where RL has something to learn from."""
    with without_collection(*UNUSED):
        from harness.session.single.calibrate import calibrate_models
        from harness.session.single.levels import LEAST, MOST

    chosen = [name for name in levels.split(",") if name]
    report = calibrate_models(
        policies,
        task,
        chosen,
        prompts=prompts,
        answers=answers,
        few_shot=few_shot,
        plain=plain,
        max_new_tokens=max_new_tokens,
    )
    if json:
        print_json(report)
        return
    _print_standings(report, answers)
    if report.rescues:
        print()
        _print_rescues(report)
    shots = f"{few_shot} worked questions before each; " if few_shot else ""
    asked_how = f"chat template: {', '.join(report.chat)}" if report.chat else "no chat template"
    conditions = f"Training questions at temperature 1; {shots}{asked_how}. ±: 95 %, over questions."
    fits = f"fits: pass@1 of {LEAST:.0%} to {MOST:.0%} and pass@{answers} above it, so that RL has something to learn from."
    print(f"\n{fold_text(conditions)}\n{fold_text(fits)}")


def _print_standings(report: Calibration, answers: int) -> None:
    """Print each policy's accuracy on each level, with its 95 % interval over questions. answers: to each question."""
    columns = ["level", "policy", "pass@1", f"pass@{answers}", "boxed", "finished", "sampled", ""]
    rows = []
    for standing in sorted(report.standings, key=_place_of_level(report)):
        accuracy = f"{standing.pass1:.1%} ±{1.96 * standing.error:.1%}"
        shares = [f"{share:.0%}" for share in (standing.pass_any, standing.boxed, standing.finished)]
        asked = f"{standing.prompts} x {standing.answers}"
        fits = "fits" if standing.fits else ""
        rows.append([standing.level, standing.policy, accuracy, *shares, asked, fits])
    print_table("", columns, rows, columns[2:7])


def _print_rescues(report: Calibration) -> None:
    """Print how often a peer solved questions that a policy failed altogether."""
    columns = ["level", "learner", "all wrong", "of these, a peer right", "share of all", "peer", "sampled"]
    rows = []
    for rescue in sorted(report.rescues, key=_place_of_level(report)):
        of_these = f"{rescue.rescued / rescue.failed:.0%}" if rescue.failed else "-"
        shares = [f"{rescue.failed:.0%}", of_these, f"{rescue.rescued:.1%}"]
        asked = f"{rescue.prompts} x {rescue.answers}"
        rows.append([rescue.level, rescue.learner, *shares, rescue.peer, asked])
    print_table("", columns, rows, columns[2:5])


def _place_of_level(report: Calibration) -> Callable[[LevelResult | Rescue], int]:
    """Return what sorts rows by their level, in the order in which levels were measured."""
    levels = list(dict.fromkeys(standing.level for standing in report.standings))
    return lambda row: levels.index(row.level)


def data(data_dir: DataDir = None, json: Json = False) -> None:
    """Benchmark sets: which are present, their source, and whether their checksums are right."""
    sets = list_sets(data_dir)
    rows = [[one.name, one.title, one.state, str(one.rows), one.licence, one.origin] for one in sets]
    columns = ["set", "title", "state", "rows", "licence", "from"]
    print_table("", columns, rows, json={"sets": sets} if json else None)


def engines(json: Json = False) -> None:
    """Engines, whether they can run here, and what is missing."""
    known = catalogue.list_engines()
    rows = []
    for engine in known:
        runs_here = "yes" if engine.available else "no"
        rows.append([engine.name, runs_here, engine.version, engine.summary, engine.missing])
    columns = ["engine", "runs here", "version", "what it is", "what is missing, and how to get it"]
    print_table("", columns, rows, json={"engines": known} if json else None)


RunToCheck = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="A suite, or a cell's folder: what is wrong with that run.")
]
ClusterToCheck = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Check the nodes of this Ray cluster instead.")
]
ExpectedNodes = Annotated[
    int, typer.Option("--nodes", min=1, help="With --address: number of nodes that are expected.")
]
SecondsToWait = Annotated[
    float, typer.Option("--within", min=1, metavar="SECONDS", help="With --address: seconds to wait for them.")
]
SharedFolders = Annotated[
    list[Path] | None,
    typer.Option("--models", metavar="DIR", help="With --address: a folder that every node must see."),
]


def doctor(
    context: typer.Context,
    run: RunToCheck = None,
    address: ClusterToCheck = None,
    nodes: ExpectedNodes = 1,
    within: SecondsToWait = 30.0,
    models: SharedFolders = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """What this machine, or each node of a Ray cluster, can run, what is missing, and how to get it; with RUN, what is wrong
    with a run and what to do."""
    if address and run is not None:
        raise UsageError("--address: works only without RUN")
    for name in ("nodes", "within", "models") if not address else ():
        if "COMMANDLINE" in str(context.get_parameter_source(name)):
            raise UsageError(f"--{name}: works only with --address")
    for folder in models or ():
        if not expand_user(folder).is_dir():
            raise UsageError(f"--models {folder}: no such folder")
    if run is not None:
        raise typer.Exit(print_findings(run, results, json))
    checks = examine_nodes(address, nodes, within, results, models or []) if address else list(examine(results))
    rows = [["ok" if check.ok else "--", check.name, check.found, check.advice] for check in checks]
    if address and not json:  # not folded: in the logs of jobs
        for state, name, found, advice in rows:
            what_to_do = f" ({advice})" if advice else ""
            print(f"{state}  {name}: {shown(found)}{what_to_do}")
    else:
        print_table("", ["", "what", "found", "advice"], rows, json={"checks": checks} if json else None)
    lacks_what_is_needed = any(check.needed and not check.ok for check in checks)
    raise typer.Exit(1 if lacks_what_is_needed else 0)


def examine(results: Path) -> Iterator[Check]:
    """Yield what this machine has and lacks, in the order in which `harness doctor` prints it."""
    yield make_check("python", sys.version_info >= (3, 11), platform.python_version(), "3.11 or newer", needed=True)
    yield _check_memory()
    yield _check_half_precision()
    free = shutil.disk_usage(Path.cwd()).free
    yield make_check("disk", free > 2 * GIB, f"{free / GIB:.1f} GiB free here", "the quickstart needs about 1 GiB")
    yield _check_store(results)
    yield _check_gpu()
    for engine in catalogue.list_engines():
        found = engine.version or "not installed"
        is_default = engine.name == DEFAULT_ENGINE
        yield Check(f"engine {engine.name}", engine.available, found, engine.missing, needed=is_default)
    yield _check_regimes()
    yield _check_cache()
    yield _check_data()
    yield _check_leaderboard()


def _check_memory() -> Check:
    """Return cores, and memory for at least one micro cell."""
    free = available_memory()
    all_memory = psutil.virtual_memory().total
    found = f"{count_cores()} cores, {free / GIB:.1f} of {all_memory / GIB:.1f} GiB free"
    return make_check("machine", free > 1.5 * GIB, found, "a micro cell needs about 1 GiB", needed=True)


def _check_half_precision() -> Check:
    """Whether the CPU multiplies bf16 fast, and by which instructions."""
    name = cpu_bf16()
    found = f"{name}: pretrained policies in bf16, fp32 masters" if name else "emulated here"
    return make_check("bf16", name, found, f"a CPU without AMX or AVX512-BF16: {EMULATED}")


def _check_regimes() -> Check:
    """Say how many regimes load, and why others do not."""
    regimes = registry.list_regimes()
    broken = [f"{regime.name}: {regime.error}" for regime in regimes if regime.error]
    found = f"{len(regimes) - len(broken)} load"
    return make_check("regimes", not broken, found, "; ".join(broken))


def _check_cache() -> Check:
    """Whether base checkpoints and models can be kept. A folder that is not there yet is made in the nearest that is."""
    folder = cache_folder()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = place.is_dir() and os.access(place, os.W_OK)
    advice = "set HARNESS_CACHE to a folder that can be written"
    return make_check("cache", is_writable, str(folder), advice, needed=True)


def _check_leaderboard() -> Check:
    """Whether the Streamlit application can run."""
    needed = ("streamlit", "altair")
    is_there = all(importlib.util.find_spec(package) is not None for package in needed)
    advice = "pip install 'experience-sharing-harness[leaderboard]'"
    return make_check("leaderboard", is_there, "installed" if is_there else "not installed", advice)


def _check_store(results: Path) -> Check:
    """Check where the tables are kept, and why there."""
    try:
        place = store_path(results)
    except StoreError as error:
        return Check("store", False, str(error), "needed by `harness show` and the leaderboard")
    why = "local" if place.parent == results else "its store is this machine's own"
    return Check("store", True, f"{results} on {kind_of_mount(results) or 'an unknown file system'}, {why}: {place}")


def _check_gpu() -> Check:
    """Return the GPUs that this process sees, and what hides others."""
    described = [f"{card.name}: {card.kind} of {card.memory / 1e9:.0f} GB" for card in list_visible_gpus()]
    cards = "; ".join(described)
    chosen = f" that {VISIBLE}={os.environ[VISIBLE]!r} leaves" if VISIBLE in os.environ else ""
    return make_check("gpu", cards, cards or f"none{chosen}", "not needed: micro models train on the CPU")


def _check_data() -> Check:
    """Say how many benchmark sets are here, and which are not as their checksums say."""
    sets = list_sets()
    states = [one.state for one in sets]
    folder = folder_in_use(None)
    present = f"{states.count('present')} of {len(sets)} sets in {folder or cache_folder()}"
    altered = [one.name for one in sets if one.state == "altered"]
    if altered:
        present += f", altered: {', '.join(altered)}"
    advice = "the rest is fetched when first used; without a network set HARNESS_DATA to a folder of JSONL files"
    if folder:
        advice = "nothing is fetched while HARNESS_DATA is set"
    return make_check("benchmark data", {*states} == {"present"}, present, advice)
