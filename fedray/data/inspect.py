"""A folder of images, inspected before a run: classes, sizes, splits, and what is wrong.

The rows are those that a run reads. Every file is decoded once, and nothing is kept but small
pictures.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.data.decoding import AS_STORED, measure, sizes_differ, thumbnail
from fedray.data.imageset import TEST, TRAIN, ImageSet
from fedray.data.sources import Row, domains_of, official_split, sources, walk
from fedray.data.sources.image_folder import IMAGE_SUFFIXES, folders_of
from fedray.errors import UserError

THUMBNAIL = 48
"""Pixels a side of a sample."""
SAMPLES = 8
"""Pictures that are kept of a class."""
_LOOKED_AT = 200
"""Images whose sizes are compared before a run."""
_OWN = ("parquet", "image_folder", "domain_folder")
_NAMED = 3
"""Files of a problem that are named."""


@dataclass
class Look:
    """What is known of the images of a folder.

    Attributes:
        source: the `data.source` that reads them.
        class_names: C names.
        rows: of every image that could be read, without the image.
        sizes: how many images there are of each width and height.
        grey: how many of them are grey.
        samples: up to `SAMPLES` of each class, uint8 [S, S, 3].
        stops: what a run would be refused for, a sentence each.
        notes: what should be known, a sentence each.
    """

    source: str
    class_names: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    grey: int = 0
    samples: Mapping[int, list[NDArray[np.uint8]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    stops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return the images by class: int64 [C, 2], of training and of the official test."""
        found = np.zeros((len(self.class_names), 2), np.int64)
        for row in self.rows:
            found[row.label, int(row.origin != TRAIN)] += 1
        return found

    @property
    def image_size(self) -> int | None:
        """Return the shortest side, for `data.image_size`; None if all have one size."""
        if len(self.sizes) <= 1:
            return None
        return max(4, min(min(size) for size in self.sizes))

    def image_set(self) -> ImageSet:
        """Return the images without their pixels, for a partition, which needs none."""
        return ImageSet(
            source=self.source,
            images=np.zeros((len(self.rows), 1, 1, 1), np.uint8),
            labels=np.array([row.label for row in self.rows], np.int64),
            class_names=self.class_names,
            origin=np.array([row.origin for row in self.rows], np.int8),
            domains=domains_of(self.rows),
        )


