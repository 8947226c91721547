"""One experiment: `python -m fedray.run EXPERIMENT [key=value ...]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from fedray.api.training import begin, follow, new_folder
from fedray.cli.progress import RoundProgress
from fedray.cli.several import finished, seed_folder, several_seeds, summary
from fedray.command import (
    CommandLine,
    add_plugin,
    as_path,
    go_on_with,
    run_command,
    say_stopped,
)
from fedray.config import Experiment
from fedray.errors import UserError
from fedray.files import reserve, results_home, stamp, unused_removed
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
from fedray.tracking import Tracker, run_tracker
from fedray.units import size_of, time_of
from fedray.waiting import say_next

PROG = "python -m fedray.run"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.run`."""
    cli = CommandLine(
        prog=prog,
        description="Run one federated experiment.",
        epilog="fedray ls experiments lists those that are shipped, fedray show NAME an "
        "experiment's keys.",
    )
    cli.add_argument("experiment", nargs="?", help="a shipped name or a YAML file")
    cli.add_argument(
        "set",
        nargs="*",
        metavar="key=value",
        help="for example algorithm.lambda=7 seed=1; seed=0,1,2 makes a run of each",
    )
    cli.add_argument("--executor", choices=["ray", "serial"], default="ray")
    cli.add_argument("--out", type=as_path, metavar="DIR", help="a new folder for the results")
    cli.add_argument(
        "--resume", type=as_path, metavar="DIR", help="go on with the run in this folder"
    )
    cli.add_argument("--no-track", action="store_true", help="do not log to MLflow")
    add_plugin(cli)
    cli.add_debug()
    cli.set_defaults(among=None)  # of several seeds: the words that ask for them all
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    if args.experiment and "=" in args.experiment and not Path(args.experiment).is_file():
        args.experiment, args.set = None, [args.experiment, *args.set]
    say_next(f"importing PyTorch, reading {args.experiment or args.resume or 'the experiment'}")
    seeds, others = several_seeds(args.set)
    if seeds:
        return run_seeds(args, seeds, others)
    one_run(args)
    return 0


def run_seeds(args: argparse.Namespace, seeds: Sequence[int], others: Sequence[str]) -> int:
    """Run one seed after the other, each in a folder of its own; returns the exit code.

    Raises:
        UserError: when the command line contradicts itself or a folder is taken.
    """
    if args.experiment is None:
        raise UserError("several seeds need the experiment's name, with --resume too")
    if args.resume and args.out:
        raise UserError("--out and --resume both name the runs' folder; give one of them")
    home = folder_of(args, Path(args.experiment).stem)
    if args.resume:
        fetch_missing(home)
    among = [args.experiment, *others, f"seed={','.join(map(str, seeds))}"]
    if RunFolder(home).is_taken:
        raise UserError(f"{home} is a run itself; several seeds need a folder of their own")
    begun_before = [out for seed in seeds if RunFolder(out := seed_folder(home, seed)).is_taken]
    if begun_before and not args.resume:
        raise UserError(f"{begun_before[0]} already holds a run; go on with --resume {home}")
    for seed in seeds:
        out = seed_folder(home, seed)
        begun = out in begun_before
        where = {"out": None, "resume": out} if begun else {"out": out, "resume": None}
        words = {"set": [*others, f"seed={seed}"], "among": among, **where}
        with unused_removed(None if args.resume or args.out else home):
            one_run(argparse.Namespace(**{**vars(args), **words}))
    print("\n".join(summary(finished(home, seeds), home)))
    return 0


def folder_of(args: argparse.Namespace, name: str) -> Path:
    """The folder that was given, or a new one of the results, which is made.

    Raises:
        UserError: when it cannot be made.
    """
    given: Path | None = args.resume or args.out
    return given.resolve() if given else reserve(results_home() / "runs" / f"{name}-{stamp()}")


def one_run(args: argparse.Namespace) -> Path:
    """Run what the command line asks for, say what it comes to; returns its folder."""
    began = time.time()
    experiment, out = what_and_where(args)
    with unused_removed(None if args.resume or args.out else out):
        prove_writable(RunFolder(out))
        if args.resume:
            say_where_it_begins(RunFolder(out))
        print(headline(experiment, args.executor), flush=True)
        if elsewhere := unshipped(experiment.plugins):
            say(elsewhere)
        tracker = None if args.no_track else run_tracker(experiment, out)
        # last: it has claimed the folder
        rounds = begin(experiment, out, args.executor, began, say, say_next)
        run(experiment, out, rounds, tracker, how_to_go_on(out, args))
    print_summary(out, tracker, args.executor)
    return out


def what_and_where(args: argparse.Namespace) -> tuple[Experiment, Path]:
    """The experiment and the run's folder, from the command line.

    Raises:
        UserError: when they contradict each other or the folder is taken.
    """
    from fedray.runtime.resolve import resolve
    from fedray.runtime.resume import check_experiment

    if args.resume and args.out:
        raise UserError("--out and --resume both name the run's folder; give one of them")
    if args.resume:
        out = args.resume.resolve()
        fetch_missing(out)
        if not RunFolder(out).config.is_file():
            raise UserError(f"--resume {out}: there is no config.yaml, so no run to go on with")
        named, config = args.experiment, str(RunFolder(out).config)
        experiment = resolve(named or config, args.set, args.plugin, trusted=named is not None)
        check_experiment(RunFolder(out), experiment)
        check_owner(out)
        RunFolder(out).check_plugins(experiment.plugins)
        return experiment, out
    if args.experiment is None:
        raise UserError("name an experiment, for example fedtsp_digits, or --resume DIR")
    experiment = resolve(args.experiment, args.set, args.plugin)
    return experiment, new_folder(experiment.name, args.out)


def say_where_it_begins(folder: RunFolder) -> None:
    """Say when a run that is gone on with begins again at round 0.

    Raises:
        UserError: when it has to, though it had checkpoints.
    """
    from fedray.checkpoint import CheckpointStore
    from fedray.runtime.resume import check_nothing_lost

    if CheckpointStore(folder.path, identity="").latest() is None:
        check_nothing_lost(folder, folder.read() if folder.has_result else None)
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
        KeyboardInterrupt: when it is stopped; how to go on is said.
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


def how_to_go_on(out: Path, args: argparse.Namespace) -> Callable[[], str]:
    """What says how a stopped run goes on, or that it has to begin anew."""
    flags = [] if args.executor == "ray" else ["--executor", args.executor]
    flags += ["--no-track"] if args.no_track else []
    if args.among is not None:
        flags += [word for plugin in args.plugin for word in ("--plugin", plugin)]
        return lambda: go_on_with("fedray.run", *args.among, "--resume", out.parent, *flags)

    def say() -> str:
        from fedray.checkpoint import CheckpointStore

        if CheckpointStore(out, identity="").latest() is None:
            return f"no checkpoint is in {out} yet, so there is nothing to go on with"
        return go_on_with("fedray.run", "--resume", out, *flags)

    return say


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


def print_summary(out: Path, tracker: Tracker | None, executor: str) -> None:
    """The last lines: best, final, traffic, times, and where everything is."""
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
    print(
        f"time: {time_of(done.costs.startup_seconds)} to the end of round 0, "
        f"{time_of(after)} after it; "
        f"peak memory of {who} {size_of(done.costs.peak_rss_bytes)}"
    )
    print(f"results: {out}")
    if tracker is not None:
        print(f"compare: {tracker.hint}")
