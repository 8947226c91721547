"""`fedray run EXPERIMENT [KEY=VALUE]...`: run one experiment, with one seed or several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedray.api.training import ExecutorName, executor_for, run_to_end
from fedray.base.errors import CodeError, RunFailed, UserError
from fedray.cli.start import load_libraries
from fedray.command import (
    PATH,
    Command,
    completed,
    go_on_with,
    keys,
    plugins,
    say_stopped,
)
from fedray.config import override, parse_assignments, read_chain, read_experiment
from fedray.results.frame import interval_of
from fedray.results.pages.cells import metric_name, spread_cell, spread_label
from fedray.storage.files import new_place, results_home
from fedray.storage.metric import BEST, HEADLINE
from fedray.storage.run_folder import RunFolder
from fedray.studies.file import seeds_in


@dataclass(frozen=True)
class RunRequest:
    """The arguments of the command line.

    Attributes:
        experiment: a shipped name or a file; None: the experiment of the run to continue.
        keys: assignments `key=value`, without several seeds.
        executor: "ray" or "serial"; None: the one that suits the experiment.
        out: the folder for the results; a run that it holds is continued.
        resume: the folder of a run, or of several seeds, to continue.
        no_track: True if nothing is logged to MLflow.
        plugin: files, folders or modules of plug-ins.
    """

    experiment: str | None
    keys: Sequence[str]
    executor: ExecutorName | None
    out: Path | None
    resume: Path | None
    no_track: bool
    plugin: Sequence[str]

    def again(self, home: Path, keys: Sequence[str]) -> list[object]:
        """Return the words of the command that continues what it has begun in a folder."""
        words: list[object] = [self.experiment, *keys, "--out", home]
        if self.experiment is None:
            words = [*keys, "--resume", home]
        words += ["--executor", "serial"] * (self.executor == "serial")
        words += ["--no-track"] * self.no_track
        return words + [word for place in self.plugin for word in ("--plugin", place)]


@click.command(
    cls=Command,
    epilog="fedray ls experiments lists the shipped experiments; fedray show NAME lists the keys "
    "of an experiment.",
)
@click.argument("experiment", required=False, shell_complete=completed("experiments"))
@keys
@click.option(
    "--executor",
    type=click.Choice(["ray", "serial"]),
    help="Run clients on Ray workers or in this process; results are equal. Default: serial for "
    "workers=1 without a GPU and without RAY_ADDRESS, else ray.",
)
@click.option("--out", type=PATH, help="Folder for the results; a run in it is continued.")
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
    seeds, assignments = several_seeds(request.keys)
    request = replace(request, keys=assignments)
    check_command_line(request, seeds)  # before Ray starts
    request = replace(request, executor=request.executor or usual_executor(request))
    load_libraries(str(request.experiment or request.resume), on_ray=request.executor == "ray")
    home = request.resume or request.out
    home = (
        home.resolve()
        if home
        else new_place(results_home() / "runs", Path(request.experiment or "").stem)
    )
    if seeds:
        return run_seeds(request, seeds, home)
    one_run(request, home, request.again(home, request.keys))
    return 0


def several_seeds(assignments: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the seeds of `seed=0,1,2` or `seed=[0,1,2]`, and all other assignments.

    Returns:
        An empty list and all assignments if there is no list of seeds.

    Raises:
        UserError: if a seed or the assignment is repeated.
    """
    of_seeds = [text for text in assignments if text.startswith("seed=")]
    values = [seeds_in(value) for text in of_seeds for _, value in parse_assignments([text])]
    if max(map(len, values), default=0) < 2:
        return [], list(assignments)
    if len(values) > 1 or len({*map(str, values[0])}) < len(values[0]):
        raise UserError("seed is listed wrongly: list all seeds once, for example seed=0,1,2")
    return values[0], [text for text in assignments if text not in of_seeds]


def check_command_line(request: RunRequest, seeds: Sequence[int]) -> None:
    """Check the command line as far as PyTorch is not needed.

    Raises:
        UserError: if there is nothing to run, or a name, an assignment or a folder is wrong.
    """
    if request.resume and request.out:
        raise UserError("--out and --resume both name the run's folder; pass only one of them")
    if request.experiment is not None:
        read_chain(request.experiment)
    elif seeds or not request.resume:
        raise UserError("name an experiment, for example fedtsp_digits, or --resume DIR")
    parse_assignments(request.keys)
    if request.resume and not seeds and not RunFolder(request.resume).has_run:
        raise UserError(f"--resume {request.resume}: there is no run.json, so no run to go on with")


def usual_executor(request: RunRequest) -> ExecutorName:
    """Return the executor for the keys of the experiment and the command line."""
    name = request.experiment or (request.resume and RunFolder(request.resume).head)
    tree = override(read_experiment(str(name)), parse_assignments(request.keys))
    return executor_for(tree.get("workers"), tree.get("gpus"))


def run_seeds(request: RunRequest, seeds: Sequence[int], home: Path) -> int:
    """Run one seed after the other, each in its own subfolder; return the exit code.

    A seed on which the method fails does not stop the others.

    Raises:
        RunFailed: if all seeds have run and some failed; the message names them.
    """
    again = request.again(home, [*request.keys, f"seed={','.join(map(str, seeds))}"])
    failed = list[int]()
    for seed in seeds:
        of_seed = replace(request, keys=[*request.keys, f"seed={seed}"])
        try:
            one_run(of_seed, home / f"seed_{seed}", again)
        except CodeError as error:
            failed.append(seed)
            print(f"seed {seed} failed: {error}", file=sys.stderr, flush=True)
    if rest := [seed for seed in seeds if seed not in failed]:
        print_seeds(home, rest)
    if failed:
        names = ", ".join(map(str, failed))
        raise RunFailed(f"{len(failed)} of {len(seeds)} seeds failed: {names}")
    return 0


def print_seeds(home: Path, seeds: Sequence[int]) -> None:
    """Print the mean accuracy over seeds with its interval, and the folder."""
    runs = [RunFolder(home / f"seed_{seed}").read() for seed in seeds]
    metric = runs[0].info.metric(HEADLINE)
    final = interval_of([run.value(HEADLINE, "final", HEADLINE) for run in runs], metric)
    best = interval_of([run.value(HEADLINE, "best", HEADLINE) for run in runs], metric)
    parts = [f"last {spread_cell(final, metric)}"]
    if best is not None and best.n == len(runs):
        chosen = f"{spread_cell(best, metric)} (each {BEST[runs[0].info.select]})"
        parts = [chosen, *parts]
    who, how = ", ".join(map(str, seeds)), spread_label([final])
    print(f"\n{metric_name(metric)} over seeds {who}, {how}: {', '.join(parts)}")
    print(f"results: {home}, one folder per seed; compare: fedray report {home}")


def one_run(request: RunRequest, out: Path, same: Sequence[object]) -> None:
    """Run the experiment of the command line in a folder, and print its result.

    Args:
        request: the command line.
        out: the folder; a run that it holds is continued.
        same: the arguments that continue the run if it is stopped.

    Raises:
        UserError: if the folder holds another experiment.
    """
    from fedray.runtime.resolve import resolve

    name = request.experiment or str(RunFolder(out).head)
    how = partial(say_stopped, how_to_go_on=go_on_with("fedray.run", *same))
    assert request.executor is not None
    run_to_end(
        resolve(name, request.keys, request.plugin),
        out,
        request.executor,
        track=not request.no_track,
        stopped=how,
    )
