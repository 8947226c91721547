"""Similarity of local and global models, layer by layer (FedGLCL Fig. 1c).

FedAvg's clients keep no model, so this analysis makes local models: from a finished run's
checkpoint, every client takes one more step of the method (its E local epochs on its own images).
Its upload is compared with the global model that it started from, the last tested one. The result
is the drift of one round as the server sees it, with quantisation or noise of `wire`. The run is
not changed. The output of every convolution and linear map is compared, as in the figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedray.base.errors import UserError
from fedray.evaluation.protocols import has_global_model
from fedray.evaluation.similarity import centred_gram, linear_cka
from fedray.models import Classifier, Pixels, layers
from fedray.results.analyses.extra_step import one_more_step, probe_images, reopen
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import RunGroup
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.figures import Plot, Series, figure_curves
from fedray.results.pages.page import Section
from fedray.results.paired import Interval, t_interval
from fedray.runtime.devices import pick_device
from fedray.storage.metric import Metric

IMAGES = 200
"""Test images to compare on, drawn once for a run."""
SIMILARITY = Metric("linear CKA with the global model", "index")


@analysis()
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Compare clients' models after one more round with the global model, by layer."""
    curves = {member.label: _by_layer(member) for member in request.groups}
    names = list(dict.fromkeys(layer for curve in curves.values() for layer in curve))
    rows = [[n, *(cell(curve.get(n), SIMILARITY) for curve in curves.values())] for n in names]
    series = [Series(curve, label, index) for index, (label, curve) in enumerate(curves.items())]
    figure_curves([Plot(series, "layer", SIMILARITY.name, names)], request.file("cka.png"))
    below = f"{SIMILARITY.name}, mean {SPREAD} clients and seeds."
    return [Section("", (), ["layer", *curves], rows, [below])]


def _by_layer(member: RunGroup) -> dict[str, Interval]:
    """Return the similarity by layer, as means over the clients of a group's runs."""
    values: dict[str, list[float]] = defaultdict(list)
    for loaded in member.runs:
        for similarity in similarities(loaded.folder):
            for layer, value in similarity.items():
                values[layer].append(value)
    return {layer: t_interval(numbers) for layer, numbers in values.items()}


def similarities(folder: Path, images: int = IMAGES) -> Iterator[dict[str, float]]:
    """Yield, for each client, the similarity of each layer's output to the global model's.

    Args:
        folder: folder of a finished run with one global model.
        images: number of test images, drawn once for the run.

    Raises:
        UserError: if the run has no checkpoint or no global model.
        ClientError: if a client's step fails.
    """
    assembly, checkpoint = reopen(folder)
    algorithm = assembly.algorithm
    if not has_global_model(algorithm, checkpoint.snapshot.server):
        raise UserError(
            f"{folder}: {algorithm.name} has no global model to compare with; leave the run out"
        )
    device = pick_device(assembly.experiment.gpus)
    data = assembly.data.at(checkpoint.snapshot.round + 1)
    probe = probe_images(data, images, assembly.streams, device)
    for stepped in one_more_step(assembly, checkpoint, device):
        common = layer_grams(stepped.before().model, probe)
        local = layer_grams(stepped.after().model, probe)
        yield {layer: linear_cka(local[layer], gram) for layer, gram in common.items()}


@torch.no_grad()
def layer_grams(model: Classifier, images: Pixels) -> dict[str, Tensor]:
    """Return the centred Gram matrix [n, n] of each layer's output in eval mode."""
    grams: dict[str, Tensor] = {}

    def note(layer: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        grams[layer] = centred_gram(output)

    model.eval()
    handles = [
        module.register_forward_hook(partial(note, name)) for name, module in layers(model).items()
    ]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return grams
