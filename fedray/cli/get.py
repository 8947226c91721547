"""`fedray get NAME ...`: fetch public data sets and weights, and check them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from filelock import FileLock, Timeout

from fedray.base.activity import end_waiting
from fedray.base.errors import UserError, nearest
from fedray.base.units import size_of
from fedray.command import Command
from fedray.data.downloads import NotTheFile, Origin, OriginFile, fetch, fetch_hub, unpack
from fedray.data.known import KnownSet, known_sets
from fedray.data.weights import KnownWeights, hub_cache, known_weights


@click.command(
    cls=Command,
    epilog="A set lands in its folder below $FEDRAY_DATA, where the shipped experiments look; "
    "weights land in the hub's cache (HF_HOME). A stopped download goes on where it was.",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def command(names: Sequence[str]) -> None:
    """Fetch public data sets and weights of the papers; without NAME, list what is there.

    Files are downloaded, compared with their known checksums, unpacked and counted. What must be
    fetched with a browser is named, and unpacked and checked once it is there.
    """
    if not names:
        print("\n".join(_lines(list(rows()))))
        return
    for name in names:
        if name in known_weights():
            get_weights(known_weights()[name])
        elif name in known_sets():
            get_set(known_sets()[name], data_home())
        else:
            near = nearest(name, [*known_sets(), *known_weights()])
            raise UserError(f"fedray does not know where to get '{name}'.{near}")


def data_home() -> Path:
    """Return the folder $FEDRAY_DATA.

    Raises:
        UserError: if it is not set.
    """
    chosen = os.environ.get("FEDRAY_DATA")
    if not chosen:
        raise UserError("FEDRAY_DATA is not set; set it to the folder that holds your data sets")
    return Path(chosen).expanduser().resolve()


# --- weights --------------------------------------------------------------------------------------


def get_weights(known: KnownWeights) -> None:
    """Fetch weights into the hub's cache.

    Raises:
        UserError: if they cannot be fetched.
    """
    where = f"the package {known.package}" if known.package else str(hub_cache())
    if known.is_here:
        print(f"{known.name}: {known.title} is in {where}")
    elif known.origin.hub is None:
        raise UserError(f"{known.title} comes with a package: {known.origin.by_hand}")
    else:
        _introduce(known.name, known.title, known.origin)
        fetch_hub(known.origin.hub, "model", known.files, None)
        print(f"{known.name}: {known.title} is in {where}, equal to the hub's checksums")


# --- sets -----------------------------------------------------------------------------------------


def get_set(known: KnownSet, home: Path) -> None:
    """Fetch a data set into its folder.

    Everything is prepared in FOLDER.part, which is renamed when it is complete and checked.

    Args:
        known: the set.
        home: the folder that holds the data sets.

    Raises:
        UserError: if it cannot be fetched, or what was fetched is not the set.
    """
    root, stage = home / known.folder, home / f"{known.folder}.part"
    if root.exists():
        print(f"{known.name}: {check_set(known, root)}")
        return
    content = stage / "content"
    content.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(stage / ".lock", timeout=0):
            _introduce(known.name, known.title, known.origin)
            _collect(known, stage, content)
            try:
                counted = check_set(known, content)
            except UserError as error:
                todo = known.origin.by_hand
                advice = f"{todo}, and put it into {content}" if todo else f"remove {stage}"
                raise UserError(f"{error}; {advice}, then run the same command again") from None
            content.rename(root)
            shutil.rmtree(stage)
    except Timeout:
        raise UserError(f"{stage} belongs to another fedray get that is still running") from None
    print(f"{known.name}: {counted.replace(str(content), str(root))}")


def _introduce(name: str, title: str, origin: Origin) -> None:
    licence = origin.licence or "not stated, see the page"
    print(f"{name}: {title}, {origin.page}; licence: {licence}", flush=True)


def _say(line: str) -> None:
    end_waiting()
    print(line, flush=True)


def _collect(known: KnownSet, stage: Path, content: Path) -> None:
    """Download and unpack all files of a set; name those that need a browser.

    An empty file NAME.done marks a file as unpacked.
    """
    if known.origin.hub is not None:
        fetch_hub(known.origin.hub, "dataset", ("*.parquet",), content)
        shutil.rmtree(content / ".cache", ignore_errors=True)
        return
    by_hand = []
    for file in known.origin.files:
        place, mark = stage / file.name, stage / f"{file.name}.done"
        if mark.exists():
            continue
        try:
            fetch(file, place, _say)
        except NotTheFile as error:
            by_hand.append(str(error))
            continue
        if file.checksum is None:
            print(f"{file.name}: no checksum is known, so only its content is checked")
        _settle(file, place, content / file.to)
        mark.touch()
    if by_hand:
        raise UserError(
            f"{'; '.join(by_hand)}: download it with a browser into {stage}, then run fedray get "
            f"{known.name} again"
        )


def _settle(file: OriginFile, place: Path, target: Path) -> None:
    """Unpack an archive and remove it, or move any other file to its place."""
    if not file.unpack:
        target.parent.mkdir(parents=True, exist_ok=True)
        place.replace(target)
        return
    print(f"{file.name}: unpacking {size_of(place.stat().st_size)}", flush=True)
    unpack(place, target, file.top)
    if file.inner:
        unpack(target / file.inner, target)
        (target / file.inner).unlink()
    place.unlink()


def check_set(known: KnownSet, root: Path) -> str:
    """Count the images of a set in a folder, as the source of the shipped experiments reads it.

    Returns:
        The sentence with the numbers.

    Raises:
        UserError: if the folder lacks images or classes, or the source cannot read it.
    """
    from fedray.config import component
    from fedray.data.decoding import AS_STORED
    from fedray.data.sources import Source

    source: Source = component("data source", known.source).build()
    listing = source.chosen(root, AS_STORED)
    images = sum(1 for _ in listing.rows)
    expected = known.images.train + known.images.validation + known.images.test
    classes = len(listing.class_names)
    if images < expected or classes < known.class_count:
        raise UserError(
            f"{root} has {images:,} images of {classes} classes, but {known.title} has "
            f"{expected:,} of {known.class_count}"
        )
    return f"{root} has {images:,} images of {classes} classes"


# --- the list -------------------------------------------------------------------------------------


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each known set and model: name, state, title, and its place or where it comes from.

    The state is "here", "begun" or "-".
    """
    home = Path(os.environ.get("FEDRAY_DATA", "/nowhere")).expanduser()
    for known in known_sets().values():
        root, begun = home / known.folder, home / f"{known.folder}.part"
        state = "here" if root.is_dir() else "begun" if begun.is_dir() else "-"
        yield _row(known, state, sum(file.bytes or 0 for file in known.origin.files), str(root))
    for weights in known_weights().values():
        place = f"package {weights.package}" if weights.package else str(hub_cache())
        yield _row(weights, "here" if weights.is_here else "-", weights.bytes or 0, place)


def _row(
    known: KnownSet | KnownWeights, state: str, size: int, place: str
) -> tuple[str, str, str, str]:
    title = f"{known.title} ({size_of(size)})" if size else known.title
    return known.name, state, title, place if state == "here" else known.origin.page


def _lines(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield one line per row, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
