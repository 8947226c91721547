"""`fedray predict RUN IMAGE...`: classify images with the models of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedray.base.activity import is_terminal, say_next
from fedray.base.errors import UserError, printable
from fedray.command import PATH, Command, json_flag, plugins_of_runs
from fedray.config.experiment import MOST_CLIENTS

if TYPE_CHECKING:
    from fedray.trained import Predictions, TrainedModel

SHOWN = 3
"""Number of classes printed per image, the likeliest first."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")


@click.command(cls=Command)
@click.argument("run", type=PATH)
@click.argument("images", nargs=-1, required=True, type=PATH)
@click.option(
    "--client",
    type=click.IntRange(0, MOST_CLIENTS - 1),
    help="Client whose model predicts; not needed if all clients share one model.",
)
@json_flag
@plugins_of_runs
def command(run: Path, images: Sequence[Path], client: int | None, as_json: bool) -> None:
    """Classify images with the saved models of a run.

    RUN is the folder of the run; IMAGES are files or folders.
    """
    paths = [path for folder in images for path in _files(folder)]
    if is_terminal():
        say_next("importing PyTorch, reading the models")
    from fedray.trained import open_models

    model = open_models(run.resolve()).model(client)
    lines = json_lines if as_json else text_lines
    for line in lines(model, paths, model.predict(paths)):
        print(line)


def _files(place: Path) -> list[Path]:
    """Return a list with the given file, or the sorted images of the given folder.

    Raises:
        UserError: if the folder contains no images.
    """
    if not place.is_dir():
        return [place]
    files = sorted(path for path in place.iterdir() if path.suffix.lower() in SUFFIXES)
    if not files:
        raise UserError(f"{place} contains no images ({', '.join(SUFFIXES)})")
    return files


def json_lines(
    model: TrainedModel, paths: Sequence[Path], predictions: Predictions
) -> Iterator[str]:
    """Yield a JSON list with a class and the probabilities for each file.

    Dense models give the label of each pixel instead.
    """
    rows = []
    results = zip(paths, predictions.probabilities, predictions.labels, strict=True)
    for path, probabilities, label in results:
        row: dict[str, object] = {"image": str(path), "client": _owner_id(model)}
        if label.ndim:
            row["labels"] = label.tolist()
        else:
            row["class"] = predictions.class_names[int(label)]
            row["probabilities"] = dict(
                zip(predictions.class_names, probabilities.tolist(), strict=True)
            )
        rows.append(row)
    yield json.dumps(rows, indent=1, ensure_ascii=False)


def text_lines(
    model: TrainedModel, paths: Sequence[Path], predictions: Predictions
) -> Iterator[str]:
    """Yield a line about the model, and a line per image with its likeliest classes.

    Dense models give the classes with the largest shares of pixels instead.
    """
    owner, client = model.owner, _owner_id(model)
    name = "the model that all clients share" if client is None else f"the model of client {client}"
    selection = f", {owner.chosen}" if owner.chosen else ""
    yield f"{name}, round {owner.round}{selection}; {model.preprocessing}"
    width = max(len(str(path)) for path in paths)
    results = zip(paths, predictions.probabilities, predictions.labels, strict=True)
    for path, shares, label in results:
        by_class = label.flatten().bincount(minlength=len(predictions.class_names)) / label.numel()
        values, classes = (by_class if label.ndim else shares).topk(min(SHOWN, len(by_class)))
        named = [
            f"{printable(predictions.class_names[c])} {value:.3f}"
            for value, c in zip(values.tolist(), classes.tolist(), strict=True)
        ]
        yield f"{path!s:<{width}}  {'  '.join(named)}"


def _owner_id(model: TrainedModel) -> int | None:
    """Return the client that the model belongs to; None if all clients share it."""
    return None if model.owner.is_global else model.client
