"""What does local training do to a model, class by class (FedGLCL Fig. 1b)?

From a finished run's checkpoint every client takes one more step of the method (its E local epochs
on its own images). Its model is tested on the test images of all clients: on the client's majority
classes, of which it has more training images than n_i / C, and on its minority classes, all others.
The model that it started from is tested on the same images. The figure does not say by which
threshold it splits the classes; this one is ours. Nothing is written into the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.analyses.extra_step import one_more_step, reopen
from fedray.analyses.harness import Findings, Request, analysis
from fedray.compare.frame import Group, interval_of
from fedray.core import HeldOut
from fedray.errors import UserError
from fedray.evaluation.score import Score, pooled
from fedray.evaluation.testing import scores
from fedray.records import Metric
from fedray.render.cells import SPREAD, cell
from fedray.render.page import Section
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


@analysis("local_models")
def score_before_and_after(request: Request) -> Findings:
    """Test the clients' models before and after one more round of local training."""
    rows = [row for member in request.groups for row in _rows(member)]
    header = ["method", "model", *(f"{which} classes (%)" for which in WHICH)]
    below = (
        "Accuracy on the test images of all clients, before and after local training; over the "
        f"images of all clients' models in sum, mean {SPREAD} seeds."
    )
    return Findings([Section("", (), header, rows, [below])])


def _rows(member: Group) -> list[list[str]]:
    """Return two lines of a group: its models before and after local training."""
    tested = [local_scores(loaded.folder) for loaded in member.runs]
    rows = []
    for model in MODELS:
        shares = [accuracies(each, model) for each in tested]
        cells = [
            cell(interval_of(share.get(which) for share in shares), Metric("accuracy"))
            for which in WHICH
        ]
        rows.append([member.label, f"{model} local training", *cells])
    return rows


def accuracies(tested: Sequence[BeforeAndAfter], model: str) -> dict[str, float]:
    """Return the accuracy of all clients' models on majority and minority classes, and on all.

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
    """Test every client's model before and after one more step, on everybody's test images.

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
    everything = np.unique(np.concatenate(assembly.data.at(round_).test))
    if not len(everything):
        raise UserError(f"{folder}: no client has a test image; leave the run out")
    majority = assembly.plan.facts_at(round_).majority
    held_out = [HeldOut(assembly.models.samples(device)(everything))]
    return [
        BeforeAndAfter(
            stepped.client,
            frozenset(majority[stepped.client]),
            *scores(assembly.algorithm, stepped.before(), held_out),
            *scores(assembly.algorithm, stepped.after(), held_out),
        )
        for stepped in one_more_step(assembly, found, device)
    ]
