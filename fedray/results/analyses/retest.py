"""Test finished models under other settings of evaluation (FedMGP's Table 15).

For each `--with "key=value ..."`, every run gets a folder below --out with a run.json that
`fedray report` compares like any other. It holds the last round as if the run had been trained with
these settings, and names the run that trained the models as `retested`.

Only settings that do not affect training may change: hyper-parameters that the method declares as
such, the test on every domain, and fine-tuning after the last round.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedray.base.errors import UserError
from fedray.config import Experiment, flatten, load_experiment, parse_assignments
from fedray.core import algorithms
from fedray.federation import Federation
from fedray.results.analyses.extra_step import reopen
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import LoadedRun
from fedray.results.pages.page import Section
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import pick_device
from fedray.runtime.resolve import from_tree
from fedray.runtime.resume import run_info
from fedray.runtime.serial import SerialExecutor
from fedray.storage.files import file_name
from fedray.storage.metric import HEADLINE, REPORTED
from fedray.storage.run import Costs, Round
from fedray.storage.run_folder import RunFolder, RunWriter

EVALUATION_KEYS = ("data.every_domain", "finetune_epochs")
"""Keys of every experiment that do not affect training."""


@analysis(
    click.Option(
        ["--with", "settings"],
        multiple=True,
        required=True,
        metavar='"key=value ..."',
        help='Settings for the test, for example algorithm.inference=prob, or "" for the run\'s '
        "own; repeatable, with one result for each.",
    ),
    out=Path("retested"),
)
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Test the models of finished runs under other settings of evaluation, without training."""
    planned: dict[Path, tuple[LoadedRun, str, Experiment]] = {}  # check all before the first test
    for run in request.runs:
        home = request.out / file_name("-".join(run.folder.resolve().parts[-2:]).strip("/-"))
        for words in request.options["settings"]:
            folder = home / (file_name(words) or "as_before")
            if folder in planned or RunFolder(folder).has_run:
                raise UserError(
                    f"{run.folder} with '{words}' would be written to {folder}, which holds "
                    "another result; name another --out, or test one of them"
                )
            planned[folder] = run, words, changed_experiment(run, words)
    rows = []
    for folder, (run, words, experiment) in planned.items():
        done = evaluate(run, experiment, folder)
        rows.append([words or "as before", f"{done.metrics[HEADLINE]:.4f}"])
    request.files.extend(planned)
    below = f"Compare: `fedray report {shlex.quote(str(request.out))}`"
    return [Section("", (), ["settings", HEADLINE], rows, [below])]


def changed_experiment(run: LoadedRun, words: str) -> Experiment:
    """Return a run's experiment under other settings of evaluation, "key=value ...".

    Raises:
        UserError: if the run is not finished, or a setting affects training.
    """
    if not run.run.is_finished:
        raise UserError(
            f"{run.folder} is in round {run.run.done} of {run.run.info.planned}; finish it with "
            f"fedray run --resume {shlex.quote(str(run.folder))}"
        )
    tree = RunFolder(run.folder).experiment()
    before = flatten(load_experiment(tree).reproducibility_key())
    after = from_tree(tree, parse_assignments(shlex.split(words)))
    method: Any = algorithms.get(after.algorithm.name)
    changeable = {*EVALUATION_KEYS, *(f"algorithm.{name}" for name in method.evaluation_only)}
    settings = flatten(after.reproducibility_key())
    for key in sorted({*before, *settings} - changeable):
        if before.get(key) != settings.get(key):
            raise UserError(
                f"{key}={settings.get(key)!r} affects training, and {run.folder} was trained with "
                f"{before.get(key)!r}; only {', '.join(sorted(changeable))} can change"
            )
    return after


def evaluate(run: LoadedRun, experiment: Experiment, out: Path) -> Round:
    """Test a finished run's models under another experiment, and write the result to `out`.

    Returns:
        The last round under these settings; losses and reports of clients are those of the run.

    Raises:
        UserError: as `reopen`.
        ClientError: if a client's test fails.
    """
    before, checkpoint = reopen(run.folder)
    assembly, last, info = Assembly(experiment), run.run.rounds[-1], run.run.info
    device = pick_device(experiment.gpus)
    with closing(SerialExecutor(assembly, device)) as executor:
        executor.states = checkpoint.clients
        server = assembly.server(device)
        parts = assembly.algorithm, executor, assembly.gate, assembly.plan, server
        tested = Federation(*parts).retest(checkpoint.snapshot)
    kept = {
        name: value
        for name, value in last.metrics.items()
        if name.startswith(REPORTED) or info.metric(name).on not in ("test", "validation")
    }
    done = replace(
        tested,
        metrics={**kept, **tested.metrics},
        up=last.up,
        down=last.down,
        participants=last.participants,
        absent=last.absent,
    )
    source = {"folder": str(run.folder), "identity": before.identity}
    out.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(RunFolder(out), run_info(assembly, source), assembly.data.manifest())
    writer.append(done, Costs(wall_seconds=done.seconds))
    writer.end()
    writer.close()
    return done
