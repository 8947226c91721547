"""`python -m fedray.report.local_models DIR [DIR ...]`: what local training does to a model.

FedGLCL Fig. 1b. From a finished run's checkpoint every client takes one more step of the method
(its E local epochs on its own images), and the model that it then has is tested on everybody's test
images: on the client's majority classes, of which it has more training images than n_i / C, and on
its minority classes, all others. The model that it started from is tested on the same images. The
figure does not say by which threshold it splits the classes; this one is ours.

Nothing is written into the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.command import CommandLine, add_trust, run_command
from fedray.core import HeldOut, LocalContext, Samples
from fedray.data import FederatedData
from fedray.errors import UserError
from fedray.evaluation.score import Score, pooled
from fedray.evaluation.testing import score
from fedray.files import write_atomic
from fedray.records import Metric
from fedray.report.cells import cell
from fedray.report.command import add_folders, out_folder
from fedray.report.finished import one_more_step, reopen
from fedray.report.runs import Group, Stat, group, load
from fedray.report.section import markdown_table
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import pick_device

WHICH = ("majority", "minority", "all")
MODELS = ("before", "after")


class BeforeAndAfter(NamedTuple):
    """One client's model before and after local training, on everybody's test images.

    Attributes:
        client: its id.
        majority: its majority classes.
        before: of the model that it started from.
        after: of the model that local training has made of it.
    """

    client: int
    majority: frozenset[int]
    before: Score
    after: Score


def parser() -> CommandLine:
    """The command line of `python -m fedray.report.local_models`."""
    cli = CommandLine(
        prog="python -m fedray.report.local_models",
        description="Accuracy on everybody's test images before and after one more round of local "
        "training, on the classes that a client has many images of and on the others.",
    )
    add_folders(cli)
    add_trust(cli)
    cli.add_debug()
    return cli


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(), _main, argv)


def _main(args: argparse.Namespace) -> int:
    groups, notes = group(load(args.folders))
    rows = [row for member in groups for row in _rows(member)]
    lines = markdown_table(("method", "model", *(f"{which} classes (%)" for which in WHICH)), rows)
    lines += [
        "",
        "Accuracy on the test images of all clients, before and after local training; over the "
        "images of all clients' models in sum, mean ± standard deviation over seeds.",
    ]
    lines += [f"\n**Warning:** {note}." for note in notes]
    table = out_folder(args) / "local_models.md"
    write_atomic(table, "\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"wrote {table}")
    return 0


def _rows(member: Group) -> list[tuple[str, ...]]:
    """Two lines of a group: its models before and after local training."""
    tested = [local_scores(loaded.folder) for loaded in member.runs]
    found = []
    for model in MODELS:
        shares = [accuracies(each, model) for each in tested]
        cells = []
        for which in WHICH:
            values = [share[which] for share in shares if which in share]
            cells.append(cell(Stat.of(values) if values else None, Metric("accuracy")))
        found.append((member.label, f"{model} local training", *cells))
    return found


def accuracies(tested: Sequence[BeforeAndAfter], model: str) -> dict[str, float]:
    """Accuracy of all clients' models on majority and minority classes, and on all.

    Args:
        tested: by client.
        model: "before" or "after".

    Returns:
        By the names of `WHICH`; without those that no image is of.
    """
    parts: dict[str, list[Score]] = {which: [] for which in WHICH}
    for each in tested:
        whole: Score = getattr(each, model)
        others = set(range(len(whole.classes))) - each.majority
        parts["majority"].append(whole.within(each.majority))
        parts["minority"].append(whole.within(others))
        parts["all"].append(whole)
    return {
        which: pooled(found) for which, found in parts.items() if any(each.total for each in found)
    }


def local_scores(folder: Path) -> list[BeforeAndAfter]:
    """Every client's model before and after one more step, on everybody's test images.

    Args:
        folder: of a finished run.

    Raises:
        UserError: when the run has no checkpoint, no test images, or predicts every pixel.
        ClientError: when a client's step fails.
    """
    assembly, found = reopen(folder)
    if assembly.models.dense:
        raise UserError(
            f"{folder} predicts every pixel, and a background is no majority class; leave it out"
        )
    device = pick_device(assembly.experiment.gpus)
    round_ = found.snapshot.round + 1
    everything = _all_tests(assembly.data.at(round_), folder)
    majority = assembly.plan.facts_at(round_).majority
    tested = []
    samples = assembly.models.samples(device)(everything)
    for stepped in one_more_step(assembly, found, device):
        before = _on(stepped.before(), samples, assembly)
        after = _on(stepped.after(), samples, assembly)
        tested.append(
            BeforeAndAfter(stepped.client, frozenset(majority[stepped.client]), before, after)
        )
    return tested


def _all_tests(data: FederatedData, folder: Path) -> np.ndarray:
    """Positions of all clients' test images, sorted.

    Raises:
        UserError: when nobody has any.
    """
    every = np.unique(np.concatenate(data.test))
    if not len(every):
        raise UserError(f"{folder}: no client has a test image; leave the run out")
    return every


def _on(local: LocalContext, samples: Samples, assembly: Assembly) -> Score:
    """Return the score of a model on images that are not its client's."""
    return score(assembly.algorithm, local, HeldOut(samples))


if __name__ == "__main__":
    raise SystemExit(main())
