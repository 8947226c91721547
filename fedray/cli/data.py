"""`fedray data FOLDER [key=value ...]`: check your own images before a run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from fedray.base.errors import UserError, printable
from fedray.command import PATH, Command, keys, plugins_of_runs
from fedray.config import Experiment, parse_assignments, read_experiment
from fedray.data import FederatedData, ImageSet, ReadOptions
from fedray.data.imageset import TEST, VALIDATION
from fedray.data.inspect import image_sizes, source_for
from fedray.data.plot import plot_partition, plot_samples
from fedray.data.sources import Source
from fedray.language.descriptions import blank, load_descriptions, shipped_names
from fedray.runtime.assembly import image_keys, load_data, read_images
from fedray.runtime.resolve import from_tree
from fedray.storage.files import write_json

MOST_CLASSES = 40
"""Maximal number of classes that are printed."""
PARTITION = {"data.partition": "{name: dirichlet, alpha: 0.5}", "data.clients": "5"}
"""Default partition, without `--experiment`."""


@click.command(
    cls=Command,
    epilog="Layouts: <class>/<image>; train/<class>/<image> and test/<class>/<image>; "
    "<domain>/<class>/<image>; *.parquet of the Hugging Face convention.",
)
@click.argument("folder", type=PATH)
@keys
@click.option(
    "--experiment",
    metavar="NAME",
    help="Experiment whose partition is used; default: 5 clients, Dirichlet with alpha 0.5.",
)
@click.option("--out", type=PATH, help="Folder for the figures samples.png and partition.png.")
@click.option(
    "--descriptions",
    type=PATH,
    metavar="FILE",
    help="Write a JSON template for class descriptions, to be used as text.descriptions.",
)
@plugins_of_runs
def command(
    folder: Path,
    keys: Sequence[str],
    experiment: str | None,
    out: Path | None,
    descriptions: Path | None,
) -> None:
    """Check your own images before a run: classes, counts, sizes, splits, problems.

    FOLDER contains images or parquet files. Keys set the partition, for example
    data.clients=10. Exit code 2: a run would refuse the images.
    """
    if descriptions is not None and descriptions.exists():
        raise UserError(f"{descriptions} is there already; pass another file name")
    assignments, data = _read(folder.expanduser(), experiment, keys)
    sizes, classes = data.histogram().sum(1), (data.histogram() > 0).sum(1)
    print(
        f"{data.clients} clients with {sizes.min():,} to {sizes.max():,} images of "
        f"{classes.min()} to {classes.max()} classes"
        + (f", and {len(data.public.index):,} public images" if data.public is not None else "")
    )
    if out is not None:
        _draw(out, data)
    if descriptions is not None:
        descriptions.parent.mkdir(parents=True, exist_ok=True)
        write_json(descriptions, blank(data.class_names))
        print(
            f"wrote {descriptions}: fill in three sentences per class, each on another aspect of "
            f"its appearance, and pass text.descriptions={descriptions}; without descriptions, use "
            "text.style=handcrafted"
        )
    name = experiment or "fedavg_digits model.group=cnn4"
    print(printable(f"run it: fedray run {name} {shlex.join(assignments)}"))


def _read(root: Path, name: str | None, words: Sequence[str]) -> tuple[list[str], FederatedData]:
    """Read images as a run does, print what they are, and partition them.

    Returns:
        The assignments with which a run uses these images, and its clients' images.
    """
    found = {"data.source": source_for(root), "data.root": str(root.absolute())}
    found |= {} if name else PARTITION
    base = read_experiment(name) if name else {"algorithm": "local", "model": {"group": "cnn4"}}

    def resolved() -> tuple[list[str], Experiment]:
        """Return the assignments of the user and those found, and the experiment of both."""
        given = tuple(word.partition("=")[0] for word in words)
        found_words = [
            f"{key}={value}"
            for key, value in found.items()
            if not any(word == key or word.startswith(f"{key}.") for word in given)
        ]
        assignments = [*found_words, *words]
        return assignments, from_tree(base, parse_assignments(assignments))

    keys = resolved()[1].data
    source: Source = keys.source.build()
    sizes = image_sizes(source, root, ReadOptions(classes=keys.classes, split=keys.split))
    if len(sizes) > 1:
        found["data.image_size"] = str(max(4, min(map(min, sizes))))
    assignments, experiment = resolved()
    images = read_images(image_keys(experiment))
    print(printable(images.about))
    for line in _table(images, sizes, found.get("data.image_size")):
        print(printable(line))
    return assignments, load_data(experiment)


def _table(images: ImageSet, sizes: Counter[tuple[int, int]], size: str | None) -> Iterator[str]:
    """Yield lines with the images of each class, their sizes, and fitting descriptions."""
    held = [images.origin == TEST, (images.origin != TEST) & (images.origin != VALIDATION)]
    test, train = (
        np.bincount(images.labels[part], minlength=len(images.class_names)) for part in held
    )
    if test.any():
        yield f"  {'':<24} {'train':>7} {'test':>7}"
    for name, trained, tested in list(zip(images.class_names, train, test, strict=True))[
        :MOST_CLASSES
    ]:
        yield f"  {name:<24} {trained:>7,}" + (f" {tested:>7,}" if test.any() else "")
    if len(train) > MOST_CLASSES:
        yield f"  and {len(train) - MOST_CLASSES} more classes"
    sides = sorted({side for size in sizes for side in size})
    yield f"sizes: {len(sizes)}, with sides of {sides[0]} to {sides[-1]} pixels"
    if size is not None:
        yield (
            f"images differ in size: set data.image_size, for example data.image_size={size} "
            "(scales the shorter side, then crops the centre)"
        )
    for name in shipped_names():
        try:
            load_descriptions(name, images.class_names)
        except UserError:
            continue
        yield f"text.descriptions={name} describes all of these classes"


def _draw(out: Path, data: FederatedData) -> None:
    """Draw eight images of each class, and the partition."""
    out.mkdir(parents=True, exist_ok=True)
    images = data.images
    rows = {c: np.flatnonzero(images.labels == c)[:8] for c in range(len(images.class_names))}
    plot_samples(
        {c: [images.images[i].transpose(1, 2, 0) for i in some] for c, some in rows.items()},
        images.class_names,
        out / "samples.png",
    )
    plot_partition({"": data.histogram()}, data.class_names, out / "partition.png")
    for name in ("samples.png", "partition.png"):
        print(f"wrote {out / name}")
