"""The images that a source lists, not decoded yet: choose classes, name them, check domains."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedray.base.errors import UserError, nearest, shown
from fedray.data.decoding import Encoded
from fedray.data.folders import composed
from fedray.data.imageset import TRAIN, Domains, ImageSet
from fedray.data.known import Recognised, recognise, spelling

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
        rows: the images in the order of a run; a source may read them lazily, at each iteration.
        domains: the domain names in their order; empty means the names in the rows, sorted.
        lists: files that say what the images are.
    """

    class_names: tuple[str, ...]
    rows: Iterable[Row]
    domains: tuple[str, ...] = ()
    lists: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        """Return the lists, and the files of the rows' images and masks."""
        encoded = (item for row in self.rows for item in (row.image, row.mask))
        return [*self.lists, *(item for item in encoded if isinstance(item, Path))]


class Lazily(Iterable[Row]):
    """The rows that a function yields, which is called at each iteration."""

    def __init__(self, rows: Callable[[], Iterator[Row]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Row]:
        return self._rows()


def understood(listing: Listing, classes: Sequence[str] | None, where: str) -> Listing:
    """Return the rows of the requested classes, with checked names in the papers' words.

    Args:
        listing: all rows.
        classes: the requested classes, in the order of their labels; None for all.
        where: the source and its folder, for messages.

    Raises:
        UserError: if a class name is not allowed or a requested class does not exist; while the
            rows are iterated: if a label or a domain is wrong.
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
    every = listing.rows if classes is None else Lazily(partial(_without_masks, listing, where))
    rows = Lazily(partial(_checked, every, names, labels, known, where))
    return Listing(chosen, rows, domains, listing.lists)


def _without_masks(listing: Listing, where: str) -> Iterator[Row]:
    """Yield the rows, of which classes can be chosen, because none has a mask of several."""
    for row in listing.rows:
        if row.mask is not None:
            raise UserError(
                f"data.classes selects images by their class, but the masks of {where} have "
                "several classes each; remove data.classes"
            )
        yield row


def _checked(
    rows: Iterable[Row],
    names: Sequence[str],
    labels: Mapping[int, int],
    known: Recognised | None,
    where: str,
) -> Iterator[Row]:
    """Yield the rows that have one of the new labels, with it; then check all domains."""
    spelled = defaultdict[str, set[int]](set)
    for row in rows:
        label, domain = _label(row, len(names)), row.domain
        if domain is not None:
            domain = composed(domain)
            spelled[domain].add(label)
        if label in labels:
            yield row._replace(label=labels[label], domain=domain)
    if known is None:
        _check_spellings(names, spelled, where)
        return
    for domain, held in sorted(spelled.items()):
        here = sorted(names[label] for label in held)
        if not any(known.words[name] in known.data_set.classes for name in here):
            raise UserError(
                f"{where}: the domain {domain} of {known.data_set.title} has none of the classes "
                f"{some(known.data_set.classes)}; it has {some(here)}: replace or remove it"
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


def _check_spellings(names: Sequence[str], by_domain: Mapping[str, set[int]], where: str) -> None:
    """Refuse domains that spell a class differently (Mug, mug), which would be two classes."""
    spelled = defaultdict[str, list[int]](list)
    for label, name in enumerate(names):
        spelled[spelling(name)].append(label)
    for one, other, *_ in (labels for labels in spelled.values() if len(labels) > 1):
        domain = {label: [d for d in by_domain if label in by_domain[d]] for label in (one, other)}
        if domain[one] and domain[other] and not set(domain[one]) & set(domain[other]):
            raise UserError(
                f"{where}: the classes '{names[one]}' (in {domain[one][0]}) and '{names[other]}' "
                f"(in {domain[other][0]}) seem to be one class; give them one name in all domains"
            )


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
    if len(ordered) > np.iinfo(np.int16).max:
        raise UserError(
            f"the images have {len(ordered):,} different domains, too many; remove the domains"
        )
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
            f"{where}: {some(left)}: only test images, no image to train on; sort these images "
            "into the classes of the training images, or remove them"
        )


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse class names that cannot distinguish classes in texts and files.

    Raises:
        UserError: for the first name that is empty, duplicate, or not valid Unicode.
    """
    first: dict[str, int] = {}
    for label, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{where}: class {label} has an empty name; give it one")
        if first.setdefault(name, label) != label:
            raise UserError(
                f"{where}: the classes {first[name]} and {label} are both called '{name}'; "
                "give every class a different name"
            )
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise UserError(
                f"{where}: the name of class {label}, {name!r}, is not UTF-8; rename it"
            )


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
