"""Run a study: plan it, lock its folder, run what is missing, write its page.

Called by commands and the API. The same call again goes on: finished runs are read, unfinished ones
continue from their checkpoints, and what failed without diverging is tried again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedray.base.activity import say_next
from fedray.base.errors import RayDied, RunFailed, UserError
from fedray.command import INTERRUPTED, RUN_ERROR, go_on_with, say_stopped
from fedray.config import Tree, missing_roots_allowed, read_plugins
from fedray.config.plugins import write_copies
from fedray.results.difference import config_changes
from fedray.results.record import DATA, DIVERGED, TableRecord
from fedray.runtime.inputs import missing_inputs
from fedray.storage.files import claimed, explain_disk_full, results_home, store_home, write_atomic
from fedray.studies.cell import check_cells
from fedray.studies.file import Kind, plan_study, read_study
from fedray.studies.forecast import headline, planned_cells, untested_rows, wrap
from fedray.studies.plan import StudyPlan
from fedray.studies.ready import check_first_rung, check_stored, get_ready
from fedray.studies.store import Published
from fedray.studies.study import FILE, Study
from fedray.studies.tracking import write_tracking
from fedray.tracking.follow import tracking

if TYPE_CHECKING:
    from ray.tune import ResultGrid


@dataclass(frozen=True)
class Request:
    """The arguments of a command or an API call that runs a study.

    Attributes:
        kind: sweep or table.
        name: a study in tune/ (sweeps) or tune/tables/ (tables), or a YAML file.
        pairs: keys and values, of the study and of every experiment.
        scale: laptop, desktop, paper or printed; None: the first scale of the file.
        rows: the rows of a table to run; empty: all.
        plugins: files, folders or modules.
        published: folders of tables whose runs are reused.
        out: the study's folder; None: results/NAME/SCALE, of a table below results/tables.
        track: whether runs are logged to MLflow.
        only_plan: print the plan and exit.
        tree: the content of the study, if it is in no file.
    """

    kind: Kind
    name: str
    pairs: Sequence[tuple[str, Any]] = ()
    scale: str | None = None
    rows: Sequence[str] = ()
    plugins: Sequence[str] = ()
    published: Sequence[Path] = ()
    out: Path | None = None
    track: bool = True
    only_plan: bool = False
    tree: Tree | None = None

    @property
    def command(self) -> str:
        """The equivalent command line."""
        return shlex.join(["python", "-m", f"fedray.{self.kind}", *self.words])

    @property
    def words(self) -> list[str]:
        """The arguments of the equivalent command line."""
        flags = [f"{key}={flow(value)}" for key, value in self.pairs]
        flags += [] if self.scale is None else ["--scale", self.scale]
        flags += ["--rows", ",".join(self.rows)] if self.rows else []
        for path in self.published:
            flags += ["--from", str(path)]
        for plugin in self.plugins:
            flags += ["--plugin", plugin]
        return [self.name, *flags]


@dataclass(frozen=True)
class Outcome:
    """What a request came to.

    Attributes:
        study: the study.
        code: the exit code.
        grid: Ray Tune's results; None if nothing was run.
    """

    study: Study
    code: int
    grid: ResultGrid | None = None


def carry_out(request: Request) -> Outcome:
    """Run a study, or go on with it.

    Raises:
        UserError: if the study cannot run.
    """
    say_next(f"reading the {request.kind} {request.name}")
    with missing_roots_allowed() if request.only_plan else nullcontext():
        study = study_of(request)
        firsts = check_cells(study.plan)
        check_first_rung(study.plan, firsts[0])
        check_stored(study)
        print(headline(study), flush=True)
        if request.only_plan:
            missing = dict.fromkeys(line for first in firsts for line in missing_inputs(first))
            lines = [*planned_cells(study), *untested_rows(study.plan), *map(wrap, missing)]
            print("\n".join(lines))
            return Outcome(study, 0)
    study.store.mkdir(parents=True, exist_ok=True)
    with explain_disk_full(study.home), claimed(study.home):
        concurrent = 0 if study.is_complete else get_ready(study, firsts, track=request.track)
        copy_study_file(request, study)
        return run_cells(request, study, concurrent)


def flow(value: Any) -> str:
    """Return a value as one line of YAML, as the command line takes it."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def home_of(kind: Kind, name: str, scale: str) -> Path:
    """Return the folder of a study at a scale."""
    return (results_home() if kind == "sweep" else results_home() / "tables") / name / scale


