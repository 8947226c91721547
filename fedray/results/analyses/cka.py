"""Similarity of local and global models, layer by layer (FedGLCL Fig. 1c).

FedAvg's clients keep no model, so this analysis makes local models: from a finished run's
checkpoint, every client takes one more step of the method (its E local epochs on its own images).
Its upload is compared with the global model that it started from, the last tested one. The result
is the drift of one round as the server sees it, with quantisation or noise of `wire`. The run is
not changed. `--by layer` compares the output of every convolution and linear map, as the figure
does; `--by stage` compares the output of each block, with normalisation and activation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import click
import torch
from torch import Tensor, nn

from fedray.base.errors import UserError
from fedray.evaluation.protocols import has_global_model
from fedray.evaluation.similarity import centred_gram, linear_cka
from fedray.models import Classifier, Pixels, layers, stages
from fedray.results.analyses.extra_step import one_more_step, probe_images, reopen
from fedray.results.analyses.harness import AnalysisRequest, analysis, count_option
from fedray.results.frame import RunGroup
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.figures import Plot, Series, figure_curves
from fedray.results.pages.page import Section
from fedray.results.paired import Interval, t_interval
from fedray.runtime.devices import pick_device
from fedray.storage.metric import Metric

By: TypeAlias = Literal["stage", "layer"]
"""Parts of a model whose outputs are compared."""
SIMILARITY = Metric("linear CKA with the global model", "index")


@analysis(
    count_option("--images", "Test images to compare on.", 2, 200),
    click.Option(
        ["--by"],
        type=click.Choice(get_args(By)),
        default="stage",
        show_default=True,
        help="stage: blocks with their normalisation and activation; layer: every convolution and "
        "linear map.",
    ),
)
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Compare clients' models after one more round with the global model, by layer."""
    by = request.options["by"]
    curves = {g.label: _by_part(g, request.options["images"], by) for g in request.groups}
    names = list(dict.fromkeys(part for curve in curves.values() for part in curve))
    rows = [[n, *(cell(curve.get(n), SIMILARITY) for curve in curves.values())] for n in names]
    series = [
        Series({float(names.index(part)): value for part, value in curve.items()}, label, index)
        for index, (label, curve) in enumerate(curves.items())
    ]
    figure_curves([Plot(series, by, SIMILARITY.name, names)], request.file("cka.png"))
    below = f"{SIMILARITY.name}, mean {SPREAD} clients and seeds."
    return [Section("", (), [by, *curves], rows, [below])]


def _by_part(member: RunGroup, images: int, by: By) -> dict[str, Interval]:
    """Return the similarity by stage or layer, as means over the clients of a group's runs."""
    values: dict[str, list[float]] = defaultdict(list)
    for loaded in member.runs:
        for similarity in similarities(loaded.folder, images, by):
            for part, value in similarity.items():
                values[part].append(value)
    return {part: t_interval(numbers) for part, numbers in values.items()}


def similarities(folder: Path, images: int, by: By = "stage") -> Iterator[dict[str, float]]:
    """Yield, for each client, the similarity of each stage or layer to the global model's.

    Args:
        folder: folder of a finished run with one global model.
        images: number of test images, drawn once for the run.
        by: the parts to compare.

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
        common = stage_grams(stepped.before().model, probe, by)
        local = stage_grams(stepped.after().model, probe, by)
        yield {part: linear_cka(local[part], gram) for part, gram in common.items()}


@torch.no_grad()
def stage_grams(model: Classifier, images: Pixels, by: By = "stage") -> dict[str, Tensor]:
    """Return the centred Gram matrix [n, n] of each stage's or layer's features in eval mode."""
    grams: dict[str, Tensor] = {}

    def note(part: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        grams[part] = centred_gram(output)

    model.eval()
    parts = stages(model) if by == "stage" else layers(model)
    handles = [end.register_forward_hook(partial(note, name)) for name, end in parts.items()]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return grams
