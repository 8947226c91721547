"""`fedray data FOLDER [key=value ...]`: check your own images before a run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from fedray.base.errors import UserError, printable, shown
from fedray.command import PATH, Command, keys, plugins_of_runs
from fedray.config import Experiment, parse_assignments
from fedray.data import FederatedData, ImageSet, ReadOptions
from fedray.data.imageset import TEST, VALIDATION
from fedray.data.inspect import image_sizes, source_for
from fedray.data.plot import plot_partition, plot_samples
from fedray.data.sources import Source
from fedray.language.descriptions import blank, load_descriptions, shipped_names
from fedray.runtime.assembly import image_keys, load_data, read_images
from fedray.runtime.resolve import from_tree, resolve
from fedray.storage.files import write_json

MOST_CLASSES = 40
"""Maximal number of classes that are printed."""
KEYS = ("data.", "seed", "report.")
"""Prefixes of the keys that a partition depends on."""
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
) -> int:
    """Check your own images before a run: classes, counts, sizes, splits, problems.

    FOLDER contains images or parquet files. Keys set the partition, for example
    data.clients=10. Exit code 2: a run would refuse the images.
    """
    root = folder.expanduser()
    check_data_keys(keys)
    if descriptions is not None and descriptions.exists():
        raise UserError(f"{descriptions} is there already; pass another file name")
    try:
        assignments, data = _read(root, experiment, keys)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"{error.filename} cannot be read: {reason}; correct or remove it"
        ) from None
    print(_clients(data))
    if out is not None:
        _draw(out, data)
    if descriptions is not None:
        _describe(descriptions, data.class_names)
    name = experiment or "fedavg_digits model.group=cnn4"
    print(printable(f"run it: fedray run {name} {shlex.join(assignments)}"))
    return 0


def _read(
    root: Path, experiment: str | None, words: Sequence[str]
) -> tuple[list[str], FederatedData]:
    """Read images as a run does, print what they are, and partition them.

    Returns:
        The assignments with which a run uses these images, and its clients' images.
    """
    given = {"data.source": source_for(root), "data.root": str(root.absolute())}
    given |= {} if experiment else PARTITION
    found = _resolved(experiment, _assignments(given, words)).data
    source: Source = found.source.build()
    options = ReadOptions(classes=found.classes, split=found.split)
    sizes = image_sizes(source, root, options)
    if len(sizes) > 1:
        given["data.image_size"] = str(max(4, min(map(min, sizes))))
    assignments = _assignments(given, words)
    resolved = _resolved(experiment, assignments)
    images = read_images(image_keys(resolved))
    print(printable(images.about))
    for line in _table(images, sizes, given):
        print(printable(line))
    return assignments, load_data(resolved)


def check_data_keys(words: Sequence[str]) -> None:
    """Raise `UserError` for the first key that does not affect the partition."""
    for word in words:
        if "=" not in word or not word.startswith(KEYS):
            raise UserError(
                f"{shown(word)} is no key of the data; pass for example data.clients=10 or seed=1"
            )


def _table(
    images: ImageSet, sizes: Counter[tuple[int, int]], keys: dict[str, str]
) -> Iterator[str]:
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
    if size := keys.get("data.image_size"):
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


def _assignments(given: dict[str, str], words: Sequence[str]) -> list[str]:
    """Return the words of the user, and what was found for keys that they do not set."""
    set_keys = {word.partition("=")[0] for word in words}
    left = {
        key: value
        for key, value in given.items()
        if not any(word == key or word.startswith(f"{key}.") for word in set_keys)
    }
    return [*(f"{key}={value}" for key, value in left.items()), *words]


def _resolved(name: str | None, keys: Sequence[str]) -> Experiment:
    """Return the experiment whose partition is used."""
    if name is not None:
        return resolve(name, keys)
    base = {"algorithm": "local", "model": {"group": "cnn4"}}
    return from_tree(base, parse_assignments(keys))


def _clients(data: FederatedData) -> str:
    sizes = data.histogram().sum(1)
    classes = (data.histogram() > 0).sum(1)
    return (
        f"{data.clients} clients with {sizes.min():,} to {sizes.max():,} images of "
        f"{classes.min()} to {classes.max()} classes"
        + (f", and {len(data.public.index):,} public images" if data.public is not None else "")
    )


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


def _describe(path: Path, class_names: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, blank(class_names))
    print(
        f"wrote {path}: fill in three sentences per class, each on another aspect of its "
        f"appearance, and pass text.descriptions={path}; without descriptions, use "
        "text.style=handcrafted"
    )
