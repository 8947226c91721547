"""How a study runs: begin or resume, hold its folder, run, finish. Commands and the API call this.

The folder of an invocation is held while it goes; a resumed one runs the plan that it began with.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedray.activity import say_next
from fedray.command import INTERRUPTED, RUN_ERROR, go_on_with, say_stopped
from fedray.config import find_yaml, read_plugins
from fedray.errors import UserError
from fedray.files import (
    LOCK,
    cannot_write,
    discard_if_empty,
    explain_disk_full,
    make_folder,
    remove_torn,
    reserve,
    results_home,
    stamp,
    store_home,
    tables_home,
    write_atomic,
)
from fedray.plugins import Plugin, unshipped
from fedray.records import RunFolder, refuse_links
from fedray.remote_results import check_owner, copying, fetch_missing
from fedray.shipped import folders, names
from fedray.studies.cell import check_cells, check_rows_differ
from fedray.studies.file import Kind, plan_study
from fedray.studies.forecast import headline, not_asked, planned_cells, protocols, wrapped
from fedray.studies.plan import StudyPlan
from fedray.studies.ready import check_stored, get_ready
from fedray.studies.registration import described, register, registered
from fedray.studies.store import DATA, Published
from fedray.studies.study import FILE, Study, unfinished
from fedray.studies.trials import flow
from fedray.tracking import tracker_for


@dataclass(frozen=True)
class Request:
    """What a command or the API asks for.

    Attributes:
        kind: sweep or table.
        name: a study in tune/ (sweeps) or tune/tables/ (tables), or a YAML file.
        pairs: keys and values, of the study and of every experiment.
        scale: None: the first that the file has.
        samples: number of a sweep's configurations, instead of the file's.
        plugins: files, folders or modules.
        published: folders of tables whose runs are taken over.
        out: the folder of the invocation; None: a new one.
        resume: go on with the latest unfinished invocation, or that in `out`.
        track: whether runs are logged to MLflow.
        only_plan: print what would be run, and end.
        register: write the plan down before the first run, and end.
    """

    kind: Kind
    name: str
    pairs: Sequence[tuple[str, Any]] = ()
    scale: str | None = None
    samples: int | None = None
    plugins: Sequence[str] = ()
    published: Sequence[Path] = ()
    out: Path | None = None
    resume: bool = False
    track: bool = True
    only_plan: bool = False
    register: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """Return the part that determines the study."""
        return {"pairs": [list(pair) for pair in self.pairs], "samples": self.samples}

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        flags = [f"{key}={flow(value)}" for key, value in self.pairs]
        flags += [] if self.scale is None else ["--scale", self.scale]
        flags += [] if self.samples is None else ["--num-samples", str(self.samples)]
        for path in self.published:
            flags += ["--from", str(path)]
        for plugin in self.plugins:
            flags += ["--plugin", plugin]
        return shlex.join(["python", "-m", f"fedray.{self.kind}", self.name, *flags])


def carry_out(request: Request) -> tuple[Study, int]:
    """Run or go on with a study; return it and the exit code.

    Raises:
        UserError: if something is missing or wrong, or the request contradicts what is resumed.
    """
    say_next(f"reading the {request.kind} {request.name}")
    study = begin_or_resume(request)
    firsts = check_cells(study.cells)  # before anything starts
    if not study.plan.is_sweep:
        check_rows_differ(study.cells)
    fetch_missing(study.store)
    check_stored(study)
    print(headline(study), flush=True)
    if elsewhere := unshipped(plugins_of(study.plan)):
        print(elsewhere, flush=True)
    if request.register:
        entry = register(study, home_of(request.kind, study.plan.name))
        print(wrapped(described(entry, study.plan)))
        return study, 0
    if request.only_plan:
        print("\n".join([*planned_cells(study), *protocols(study), *not_asked(study.plan)]))
        return study, 0
    make_folder(study.store)
    new = None if request.resume or request.out else reserve(study.home)
    study.home = new or study.home
    with (
        discard_if_empty(new),
        explain_disk_full(study.home),
        hold(study.home),
        copying(study.home),
        copying(study.store, by_entry=True),
    ):
        if request.resume:
            study = reload(study)
        concurrent = 0 if study.is_complete else get_ready(study, firsts, track=request.track)
        keep_file(request, study)
        return study, run(study, concurrent, track=request.track)


# --- which invocation -----------------------------------------------------------------------------


def home_of(kind: Kind, name: str) -> Path:
    """Return the folder of a study's invocations."""
    return (results_home() if kind == "sweep" else tables_home()) / name


