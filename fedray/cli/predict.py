"""Use a run's models on images: `fedray predict RUN IMAGE...`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedray.command import PATH, Command, json_flag, trust
from fedray.config.experiment import MOST_CLIENTS
from fedray.errors import UserError

if TYPE_CHECKING:
    from fedray.trained import Predictions, TrainedModel

SHOWN = 3
"""How many of the likeliest classes are shown."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")


@click.command(cls=Command)
@click.argument("run", type=PATH)
@click.argument("images", nargs=-1, required=True, type=PATH)
@click.option(
    "--client",
    type=click.IntRange(0, MOST_CLIENTS - 1),
    help="Whose model; not needed if all clients share one.",
)
@click.option("--last", is_flag=True, help="The model of the last round, not of the best.")
@json_flag
@trust
def command(
    run: Path, images: Sequence[Path], client: int | None, last: bool, as_json: bool
) -> None:
    """Classify images with the models that a run has kept.

    RUN is its folder, IMAGES are files or folders.
    """
    paths = [path for given in images for path in _files(given)]
    from fedray.trained import open_models

    model = open_models(run.resolve(), "last" if last else None).model(client)
    lines = json_lines if as_json else text_lines
    for line in lines(model, paths, model.predict(paths)):
        print(line)


def _files(given: Path) -> list[Path]:
    """Return the file, or the images of a folder, sorted.

    Raises:
        UserError: when there is none.
    """
    if not given.is_dir():
        return [given]
    found = sorted(path for path in given.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(f"{given} holds no images ({', '.join(SUFFIXES)})")
    return found


def json_lines(model: TrainedModel, paths: Sequence[Path], found: Predictions) -> Iterator[str]:
    """Yield a list of JSON: file, class, and, of whole images, the probability of each class."""
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


def text_lines(model: TrainedModel, paths: Sequence[Path], found: Predictions) -> Iterator[str]:
    """Yield the model, and a line per image: the likeliest classes, or those of pixels."""
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
    """Return the client whose model it is; None of the one that all share."""
    return None if model.owner.is_global else model.client
