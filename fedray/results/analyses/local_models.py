"""Effect of local training on a model, class by class (FedGLCL Fig. 1b).

From a finished run's checkpoint, every client takes one more step of the method (its E local epochs
on its own images). The models before and after this step are tested on the test images of all
clients: on the client's majority classes, of which it has more than n_i / C training images, and on
its minority classes, all others. The paper does not name its threshold; this one is fedray's. The
run is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.core import HeldOut
from fedray.errors import UserError
from fedray.evaluation.score import Score, pooled
from fedray.evaluation.testing import scores
from fedray.results.analyses.extra_step import one_more_step, reopen
from fedray.results.analyses.harness import AnalysisRequest, Findings, analysis
from fedray.results.frame import RunGroup, interval_of
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.page import Section
from fedray.runtime.devices import pick_device
from fedray.storage.metric import Metric

WHICH = ("majority", "minority", "all")
MODELS = ("before", "after")


class BeforeAndAfter(NamedTuple):
    """Scores of a client's model before and after local training, on all clients' test images.

    Attributes:
        client: the client's id.
        majority: the client's majority classes.
        before: score before local training.
        after: score after local training.
    """

    client: int
    majority: frozenset[int]
    before: Score
    after: Score


@analysis()
def command(request: AnalysisRequest) -> Findings:
    """Test clients' models before and after one more round of local training."""
    rows = [row for member in request.groups for row in _rows(member)]
    header = ["method", "model", *(f"{which} classes (%)" for which in WHICH)]
    below = (
        "Accuracy on the test images of all clients, before and after local training, pooled over "
        f"all clients' models; mean {SPREAD} seeds."
    )
    return Findings([Section("", (), header, rows, [below])])


def _rows(member: RunGroup) -> list[list[str]]:
    """Return the two lines of a group: models before and after local training."""
    tested = [local_scores(loaded.folder) for loaded in member.runs]
    rows = []
    for model in MODELS:
        shares = [accuracies(run, model) for run in tested]
        cells = [
            cell(interval_of(share.get(which) for share in shares), Metric("accuracy"))
            for which in WHICH
        ]
        rows.append([member.label, f"{model} local training", *cells])
    return rows


def accuracies(tested: Sequence[BeforeAndAfter], model: str) -> dict[str, float]:
    """Return the pooled accuracy of all clients' models on majority, minority and all classes.

    Args:
        tested: the scores of each client.
        model: "before" or "after".

    Returns:
        Accuracies by the names of `WHICH`; names without images are left out.
    """
    parts: dict[str, list[Score]] = {which: [] for which in WHICH}
    for client in tested:
        score: Score = getattr(client, model)
        minority = set(range(len(score.classes))) - client.majority
        parts["majority"].append(score.within(client.majority))
        parts["minority"].append(score.within(minority))
        parts["all"].append(score)
    return {
        which: pooled(values)
        for which, values in parts.items()
        if any(score.total for score in values)
    }


def local_scores(folder: Path) -> list[BeforeAndAfter]:
    """Test every client's model before and after one more step, on all clients' test images.

    Args:
        folder: folder of a finished run.

    Raises:
        UserError: if the run has no checkpoint, no test images, or predicts every pixel.
        ClientError: if a client's step fails.
    """
    assembly, checkpoint = reopen(folder)
    if assembly.models.dense:
        raise UserError(
            f"{folder} predicts every pixel, so majority classes are not defined; leave the run out"
        )
    device = pick_device(assembly.experiment.gpus)
    round_ = checkpoint.snapshot.round + 1
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
        for stepped in one_more_step(assembly, checkpoint, device)
    ]