def plan_of(request: Request) -> StudyPlan:
    """Return the plan of a request."""
    return plan_study(
        request.kind,
        request.name,
        request.pairs,
        request.scale,
        request.plugins,
        request.rows,
        request.tree,
    )


def study_of(request: Request) -> Study:
    """Return the study of a request, with what its folder tells of an earlier command.

    Raises:
        UserError: if the request contradicts itself, or its folder holds another study.
    """
    plan = plan_of(request)
    home = home_of(request.kind, plan.name, plan.scale)
    home = home if request.out is None else request.out.resolve()
    published = [
        Published(str(path), TableRecord.read(_table_json(path))) for path in request.published
    ]
    study = Study(home, plan, store_home(), command=request.command, published=published)
    if (home / FILE).exists():
        go_on(study, Study.read(home))
    return study


def go_on(study: Study, before: Study) -> None:
    """Take over what the study's folder tells of an earlier command.

    What diverged stays so. Suggestions of Optuna are taken over if they are of the same space.

    Raises:
        UserError: if the folder holds another study.
    """
    plan, then = study.plan, before.plan
    if (then.kind, then.name) != (plan.kind, plan.name):
        raise UserError(f"{study.home} holds {then.kind} {then.name}; name another folder")
    study.seconds, study.stopped = before.seconds, before.stopped
    study.failures = {key: why for key, why in before.failures.items() if why.startswith(DIVERGED)}
    if plan.axes == then.axes:
        study.suggested = before.suggested[: plan.tuning.configurations]
    if changes := config_changes(then.model_dump(mode="json"), plan.model_dump(mode="json")):
        print(f"note: {study.home} is replaced: its {plan.kind} had other settings ({changes[0]})")
    else:
        study.began = before.began


def _table_json(path: Path) -> Path:
    """Return the table.json of a published table; `path` is that file or its folder."""
    return path if path.suffix == ".json" else path / DATA


def copy_study_file(request: Request, study: Study) -> None:
    """Copy the study's file and plug-ins into its folder, merged with the files it extends."""
    write_copies(study.home, read_plugins(study.plan.plugins))
    text = read_study(request.kind, request.name, request.tree).text
    write_atomic(study.home / f"{request.kind}.yaml", text)


# --- running --------------------------------------------------------------------------------------


def run_cells(request: Request, study: Study, concurrent: int) -> Outcome:
    """Run the remaining runs of a study and write its results."""
    study.write()
    write_tracking(study)
    grid = None
    with tracking(study.home, track=request.track) as start:
        try:
            if not study.is_complete:
                grid = _train(study, concurrent, start, how_to_go_on(request))
            return Outcome(study, _finish(request, study), grid)
        except KeyboardInterrupt as stop:
            say_stopped(stop, how_to_go_on(request))
            raise
        except (RayDied, RunFailed) as error:
            raise RunFailed(f"{error}; {how_to_go_on(request)}") from None


def _train(
    study: Study, concurrent: int, start_tracking: Callable[[], None], how: str
) -> ResultGrid:
    """Run the remaining runs concurrently; write a table's page whenever a cell ends.

    Tracking starts after the first round, because until then all CPUs are busy.
    """
    from fedray.studies.pages import write_pages
    from fedray.studies.progress import Progress
    from fedray.studies.tune import run_trials

    with Progress(study, concurrent) as show:
        pages = partial(write_pages, study)
        return run_trials(study, show, concurrent, pages, start_tracking, how)


def how_to_go_on(request: Request) -> str:
    """Return the command that goes on with a study."""
    if request.tree is not None:
        return "the same call goes on"
    where = [] if request.out is None else ["--out", request.out]
    flags = [] if request.track else ["--no-track"]
    return go_on_with(f"fedray.{request.kind}", *request.words, *where, *flags)


def _finish(request: Request, study: Study) -> int:
    """Write and print the results; return the exit code."""
    from fedray.studies.pages import conclusion, print_pages

    is_complete = study.is_complete
    if is_complete:
        study.status = "failed" if study.repeatable else "finished"
    print_pages(study)
    study.write()
    write_tracking(study, conclusion(study))
    if not is_complete:
        print(f"interrupted; {how_to_go_on(request)}", file=sys.stderr)
        return INTERRUPTED
    if study.repeatable:
        print(f"{len(study.repeatable)} run(s) failed; to try again, {how_to_go_on(request)}")
    if all(state.phase == "failed" for state in study.states):
        unit = "trial" if study.plan.is_sweep else "cell"
        reasons = "; ".join(study.reasons)
        print(f"failed: every {unit} of {study.plan.name} failed: {reasons}", file=sys.stderr)
        return RUN_ERROR
    return 0