def plan_of(request: Request) -> StudyPlan:
    """Return the plan of a new study."""
    return plan_study(
        request.kind,
        request.name,
        request.pairs,
        request.scale,
        request.plugins,
        request.samples,
    )


def begin_or_resume(request: Request) -> Study:
    """Return the study of a new invocation, not yet on disk, or of the one to go on with.

    The folder of a new one has yet to be reserved, unless it was named.

    Raises:
        UserError: if the request contradicts itself or what is resumed.
    """
    if not request.name:
        kind = request.kind
        there = ", ".join(names(f"{kind}s")) or f"there is none in {folders(f'{kind}s')[0]}"
        raise UserError(f"name a {kind}: {there}")
    if request.resume:
        return _resumed(request)
    plan = plan_of(request)
    published = [Published.read(str(path), _table_json(path)) for path in request.published]
    home = home_of(request.kind, plan.name) / stamp()
    if request.out is not None:
        home = request.out.resolve()
        if (home / FILE).exists():
            raise UserError(f"{home} already holds a study; go on with --resume, or name another")
        check_owner(home)
    return Study(
        home,
        plan,
        store_home(),
        command=request.command,
        asked=request.asked,
        published=published,
        registered=registered(home_of(request.kind, plan.name), plan.scale),
    )


def _table_json(path: Path) -> Path:
    """Return the file of a published table, whose folder may be given."""
    return path if path.suffix == ".json" else path / DATA


def _resumed(request: Request) -> Study:
    name = Path(request.name).stem
    home = _begun(request, home_of(request.kind, name))
    study = Study.read(home)
    plan = study.plan
    if (plan.kind, plan.name) != (request.kind, name):
        raise UserError(f"{home} holds {plan.kind} {plan.name}, not {request.kind} {name}")
    if study.status == "finished":
        raise UserError(f"{home} is finished; start without --resume")
    if not request.plugins:
        RunFolder(home).check_plugins(plugins_of(plan))
    if request.published:
        raise UserError(f"--from: {home} has begun; what it takes over was settled then")
    if not _is_as_begun(request, study):
        raise UserError(
            f"--resume: {home} was started with other words; pass what it was started with "
            f"({study.command}), or nothing but --resume"
        )
    study.try_again()
    return study


def _begun(request: Request, below: Path) -> Path:
    """Return the folder to go on in: the named one, or that of the latest unfinished invocation.

    It is fetched if it is not here; of a study with invocations here none is, for another machine
    may be running it.
    """
    if request.out is not None:
        home = request.out.resolve()
        fetch_missing(home)
    else:
        if not any(below.glob(f"*/{FILE}")):
            fetch_missing(below)
        home = unfinished(below, request.kind)
    check_owner(home)
    return home


def _is_as_begun(request: Request, study: Study) -> bool:
    """Return True if a request asks for nothing else than what a study was begun with.

    The study's file may have changed since: what is run is the plan that was made of it.
    """
    begun, now = study.asked, request.asked
    if now["pairs"] and now["pairs"] != begun.get("pairs"):
        return False
    if now["samples"] not in (None, begun.get("samples")):
        return False
    if request.scale not in (None, study.plan.scale):
        return False
    if not request.plugins:
        return True
    again = plan_study(request.kind, request.name, request.pairs, study.plan.scale, request.plugins)
    return plugins_of(again) == plugins_of(study.plan)


def reload(study: Study) -> Study:
    """Return a study as another process may have left it before its folder was ours alone.

    Raises:
        UserError: if nothing is left to do.
    """
    now = Study.read(study.home)
    if now.status == "finished":
        raise UserError(f"{now.home} was finished by another process meanwhile")
    now.try_again()
    return now


