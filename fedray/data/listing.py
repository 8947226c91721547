"""The images that a source lists, not decoded yet: choose classes, name them, check domains."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.base.errors import UserError, nearest, shown
from fedray.data.decoding import Encoded
from fedray.data.folders import composed
from fedray.data.imageset import TRAIN, Domains, ImageSet
from fedray.data.known import recognise

_NAMED = 3
"""Number of names that a sentence gives as examples."""


class Row(NamedTuple):
    """One image that is not decoded yet.

    Attributes:
        image: its file, an encoded file's bytes, or pixels [H, W] or [H, W, 3].
        label: its class, a position in the class names. For an image with a mask, the dominant
            class of the mask is used instead.
        origin: TRAIN, TEST or VALIDATION, its official split.
        domain: the name of its domain; None without domains.
        mask: each pixel's class, for dense prediction (see `decode_masks`).
        where: its name in messages ("train.parquet, row 7"); not needed for a file.
        path: its path in a split file; not needed for a file below the root.
    """

    image: Encoded
    label: int = 0
    origin: int = TRAIN
    domain: str | None = None
    mask: Encoded | None = None
    where: str = ""
    path: str | None = None

    def name(self, root: Path | None = None) -> str:
        """Return the image's name in messages; for a file, its path, relative to `root` if any."""
        if not isinstance(self.image, Path):
            return self.where
        return str(self.image) if root is None else self.image.relative_to(root).as_posix()


class Listing(NamedTuple):
    """The images of a source, not decoded yet.

    Attributes:
        class_names: C names.
        rows: the images in the order of a run.
        domains: the domain names in their order; empty means the names in the rows, sorted.
        lists: files that say what the images are.
    """

    class_names: tuple[str, ...]
    rows: Sequence[Row]
    domains: tuple[str, ...] = ()
    lists: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        """Return the lists, and the files of the rows' images and masks."""
        encoded = (item for row in self.rows for item in (row.image, row.mask))
        return [*self.lists, *(item for item in encoded if isinstance(item, Path))]


def understood(listing: Listing, classes: Sequence[str] | None, where: str) -> Listing:
    """Return the rows of the requested classes, with checked names in the papers' words.

    Args:
        listing: all rows.
        classes: the requested classes, in the order of their labels; None for all.
        where: the source and its folder, for messages.

    Raises:
        UserError: if a class name is not allowed, a requested class does not exist, a label is no
            class, or a domain of a known set has none of the set's classes.
    """
    names = tuple(map(composed, listing.class_names))
    domains = tuple(dict.fromkeys(map(composed, listing.domains)))
    check_names(names, where)
    known = recognise(names, domains)
    words = {name: name for name in names} if known is None else known.words
    chosen = tuple(dict.fromkeys(words.values()))
    if classes is not None:
        wanted = tuple(words.get(composed(name), composed(name)) for name in classes)
        for missing in (name for name in wanted if name not in chosen):
            raise UserError(
                f"{where}: data.classes names '{missing}', which it does not have among its "
                f"{len(chosen)} classes; correct the spelling.{nearest(missing, sorted(chosen))}"
            )
        chosen = wanted
    labels = {i: chosen.index(words[n]) for i, n in enumerate(names) if words[n] in chosen}
    rows, held = list[Row](), defaultdict[str, set[str]](set)
    for row in listing.rows:
        if classes is not None and row.mask is not None:
            raise UserError(f"{where}: masks have several classes each; remove data.classes")
        label, domain = _label(row, len(names)), row.domain and composed(row.domain)
        held[domain or ""].add(names[label])
        if label in labels:
            rows.append(row._replace(label=labels[label], domain=domain))
    for domain, here in sorted(held.items()) if known is not None and domains else ():
        if known and not {known.words[name] for name in here} & {*known.data_set.classes}:
            raise UserError(
                f"{where}: the domain {domain} of {known.data_set.title} has none of the classes "
                f"{some(known.data_set.classes)}; it has {some(sorted(here))}: replace or remove it"
            )
    _check_spellings([{words[name] for name in here} for here in held.values()], where)
    return Listing(chosen, rows, domains, listing.lists)


def _check_spellings(held: Sequence[Collection[str]], where: str) -> None:
    """Refuse a class that domains spell differently, because it would count as two classes.

    Args:
        held: the classes of each domain.
        where: the source and its folder, for messages.
    """
    spellings = defaultdict[str, set[str]](set)
    for name in chain(*held):
        spellings[name.casefold()].add(name)
    for same in spellings.values():
        if len(same) > 1 and not any(len(same.intersection(here)) > 1 for here in held):
            raise UserError(f"{where}: {some(sorted(same))} differ in capitals alone; rename them")


def _label(row: Row, classes: int) -> int:
    """Return a row's label; raise a UserError unless it is the number of a class."""
    try:
        label = -1 if isinstance(row.label, bool) else operator.index(row.label)
    except TypeError:
        label = -1
    if not 0 <= label < classes:
        raise UserError(
            f"{row.name()} has the label {shown(row.label)}, expected a whole number from 0 to "
            f"{classes - 1}, the position of its class among the class names"
        )
    return label


def domains_of(rows: Sequence[Row], names: Sequence[str] = ()) -> Domains | None:
    """Return the domains of rows; None if no row has one.

    Args:
        rows: n rows.
        names: the domain names in their order, of which some may have no row; empty means the
            names in the rows, sorted.

    Raises:
        UserError: if only some rows have a domain, or if there are too many domains.
    """
    present = {row.domain for row in rows if row.domain}
    ordered = [name for name in names if name in present] or sorted(present)
    if not ordered:
        return None
    for row in (row for row in rows if not row.domain):
        raise UserError(
            f"{row.name()} has no domain, but others have one ({ordered[0]}, ...); give every "
            "image a domain, or none"
        )
    position: dict[str | None, int] = {name: i for i, name in enumerate(ordered)}
    return Domains(tuple(ordered), np.array([position[row.domain] for row in rows], np.int16))


def check_trained(images: ImageSet, where: str) -> None:
    """Refuse classes that have images, but none to train on; their folders are often no classes."""
    trained = set(images.labels[images.origin == TRAIN].tolist())
    left = [images.class_names[c] for c in np.unique(images.labels).tolist() if c not in trained]
    if left:
        raise UserError(
            f"{where}: {some(left)}: only test images, no image to train on; are these classes?"
        )


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse class names that cannot distinguish classes in texts and files.

    Raises:
        UserError: for the first name that is empty, duplicate, or not valid Unicode.
    """
    for label, name in enumerate(names):
        problem = ""
        if not name.strip():
            problem = "is empty"
        elif names.index(name) != label:
            problem = f"('{name}') is that of class {names.index(name)}, too"
        elif any("\ud800" <= character <= "\udfff" for character in name):
            problem = f"({name!r}) is not UTF-8"
        if problem:
            raise UserError(f"{where}: the name of class {label} {problem}; rename it")


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
