"""One experiment: `python -m fedray.run EXPERIMENT [key=value ...]`."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from itertools import chain
from pathlib import Path

from fedray.cli.progress import RoundProgress
from fedray.command import CommandLine, add_plugin, as_path, run_command, say_stopped
from fedray.config import EXPERIMENTS, Experiment
from fedray.errors import UserError
from fedray.files import full_disk_said, results_home
from fedray.records import (
    BEST,
    Round,
    Run,
    RunFolder,
    Status,
    Traffic,
    megabytes,
    prove_writable,
)
from fedray.runtime.mirror import fetch_missing, mirrored
from fedray.tracking import NullTracker, Tracker, run_tracker, ui_hint

PROG = "python -m fedray.run"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.run`."""
    shipped = ", ".join(sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))
    cli = CommandLine(
        prog=prog,
        description="Run one federated experiment.",
        epilog=f"Shipped experiments: {shipped}.",
    )
    cli.add_argument("experiment", nargs="?", help="a shipped name or a YAML file")
    cli.add_argument(
        "set", nargs="*", metavar="key=value", help="for example algorithm.lambda=7 seed=1"
    )
    cli.add_argument("--executor", choices=["ray", "serial"], default="ray")
    cli.add_argument("--out", type=as_path, metavar="DIR", help="a new folder for the results")
    cli.add_argument(
        "--resume", type=as_path, metavar="DIR", help="go on with the run in this folder"
    )
    cli.add_argument(
        "--verify",
        action="store_true",
        help="decode the images again on every node, and compare them with those in the cache",
    )
    cli.add_argument("--no-track", action="store_true", help="do not log to MLflow")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    began = time.time()
    experiment, out = what_and_where(args)
    prove_writable(RunFolder(out))
    if args.resume:
        say_where_it_begins(RunFolder(out))
    print(headline(experiment, args.executor), flush=True)
    tracker = NullTracker() if args.no_track else run_tracker(experiment, out)
    rounds = _rounds(experiment, out, args.executor, began)  # last: it has claimed the folder
    with full_disk_said(out), mirrored(out), closing(rounds):
        run(experiment, out, rounds, tracker)
    print_summary(out, tracker)
    return 0


def what_and_where(args: argparse.Namespace) -> tuple[Experiment, Path]:
    """The experiment and the run's folder, from the command line.

    Raises:
        UserError: when they contradict each other or the folder is taken.
    """
    from fedray.runtime.resolve import resolve
    from fedray.runtime.session import check_folder

    if args.experiment and "=" in args.experiment and not Path(args.experiment).is_file():
        args.experiment, args.set = None, [args.experiment, *args.set]
    if args.verify:
        args.set = [*args.set, f"data.verified_since={time.time()!r}"]
    if args.resume and args.out:
        raise UserError("--out and --resume both name the run's folder; give one of them")
    if args.resume:
        out = args.resume.resolve()
        fetch_missing(out)
        if not RunFolder(out).config.is_file():
            raise UserError(f"--resume {out}: there is no config.yaml, so no run to go on with")
        if args.experiment is None:
            args.experiment = str(RunFolder(out).config)
        experiment = resolve(args.experiment, args.set, args.plugin)
        check_folder(out, experiment)
        RunFolder(out).check_plugins(experiment.plugins)
        return experiment, out
    if args.experiment is None:
        raise UserError("name an experiment, for example fedtsp_digits, or --resume DIR")
    experiment = resolve(args.experiment, args.set, args.plugin)
    if args.out is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        return experiment, results_home() / "runs" / f"{experiment.name}-{stamp}"
    out = args.out.resolve()
    fetch_missing(out)
    if RunFolder(out).is_taken:
        raise UserError(f"{out} already holds a run; go on with --resume {out}, or name another")
    return experiment, out


def say_where_it_begins(folder: RunFolder) -> None:
    """Say when a run that is gone on with begins again at round 0.

    Raises:
        UserError: when it has to, though it had checkpoints.
    """
    from fedray.checkpoint import CheckpointStore
    from fedray.runtime.session import check_nothing_lost

    if CheckpointStore(folder.path, identity="").latest() is None:
        check_nothing_lost(folder)
        print(f"there is no checkpoint in {folder.path}: the run begins at round 0")


def headline(experiment: Experiment, executor: str) -> str:
    """One line about what is going to run, with its scale."""
    e = experiment
    where = f"{e.workers} Ray worker(s)" if executor == "ray" else "this process"
    own = f", with {', '.join(plugin.label for plugin in e.plugins)}" if e.plugins else ""
    return (
        f"{e.name} [{e.scale} scale]: {e.algorithm.name} on {e.data.source.name}, "
        f"{e.data.clients} clients, {e.rounds} rounds, seed {e.seed}, in {where}{own}"
    )


