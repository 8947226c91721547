"""The images that a source lists, not decoded yet: choose classes, name them, check domains.

Every source's listing passes through `understood`, for a run and for `fedray data` alike.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError, nearest, shown
from fedray.data.decoding import Encoded
from fedray.data.imageset import TRAIN, Domains
from fedray.data.known import Recognised, Split, recognise, spelling
from fedray.data.layout import composed

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
        rows: the images in the order of a run; a source may read them lazily.
        domains: the domain names in their order; empty means the names in the rows, sorted.
        notes: remarks on how the source understands its files, one sentence each.
    """

    class_names: tuple[str, ...]
    rows: Iterable[Row]
    domains: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def understood(listing: Listing, classes: Sequence[str] | None, where: str) -> Listing:
    """Return the rows of the requested classes, with checked names in the papers' words.

    Args:
        listing: all rows.
        classes: the requested classes, in the order of their labels; None for all.
        where: the source and its folder, for messages.

    Raises:
        UserError: if a class name is not allowed or a requested class does not exist; while the
            rows are iterated: if a domain is incomplete.
    """
    listing = _composed(listing)
    check_names(listing.class_names, where)
    known = recognise(listing.class_names, listing.domains)
    words = {name: name for name in listing.class_names} if known is None else known.words
    names = tuple(dict.fromkeys(words.values()))
    if classes is not None:
        wanted = [words.get(composed(name), composed(name)) for name in classes]
        _check_exist(wanted, names, where)
        names = tuple(wanted)
    new_labels = {
        label: names.index(words[name])
        for label, name in enumerate(listing.class_names)
        if words[name] in names
    }
    rows = _checked(listing, new_labels, known, classes is not None, where)
    notes = (*listing.notes, *_renamed_note(known))
    return listing._replace(class_names=names, rows=rows, notes=notes)


def _composed(listing: Listing) -> Listing:
    """Return a listing with composed names of classes and domains (see `composed`)."""

    def rows() -> Iterator[Row]:
        for row in listing.rows:
            yield row if row.domain is None else row._replace(domain=composed(row.domain))

    names, domains = (tuple(map(composed, some)) for some in (listing.class_names, listing.domains))
    return listing._replace(class_names=names, rows=rows(), domains=domains)


def _renamed_note(known: Recognised | None) -> tuple[str, ...]:
    """Return a sentence about class names that are replaced by the papers' words, if any."""
    if known is None or not known.renamed:
        return ()
    some = [f"'{name}' is {word}" for name, word in known.renamed.items()]
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    title = known.data_set.title
    return (
        f"recognised as {title}, whose classes get their usual names: "
        f"{', '.join(some[:_NAMED])}{more}",
    )


def _checked(
    listing: Listing,
    new_labels: Mapping[int, int],
    known: Recognised | None,
    chosen: bool,
    where: str,
) -> Iterator[Row]:
    """Yield the rows with new labels, only those with one if `chosen`; then check all domains."""
    spelled = defaultdict[str, set[int]](set)
    for row in listing.rows:
        label = _label(row, len(listing.class_names))
        if row.domain is not None:
            spelled[row.domain].add(label)
        if row.mask is not None and chosen:
            raise UserError(
                f"data.classes selects images by their class, but the masks of {where} have "
                "several classes each; remove data.classes"
            )
        if not chosen or label in new_labels:
            yield row._replace(label=new_labels.get(label, label))
    _check_domains(spelled, known, where)
    for domain, labels in sorted(spelled.items()):
        here = sorted(listing.class_names[label] for label in labels)
        if known is not None and not any(known.words[c] in known.data_set.classes for c in here):
            raise UserError(
                f"{where}: the domain {domain} of {known.data_set.title} has none of the classes "
                f"{_some(known.data_set.classes)}; it has {_some(here)}: replace or remove it"
            )
    if known is None:
        _check_spellings(listing.class_names, spelled, where)


