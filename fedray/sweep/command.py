"""`python -m fedray.sweep NAME [key=value ...]`: a sweep, its table and its figure."""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from fedray.command import (
    INTERRUPTED,
    RUN_ERROR,
    CommandLine,
    add_plugin,
    as_path,
    go_on_with,
    run_command,
    say_stopped,
    whole_number,
)
from fedray.config import Experiment, dump_yaml, find_yaml, read_plugins
from fedray.errors import UserError
from fedray.files import (
    LOCK,
    cannot_write,
    full_disk_said,
    remove_torn,
    reserve,
    results_home,
    stamp,
    unused_removed,
    write_atomic,
)
from fedray.plugins import unshipped, use
from fedray.records import RunFolder, prove_writable, refuse_links
from fedray.remote_results import check_owner, copying, fetch_missing
from fedray.shipped import folders, names
from fedray.sweep.ledger import FILE, Ledger, Trial, unfinished
from fedray.sweep.seeds import seed_folders
from fedray.sweep.spec import (
    MOST_TRIALS,
    SweepPlan,
    check_configurations,
    grid,
    plan_sweep,
    words,
)
from fedray.tracking import resolve_uri, tracker_for
from fedray.tracking.mlflow_store import sqlite_path
from fedray.waiting import say_next

if TYPE_CHECKING:
    from fedray.sweep.watch import Watcher

TUNE_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths mean the same in a trial as here
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # result.json and MLflow say it all
    "TUNE_GLOBAL_CHECKPOINT_S": "600",  # the ledger is what a sweep is resumed from
}
TUNE_FOLDER = "tune"