def _rounds(
    experiment: Experiment, out: Path, executor: str, began: float
) -> Generator[Round, None, None]:
    """The rounds, from whichever executor was asked for."""
    if executor == "serial":
        from fedray.runtime.devices import device_of_this_process
        from fedray.runtime.serial import SerialExecutor, unused_keys
        from fedray.runtime.session import Session

        device = device_of_this_process(experiment.gpus)
        unused = unused_keys(experiment)
        if unused:
            print(unused, flush=True)
        session = Session(experiment, out, lambda assembly: SerialExecutor(assembly, device), began)
        return session.rounds()
    from fedray.runtime.cluster import check_storage, connect
    from fedray.runtime.resources import preflight, server_bundle
    from fedray.runtime.server import run_on_ray

    nodes = connect()
    check_storage(out, len(nodes), server_bundle(experiment))
    print(preflight(experiment, nodes), flush=True)
    return run_on_ray(experiment, out, began)


def run(experiment: Experiment, out: Path, rounds: Iterator[Round], tracker: Tracker) -> None:
    """Drive a run to its end: show it, track it, and leave the tracker in a true state.

    Raises:
        KeyboardInterrupt: when it is stopped; how to go on is said.
    """
    try:
        with RoundProgress(experiment.rounds) as show:
            _follow(out, rounds, tracker, show)
    except KeyboardInterrupt as stop:
        say_stopped(stop, how_to_go_on(out))
        raise


def _follow(out: Path, rounds: Iterator[Round], tracker: Tracker, show: RoundProgress) -> None:
    from fedray.tracking import FOLDER_TAG, data_of, describe_run, run_key, run_name

    folder = RunFolder(out)
    before = folder.rounds()
    first = next(rounds, None)  # an experiment that cannot begin leaves no run in the tracker
    info = folder.read().info
    key = run_key(out, info.identity)
    params, tags = describe_run(info)
    data = data_of(info)
    tracker.start(
        key,
        run_name(info),
        params=params,
        tags={**tags, FOLDER_TAG: out.name},
        data=() if data is None else (data,),
    )
    status: Status = "FAILED"
    try:
        for done in before:
            tracker.round(key, done)
        for done in _each_once(chain([first] if first else [], rounds)):
            show(done)
            tracker.round(key, done)
        status = "FINISHED"
    except KeyboardInterrupt as stop:
        say_stopped(stop, how_to_go_on(out))
        status = "KILLED"
        raise
    finally:
        tracker.finish(key, status, folder.artifacts, note=_note(folder))
        tracker.close()


def _note(folder: RunFolder) -> str:
    """The run's description for the tracker; nothing, where a full disk left no whole result."""
    from fedray.tracking import run_note

    try:
        return run_note(folder.read())
    except UserError:
        return ""


def how_to_go_on(out: Path) -> str:
    """Where a stopped run can go on, and how; or that it has to begin anew."""
    from fedray.checkpoint import CheckpointStore

    if CheckpointStore(out, identity="").latest() is None:
        return f"no checkpoint is in {out} yet, so there is nothing to go on with"
    return f"go on with: python -m fedray.run --resume {shlex.quote(str(out))}"


def _each_once(rounds: Iterable[Round]) -> Iterator[Round]:
    """The rounds without repetition: a server that died does its last one again."""
    last = -1
    for done in rounds:
        if done.round > last:
            last = done.round
            yield done


def accuracy_lines(done: Run) -> Iterator[str]:
    """What a run comes to, and how its best round was chosen; why it ended early, if it did."""
    stopping, best, final = done.info.stopping, done.best, done.final
    if final is None:
        return
    yield ""
    if done.stopped_early and stopping is not None:
        yield (
            f"stopped after round {done.done} of {done.info.planned}: {stopping.metric} did not "
            f"improve in {stopping.patience} evaluation(s)"
        )
    last = f"last {final.local_accuracy:.4f}  [{done.info.scale} scale]"
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


def print_summary(out: Path, tracker: Tracker) -> None:
    """The last lines: best, final, traffic, times, and where everything is."""
    done = RunFolder(out).read()
    for line in accuracy_lines(done):
        print(line)
    from fedray.runtime.privacy import privacy_lines

    for line in privacy_lines(done):
        print(line)
    up = sum((each.up for each in done.rounds), Traffic())
    down = sum((each.down for each in done.rounds), Traffic())
    print(f"sent: up {megabytes(up.total_bytes)}, down {megabytes(down.total_bytes)}")
    print(
        f"time: {done.costs.startup_seconds:.1f} s to the first round, "
        f"{done.costs.wall_seconds:.1f} s in rounds; "
        f"server's peak memory {megabytes(done.costs.peak_rss_bytes)}"
    )
    print(f"results: {out}")
    hint = ui_hint(tracker)
    if hint:
        print(f"compare: {hint}")
