"""The images that a source lists, not decoded yet, and which of them a run reads."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.base.errors import UserError, nearest, shown
from fedray.data import splits
from fedray.data.decoding import Encoded, ReadOptions
from fedray.data.folders import composed
from fedray.data.imageset import TEST, TRAIN, VALIDATION, Domains
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


def select_rows(listing: Listing, options: ReadOptions, root: Path, where: str) -> Listing:
    """Return the rows that a run reads, with their final labels, splits and domains.

    Names are composed, and those of a known set become the papers' words. Without test images, the
    validation images are the official test. Paths in a split file are relative to `root`.

    Raises:
        UserError: if there is no image, a class has only test images or a name that is not allowed,
            a requested class does not exist, a label is no class, a split file does not fit, or a
            domain of a known set has none of the set's classes.
    """
    names = tuple(map(composed, listing.class_names))
    domains = tuple(dict.fromkeys(map(composed, listing.domains)))
    check_names(names, where)
    known = recognise(names, domains)
    words = {name: name for name in names} if known is None else known.words
    chosen = _requested(options.classes, words, where)
    has_test = any(row.origin == TEST for row in listing.rows)
    has_masks = any(row.mask is not None for row in listing.rows)
    if has_masks and options.classes is not None:
        raise UserError(f"{where}: masks have several classes each; remove data.classes")
    rows, held = list[Row](), defaultdict[str, set[str]](set)
    for row in listing.rows:
        word = words[names[_label(row, len(names))]]
        domain = row.domain and composed(row.domain)
        held[domain or ""].add(word)
        if word in chosen:
            is_test = row.origin == VALIDATION and not has_test
            origin = TEST if is_test else row.origin
            rows.append(row._replace(label=chosen.index(word), origin=origin, domain=domain))
    if not rows:
        raise UserError(f"{where} holds no images")
    for domain, here in sorted(held.items()) if domains else ():
        if known is not None and not here & {*known.data_set.classes}:
            raise UserError(
                f"{where}: the domain {domain} of {known.data_set.title} has none of the classes "
                f"{some(known.data_set.classes)}; it has {some(sorted(here))}: replace or remove it"
            )
    _check_spellings(held, where)
    selected = Listing(chosen, rows, domains, listing.lists)
    if options.split is not None:
        return _split(selected, listing.rows, options.split, root)
    if not has_masks:
        _check_trained(selected, where)
    return selected


def _requested(
    classes: Sequence[str] | None, words: Mapping[str, str], where: str
) -> tuple[str, ...]:
    """Return the class names in the order of their labels."""
    present = tuple(dict.fromkeys(words.values()))
    if classes is None:
        return present
    chosen = tuple(words.get(composed(name), composed(name)) for name in classes)
    for missing in (name for name in chosen if name not in present):
        raise UserError(
            f"{where}: data.classes names '{missing}', which it does not have among its "
            f"{len(present)} classes; correct the spelling.{nearest(missing, sorted(present))}"
        )
    return chosen


def _split(listing: Listing, everything: Sequence[Row], split: str, root: Path) -> Listing:
    """Return a listing with the splits of a split file, which may list the unchosen rows, too."""

    def path(row: Row) -> str:
        found = row.name(root) if isinstance(row.image, Path) else row.path
        if found is None:
            raise UserError(f"data.split: {row.name(root)} has no path; remove data.split")
        return found

    files = splits.split_files(root, split)
    origins = splits.origins(files, [path(row) for row in listing.rows], map(path, everything))
    rows = [row._replace(origin=o) for row, o in zip(listing.rows, origins, strict=True)]
    return listing._replace(rows=rows, lists=(*listing.lists, *files))


def _check_spellings(held: Mapping[str, set[str]], where: str) -> None:
    """Refuse a class that domains spell differently, because it would count as two classes."""
    spellings = defaultdict[str, set[str]](set)
    for name in set[str]().union(*held.values()):
        spellings[name.casefold()].add(name)
    for same in spellings.values():
        if len(same) > 1 and not any(len(same & here) > 1 for here in held.values()):
            raise UserError(f"{where}: {some(sorted(same))} differ in capitals alone; rename them")


def _check_trained(listing: Listing, where: str) -> None:
    """Refuse classes that have images, but none to train on; their folders are often no classes."""
    trained = {row.label for row in listing.rows if row.origin == TRAIN}
    left = sorted({row.label for row in listing.rows} - trained)
    if left:
        raise UserError(
            f"{where}: {some([listing.class_names[c] for c in left])}: only test images, no image "
            "to train on; are these classes?"
        )


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


def domains_of(listing: Listing) -> Domains | None:
    """Return the domains of the rows; None if no row has one.

    Raises:
        UserError: if only some rows have a domain.
    """
    present = {row.domain for row in listing.rows if row.domain}
    ordered = [name for name in listing.domains if name in present] or sorted(present)
    if not ordered:
        return None
    for row in (row for row in listing.rows if not row.domain):
        raise UserError(
            f"{row.name()} has no domain, but others have one ({ordered[0]}, ...); give every "
            "image a domain, or none"
        )
    position: dict[str | None, int] = {name: i for i, name in enumerate(ordered)}
    ids = np.array([position[row.domain] for row in listing.rows], np.int16)
    return Domains(tuple(ordered), ids)


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse class names that cannot distinguish classes in texts and files.

    Raises:
        UserError: for the first name that is empty, duplicate, or not valid Unicode.
    """
    for label, name in enumerate(names):
        is_text = name.strip() and not any("\ud800" <= letter <= "\udfff" for letter in name)
        if not is_text or names.index(name) != label:
            raise UserError(
                f"{where}: the name of class {label}, {name!r}, is empty, not UTF-8, or that of "
                f"class {names.index(name)}; rename it"
            )


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