@contextmanager
def hold(home: Path, wait_seconds: float = 5) -> Iterator[None]:
    """Keep every other process out of an invocation's folder.

    Raises:
        UserError: if another process has it, it cannot be written, or a link leads out of it.
    """
    lock = FileLock(home / LOCK)
    try:
        home.mkdir(parents=True, exist_ok=True)
        refuse_links(home, home.iterdir())
        lock.acquire(timeout=wait_seconds)
    except Timeout:
        raise UserError(f"{home} belongs to a command that is still running") from None
    except OSError as error:
        raise cannot_write(home, error) from None
    remove_torn(home)
    try:
        yield
    finally:
        lock.release()


def keep_file(request: Request, study: Study) -> None:
    """Keep the study's file, comments and all, and its plug-ins, with its first results."""
    RunFolder(study.home).write_plugins(plugins_of(study.plan))
    kept = study.home / f"{request.kind}.yaml"
    try:
        path = find_yaml(request.name, folders(f"{request.kind}s"), request.kind)
        text = path.read_text(encoding="utf-8")
    except UserError:
        if kept.exists():
            return  # what it was started with is all there
        raise
    if not kept.exists():
        write_atomic(kept, text)
    elif kept.read_text(encoding="utf-8") != text:
        print(f"note: {path} has changed; {kept.parent} goes on with what it was started with")


def plugins_of(plan: StudyPlan) -> tuple[Plugin, ...]:
    """Return the plug-ins with their texts; all experiments of a study have the same."""
    return read_plugins(plan.plugins)


# --- running --------------------------------------------------------------------------------------


def run(study: Study, concurrent: int, *, track: bool) -> int:
    """Run what is left of a study and conclude it; return the exit code."""
    from fedray.studies.outcome import outcome
    from fedray.studies.pages import conclusion
    from fedray.studies.tracking import StudyTracker

    plan = study.plan
    if not plan.is_sweep:
        outcome(study)  # finds the looks that came before the first run
    study.write()
    tracker = tracker_for(plan.name, study.home, plan.answers) if track else None
    tracked = StudyTracker(study, tracker) if tracker is not None else None
    try:
        if not study.is_complete:
            _train(study, tracked, concurrent)
        code = _finish(study, track=track)
        if tracker is not None:
            print(f"compare: {tracker.hint}")
        return code
    except KeyboardInterrupt as stop:
        say_stopped(stop, how_to_go_on(study, track=track))
        raise
    finally:
        if tracked is not None and tracker is not None:
            tracked.end(lambda: conclusion(study))
            tracker.close()


def _train(study: Study, tracked: Any, concurrent: int) -> None:
    """Run what is left, several runs at a time; a table's page is written as cells end."""
    from fedray.studies.pages import write_pages
    from fedray.studies.progress import Progress
    from fedray.studies.tune import Watcher, fit

    with Progress(study, concurrent) as show:
        watcher = Watcher(study, tracked, show, lambda: write_pages(study))
        fit(study, watcher, concurrent)
        while watcher.take_again():
            fit(study, watcher, concurrent)


def how_to_go_on(study: Study, *, track: bool) -> str:
    """Return the command that runs what is left of a study."""
    plan, home = study.plan, study.home
    where = [] if home.parent == home_of(plan.kind, plan.name) else ["--out", home]
    flags = [] if track else ["--no-track"]
    return go_on_with(f"fedray.{plan.kind}", plan.name, "--resume", *where, *flags)


def _finish(study: Study, *, track: bool) -> int:
    """Write and print the results; return the exit code."""
    from fedray.studies.pages import print_pages

    whole = study.is_complete
    if whole:
        study.status = "finished"
    print_pages(study)
    if not whole:
        print(f"interrupted; {how_to_go_on(study, track=track)}", file=sys.stderr)
        study.write()
        return INTERRUPTED
    study.write()  # at last: a study that is killed while it concludes can be resumed
    if all(not study.came_through(cell) for cell in study.cells):
        what = "trial" if study.plan.is_sweep else "cell"
        reasons = "; ".join(study.reasons)
        print(f"failed: no {what} of {study.plan.name} came through: {reasons}", file=sys.stderr)
        return RUN_ERROR
    return 0
