"""Inspection of an image folder before a run: classes, sizes, splits and problems.

The rows are those that a run reads. Every file is decoded once; only thumbnails are kept.
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
"""Width and height of a sample, in pixels."""
SAMPLES = 8
"""Samples that are kept per class."""
_COMPARED = 200
"""Number of images whose sizes are compared before a run."""
_FOLDER_SOURCES = ("parquet", "image_folder", "domain_folder")
_NAMED = 3
"""Number of files that a message names per problem."""


@dataclass
class Look:
    """The result of inspecting a folder of images.

    Attributes:
        source: the `data.source` that reads the folder.
        class_names: C names.
        rows: the rows of all readable images, without their images.
        sizes: the number of images of each (width, height).
        grey: the number of grey images.
        samples: up to `SAMPLES` thumbnails of each class, uint8 [S, S, 3].
        stops: problems for which a run would be refused, one sentence each.
        notes: remarks that do not stop a run, one sentence each.
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
        """Return the number of training and official test images by class, int64 [C, 2]."""
        counts = np.zeros((len(self.class_names), 2), np.int64)
        for row in self.rows:
            counts[row.label, int(row.origin != TRAIN)] += 1
        return counts

    @property
    def image_size(self) -> int | None:
        """Return a value for `data.image_size`, the shortest side; None if all sizes are equal."""
        if len(self.sizes) <= 1:
            return None
        return max(4, min(min(size) for size in self.sizes))

    def image_set(self) -> ImageSet:
        """Return an image set without pixels, which is sufficient for a partition."""
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
        UserError: if the folder does not exist, or contains images outside class folders.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; name the folder of your images")
    if any(root.rglob("*.parquet")):
        return "parquet"
    if any(_is_image(path) for path in root.iterdir()):
        raise UserError(
            f"{root} directly contains images; expected one folder per class, <class>/<image>, or "
            "train/<class>/<image> and test/<class>/<image>"
        )
    nested = [inner for folder in folders_of(root) for inner in folders_of(folder)]
    are_splits = all(official_split(path.name) is not None for path in folders_of(root))
    with_images = any(_is_image(path) for folder in folders_of(root) for path in folder.iterdir())
    return "domain_folder" if nested and not are_splits and not with_images else "image_folder"


def inspect_folder(root: Path, source: str) -> Look:
    """Decode every image once, as a run does, and collect counts, samples and problems.

    Raises:
        UserError: if there are no images, or the classes cannot be determined.
    """
    listing = sources.get(source)().chosen(root, AS_STORED)
    look = Look(source, listing.class_names)
    copies: dict[str, list[Row]] = defaultdict(list)
    broken = []
    for row in listing.rows:
        where = row.name(root)
        try:
            assert not isinstance(
                row.image, np.ndarray
            )  # the sources of `source_for` list files or bytes
            content = row.image if isinstance(row.image, bytes) else row.image.read_bytes()
            size = measure(content, where)
            pixels, grey = thumbnail(content, where, THUMBNAIL)
        except UserError as error:
            broken.append(str(error))
            continue
        listed = row._replace(image=b"", where=where)
        copies[hashlib.sha256(content).hexdigest()].append(listed)
        look.rows.append(listed)
        look.sizes[size] += 1
        look.grey += grey
        if len(look.samples[row.label]) < SAMPLES:
            look.samples[row.label].append(pixels)
    look.stops += [*_first_few(broken, "images cannot be read"), *_class_problems(look)]
    try:
        domains_of(look.rows)
    except UserError as error:
        look.stops.append(str(error))
    look.notes += [*_remarks(look), *_ignored_files(root, source), *_duplicates(copies.values())]
    return look


def check_sizes(root: Path, source: str) -> None:
    """Refuse images of several sizes before a run decodes them all, by comparing a few hundred.

    The images are spread over all files; for parquet, they are the first ones. Only the sources of
    `source_for` are checked, and other defects are ignored here, because decoding reports them.

    Raises:
        UserError: with the two sizes and the key to set.
    """
    if source not in _FOLDER_SOURCES:
        return
    sizes: dict[tuple[int, int], str] = {}
    with suppress(UserError, OSError):
        rows = sources.get(source)().listing(root, AS_STORED).rows
        listed = list(rows if source != "parquet" else islice(rows, _COMPARED))
        for row in listed[:: max(1, len(listed) // _COMPARED)]:
            sizes.setdefault(measure(row.image, row.name(root)), row.name(root))
            if len(sizes) > 1:
                break
    if len(sizes) > 1:
        first, other = sizes
        raise UserError(sizes_differ(sizes[other], other, first))


def _class_problems(look: Look) -> Iterator[str]:
    """Yield a sentence for each problem of the classes that stops a run."""
    if len(look.class_names) < 2:
        yield f"there is one class, {look.class_names[0]}; a classifier needs at least two"
    untrained = [
        name
        for name, (train, test) in zip(look.class_names, look.counts, strict=True)
        if test and not train
    ]
    if untrained:
        yield f"{_some(untrained)}: only test images, no image to train on"


def _remarks(look: Look) -> Iterator[str]:
    """Yield a sentence for each oddity that does not stop a run."""
    total = look.counts.sum(1)
    single = [name for name, n in zip(look.class_names, total, strict=True) if n == 1]
    if single:
        yield f"only one image of {_some(single)}: it is used for training or testing, not for both"
    empty = [name for name, n in zip(look.class_names, total, strict=True) if n == 0]
    if empty:
        yield f"no image of {_some(empty)}"
    if 0 < look.grey < sum(look.sizes.values()):
        yield f"{look.grey:,} grey images are converted to colour, like the others (data.channels)"
    wordless = [name for name in look.class_names if sum(map(str.isalpha, name)) < 2]
    if wordless:
        yield (
            f"{_some(wordless)}: class names without words, which a text encoder needs; rename the "
            "folders or set text.names"
        )


def _ignored_files(root: Path, source: str) -> Iterator[str]:
    """Yield a sentence about files that are not read."""
    if source == "parquet":
        return
    ignored = [path for path in walk(root) if path.suffix.lower() not in IMAGE_SUFFIXES]
    if ignored:
        names = [path.relative_to(root).as_posix() for path in ignored]
        yield f"ignored, because the suffix is not that of an image: {_some(names)}"


def _duplicates(groups: Iterable[Sequence[Row]]) -> Iterator[str]:
    """Yield sentences about images that are equal byte by byte, the worst kind first."""
    pairs: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        if len(group) < 2:
            continue
        first, *_, last = sorted(group, key=lambda image: (image.label, image.origin))
        pair = f"{first.where} = {last.where}"
        if len({image.label for image in group}) > 1:
            pairs["the same image in two classes"].append(pair)
        elif {image.origin for image in group} >= {TRAIN, TEST}:
            pairs["the same image in training and in the official test"].append(pair)
        else:
            pairs["the same image twice in a class"].append(pair)
    for kind in sorted(pairs):
        yield f"{kind} ({len(pairs[kind])}): {_some(pairs[kind])}"


def _first_few(sentences: Sequence[str], kind: str) -> list[str]:
    """Return all of a few sentences, or the first ones and the number of further ones."""
    if len(sentences) <= _NAMED:
        return list(sentences)
    return [*sentences[:_NAMED], f"{len(sentences) - _NAMED} more {kind}"]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
