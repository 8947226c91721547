"""Use a run's models on images: `fedray predict RUN IMAGE...`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.command import CommandLine, add_trust, as_path, run_command, whole_number
from fedray.config.experiment import MOST_CLIENTS
from fedray.errors import UserError

if TYPE_CHECKING:
    from fedray.trained import Predictions, TrainedModel

PROG = "fedray predict"
SHOWN = 3
"""How many of the likeliest classes are shown."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray predict`."""
    cli = CommandLine(prog=prog, description="Classify images with the models that a run has kept.")
    cli.add_argument("run", type=as_path, metavar="RUN", help="a run's folder")
    cli.add_argument(
        "images", nargs="+", type=as_path, metavar="IMAGE", help="a file, or a folder of images"
    )
    cli.add_argument(
        "--client",
        type=whole_number(0, MOST_CLIENTS - 1),
        metavar="N",
        help="whose model; not needed where all clients share one",
    )
    cli.add_argument(
        "--last", action="store_true", help="the model of the last round, not of the best"
    )
    cli.add_argument("--json", action="store_true", help="for programs: one object per image")
    add_trust(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), predict, argv)


def predict(args: argparse.Namespace) -> int:
    """Classify and print; returns the exit code."""
    paths = [path for given in args.images for path in _files(given)]
    from fedray.trained import open_models

    models = open_models(args.run.resolve(), "last" if args.last else None)
    model = models.model(args.client)
    lines = as_json if args.json else as_text
    for line in lines(model, paths, model.predict(paths)):
        print(line)
    return 0


def _files(given: Path) -> list[Path]:
    """The file, or the images of a folder, sorted.

    Raises:
        UserError: when there is none.
    """
    if not given.is_dir():
        return [given]
    found = sorted(path for path in given.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(f"{given} holds no images ({', '.join(SUFFIXES)})")
    return found


def as_json(model: TrainedModel, paths: Sequence[Path], found: Predictions) -> Iterator[str]:
    """A list of JSON: file, class, and, of whole images, the probability of each class."""
    rows = []
    for path, logits, label in zip(paths, found.probabilities, found.labels, strict=True):
        row: dict[str, object] = {"image": str(path), "client": _whose(model)}
        if label.ndim:
            row["labels"] = label.tolist()
        else:
            row["class"] = found.class_names[int(label)]
            row["probabilities"] = dict(zip(found.class_names, logits.tolist(), strict=True))
        rows.append(row)
    yield json.dumps(rows, indent=1, ensure_ascii=False)


def as_text(model: TrainedModel, paths: Sequence[Path], found: Predictions) -> Iterator[str]:
    """What the model is, and a line per image: the likeliest classes, or the classes of pixels."""
    facts, whose = model.owner.facts, _whose(model)
    who = "the model that all clients share" if whose is None else f"the model of client {whose}"
    how = f", {facts.chosen}" if facts.chosen else ""
    yield f"{who}, round {facts.round}{how}; {model.preprocessing}"
    width = max(len(str(path)) for path in paths)
    for path, shares, label in zip(paths, found.probabilities, found.labels, strict=True):
        by_class = label.flatten().bincount(minlength=len(found.class_names)) / label.numel()
        values, classes = (by_class if label.ndim else shares).topk(min(SHOWN, len(by_class)))
        named = [
            f"{found.class_names[c]} {value:.3f}"
            for value, c in zip(values.tolist(), classes.tolist(), strict=True)
        ]
        yield f"{path!s:<{width}}  {'  '.join(named)}"


def _whose(model: TrainedModel) -> int | None:
    """The client whose model it is; None of the one that all share."""
    return None if model.owner.is_global else model.client
