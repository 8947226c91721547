"""`fedray predict RUN IMAGE...`: classify images with the models of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedray.base.activity import is_terminal, say_next
from fedray.base.errors import UserError, printable
from fedray.command import PATH, Command, plugins_of_runs

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
    type=click.IntRange(0),
    help="Client whose model predicts; not needed if all clients share one model.",
)
@plugins_of_runs
def command(run: Path, images: Sequence[Path], client: int | None) -> None:
    """Classify images with the saved models of a run.

    RUN is the folder of the run; IMAGES are files or folders.
    """
    paths = [path for place in images for path in _files(place)]
    if is_terminal():
        say_next("importing PyTorch, reading the models")
    from fedray.trained import open_models

    model = open_models(run.resolve()).model(client)
    for line in lines_of_images(model, paths, model.predict(paths)):
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


def lines_of_images(
    model: TrainedModel, paths: Sequence[Path], predictions: Predictions
) -> Iterator[str]:
    """Yield a line about the model, and a line per image with its likeliest classes.

    Dense models give the classes with the largest shares of pixels instead.
    """
    owner = model.owner
    whose = "that all clients share" if owner.is_global else f"of client {model.client}"
    selection = f", {owner.chosen}" if owner.chosen else ""
    yield f"the model {whose}, round {owner.round}{selection}; {model.preprocessing}"
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
