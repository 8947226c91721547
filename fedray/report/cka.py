"""`python -m fedray.report.cka DIR [DIR ...]`: how alike local and global models are, by layer.

FedGLCL Fig. 1c. FedAvg's clients keep no model, so the local models are made: from a finished run's
checkpoint, every client takes one more step of the method (its E local epochs on its own images),
and what it uploads is compared with the global model that it started from, the one that was tested
last. So it is the drift of one round, seen by the server: with `wire` quantisation or noise on it.
Nothing is written into the run. `--by layer` compares the output of every convolution and linear
map, as the figure does; `--by stage` what a block makes of them, with normalisation and activation.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedray.command import CommandLine, add_trust, run_command, whole_number
from fedray.errors import UserError
from fedray.evaluation.similarity import centred_gram, linear_cka
from fedray.files import write_atomic
from fedray.models import Classifier, Pixels, layers, stages
from fedray.records import Metric
from fedray.report.cells import cell
from fedray.report.command import add_folders, out_folder
from fedray.report.figures import figure_stages
from fedray.report.finished import has_global_model, one_more_step, probe_images, reopen
from fedray.report.runs import Group, Stat, group, load
from fedray.report.section import markdown_table
from fedray.runtime.devices import pick_device

By: TypeAlias = Literal["stage", "layer"]
"""What is compared."""
SIMILARITY = Metric("linear CKA with the global model", "index")


def parser() -> CommandLine:
    """The command line of `python -m fedray.report.cka`."""
    cli = CommandLine(
        prog="python -m fedray.report.cka",
        description="Similarity by layer of the clients' models, after one more round of local "
        "training, to the global model they started from.",
    )
    add_folders(cli)
    cli.add_argument(
        "--images",
        type=whole_number(2, 10**6),
        default=200,
        metavar="N",
        help="test images to compare on (200)",
    )
    cli.add_argument(
        "--by",
        choices=["stage", "layer"],
        default="stage",
        help="stage: blocks with their normalisation and activation (default); layer: every "
        "convolution and linear map",
    )
    add_trust(cli)
    cli.add_debug()
    return cli


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(), _main, argv)


def _by_part(member: Group, images: int, by: By) -> dict[str, Stat]:
    """Similarity by stage or layer, over the clients of all runs of a group."""
    found: dict[str, list[float]] = defaultdict(list)
    for loaded in member.runs:
        for similarity in similarities(loaded.folder, images, by):
            for part, value in similarity.items():
                found[part].append(value)
    return {part: Stat.of(values) for part, values in found.items()}


def _main(args: argparse.Namespace) -> int:
    groups, notes = group(load(args.folders))
    curves = {member.label: _by_part(member, args.images, args.by) for member in groups}
    lines = _table(curves, args.by)
    lines += ["", f"{SIMILARITY.name}, mean ± standard deviation over clients and seeds."]
    lines += [f"\n**Warning:** {note}." for note in notes]
    out = out_folder(args)
    table, figure = out / "cka.md", out / "cka.png"
    write_atomic(table, "\n".join(lines) + "\n")
    figure_stages(curves, SIMILARITY, figure, args.by)
    print("\n".join(lines))
    print(f"wrote {table}\n      {figure}")
    return 0


def _table(curves: Mapping[str, Mapping[str, Stat]], by: By) -> list[str]:
    """A line for each method; by layer, of which there are many, a line for each of them."""
    names = list(dict.fromkeys(part for curve in curves.values() for part in curve))
    if by == "stage":
        rows = [
            (label, *(cell(curve.get(name), SIMILARITY) for name in names))
            for label, curve in curves.items()
        ]
        return markdown_table(("method", *names), rows)
    rows = [
        (name, *(cell(curve.get(name), SIMILARITY) for curve in curves.values())) for name in names
    ]
    return markdown_table(("layer", *curves), rows)


def similarities(folder: Path, images: int, by: By = "stage") -> Iterator[dict[str, float]]:
    """Yield, client by client, the similarity of each stage or layer to the global model's.

    Args:
        folder: of a finished run with one global model.
        images: how many test images to compare on, drawn once for the run.
        by: what is compared.

    Raises:
        UserError: when the run has no checkpoint, or no global model.
        ClientError: when a client's step fails.
    """
    assembly, found = reopen(folder)
    algorithm = assembly.algorithm
    if not has_global_model(algorithm, found.snapshot.server):
        raise UserError(
            f"{folder}: {algorithm.name} has no global model to compare with; leave the run out"
        )
    device = pick_device(assembly.experiment.gpus)
    now = assembly.data.at(found.snapshot.round + 1)
    probe = probe_images(now, images, assembly.streams, device)
    for stepped in one_more_step(assembly, found, device):
        common = stage_grams(stepped.before().model, probe, by)
        local = stage_grams(stepped.after().model, probe, by)
        yield {part: linear_cka(local[part], gram) for part, gram in common.items()}


@torch.no_grad()
def stage_grams(model: Classifier, images: Pixels, by: By = "stage") -> dict[str, Tensor]:
    """The centred Gram matrix [n, n] of each stage's or layer's features, in evaluation mode."""
    grams: dict[str, Tensor] = {}
    model.eval()
    with watched(stages(model) if by == "stage" else layers(model), grams):
        model(images)
    return grams


@contextmanager
def watched(parts: Mapping[str, nn.Module], grams: dict[str, Tensor]) -> Iterator[None]:
    """Note the Gram matrix of each part's output while the model runs."""

    def note(stage: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            grams[stage] = centred_gram(output)

        return hook

    handles = [end.register_forward_hook(note(name)) for name, end in parts.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


if __name__ == "__main__":
    raise SystemExit(main())
