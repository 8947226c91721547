"""One experiment: `fedray run EXPERIMENT [KEY=VALUE]...`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedray import shipped
from fedray.activity import say_next
from fedray.api.training import ExecutorName, begin, follow, new_folder
from fedray.cli.progress import RoundProgress
from fedray.cli.seeds import finished, seed_folder, several_seeds, summary
from fedray.command import (
    PATH,
    Command,
    Name,
    go_on_with,
    keys,
    plugins,
    say_stopped,
)
from fedray.config import Experiment
from fedray.errors import UserError
from fedray.files import discard_if_empty, reserve, results_home, stamp
from fedray.plugins import unshipped
from fedray.records import (
    BEST,
    Round,
    Run,
    RunFolder,
    Traffic,
    prove_writable,
)
from fedray.remote_results import check_owner, fetch_missing
from fedray.tracking import Tracker, run_tracker, start_process
from fedray.tracking.process import StoreProcess
from fedray.units import size_of, time_of


@dataclass(frozen=True)
class Asked:
    """What a command line asks for.

    Attributes:
        experiment: a shipped name or a file.
        keys: `key=value`.
        executor: ray or serial.
        out: a new folder for the results.
        resume: the folder of a run to go on with.
        no_track: whether MLflow is left out.
        plugin: files, folders or modules.
        among: of several seeds: the words that ask for them all.
    """

    experiment: str | None
    keys: Sequence[str]
    executor: ExecutorName
    out: Path | None
    resume: Path | None
    no_track: bool
    plugin: Sequence[str]
    among: Sequence[str] = ()


@click.command(
    cls=Command,
    epilog="fedray ls experiments lists those that are shipped, fedray show NAME an experiment's "
    "keys.",
)
@click.argument("experiment", required=False, type=Name(partial(shipped.names, "experiments")))
@keys
@click.option("--executor", type=click.Choice(["ray", "serial"]), default="ray", show_default=True)
@click.option("--out", type=PATH, help="A new folder for the results.")
@click.option("--resume", type=PATH, help="Go on with the run in this folder.")
@click.option("--no-track", is_flag=True, help="Do not log to MLflow.")
@plugins
def command(**words: Any) -> int:
    """Run one federated experiment.

    EXPERIMENT is a shipped name or a YAML file. Keys are for example algorithm.lambda=7 seed=1;
    seed=0,1,2 makes a run of each.
    """
    asked = Asked(**words)
    name = asked.experiment
    if name and "=" in name and not Path(name).is_file():
        asked = replace(asked, experiment=None, keys=[name, *asked.keys])
    what = asked.experiment or asked.resume or "the experiment"
    say_next(f"importing PyTorch, reading {what}")
    seeds, others = several_seeds(asked.keys)
    if seeds:
        return run_seeds(asked, seeds, others)
    one_run(asked)
    return 0


def run_seeds(asked: Asked, seeds: Sequence[int], others: Sequence[str]) -> int:
    """Run one seed after the other, each in a folder of its own; return the exit code.

    Raises:
        UserError: if the command line contradicts itself or a folder is taken.
    """
    if asked.experiment is None:
        raise UserError("several seeds need the experiment's name, with --resume too")
    if asked.resume and asked.out:
        raise UserError("--out and --resume both name the runs' folder; give one of them")
    home = folder_of(asked, Path(asked.experiment).stem)
    if asked.resume:
        fetch_missing(home)
    among = [asked.experiment, *others, f"seed={','.join(map(str, seeds))}"]
    if RunFolder(home).is_taken:
        raise UserError(f"{home} is a run itself; several seeds need a folder of their own")
    begun_before = [out for seed in seeds if RunFolder(out := seed_folder(home, seed)).is_taken]
    if begun_before and not asked.resume:
        raise UserError(f"{begun_before[0]} already holds a run; go on with --resume {home}")
    for seed in seeds:
        out = seed_folder(home, seed)
        begun = out in begun_before
        alone = replace(
            asked,
            keys=[*others, f"seed={seed}"],
            among=among,
            out=None if begun else out,
            resume=out if begun else None,
        )
        with discard_if_empty(None if asked.resume or asked.out else home):
            one_run(alone)
    print("\n".join(summary(finished(home, seeds), home)))
    return 0


def folder_of(asked: Asked, name: str) -> Path:
    """Return the folder that was given, or a new one of the results, which is made.

    Raises:
        UserError: if it cannot be made.
    """
    given = asked.resume or asked.out
    return given.resolve() if given else reserve(results_home() / "runs" / f"{name}-{stamp()}")


def one_run(asked: Asked) -> Path:
    """Run the experiment of the command line, print its result, and return its folder."""
    began = time.time()
    with nullcontext() if asked.no_track else start_process() as process:  # imports meanwhile
        return run_tracked(asked, began, process)


def run_tracked(asked: Asked, began: float, process: StoreProcess | None) -> Path:
    """Run what the command line asks for; `process` tracks it, if it is not None."""
    experiment, out = what_and_where(asked)
    with discard_if_empty(None if asked.resume or asked.out else out):
        prove_writable(RunFolder(out))
        if asked.resume:
            say_where_it_begins(RunFolder(out))
        print(headline(experiment, asked.executor), flush=True)
        if elsewhere := unshipped(experiment.plugins):
            say(elsewhere)
        tracker = None if process is None else run_tracker(experiment, out, process)
        # last: it has claimed the folder
        rounds = begin(experiment, out, asked.executor, began, say, say_next)
        run(experiment, out, rounds, tracker, how_to_go_on(out, asked))
    print_summary(out, tracker, asked.executor)
    return out


def what_and_where(asked: Asked) -> tuple[Experiment, Path]:
    """Return the experiment and the run's folder, from the command line.

    Raises:
        UserError: if they contradict each other or the folder is taken.
    """
    from fedray.runtime.resolve import resolve
    from fedray.runtime.resume import check_experiment

    named, given = asked.experiment, list(asked.keys)
    if asked.resume and asked.out:
        raise UserError("--out and --resume both name the run's folder; give one of them")
    if asked.resume:
        out = asked.resume.resolve()
        fetch_missing(out)
        if not RunFolder(out).config.is_file():
            raise UserError(f"--resume {out}: there is no config.yaml, so no run to go on with")
        config = str(RunFolder(out).config)
        experiment = resolve(named or config, given, asked.plugin, trusted=named is not None)
        check_experiment(RunFolder(out), experiment)
        check_owner(out)
        RunFolder(out).check_plugins(experiment.plugins)
        return experiment, out
    if named is None:
        raise UserError("name an experiment, for example fedtsp_digits, or --resume DIR")
    experiment = resolve(named, given, asked.plugin)
    return experiment, new_folder(experiment.name, asked.out)


def say_where_it_begins(folder: RunFolder) -> None:
    """Say if a resumed run begins again at round 0.

    Raises:
        UserError: if it has to, though it had checkpoints.
    """
    from fedray.checkpoint import CheckpointStore
    from fedray.runtime.resume import check_nothing_lost

    if CheckpointStore(folder.path, identity="").latest() is None:
        check_nothing_lost(folder, folder.read() if folder.has_result else None)
        print(f"there is no checkpoint in {folder.path}: the run begins at round 0")


def headline(experiment: Experiment, executor: str) -> str:
    """Return one line about what is going to run."""
    e = experiment
    where = f"{e.workers} Ray worker(s)" if executor == "ray" else "this process"
    own = f", with {', '.join(plugin.label for plugin in e.plugins)}" if e.plugins else ""
    return (
        f"{e.name}: {e.algorithm.name} on {e.data.source.name}, "
        f"{e.data.clients} clients, {e.rounds} rounds, seed {e.seed}, in {where}{own}"
    )


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def run(
    experiment: Experiment,
    out: Path,
    rounds: Generator[Round, None, None],
    tracker: Tracker | None,
    how_to_go_on: Callable[[], str],
) -> None:
    """Drive a run to its end: show it, track it, and leave the tracker in a true state.

    Raises:
        KeyboardInterrupt: if it is stopped, after the command that resumes it was printed.
    """

    def stopped(stop: KeyboardInterrupt) -> None:
        say_stopped(stop, how_to_go_on())

    try:
        with (
            RoundProgress(experiment.rounds) as show,
            closing(follow(out, rounds, tracker, stopped=stopped)) as tracked,
        ):
            for done in tracked:
                show(done)
    except KeyboardInterrupt as stop:
        stopped(stop)
        raise


def how_to_go_on(out: Path, asked: Asked) -> Callable[[], str]:
    """Return a function that prints how to resume a stopped run, or that this is impossible."""
    flags = [] if asked.executor == "ray" else ["--executor", asked.executor]
    flags += ["--no-track"] if asked.no_track else []
    if asked.among:
        flags += [word for plugin in asked.plugin for word in ("--plugin", plugin)]
        return lambda: go_on_with("fedray.run", *asked.among, "--resume", out.parent, *flags)

    def say() -> str:
        from fedray.checkpoint import CheckpointStore

        if CheckpointStore(out, identity="").latest() is None:
            return f"no checkpoint is in {out} yet, so there is nothing to go on with"
        return go_on_with("fedray.run", "--resume", out, *flags)

    return say


def accuracy_lines(done: Run) -> Iterator[str]:
    """Yield a run's result, how its best round was chosen, and why it ended early."""
    stopping, best, final = done.info.stopping, done.best, done.final
    if final is None:
        return
    yield ""
    if done.stopped_early and stopping is not None:
        yield (
            f"stopped after round {done.done} of {done.info.planned}: {stopping.metric} did not "
            f"improve in {stopping.patience} evaluation(s)"
        )
    last = f"last {final.local_accuracy:.4f}"
    if best is not None:
        how = BEST[done.info.select]
        yield f"local accuracy: {best.local_accuracy:.4f} in round {best.round} ({how}), {last}"
        return
    yield f"local accuracy: {last}"
    if done.info.select == "validation":
        yield (
            "no best round: there are no validation images (data.validation_fraction=0.1), and "
            "report.select=test was not set"
        )


def print_summary(out: Path, tracker: Tracker | None, executor: str) -> None:
    """Print the last lines: best, final, traffic, times, and where everything is."""
    done = RunFolder(out).read()
    for line in accuracy_lines(done):
        print(line)
    from fedray.runtime.privacy import privacy_lines

    for line in privacy_lines(done):
        print(line)
    up = sum((each.up for each in done.rounds), Traffic())
    down = sum((each.down for each in done.rounds), Traffic())
    print(f"sent: up {size_of(up.total_bytes)}, down {size_of(down.total_bytes)}")
    who = "the server" if executor == "ray" else "this process"
    after = sum(each.seconds for each in done.rounds if each.round > 0)
    start = done.costs.startup_seconds
    print(
        f"time: {time_of(start + after)} ({time_of(start)} to the end of round 0, "
        f"{time_of(after)} for the others)"
    )
    print(f"peak memory of {who}: {size_of(done.costs.peak_rss_bytes)}")
    print(f"results: {out}")
    if tracker is not None:
        print(f"compare: {tracker.hint}")
