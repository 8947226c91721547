"""How do finished models do under other settings of evaluation (FedMGP's Table 15)?

Each `--with "key=value ..."` gives every run a folder of its own below --out, with a result.json
that `fedray report` compares like any other: the last round as it would have been, had the run been
trained under these settings. It names the run that trained the models as `retested`.

Only what training never sees may change: hyper-parameters that a method declares as such, whether
everybody is tested on every domain, and fine-tuning after the last round.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedray.analyses.finished import reopen
from fedray.analyses.harness import Findings, Request, analysis
from fedray.checkpoint import Checkpoint
from fedray.compare.frame import LoadedRun
from fedray.config import (
    Experiment,
    dump_yaml,
    flatten,
    load_experiment,
    parse_assignments,
    read_mapping,
)
from fedray.core import algorithms
from fedray.errors import UserError
from fedray.federation import Federation
from fedray.files import file_name, write_atomic
from fedray.records import HEADLINE, REPORTED, Costs, Round, RunFolder, RunInfo, RunWriter
from fedray.render.page import Section
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import pick_device
from fedray.runtime.observers import run_info
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor

EVALUATION_KEYS = ("data.every_domain", "finetune_epochs")
"""Keys of every experiment that training never sees."""


@analysis(
    "retest",
    click.Option(
        ["--with", "settings"],
        multiple=True,
        metavar='"key=value ..."',
        help="Settings to test under, for example algorithm.inference=prob; repeatable, each for "
        "a result of its own.",
    ),
    out=Path("retested"),
)
def retest_models(request: Request) -> Findings:
    """Test the models of finished runs under other settings of evaluation, without training."""
    settings = request.options["settings"]
    if not settings:
        raise UserError(
            'say what to test under, for example --with algorithm.inference=prob (--with "" as '
            "before)"
        )
    planned = [
        (run, words, _place(request.out, run, words)) for run in request.runs for words in settings
    ]
    _check_apart(planned)
    for run, words, _ in planned:  # all are checked before the first is tested
        changed_experiment(run, words)
    rows, folders = [], []
    for run, words, folder in planned:
        done = evaluate(run, words, folder)
        rows.append([words or "as before", f"{done.metrics[HEADLINE]:.4f}"])
        folders.append(folder)
    below = f"Compare: `fedray report {shlex.quote(str(request.out))}`"
    return Findings([Section("", (), ["settings", HEADLINE], rows, [below])], folders)


def _place(out: Path, run: LoadedRun, words: str) -> Path:
    """Return the folder of one result.

    Raises:
        UserError: if it is taken.
    """
    parts = [part for part in run.folder.resolve().parts[-2:] if part != "/"]
    folder = out / file_name("-".join(parts)) / (file_name(words) or "as_before")
    if RunFolder(folder).is_taken:
        raise UserError(f"{folder} already holds a result; name another --out")
    return folder


def _check_apart(planned: Iterable[tuple[LoadedRun, str, Path]]) -> None:
    """Refuse two results in one folder: of runs with similar names, or of equal settings.

    Raises:
        UserError: naming both.
    """
    there: dict[Path, str] = {}
    for run, words, folder in planned:
        this = f"{run.folder} with '{words}'"
        if folder in there:
            raise UserError(
                f"{there[folder]} and {this} would both be written to {folder}; test one of them "
                "with another --out"
            )
        there[folder] = this


def changed_experiment(run: LoadedRun, words: str) -> Experiment:
    """Return a run's experiment under other settings of evaluation.

    Args:
        run: a finished run.
        words: "key=value ...".

    Raises:
        UserError: when it is not finished, or a setting would have changed its training.
    """
    if not run.run.is_finished:
        raise UserError(
            f"{run.folder} is in round {run.run.done} of {run.run.info.planned}; finish it with "
            f"fedray run --resume {shlex.quote(str(run.folder))}"
        )
    tree = read_mapping(RunFolder(run.folder).config)
    before = flatten(load_experiment(tree).reproducibility_key())
    after = from_tree(tree, parse_assignments(shlex.split(words)))
    free = {*EVALUATION_KEYS, *_free_hyper_parameters(after)}
    now = flatten(after.reproducibility_key())
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key) and key not in free:
            raise UserError(
                f"{key}={now.get(key)!r} would have changed how {run.folder} was trained (with "
                f"{before.get(key)!r}); only {', '.join(sorted(free))} can change without training"
            )
    return after


def _free_hyper_parameters(experiment: Experiment) -> Iterator[str]:
    method: Any = algorithms.get(experiment.algorithm.name)
    return (f"algorithm.{name}" for name in method.HParams.evaluation_only)


def evaluate(run: LoadedRun, words: str, out: Path) -> Round:
    """Test a finished run's models under other settings, into a folder of their own.

    Args:
        run: a finished run with its last checkpoint.
        words: the settings, "key=value ..."; "" for its own.
        out: the folder of the result.

    Returns:
        The last round as it is under these settings.

    Raises:
        UserError: as `changed_experiment` and `reopen`.
        ClientError: when a client's test fails.
    """
    experiment = changed_experiment(run, words)
    before, checkpoint = reopen(run.folder)
    assembly = Assembly(experiment)
    done = _with_what_stays(_tested(assembly, checkpoint), run)
    folder = RunFolder(out)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(folder.config, dump_yaml(experiment.tree()))
    folder.write_partition(assembly.data.manifest())
    source = {"folder": str(run.folder), "identity": before.identity}
    writer = RunWriter(folder, run_info(assembly, source))
    writer.append(done, Costs(wall_seconds=done.seconds))
    writer.close(stopped_early=True)
    return done


def _tested(assembly: Assembly, checkpoint: Checkpoint) -> Round:
    """The last round's record, newly tested."""
    device = pick_device(assembly.experiment.gpus)
    executor = SerialExecutor(assembly, device)
    try:
        executor.states = checkpoint.clients
        federation = Federation(
            assembly.algorithm,
            executor,
            assembly.gate,
            assembly.plan,
            assembly.server(device),
            assembly.streams,
        )
        return federation.retest(checkpoint.snapshot)
    finally:
        executor.close()


def _with_what_stays(tested: Round, run: LoadedRun) -> Round:
    """Return the record with what training gave: losses, reports, traffic, events."""
    last = run.run.rounds[-1]
    stays = {
        name: value
        for name, value in last.metrics.items()
        if name not in tested.metrics and _is_of_training(name, run.run.info)
    }
    return replace(
        tested,
        metrics={**tested.metrics, **stays},
        up=last.up,
        down=last.down,
        participants=last.participants,
        events=last.events,
    )


def _is_of_training(name: str, info: RunInfo) -> bool:
    return name.startswith(REPORTED) or info.metric(name).on not in ("test", "validation")
