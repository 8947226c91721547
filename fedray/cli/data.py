"""`fedray data FOLDER [key=value ...]`: check your own images before a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fedray.base.errors import UserError, printable, shown
from fedray.command import PATH, USER_ERROR, Command, keys, plugins_of_runs
from fedray.config import Experiment, parse_assignments
from fedray.data import FederatedData, ReadOptions
from fedray.data.decoding import AS_STORED
from fedray.data.inspect import FOLDER_SOURCES, Look, inspect_folder, source_for
from fedray.data.plot import plot_partition, plot_samples
from fedray.language.descriptions import blank, load_descriptions, shipped_names
from fedray.runtime.assembly import partition_images
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
    look = inspect_folder(root, *_reading(experiment, source_for(root), root, keys))
    for line in describe_lines(look, root):
        _say(line)
    assignments = run_keys(look, root, keys, named=experiment is not None)
    data = None if look.stops else _partition(look, experiment, assignments)
    if data is not None:
        print(_clients(data))
    _draw(out, look, data)
    _describe(descriptions, look)
    for problem in look.stops:
        _say(f"a run would be refused: {problem}")
    if look.stops:
        return USER_ERROR
    name = experiment or "fedavg_digits model.group=cnn4"
    _say(f"run it: fedray run {name} {shlex.join(assignments)}")
    return 0


def _say(line: str) -> None:
    """Print a line that may hold names of strangers' files."""
    print(printable(line))


def check_data_keys(words: Sequence[str]) -> None:
    """Raise `UserError` for the first key that does not affect the partition."""
    for word in words:
        if "=" not in word or not word.startswith(KEYS):
            raise UserError(
                f"{shown(word)} is no key of the data; pass for example data.clients=10 or seed=1"
            )


def describe_lines(look: Look, root: Path) -> Iterator[str]:
    """Yield lines that describe the images; problems that stop a run are printed separately."""
    counts, sizes = look.counts, look.sizes
    total = len(look.rows)
    domains = sorted({row.domain for row in look.rows if row.domain})
    among = f", {len(domains)} domains ({', '.join(domains[:6])})" if domains else ""
    official = int(counts[:, 1].sum())
    split = f", {official:,} of them the official test" if official else ", no official test"
    split += f", {look.validation:,} official validation" if look.validation else ""
    yield (
        f"{root}: {look.source}, {total:,} images of {len(look.class_names)} classes{among}{split}"
    )
    if official:
        yield f"  {'':<24} {'train':>7} {'test':>7}"
    for name, (train, test) in list(zip(look.class_names, counts, strict=True))[:MOST_CLASSES]:
        yield f"  {name:<24} {train:>7,}" + (f" {test:>7,}" if official else "")
    if len(look.class_names) > MOST_CLASSES:
        yield f"  and {len(look.class_names) - MOST_CLASSES} more classes"
    if sizes:
        sides = [side for size in sizes for side in size]
        several = f"{len(sizes)}, with sides of {min(sides)} to {max(sides)} pixels"
        of = several if len(sizes) > 1 else "all {}x{}".format(*next(iter(sizes)))
        yield f"sizes: {of}; {look.grey:,} grey, {total - look.grey:,} colour"
    if look.image_size is not None:
        yield (
            f"images differ in size: set data.image_size, for example "
            f"data.image_size={look.image_size} (scales the shorter side, then crops the centre)"
        )
    for note in look.notes:
        yield f"note: {note}"
    for name in shipped_names():
        try:
            load_descriptions(name, look.class_names)
        except UserError:
            continue
        yield f"note: text.descriptions={name} describes all of these classes"


def run_keys(look: Look, root: Path, words: Sequence[str], *, named: bool = False) -> list[str]:
    """Return the assignments with which `fedray run` uses these images.

    Args:
        look: facts about the images.
        root: the folder of the images.
        words: assignments of the user, which take precedence.
        named: whether a given experiment defines the partition.
    """
    given_keys = {word.partition("=")[0] for word in words}
    keys = {"data.source": look.source, "data.root": str(root.absolute())}
    if look.image_size is not None:
        keys["data.image_size"] = str(look.image_size)
    if not named:
        keys |= PARTITION
    if any(key.startswith("data.partition.") for key in given_keys):
        keys.pop("data.partition", None)
    return [*(f"{key}={value}" for key, value in keys.items() if key not in given_keys), *words]


def _partition(look: Look, name: str | None, keys: Sequence[str]) -> FederatedData | None:
    """Partition the images; if that fails, add the reason to `look.stops` and return None."""
    try:
        return partition_images(_resolved(name, keys), look.image_set())
    except UserError as error:
        look.stops.append(str(error))
        return None


def _resolved(name: str | None, keys: Sequence[str]) -> Experiment:
    """Return the experiment whose partition is used."""
    if name is not None:
        return resolve(name, keys)
    base = {"algorithm": "local", "model": {"group": "cnn4"}}
    return from_tree(base, parse_assignments(keys))


def _reading(
    name: str | None, source: str, root: Path, keys: Sequence[str]
) -> tuple[str, ReadOptions]:
    """Return the source, the classes and the split of a run; the partition reports wrong keys."""
    found = [f"data.source={source}", f"data.root={root.absolute()}"]
    try:
        data = _resolved(name, [*found, *keys]).data
    except UserError:
        return source, AS_STORED
    chosen = data.source.name if data.source.name in FOLDER_SOURCES else source
    return chosen, ReadOptions(classes=data.classes, split=data.split)


def _clients(data: FederatedData) -> str:
    sizes = data.histogram().sum(1)
    classes = (data.histogram() > 0).sum(1)
    return (
        f"{data.clients} clients with {sizes.min():,} to {sizes.max():,} images of "
        f"{classes.min()} to {classes.max()} classes"
        + (f", and {len(data.public.index):,} public images" if data.public is not None else "")
    )


def _draw(out: Path | None, look: Look, data: FederatedData | None) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    plot_samples(look.samples, look.class_names, out / "samples.png")
    print(f"wrote {out / 'samples.png'}")
    if data is not None:
        plot_partition({"": data.histogram()}, data.class_names, out / "partition.png")
        print(f"wrote {out / 'partition.png'}")


def _describe(path: Path | None, look: Look) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, blank(look.class_names))
    print(
        f"wrote {path}: fill in three sentences per class, each on another aspect of its "
        f"appearance, and pass text.descriptions={path}; without descriptions, use "
        "text.style=handcrafted"
    )