def _label(row: Row, classes: int) -> int:
    """Return a row's label; raise a UserError unless it is the number of a class."""
    try:
        label = operator.index(row.label)
    except TypeError:
        label = -1
    if not 0 <= label < classes:
        raise UserError(
            f"{row.name()} has the label {shown(row.label)}, expected a whole number from 0 to "
            f"{classes - 1}, the position of its class among the class names"
        )
    return label


def _check_domains(domains: Collection[str], known: Recognised | None, where: str) -> None:
    """Refuse a known set of which whole domains are missing."""
    if known is None or not domains or not known.data_set.domains:
        return
    here = {spelling(domain) for domain in domains}
    missing = [name for name in known.data_set.domains if spelling(name) not in here]
    if missing and len(missing) + len(here) == len(known.data_set.domains):
        raise UserError(
            f"{where}: {known.data_set.title} is incomplete, without its domain"
            f"{'s' * (len(missing) > 1)} {', '.join(missing)}; add what is missing (to use a part "
            "on purpose, rename one of its domains)"
        )


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


def left_out_note(listed: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence about domains of which no image has one of the chosen classes, if any."""
    missing = sorted(set(listed) - set(kept))
    if not missing:
        return ()
    return (f"no image of {', '.join(missing)} has one of data.classes: left out as a domain",)


def part_note(names: Sequence[str], domains: Iterable[str], total: int) -> tuple[str, ...]:
    """Return a sentence if images are only a part of a known set.

    Args:
        names: the class names of all images.
        domains: their domains.
        total: the number of images.
    """
    known = recognise(names, tuple(domains))
    if known is None or known.data_set.more_classes:
        return ()
    expected = _total(known.data_set.images)
    if total >= expected or len(names) < known.data_set.class_count:
        return ()
    return (f"this is a part of {known.data_set.title}: {total:,} of its {expected:,} images",)


def _total(images: Split) -> int:
    return images.train + images.validation + images.test


def _check_exist(wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{where}: data.classes names '{missing[0]}'{more}, which it does not have among its "
            f"{len(names)} classes; correct the spelling.{nearest(missing[0], sorted(names))}"
        )


def domains_of(rows: Sequence[Row], names: Sequence[str] = ()) -> Domains | None:
    """Return the domains of rows; None if no row has one.

    Args:
        rows: n rows.
        names: the domain names in their order; empty means the names in the rows, sorted.

    Raises:
        UserError: if only some rows have a domain, or if there are too many domains.
    """
    names = tuple(names) or tuple(sorted({row.domain for row in rows if row.domain}))
    if not names:
        return None
    if len(names) > np.iinfo(np.int16).max:
        raise UserError(
            f"the images have {len(names):,} different domains, too many; remove the domains"
        )
    without_domain = next((row for row in rows if not row.domain), None)
    if without_domain is not None:
        raise UserError(
            f"{without_domain.name()} has no domain, but others have one ({names[0]}, ...); give "
            "every image a domain, or none"
        )
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    return Domains(names, np.array([position[row.domain] for row in rows], np.int16))


def untrained(
    names: Sequence[str], labels: NDArray[np.int64], origin: NDArray[np.int8]
) -> list[str]:
    """Return the names of the classes that have images, but none to train on."""
    trained = set(labels[origin == TRAIN].tolist())
    return [names[label] for label in np.unique(labels).tolist() if label not in trained]


def check_trained(
    names: Sequence[str], labels: NDArray[np.int64], origin: NDArray[np.int8], where: str
) -> None:
    """Refuse classes that have test images only; their folders are often no classes.

    Raises:
        UserError: with the names of a few such classes.
    """
    if without := untrained(names, labels, origin):
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        raise UserError(
            f"{where}: {only_tested(', '.join(without[:3]) + more)}; sort these images into the "
            "classes of the training images, or remove them"
        )


def only_tested(names: str) -> str:
    """Return the message about classes without training images."""
    return f"{names}: only test images, no image to train on"


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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