def source_for(root: Path) -> str:
    """Return the `data.source` that reads a folder: parquet, domain_folder or image_folder.

    Raises:
        UserError: when the folder is not there, or images lie in it without a folder of their own.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder of your images")
    if any(root.rglob("*.parquet")):
        return "parquet"
    if any(_is_image(path) for path in root.iterdir()):
        raise UserError(
            f"{root} holds images itself; expected one folder a class in it, <class>/<image>, or "
            "train/<class>/<image> and test/<class>/<image>"
        )
    inner = [folder for each in folders_of(root) for folder in folders_of(each)]
    are_splits = all(official_split(path.name) is not None for path in folders_of(root))
    with_images = any(_is_image(path) for each in folders_of(root) for path in each.iterdir())
    return "domain_folder" if inner and not are_splits and not with_images else "image_folder"


def look_at(root: Path, source: str) -> Look:
    """Read every image once, as a run does.

    Raises:
        UserError: when there is nothing to read, or the files do not say what they hold.
    """
    listing = sources.get(source)().chosen(root, AS_STORED)
    look = Look(source, listing.class_names)
    copies: dict[str, list[Row]] = defaultdict(list)
    broken = []
    for row in listing.rows:
        where = row.name(root)
        try:
            assert not isinstance(row.image, np.ndarray)  # of the sources that `source_for` names
            content = row.image if isinstance(row.image, bytes) else row.image.read_bytes()
            size = measure(content, where)
            pixels, grey = thumbnail(content, where, THUMBNAIL)
        except UserError as error:
            broken.append(str(error))
            continue
        seen = row._replace(image=b"", where=where)
        copies[hashlib.sha256(content).hexdigest()].append(seen)
        look.rows.append(seen)
        look.sizes[size] += 1
        look.grey += grey
        if len(look.samples[row.label]) < SAMPLES:
            look.samples[row.label].append(pixels)
    look.stops += [*_in_short(broken, "images cannot be read"), *_wrong_classes(look)]
    try:
        domains_of(look.rows)
    except UserError as error:
        look.stops.append(str(error))
    look.notes += [*_noticed(look), *_left_out(root, source), *_copied(copies.values())]
    return look


def check_sizes(root: Path, source: str) -> None:
    """Refuse images of several sizes, as their decoding would, from a few hundred of them.

    They are spread over the files, or the first ones of parquet. Only of the sources that
    `source_for` names; other defects are left to the decoding.

    Raises:
        UserError: with the two sizes and the key to set.
    """
    if source not in _OWN:
        return
    sizes: dict[tuple[int, int], str] = {}
    with suppress(UserError, OSError):
        rows = sources.get(source)().listing(root, AS_STORED).rows
        listed = list(rows if source != "parquet" else islice(rows, _LOOKED_AT))
        for row in listed[:: max(1, len(listed) // _LOOKED_AT)]:
            sizes.setdefault(measure(row.image, row.name(root)), row.name(root))
            if len(sizes) > 1:
                break
    if len(sizes) > 1:
        first, other = sizes
        raise UserError(sizes_differ(sizes[other], other, first))


def _wrong_classes(found: Look) -> Iterator[str]:
    """Yield a sentence for classes that nobody can learn."""
    if len(found.class_names) < 2:
        yield f"there is one class, {found.class_names[0]}; a classifier needs two"
    untrained = [
        name
        for name, (train, test) in zip(found.class_names, found.counts, strict=True)
        if test and not train
    ]
    if untrained:
        yield f"{_some(untrained)}: only in the official test, with no image to train on"


def _noticed(found: Look) -> Iterator[str]:
    """Yield what a run would not be refused for."""
    total = found.counts.sum(1)
    single = [name for name, n in zip(found.class_names, total, strict=True) if n == 1]
    if single:
        yield f"one image alone of {_some(single)}: it is trained on or tested on, never both"
    none = [name for name, n in zip(found.class_names, total, strict=True) if n == 0]
    if none:
        yield f"no image of {_some(none)}"
    if 0 < found.grey < sum(found.sizes.values()):
        yield f"{found.grey:,} grey images among colour ones become colour (data.channels)"
    wordless = [name for name in found.class_names if sum(map(str.isalpha, name)) < 2]
    if wordless:
        yield (
            f"{_some(wordless)}: no words, which a text encoder would read; rename the folders or "
            "set text.names"
        )


def _left_out(root: Path, source: str) -> Iterator[str]:
    """Yield messages about files that are not read."""
    if source == "parquet":
        return
    others = [path for path in walk(root) if path.suffix.lower() not in IMAGE_SUFFIXES]
    if others:
        names = [path.relative_to(root).as_posix() for path in others]
        yield f"left out, no images by their suffix: {_some(names)}"


def _copied(groups: Iterable[Sequence[Row]]) -> Iterator[str]:
    """Yield pairs of images that are equal byte by byte; the worst kind first."""
    said: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        if len(group) < 2:
            continue
        first, *_, last = sorted(group, key=lambda image: (image.label, image.origin))
        pair = f"{first.where} = {last.where}"
        if len({image.label for image in group}) > 1:
            said["the same image in two classes"].append(pair)
        elif {image.origin for image in group} >= {TRAIN, TEST}:
            said["the same image in training and in the official test"].append(pair)
        else:
            said["the same image twice in a class"].append(pair)
    for what in sorted(said):
        yield f"{what} ({len(said[what])}): {_some(said[what])}"


def _in_short(sentences: Sequence[str], what: str) -> list[str]:
    """Return all of a few sentences, or the first ones and how many more there are."""
    if len(sentences) <= _NAMED:
        return list(sentences)
    return [*sentences[:_NAMED], f"{len(sentences) - _NAMED} more {what}"]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
