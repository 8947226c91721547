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

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.evaluation.answers import Answers
from fedray.evaluation.splits import HeldOut
from fedray.evaluation.testing import counts_of
from fedray.results.analyses.extra_step import one_more_step, reopen
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import interval_of
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.page import Section
from fedray.runtime.devices import pick_device
from fedray.storage.metric import Metric

WHICH = ("majority", "minority", "all")
MODELS = ("before", "after")


@analysis()
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Test clients' models before and after one more round of local training."""
    rows, metric = [], Metric("accuracy")
    for member in request.groups:
        tested = [local_answers(loaded.folder) for loaded in member.runs]
        for model in MODELS:
            shares = [accuracies(majority, answers[model]) for majority, answers in tested]
            intervals = [interval_of((s.get(which) for s in shares), metric) for which in WHICH]
            cells = [cell(interval, metric) for interval in intervals]
            rows.append([member.label, f"{model} local training", *cells])
    header = ["method", "model", *(f"{which} classes (%)" for which in WHICH)]
    below = (
        "Accuracy on the test images of all clients, before and after local training, pooled over "
        f"all clients' models; mean {SPREAD} seeds."
    )
    return [Section("", (), header, rows, [below])]


def accuracies(majority: NDArray[np.bool_], answers: Answers) -> dict[str, float]:
    """Return the pooled accuracy of all clients' models on majority, minority and all classes.

    Args:
        majority: each client's majority classes [N, C].
        answers: the answers of N clients' models on all clients' test images.

    Returns:
        Accuracies by the names of `WHICH`; names without images are left out.
    """
    parts = dict(zip(WHICH, (majority, ~majority, np.ones_like(majority)), strict=True))
    counts = {
        which: (answers.right[part].sum(), answers.images[part].sum())
        for which, part in parts.items()
    }
    return {which: float(right / images) for which, (right, images) in counts.items() if images}


def local_answers(folder: Path) -> tuple[NDArray[np.bool_], dict[str, Answers]]:
    """Test every client's model before and after one more step, on all clients' test images.

    Args:
        folder: folder of a finished run.

    Returns:
        Each client's majority classes, bool [N, C], and the answers of all models by `MODELS`.

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
    samples = assembly.models.samples(device)(everything)
    split = HeldOut([samples], range(len(assembly.data.class_names)), [len(everything)])
    counts = [
        [
            counts_of(assembly.algorithm, load(), [split])[0, 0]
            for load in (stepped.before, stepped.after)
        ]
        for stepped in one_more_step(assembly, checkpoint, device)
    ]
    majority, clients = assembly.plan.facts_at(round_).majority, np.arange(len(counts))
    assert majority is not None
    models = np.stack(counts, axis=1)
    return majority, {name: Answers(of, clients) for name, of in zip(MODELS, models, strict=True)}
