"""Check your own images before a run: `fedray data FOLDER [key=value ...]`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fedray.command import PATH, USER_ERROR, Command, keys
from fedray.config import parse_assignments
from fedray.data import FederatedData
from fedray.data.inspect import Look, inspect_folder, source_for
from fedray.data.plot import plot_partition, plot_samples
from fedray.errors import UserError, shown
from fedray.files import make_folder, write_json
from fedray.language.descriptions import blank, load_descriptions, shipped_names
from fedray.runtime.assembly import partition_images
from fedray.runtime.resolve import from_tree, resolve

MOST_CLASSES = 40
"""Classes that are listed one by one."""
KEYS = ("data.", "seed", "report.")
"""What the partition depends on."""
PARTITION = {"data.partition": "{name: dirichlet, alpha: 0.5}", "data.clients": "5"}
"""Of few images, unless an experiment or words say otherwise."""


@click.command(
    cls=Command,
    epilog="Layouts: <class>/<image>; train/<class>/<image> and test/<class>/<image>; "
    "<domain>/<class>/<image>; *.parquet of the Hugging Face convention.",
)
@click.argument("folder", type=PATH)
@keys
@click.option("--experiment", help="Partition as this one does; default: 5 clients, Dir(0.5).")
@click.option("--out", type=PATH, help="Draw samples.png and partition.png there.")
@click.option(
    "--descriptions",
    type=PATH,
    metavar="FILE",
    help="Write a file of class descriptions to fill in, for text.descriptions.",
)
def command(
    folder: Path,
    keys: Sequence[str],
    experiment: str | None,
    out: Path | None,
    descriptions: Path | None,
) -> int:
    """Look at images as a run would: classes, sizes, counts, splits, problems.

    FOLDER holds images or parquet files; keys are those of the partition, for example
    data.clients=10. Exits with 2 if a run would be refused.
    """
    root = folder.expanduser()
    check_words(keys)
    if descriptions is not None and descriptions.exists():
        raise UserError(f"{descriptions} is there already; give another name")
    look = inspect_folder(root, source_for(root))
    for line in said(look, root):
        print(line)
    found = run_keys(look, root, keys, named=experiment is not None)
    dealt = None if look.stops else _partition(look, experiment, found)
    if dealt is not None:
        print(_clients(dealt))
    _draw(out, look, dealt)
    _describe(descriptions, look)
    for what in look.stops:
        print(f"a run would be refused: {what}")
    if look.stops:
        return USER_ERROR
    name = experiment or "fedavg_digits model.group=cnn4"
    print(f"run it: fedray run {name} {shlex.join(found)}")
    return 0


def check_words(words: Sequence[str]) -> None:
    """Refuse keys that no partition depends on.

    Raises:
        UserError: naming the first.
    """
    for word in words:
        if "=" not in word or not word.startswith(KEYS):
            raise UserError(f"{shown(word)} is no key of the data, as data.clients=10 or seed=1")


def said(look: Look, root: Path) -> Iterator[str]:
    """Yield what was found, line by line; what a run would be refused for is not among it."""
    counts, sizes = look.counts, look.sizes
    total = len(look.rows)
    domains = sorted({row.domain for row in look.rows if row.domain})
    among = f", {len(domains)} domains ({', '.join(domains[:6])})" if domains else ""
    official = int(counts[:, 1].sum())
    split = f", {official:,} of them the official test" if official else ", no official test"
    yield (
        f"{root}: {look.source}, {total:,} images of {len(look.class_names)} classes{among}{split}"
    )
    for name, (train, test) in list(zip(look.class_names, counts, strict=True))[:MOST_CLASSES]:
        yield f"  {name:<24} {train:>7,}" + (f" {test:>7,}" if official else "")
    if len(look.class_names) > MOST_CLASSES:
        yield f"  and {len(look.class_names) - MOST_CLASSES} classes more"
    if sizes:
        sides = [side for size in sizes for side in size]
        several = f"{len(sizes)}, with sides of {min(sides)} to {max(sides)} pixels"
        of = several if len(sizes) > 1 else "all {}x{}".format(*next(iter(sizes)))
        yield f"sizes: {of}; {look.grey:,} grey, {total - look.grey:,} colour"
    if look.image_size is not None:
        yield (
            f"images differ in size: a run needs data.image_size, for example "
            f"data.image_size={look.image_size} (the shorter side is scaled to it, the middle cut "
            "out)"
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
    """Return the words that run an experiment on these images.

    Args:
        look: what is known of them.
        root: where they are.
        words: what was given, which counts.
        named: whether an experiment says how they are partitioned.
    """
    given = {word.partition("=")[0] for word in words}
    keys = {"data.source": look.source, "data.root": str(root.absolute())}
    if look.image_size is not None:
        keys["data.image_size"] = str(look.image_size)
    if not named:
        keys |= PARTITION
    if any(key.startswith("data.partition.") for key in given):
        keys.pop("data.partition", None)
    return [*(f"{key}={value}" for key, value in keys.items() if key not in given), *words]


def _partition(look: Look, name: str | None, keys: Sequence[str]) -> FederatedData | None:
    """Return each client's images; None, after a message, if the partition is impossible."""
    try:
        if name is None:
            base = {"algorithm": "local", "model": {"group": "cnn4"}}
            experiment = from_tree(base, parse_assignments(keys))
        else:
            experiment = resolve(name, keys)
        return partition_images(experiment, look.image_set())
    except UserError as error:
        look.stops.append(str(error))
        return None


def _clients(dealt: FederatedData) -> str:
    sizes = dealt.histogram().sum(1)
    classes = (dealt.histogram() > 0).sum(1)
    return (
        f"{dealt.clients} clients with {sizes.min():,} to {sizes.max():,} images of "
        f"{classes.min()} to {classes.max()} classes"
    )


def _draw(out: Path | None, look: Look, dealt: FederatedData | None) -> None:
    if out is None:
        return
    make_folder(out)
    plot_samples(look.samples, look.class_names, out / "samples.png")
    print(f"wrote {out / 'samples.png'}")
    if dealt is not None:
        plot_partition(dealt.histogram(), dealt.class_names, out / "partition.png")
        print(f"wrote {out / 'partition.png'}")


def _describe(path: Path | None, look: Look) -> None:
    if path is None:
        return
    make_folder(path.parent)
    write_json(path, blank(look.class_names))
    print(
        f"wrote {path}: fill in three sentences a class, each on another aspect of the look, and "
        f"pass text.descriptions={path}; without any, text.style=handcrafted"
    )