PROG = "python -m fedray.sweep"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.sweep`."""
    cli = CommandLine(
        prog=prog,
        description="Run one experiment in many configurations.",
        epilog="fedray ls sweeps lists those that can be found from here.",
    )
    cli.add_argument("sweep", nargs="?", metavar="NAME", help="a sweep in tune/, or a YAML file")
    cli.add_argument(
        "set", nargs="*", metavar="key=value", help="for every trial's experiment: rounds=5 seed=1"
    )
    cli.add_argument(
        "--num-samples",
        type=whole_number(1, MOST_TRIALS),
        metavar="N",
        help="try so many configurations; of a grid, so many evenly spread ones",
    )
    cli.add_argument("--scale", choices=["laptop", "paper"], help="default: laptop")
    cli.add_argument(
        "--resume", action="store_true", help="go on with this sweep's latest unfinished invocation"
    )
    cli.add_argument(
        "--out", type=as_path, metavar="DIR", help="the folder of this invocation's results"
    )
    cli.add_argument("--no-track", action="store_true", help="do not log to MLflow")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), carry_out, argv)


def carry_out(args: argparse.Namespace) -> int:
    """Run or go on with a sweep, as the command line says; returns the exit code."""
    say_next(f"reading the sweep {args.sweep}")
    ledger = begin_or_resume(args)
    configs = check_configurations(ledger.plan)
    print(headline(ledger), flush=True)
    plan = ledger.plan
    if elsewhere := unshipped(read_plugins(plan.base.get("plugins", ()))):
        print(elsewhere, flush=True)
    asked = [plan.experiment_of(config, plan.seeds[0]) for config in configs]
    prove_writable(RunFolder(ledger.home))
    concurrent = connect_cluster(
        ledger.home, asked, ledger.left, plan.max_concurrent, tracks=not args.no_track
    )
    every = itertools.product(configs, plan.seeds)
    say_next("reading images, partitions and texts")
    prepare((words(c), plan.experiment_of(c, seed)) for c, seed in every)  # as Ray gets ready
    new = None if args.resume or args.out else reserve(ledger.home)
    ledger.home = new or ledger.home
    with (
        unused_removed(new),
        full_disk_said(ledger.home),
        hold(ledger.home),
        copying(ledger.home),
    ):
        if args.resume:
            ledger = as_it_is_now(ledger)
        keep_file(args.sweep, ledger)
        return run(ledger, concurrent, tracks=not args.no_track)


# --- which invocation ----------------------------------------------------------------------------


def begin_or_resume(args: argparse.Namespace) -> Ledger:
    """The ledger of a new invocation, not yet on disk, or of the one to go on with.

    The folder of a new one has yet to be reserved, unless it was named.

    Raises:
        UserError: when the command line contradicts itself or what is resumed.
    """
    if args.sweep is None:
        raise UserError(f"name a sweep: {', '.join(names('sweeps')) or 'there is none in ./tune'}")
    if args.resume:
        return _resume(args)
    plan = plan_sweep(args.sweep, args.set, args.scale or "laptop", args.num_samples, args.plugin)
    if args.out is not None:
        home = args.out.resolve()
        if (home / FILE).exists():
            raise UserError(f"{home} already holds a sweep; go on with --resume, or name another")
        check_owner(home)
    else:
        home = results_home() / plan.sweep / stamp()
    ledger = Ledger(home, plan)
    if plan.search == "grid":
        for number, config in enumerate(grid(plan.axes, plan.num_samples)):
            ledger.add(number, config)
    return ledger


def as_it_is_now(ledger: Ledger) -> Ledger:
    """A ledger as another process may have left it before its folder was ours alone.

    Raises:
        UserError: when nothing is left to do.
    """
    now = Ledger.read(ledger.home)
    if now.status == "finished":
        raise UserError(f"{now.home} was finished by another process meanwhile")
    return now


def _resume(args: argparse.Namespace) -> Ledger:
    name = Path(args.sweep).stem
    home = begun_folder(args.out, results_home() / name)
    ledger = Ledger.read(home)
    before = ledger.plan
    if before.sweep != name:
        raise UserError(f"{home} holds sweep {before.sweep}, not {name}")
    if ledger.status == "finished":
        raise UserError(f"{home} is finished; start without --resume")
    if not args.plugin:
        RunFolder(home).check_plugins(read_plugins(before.base.get("plugins", ())))
    if args.set or args.scale or args.num_samples or args.plugin:
        scale = args.scale or before.scale
        now = plan_sweep(args.sweep, args.set, scale, args.num_samples, args.plugin)
        for key in ("scale", "set", "seeds", "num_samples", "plugins"):
            was, given = getattr(before, key), getattr(now, key)
            if was != given:
                raise UserError(
                    f"--resume: {home} was started with {key}={was}, now {given}; "
                    "pass what it was started with, or nothing but --resume"
                )
    check_finished(ledger)
    return ledger


def begun_folder(out: Path | None, below: Path, file: str = FILE, what: str = "sweep") -> Path:
    """The folder to go on in: the one that was named, or that of the latest unfinished invocation.

    It is fetched where it is not here; of a sweep or table with invocations here none is, for
    another machine may be running it.

    Args:
        out: what was named; None where nothing was.
        below: the folder of all invocations.
        file: what an invocation wrote of itself.
        what: an invocation's kind, for the error.

    Raises:
        UserError: when there is none, or its copy is another's.
    """
    if out is not None:
        home = out.resolve()
        fetch_missing(home)
    else:
        if not any(below.glob(f"*/{file}")):
            fetch_missing(below)
        home = unfinished(below, file, what)
    check_owner(home)
    return home


def check_finished(ledger: Ledger) -> None:
    """Refuse to rank finished trials of other images or files than there are now.

    Raises:
        UserError: with the ways to go on.
    """
    plan = ledger.plan
    over = [trial for trial in ledger.ordered if trial.status in ("finished", "stopped")]
    runs = [
        (run, plan.experiment_of(trial.config, seed))
        for trial in over
        for seed, run in zip(
            plan.seeds, seed_folders(ledger.home / trial.name, plan.seeds), strict=True
        )
        if run.has_result
    ]
    check_current(runs, "start without --resume")


def check_current(runs: Iterable[tuple[RunFolder, Experiment]], otherwise: str) -> None:
    """Refuse to reuse runs whose identity is another one now: their data or files have changed.

    Images that cannot be read are taken to be the same: a run that needs them says what is wrong.

    Args:
        runs: folders with a result, and their experiments.
        otherwise: what to do instead of restoring data and files.

    Raises:
        UserError: naming the runs.
    """
    from fedray.runtime.assembly import read_images

    seen: dict[str, str | None] = {}
    changed = []
    for folder, experiment in runs:
        use(experiment.plugins)
        data = experiment.data.model_copy(update={"download": False})
        if (key := data.model_dump_json(include=_OF_IMAGES)) not in seen:
            try:
                seen[key] = read_images(data).sha256
            except UserError:
                seen[key] = None
        head = folder.read_head()
        now = head.data_sha256 and (seen[key] or head.data_sha256)
        if head.identity != experiment.identity(now or ""):
            changed.append(str(folder.path))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"{len(changed)} finished runs were made with other images, or other files that the "
            f"experiment names, than there are now: {', '.join(changed[:3])}{more}; restore what "
            f"it was, or {otherwise}"
        )


_OF_IMAGES = {"source", "root", "image_size", "channels", "split", "resize", "classes"}
"""Keys of `data` that decide what is decoded."""


@contextmanager
def hold(home: Path, wait_seconds: float = 5) -> Iterator[None]:
    """Keep every other process out of an invocation's folder.

    Raises:
        UserError: when another process has it, when it cannot be written, or when a link leads
            out of it.
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


def keep_file(name: str, ledger: Ledger) -> None:
    """Keep the sweep's file, comments and all, and its plug-ins, with its first results."""
    home = ledger.home
    keep_yaml(name, "sweep", home / "sweep.yaml")
    RunFolder(home).write_plugins(read_plugins(ledger.plan.base.get("plugins", ())))


def keep_yaml(name: str, kind: Literal["sweep", "table"], kept: Path) -> None:
    """Keep the file of a sweep or a table, once; say so where it has changed since.

    Args:
        name: a name or a file, as typed.
        kind: what it is.
        kept: where its text is kept.
    """
    try:
        path = find_yaml(name, folders(f"{kind}s"), kind)
        text = path.read_text(encoding="utf-8")
    except UserError:
        if kept.exists():
            return  # what it was started with is all there
        raise
    if not kept.exists():
        write_atomic(kept, text)
    elif kept.read_text(encoding="utf-8") != text:
        print(f"note: {path} has changed; {kept.parent} goes on with what it was started with")


# --- before anything starts ----------------------------------------------------------------------


def prepare(experiments: Iterable[tuple[str, Experiment]]) -> None:
    """Look once at what trials will read: images into this node's cache, partitions, texts.

    Args:
        experiments: of all trials, each with what it is called in an error.

    Raises:
        UserError: when something is missing, or a configuration's partition cannot be made.
    """
    seen = set()
    for name, experiment in experiments:
        parts = experiment.data, experiment.text, experiment.algorithm.name
        size = experiment.model.feature_dim, experiment.batch_size, experiment.drop_last
        what = (*map(str, parts), experiment.seed, *size)
        if what in seen:
            continue
        seen.add(what)
        try:
            _look_at_inputs(experiment)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None


def _look_at_inputs(experiment: Experiment) -> None:
    """Read an experiment's images and partition; find its text encoder's weights and width."""
    import torch

    from fedray.runtime.assembly import Assembly, text_tower

    assembly = Assembly(experiment)
    if assembly.algorithm.requires.text:
        tower = text_tower(experiment, assembly.setting, torch.device("cpu"))
        tower.check(assembly.setting.feature_dim)


def headline(ledger: Ledger) -> str:
    """What is going to be swept, in two lines."""
    plan = ledger.plan
    experiment = plan.some_experiment()
    if plan.search != "grid":
        how = f"{plan.num_samples} configurations by {plan.search}"
    else:
        whole, some = len(grid(plan.axes)), len(ledger.trials)
        how = f"a grid of {whole}" if some == whole else f"{some} of the grid's {whole}"
    seeds = ", ".join(str(seed) for seed in plan.seeds)
    return (
        f"{plan.sweep} [{plan.scale} scale]: {plan.answers}\n"
        f"{how} over {', '.join(plan.keys)}; seed{'s' * (len(plan.seeds) > 1)} {seeds}; "
        f"{plan.experiment}: {experiment.algorithm.name} on {experiment.data.source.name}, "
        f"{experiment.data.clients} clients, {experiment.rounds} rounds"
    )


def connect_cluster(
    home: Path, experiments: Sequence[Experiment], left: int, most: int | None, *, tracks: bool
) -> int:
    """Connect to the cluster and print the resources that the trials need.

    Args:
        home: where results are written.
        experiments: what is going to be run, each kind once.
        left: how many trials there are.
        most: run at a time, at the most; None: as many as the cluster holds.
        tracks: whether they are logged to MLflow.

    Returns:
        How many trials run at a time, at the most.

    Raises:
        UserError: when a trial can never be placed, or results or runs would be lost.
    """
    for name, value in TUNE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from fedray.runtime.cluster import check_storage, connect, drivers_node
    from fedray.runtime.resources import at_a_time, preflight, server_bundle

    say_next("connecting to Ray")
    nodes = connect()
    for experiment in experiments:
        check_storage(home, len(nodes), server_bundle(experiment))
    if drivers_node() is not None:
        print("trials' servers run on this node, where results are written (FEDRAY_RESULTS)")
    if tracks:
        check_tracking(len(nodes))
    lines = [preflight(experiment, nodes) for experiment in experiments]
    fit = max(at_a_time(experiment, nodes) for experiment in experiments)  # Ray packs unequal ones
    concurrent = max(1, min(fit, most or fit, left))
    for line in dict.fromkeys(lines):
        print(line)
    print(f"{left} trials, {concurrent} at a time", flush=True)
    return concurrent


def check_tracking(nodes: int) -> None:
    """Refuse a database file of one node when there are several.

    Raises:
        UserError: naming the variable to set.
    """
    uri = resolve_uri(results_home())
    if nodes > 1 and sqlite_path(uri) is not None:
        raise UserError(
            f"the cluster has {nodes} nodes, and {uri} is a file on one of them; "
            "set MLFLOW_TRACKING_URI to a server (http://host:5000), or pass --no-track"
        )


# --- the sweep -----------------------------------------------------------------------------------


def run(ledger: Ledger, concurrent: int, *, tracks: bool) -> int:
    """Run what is left of a sweep and print the outcome; returns the exit code."""
    from fedray.sweep.runs import SweepRuns
    from fedray.sweep.watch import SweepProgress, Watcher

    plan = ledger.plan
    if plan.asha is not None and plan.search != "grid":
        print(
            f"note: {plan.search} takes a trial that ASHA stops as complete, with the value "
            "it had then"
        )
    ledger.write()
    tracker = tracker_for(plan.sweep, ledger.home, plan.answers) if tracks else None
    runs = SweepRuns(ledger, tracker) if tracker is not None else None
    try:
        with SweepProgress(ledger, concurrent) as show:
            watcher = Watcher(ledger, runs, show)
            fit(ledger, watcher, show.order(), concurrent)
            while watcher.take_again():
                fit(ledger, watcher, show.order(), concurrent)
        if not ledger.left:
            ledger.status = "finished"
        code = conclude(ledger, tracker.hint if tracker is not None else None)
        ledger.write()  # at last: a sweep that is killed while it concludes can be resumed
        return code
    except KeyboardInterrupt as stop:
        say_stopped(stop, how_to_go_on(ledger, tracks=tracks))
        raise
    finally:
        if runs is not None and tracker is not None:
            runs.end()
            tracker.close()


def how_to_go_on(ledger: Ledger, *, tracks: bool) -> str:
    """The command that runs what is left of a sweep."""
    sweep, home = ledger.plan.sweep, ledger.home
    where = [] if home.parent == results_home() / sweep else ["--out", home]
    return go_on_with("fedray.sweep", sweep, "--resume", *where, *untracked(tracks=tracks))


def untracked(*, tracks: bool) -> list[str]:
    """The flag of a command that logs nothing to MLflow."""
    return [] if tracks else ["--no-track"]


def fit(ledger: Ledger, watcher: Watcher, order: Sequence[Trial], concurrent: int) -> None:
    """Let Ray Tune run the trials that are left, a grid's in this order."""
    from fedray.sweep.search import tune_config
    from fedray.sweep.trial import run_trial

    if not ledger.left:
        return
    plan = ledger.plan

    def asked(trial: Mapping[str, Any]) -> Experiment:
        return plan.experiment_of(trial["values"], plan.seeds[0])

    trainable = functools.partial(run_trial, plan=plan, home=ledger.home)
    tune_trials(trainable, asked, tune_config(ledger, order, concurrent), ledger.home, watcher)


def tune_trials(
    trainable: Callable[..., None],
    asked: Callable[[Mapping[str, Any]], Experiment],
    how: tuple[dict[str, Any], Any],
    home: Path,
    watcher: Watcher,
) -> None:
    """Let Ray Tune run trials; each in a placement group of its own, in processes that stay warm.

    Args:
        trainable: gets a trial under "trial".
        asked: a trial's experiment, which says what it asks of the cluster.
        how: Ray Tune's parameter space and its configuration.
        home: where Ray Tune keeps what it needs meanwhile.
        watcher: sees trials begin, report and end.
    """
    from ray import tune

    from fedray.runtime.cluster import drivers_node
    from fedray.runtime.resources import trial_bundles

    _count_nothing()
    _take_killed_for_dead()
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what happened stands in the ledger
    shutil.rmtree(home / TUNE_FOLDER, ignore_errors=True)
    (space, config), node = how, drivers_node()
    placed = tune.with_resources(
        trainable,
        lambda given: tune.PlacementGroupFactory(trial_bundles(asked(given["trial"]), node)),
    )
    tune.Tuner(
        placed,
        param_space=space,
        tune_config=config,
        run_config=tune.RunConfig(
            name=TUNE_FOLDER,
            storage_path=str(home),
            verbose=0,
            callbacks=[watcher],
            failure_config=tune.FailureConfig(max_failures=-1),  # the watcher counts them
        ),
    ).fit()
    shutil.rmtree(home / TUNE_FOLDER, ignore_errors=True)


def _count_nothing() -> None:
    """Keep Ray from importing MLflow, before any trial starts, to count who uses its callback."""
    from ray.air._internal import usage

    usage.tag_callbacks = lambda callbacks: False


def _take_killed_for_dead() -> None:
    """Make Ray Tune handle a trial's process that was killed for memory as one that died.

    Ray reports it by an OutOfMemoryError, which is no RayActorError, so that Ray Tune ends all
    trials with an error.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import ActorDiedError, OutOfMemoryError

    failed = RayActorManager._actor_task_failed
    if hasattr(failed, "__wrapped__"):
        return

    @functools.wraps(failed)
    def with_memory(manager: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            died = ActorDiedError()
            died.error_msg, exception = str(exception), died
        failed(manager, tracked_actor_task, exception)

    RayActorManager._actor_task_failed = with_memory


def conclude(ledger: Ledger, hint: str | None) -> int:
    """Write and print table, figure and best configuration; returns the exit code.

    Args:
        ledger: the invocation.
        hint: how to open the tracker's UI; None without a tracker.
    """
    from fedray.render.terminal import print_sections
    from fedray.sweep.show import best_command, draw, table, write_csv

    plan, home = ledger.plan, ledger.home
    print()
    print_sections([table(ledger)])
    write_csv(ledger, home / "trials.csv")
    if plan.mean_over is not None or plan.columns:
        say_means(ledger)
    if ledger.left:
        print(f"interrupted; {how_to_go_on(ledger, tracks=hint is not None)}", file=sys.stderr)
        return INTERRUPTED
    if not ledger.through:
        print(f"failed: no trial of {plan.sweep} came through", file=sys.stderr)
        return RUN_ERROR
    best = best_trial(ledger)
    if best is not None:
        experiment = plan.experiment_of(best.config, plan.seeds[0])
        write_atomic(home / "best.yaml", dump_yaml(experiment.tree()))
        print(f"\n{best_line(plan, best)}\n  {best_command(plan, best.config)}")
    draw(ledger, home / "sweep.png")
    print(f"figure: {home / 'sweep.png'}\nresults: {home}")
    if hint is not None:
        print(f"compare: {hint}")
    return 0


def best_line(plan: SweepPlan, best: Trial) -> str:
    """The best configuration, by what it was chosen, and what it is worth on the test."""
    test = ""
    if plan.objective != plan.metric and best.test is not None:
        test = f", {plan.metric} {best.test:.4f} on the test"
    return (
        f"{plan.how}: {words(best.config)}: {plan.objective} {best.objective:.4f} "
        f"in round {best.when}{test}  [{plan.scale} scale]"
    )


def say_means(ledger: Ledger) -> None:
    """Print and write further columns, or means over data sets, and which of these is the best."""
    from fedray.render.terminal import print_sections
    from fedray.sweep.means import best_row, means_table, write_means

    print_sections([means_table(ledger)])
    best = best_row(ledger) if ledger.plan.mean_over is not None else None
    if best is not None:
        metric, how = ledger.plan.objective, ledger.plan.how.replace("best", "best mean", 1)
        print(f"{how}: {words(best.config)}: {metric} {best.values[metric].mean:.4f}")
    write_means(ledger, ledger.home / "means.csv")


def best_trial(ledger: Ledger) -> Trial | None:
    """The best trial; with mean_over, that of the best mean on the first data set."""
    if ledger.plan.mean_over is None:
        return ledger.best
    from fedray.sweep.means import best_row

    row = best_row(ledger)
    return None if row is None else row.trials[0]


if __name__ == "__main__":
    raise SystemExit(main())
