"""`fedray run EXPERIMENT [KEY=VALUE]...`: run one experiment, with one seed or several."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedray.api.progress import RoundProgress, print_summary, run_headline, say_line
from fedray.api.training import ExecutorName, begin, executor_for, follow, new_folder
from fedray.base import shipped
from fedray.base.activity import say_next
from fedray.base.errors import CodeError, RunFailed, UserError
from fedray.base.imports import import_quickly
from fedray.cli.seeds import finished, seed_folder, several_seeds, summary
from fedray.cli.start import import_while_ray_starts
from fedray.command import (
    PATH,
    Command,
    KnownName,
    go_on_with,
    is_program,
    keys,
    plugins,
    say_job,
    say_stopped,
)
from fedray.config import Experiment, override, parse_assignments, read_chain, read_experiment
from fedray.plugins import plugin_flags
from fedray.storage.files import new_place, results_home
from fedray.storage.run_folder import RunFolder
from fedray.tracking.follow import tracking


@dataclass(frozen=True)
class RunRequest:
    """The arguments of the command line.

    Attributes:
        experiment: a shipped name or a file.
        keys: assignments `key=value`.
        executor: "ray" or "serial"; None before the keys are known.
        out: a new folder for the results.
        resume: the folder of a run to continue.
        no_track: True if nothing is logged to MLflow.
        plugin: files, folders or modules of plug-ins.
        among: if this run is one of several seeds, the arguments that request all of them.
    """

    experiment: str | None
    keys: Sequence[str]
    executor: ExecutorName | None
    out: Path | None
    resume: Path | None
    no_track: bool
    plugin: Sequence[str]
    among: Sequence[str] = ()


@click.command(
    cls=Command,
    epilog="fedray ls experiments lists the shipped experiments; fedray show NAME lists the keys "
    "of an experiment.",
)
@click.argument("experiment", required=False, type=KnownName(partial(shipped.names, "experiments")))
@keys
@click.option(
    "--executor",
    type=click.Choice(["ray", "serial"]),
    help="Run clients on Ray workers or in this process; results are equal. Default: serial for "
    "workers=1 without a GPU and without RAY_ADDRESS, else ray.",
)
@click.option("--out", type=PATH, help="New folder for the results.")
@click.option("--resume", type=PATH, help="Continue the run in this folder.")
@click.option("--no-track", is_flag=True, help="Do not log to MLflow.")
@plugins
def command(**words: Any) -> int:
    """Run one federated experiment.

    EXPERIMENT is a shipped name or a YAML file. KEY=VALUE overrides a setting, for example
    algorithm.lambda=7 or seed=1; seed=0,1,2 runs one seed after the other.
    """
    request = RunRequest(**words)
    name = request.experiment
    if name and "=" in name and not Path(name).is_file():
        request = replace(request, experiment=None, keys=[name, *request.keys])
    what = request.experiment or request.resume or "the experiment"
    seeds, assignments = several_seeds(request.keys)
    check_command_line(request, seeds, assignments)  # before Ray starts
    request = replace(request, executor=request.executor or usual_executor(request, assignments))
    needs_ray = request.executor == "ray" and not is_over(request)
    if needs_ray and is_program() and not os.environ.get("RAY_ADDRESS"):
        say_next(f"importing PyTorch, starting Ray, reading {what}")
        import_while_ray_starts()
    else:
        say_next(f"importing PyTorch, reading {what}")
        import_quickly("torch")
    if seeds:
        return run_seeds(request, seeds, assignments)
    one_run(request)
    return 0


def check_command_line(
    request: RunRequest, seeds: Sequence[int], assignments: Sequence[str]
) -> None:
    """Check the command line as far as PyTorch is not needed.

    Raises:
        UserError: if there is nothing to run, a name or an assignment is wrong, or the folder is
            taken.
    """
    if request.experiment is not None:
        read_chain(request.experiment)
    elif not (request.resume or seeds):
        raise UserError("name an experiment, for example fedtsp_digits, or --resume DIR")
    parse_assignments(assignments)
    if request.out and not (request.resume or seeds):
        new_folder("", request.out)


def usual_executor(request: RunRequest, assignments: Sequence[str]) -> ExecutorName:
    """Return the executor for the keys of the experiment and the command line."""
    of_run = request.resume and RunFolder(request.resume).head
    name = request.experiment or (of_run if of_run and of_run.is_file() else None)
    tree = read_experiment(str(name)) if name else {}
    tree = override(tree, parse_assignments(assignments))
    return executor_for(tree.get("workers"), tree.get("gpus"))


def run_seeds(request: RunRequest, seeds: Sequence[int], assignments: Sequence[str]) -> int:
    """Run one seed after the other, each in its own subfolder; return the exit code.

    A seed on which the method fails does not stop the others.

    Raises:
        UserError: if arguments contradict each other or a folder is taken.
        RunFailed: if all seeds have run and some failed; the message names them.
    """
    if request.experiment is None:
        raise UserError("several seeds need the experiment's name, with --resume too")
    if request.resume and request.out:
        raise UserError("--out and --resume both name the runs' folder; pass only one of them")
    home = folder_of(request, Path(request.experiment).stem)
    among = [request.experiment, *assignments, f"seed={','.join(map(str, seeds))}"]
    if RunFolder(home).has_run:
        raise UserError(f"{home} contains a single run; pass another folder for several seeds")
    taken = [out for seed in seeds if RunFolder(out := seed_folder(home, seed)).has_run]
    if taken and not request.resume:
        raise UserError(
            f"{taken[0]} already holds a run; go on with --resume {shlex.quote(str(home))}"
        )
    failed = list[int]()
    for seed in seeds:
        out = seed_folder(home, seed)
        resumes = out in taken
        one_request = replace(
            request,
            keys=[*assignments, f"seed={seed}"],
            among=among,
            out=None if resumes else out,
            resume=out if resumes else None,
        )
        try:
            one_run(one_request)
        except CodeError as error:
            failed.append(seed)
            print(f"seed {seed} failed: {error}", file=sys.stderr, flush=True)
    if rest := [seed for seed in seeds if seed not in failed]:
        print("\n".join(summary(finished(home, rest), home)))
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(seeds)} seeds failed: {', '.join(map(str, failed))}"
        )
    return 0


def folder_of(request: RunRequest, name: str) -> Path:
    """Return the folder of `--out` or `--resume`, or a new one below the results."""
    folder = request.resume or request.out
    return folder.resolve() if folder else new_place(results_home() / "runs", name)


def one_run(request: RunRequest) -> Path:
    """Run the experiment of the command line, print its result, and return its folder."""
    began, executor = time.time(), request.executor
    assert executor is not None
    experiment, out = resolve_request(request)
    if request.resume:
        warn_if_from_start(RunFolder(out))
    print(run_headline(experiment, executor), flush=True)
    say_job()
    with tracking(out, track=not request.no_track) as start_tracking:
        if is_over(request):
            confirm_finished(experiment, out, began)
        else:
            drive(request, experiment, out, began, start_tracking)
        print_summary(out, executor)
    return out


def resolve_request(request: RunRequest) -> tuple[Experiment, Path]:
    """Return the experiment and the run's folder.

    Raises:
        UserError: if arguments contradict each other or the folder is taken.
    """
    from fedray.runtime.resolve import resolve
    from fedray.runtime.resume import check_experiment

    named, assignments = request.experiment, list(request.keys)
    if request.resume and request.out:
        raise UserError("--out and --resume both name the run's folder; pass only one of them")
    if request.resume:
        out = request.resume.resolve()
        if not RunFolder(out).has_run:
            raise UserError(f"--resume {out}: there is no run.json, so no run to go on with")
        recorded = str(RunFolder(out).head)
        experiment = resolve(named or recorded, assignments, request.plugin)
        check_experiment(RunFolder(out), experiment)
        return experiment, out
    assert named is not None  # see check_command_line
    experiment = resolve(named, assignments, request.plugin)
    return experiment, new_folder(experiment.name, request.out)


def is_over(request: RunRequest) -> bool:
    """Return True if the run to resume has finished, so that nothing is left to run."""
    return request.resume is not None and RunFolder(request.resume).is_finished


def confirm_finished(experiment: Experiment, out: Path, began: float) -> None:
    """Check the files of a finished run as a resume does."""
    print(f"the run in {out} has finished: nothing is left to run", flush=True)
    rounds = begin(experiment, out, "serial", began, lambda text: None, say_next)
    for _ in follow(out, rounds):
        raise AssertionError("a finished run has no further rounds")


def warn_if_from_start(folder: RunFolder) -> None:
    """Print a message if a resumed run starts at round 0, because it has no checkpoint.

    Raises:
        UserError: if the run had checkpoints that are now missing.
    """
    from fedray.runtime.resume import check_nothing_lost
    from fedray.storage.states import latest_round

    if latest_round(folder.states) is None:
        check_nothing_lost(folder)
        print(f"there is no checkpoint in {folder.path}: the run begins at round 0")


def drive(
    request: RunRequest,
    experiment: Experiment,
    out: Path,
    began: float,
    start_tracking: Callable[[], None],
) -> None:
    """Execute a run to its end; print and track its rounds.

    Raises:
        KeyboardInterrupt: if the run is stopped; the command that resumes it has been printed.
    """
    hint, executor = resume_hint(out, request, experiment), request.executor
    assert executor is not None

    def stopped(stop: KeyboardInterrupt) -> None:
        say_stopped(stop, hint())

    rounds = begin(experiment, out, executor, began, say_line, say_next)  # claims it
    if executor == "serial":
        start_tracking()  # with Ray, all CPUs are busy until the first round
    follows = follow(out, rounds, start_tracking=start_tracking, stopped=stopped)
    try:
        with RoundProgress(experiment.rounds) as show, closing(follows):
            for done in follows:
                show(done)
    except KeyboardInterrupt as stop:
        stopped(stop)
        raise


def resume_hint(out: Path, request: RunRequest, experiment: Experiment) -> Callable[[], str]:
    """Return a function that returns how to resume a stopped run, or why it cannot be resumed."""
    flags = ["--executor", "serial"] if request.executor == "serial" else []
    flags += ["--no-track"] if request.no_track else []
    if request.among:
        flags += [word for plugin in request.plugin for word in ("--plugin", plugin)]
        return lambda: go_on_with("fedray.run", *request.among, "--resume", out.parent, *flags)

    def say() -> str:
        from fedray.storage.states import latest_round

        if latest_round(RunFolder(out).states) is None:
            return f"no checkpoint is in {out} yet, so the run cannot be resumed"
        return go_on_with("fedray.run", "--resume", out, *flags, *plugin_flags(experiment.plugins))

    return say
