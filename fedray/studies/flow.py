"""Run a study: begin or resume it, lock its folder, run, finish. Called by commands and the API.

The folder of an invocation is locked while it runs. A resumed study runs its stored plan.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedray.base.activity import say_next
from fedray.base.errors import RayDied, RunFailed, UserError
from fedray.base.shipped import folders, names
from fedray.command import INTERRUPTED, RUN_ERROR, go_on_with, say_job, say_stopped
from fedray.config import read_plugins
from fedray.plugins import Plugin, named_plugins, plugin_flags, write_copies
from fedray.results.record import DATA, TableRecord
from fedray.storage.files import (
    claimed,
    explain_disk_full,
    new_place,
    results_home,
    store_home,
    write_atomic,
)
from fedray.studies.cell import check_cells, check_rows_differ
from fedray.studies.file import Kind, plan_study, read_study
from fedray.studies.forecast import headline, planned_cells, untested_rows
from fedray.studies.plan import StudyPlan
from fedray.studies.ready import check_first_rung, check_stored, get_ready
from fedray.studies.store import Published
from fedray.studies.study import FILE, Study, latest_unfinished
from fedray.studies.tracking import write_tracking
from fedray.studies.trials import flow
from fedray.tracking.follow import tracking


@dataclass(frozen=True)
class Request:
    """The arguments of a command or an API call that runs a study.

    Attributes:
        kind: sweep or table.
        name: a study in tune/ (sweeps) or tune/tables/ (tables), or a YAML file.
        pairs: keys and values, of the study and of every experiment.
        scale: laptop, desktop, paper or printed; None: the first scale of the file.
        samples: number of configurations of a sweep; None: the file's.
        rows: the rows of a table to run; empty: all.
        plugins: files, folders or modules.
        published: folders of tables whose runs are reused.
        out: the folder of the invocation; None: a new one.
        resume: resume the latest unfinished invocation, or the one in `out`.
        track: whether runs are logged to MLflow.
        only_plan: print the plan and exit.
    """

    kind: Kind
    name: str
    pairs: Sequence[tuple[str, Any]] = ()
    scale: str | None = None
    samples: int | None = None
    rows: Sequence[str] = ()
    plugins: Sequence[str] = ()
    published: Sequence[Path] = ()
    out: Path | None = None
    resume: bool = False
    track: bool = True
    only_plan: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, as stored in plan.json, that a resumed study must repeat or leave out."""
        pairs = [list(pair) for pair in self.pairs]
        return {"pairs": pairs, "samples": self.samples, "rows": list(self.rows)}

    @property
    def command(self) -> str:
        """The equivalent command line."""
        flags = [f"{key}={flow(value)}" for key, value in self.pairs]
        flags += [] if self.scale is None else ["--scale", self.scale]
        flags += [] if self.samples is None else ["--num-samples", str(self.samples)]
        flags += ["--rows", ",".join(self.rows)] if self.rows else []
        for path in self.published:
            flags += ["--from", str(path)]
        for plugin in self.plugins:
            flags += ["--plugin", plugin]
        return shlex.join(["python", "-m", f"fedray.{self.kind}", self.name, *flags])


def carry_out(request: Request) -> tuple[Study, int]:
    """Run or resume a study; return the study and the exit code.

    Raises:
        UserError: if the study cannot run, or the request contradicts the study to resume.
    """
    say_next(f"reading the {request.kind} {request.name}")
    study = begin_or_resume(request)
    firsts = check_cells(study.cells)
    check_first_rung(study.plan, firsts[0])
    if not study.plan.is_sweep:
        check_rows_differ(study.cells)
    check_stored(study.look())
    print(headline(study), flush=True)
    say_job()
    if request.only_plan:
        print("\n".join([*planned_cells(study), *untested_rows(study.plan)]))
        return study, 0
    study.store.mkdir(parents=True, exist_ok=True)
    with explain_disk_full(study.home), claimed(study.home):
        if request.resume:
            study = reload(study)
        concurrent = 0 if study.is_complete else get_ready(study, firsts, track=request.track)
        copy_study_file(request, study)
        return study, run_cells(study, concurrent, track=request.track)


# --- invocations ----------------------------------------------------------------------------------


def home_of(kind: Kind, name: str) -> Path:
    """Return the folder of a study's invocations."""
    return (results_home() if kind == "sweep" else results_home() / "tables") / name


def plan_of(request: Request) -> StudyPlan:
    """Return the plan of a new study."""
    return plan_study(
        request.kind,
        request.name,
        request.pairs,
        request.scale,
        request.plugins,
        request.samples,
        request.rows,
    )


def begin_or_resume(request: Request) -> Study:
    """Return the study of a new invocation, not yet on disk, or of the invocation to resume.

    The caller reserves the folder of a new invocation, unless `request.out` names it.

    Raises:
        UserError: if the request contradicts itself or the study to resume.
    """
    if not request.name:
        kind = request.kind
        options = ", ".join(names(f"{kind}s")) or f"{folders(f'{kind}s')[0]} has none"
        raise UserError(f"name a {kind}: {options}")
    if request.resume:
        return _resume(request)
    plan = plan_of(request)
    published = [
        Published(str(path), TableRecord.read(_table_json(path))) for path in request.published
    ]
    home = new_place(home_of(request.kind, plan.name))
    if request.out is not None:
        home = request.out.resolve()
        if (home / FILE).exists():
            raise UserError(
                f"{home} already holds a study; continue it with --resume, or name another"
            )
    return Study(
        home,
        plan,
        store_home(),
        command=request.command,
        arguments=request.arguments,
        published=published,
    )


def _table_json(path: Path) -> Path:
    """Return the table.json of a published table; `path` is that file or its folder."""
    return path if path.suffix == ".json" else path / DATA


def _resume(request: Request) -> Study:
    name = Path(request.name).stem
    home = _folder_to_resume(request, home_of(request.kind, name))
    study = Study.read(home)
    plan = study.plan
    if (plan.kind, plan.name) != (request.kind, name):
        raise UserError(f"{home} holds {plan.kind} {plan.name}, not {request.kind} {name}")
    if study.status == "finished":
        raise UserError(f"{home} is finished; start without --resume")
    if request.published:
        raise UserError(
            f"--from: {home} has already begun, and cannot add published runs; leave --from out"
        )
    if not _repeats_arguments(request, study):
        raise UserError(
            f"--resume: {home} was started with other arguments; pass the original ones "
            f"({study.command}), or --resume alone"
        )
    study.forget_failures()
    return study


def _folder_to_resume(request: Request, below: Path) -> Path:
    """Return the folder to resume: `request.out`, or that of the latest unfinished invocation."""
    if request.out is not None:
        return request.out.resolve()
    return latest_unfinished(below, request.kind)


def _repeats_arguments(request: Request, study: Study) -> bool:
    """Return True if the request's arguments agree with those that the study was started with.

    The study's file may have changed; the stored plan is run.
    """
    repeated = request.arguments.items()
    if any(value and value != study.arguments.get(name) for name, value in repeated):
        return False
    if request.scale not in (None, study.plan.scale):
        return False
    known = {plugin.sha256 for plugin in plugins_of(study.plan)}
    return known.issuperset(plugin.sha256 for plugin in named_plugins(request.plugins))


def reload(study: Study) -> Study:
    """Read a study again once its folder is locked, because another process may have changed it.

    Raises:
        UserError: if another process finished the study.
    """
    current = Study.read(study.home)
    if current.status == "finished":
        raise UserError(f"{current.home} was finished by another process meanwhile")
    current.forget_failures()
    return current.look()


def copy_study_file(request: Request, study: Study) -> None:
    """Copy the study's file and its plug-ins into the study's folder, once.

    The copy has the file's comments, or is merged with the files that it extends.
    """
    write_copies(study.home, plugins_of(study.plan))
    copy = study.home / f"{request.kind}.yaml"
    try:
        file = read_study(request.kind, request.name)
        path, text = file.path, file.text
    except UserError:
        if copy.exists():
            return  # a resumed study has its copy
        raise
    if not copy.exists():
        write_atomic(copy, text)
    elif copy.read_bytes() != text.encode():
        print(f"note: {path} has changed; {copy.parent} continues with its original copy")


def plugins_of(plan: StudyPlan) -> tuple[Plugin, ...]:
    """Return the plug-ins of a study with their sources."""
    return read_plugins(plan.plugins)


# --- running --------------------------------------------------------------------------------------


def run_cells(study: Study, concurrent: int, *, track: bool) -> int:
    """Run the remaining runs of a study and write its results; return the exit code."""
    study.write()
    write_tracking(study)
    with tracking(study.home, track=track) as start:
        try:
            if not study.is_complete:
                _train(study, concurrent, start)
            return _finish(study, track=track)
        except KeyboardInterrupt as stop:
            say_stopped(stop, how_to_go_on(study, track=track))
            raise
        except RayDied as error:
            raise RunFailed(f"{error}; {how_to_go_on(study, track=track)}") from None


def _train(study: Study, concurrent: int, start_tracking: Callable[[], None]) -> None:
    """Run the remaining runs concurrently; write a table's page whenever a cell ends.

    Tracking starts after the first round, because until then all CPUs are busy.
    """
    from fedray.studies.pages import write_pages
    from fedray.studies.progress import Progress
    from fedray.studies.tune import Watcher, run_trials

    with Progress(study, concurrent) as show:
        watcher = Watcher(study, show, lambda: write_pages(study), start_tracking)
        run_trials(study, watcher, concurrent)


def how_to_go_on(study: Study, *, track: bool) -> str:
    """Return the command that resumes a study."""
    plan, home = study.plan, study.home
    where = [] if home.parent == home_of(plan.kind, plan.name) else ["--out", home]
    flags = [*([] if track else ["--no-track"]), *plugin_flags(plugins_of(plan))]
    return go_on_with(f"fedray.{plan.kind}", plan.name, "--resume", *where, *flags)


def _finish(study: Study, *, track: bool) -> int:
    """Write and print the results; return the exit code."""
    from fedray.studies.pages import conclusion, print_pages

    is_complete = study.is_complete
    if is_complete:
        study.status = "failed" if study.repeatable else "finished"
    print_pages(study)
    study.write()  # last, so that a study killed while it writes results can be resumed
    write_tracking(study, conclusion(study))
    if not is_complete:
        print(f"interrupted; {how_to_go_on(study, track=track)}", file=sys.stderr)
        return INTERRUPTED
    if study.repeatable:
        count = len(study.repeatable)
        print(f"{count} run(s) failed; to try again, {how_to_go_on(study, track=track)}")
    if all(not study.has_result(cell) for cell in study.cells):
        unit = "trial" if study.plan.is_sweep else "cell"
        reasons = "; ".join(study.reasons)
        print(f"failed: every {unit} of {study.plan.name} failed: {reasons}", file=sys.stderr)
        return RUN_ERROR
    return 0
