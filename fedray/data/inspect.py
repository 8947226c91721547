"""Images of one's own, looked at before a run does: classes, sizes, splits, and what is wrong.

Every file is decoded once, as a run would, and nothing is kept but small pictures.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.config import Component
from fedray.data.decoding import measure, sizes_differ, thumbnail
from fedray.data.imageset import TEST, TRAIN, Domains, ImageSet
from fedray.data.sources import Found, Listing, build_source, check_names, official_split
from fedray.data.sources.image_folder import IMAGE_SUFFIXES, folders_of
from fedray.errors import UserError

THUMBNAIL = 48
"""Pixels a side of a sample."""
SAMPLES = 8
"""Pictures that are kept of a class."""
_LOOKED_AT = 200
"""Images whose sizes are compared before a run."""
_NAMED = 3
"""Files of a problem that are named."""


@dataclass
class Look:
    """What is known of images of one's own.

    Attributes:
        source: the `data.source` that reads them.
        class_names: C names.
        labels: of every image that could be read, a position in the names.
        origin: of the same images, TRAIN or TEST.
        domains: of the same images; None for images without.
        sizes: how many images there are of each width and height.
        grey: how many of them are grey.
        samples: up to `SAMPLES` of each class, uint8 [S, S, 3].
        stops: what a run would be refused for, a sentence each.
        notes: what should be known, a sentence each.
    """

    source: str
    class_names: tuple[str, ...]
    labels: list[int] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    domains: list[str | None] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    grey: int = 0
    samples: Mapping[int, list[NDArray[np.uint8]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    stops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images by class: int64 [C, 2], of training and of the official test."""
        found = np.zeros((len(self.class_names), 2), np.int64)
        np.add.at(found, (self.labels, [int(origin != TRAIN) for origin in self.origin]), 1)
        return found

    @property
    def image_size(self) -> int | None:
        """What `data.image_size` should be: the shortest side; None where all have one size."""
        if len(self.sizes) <= 1:
            return None
        return max(4, min(min(size) for size in self.sizes))

    def image_set(self) -> ImageSet:
        """The images without their pixels, for a partition, which asks for none."""
        names = sorted({name for name in self.domains if name}) if all(self.domains) else []
        ids = np.array([names.index(name) for name in self.domains if name in names], np.int16)
        return ImageSet(
            source=self.source,
            images=np.zeros((len(self.labels), 1, 1, 1), np.uint8),
            labels=np.array(self.labels, np.int64),
            class_names=self.class_names,
            origin=np.array(self.origin, np.int8),
            domains=Domains(tuple(names), ids) if names else None,
        )


def source_for(root: Path) -> str:
    """The `data.source` that reads a folder: parquet, domain_folder or image_folder.

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
    """Read every image once.

    Raises:
        UserError: when there is nothing to read, or the files do not say what they hold.
    """
    listing = build_source(Component(name=source)).listing(root)
    check_names(listing.class_names, str(root))
    found = Look(source, listing.class_names)
    copies: dict[str, list[Found]] = defaultdict(list)
    broken = []
    for image in listing.images:
        content = image.encoded.read_bytes() if isinstance(image.encoded, Path) else image.encoded
        try:
            size = measure(content, image.where)
            pixels, grey = thumbnail(content, image.where, THUMBNAIL)
        except UserError as error:
            broken.append(str(error))
            continue
        copies[hashlib.sha256(content).hexdigest()].append(image._replace(encoded=b""))
        _take(found, image, size, pixels, grey=grey)
    found.stops += _in_short(broken, "images cannot be read")
    found.stops += _wrong_classes(found)
    found.stops += _lacking_domains(found)
    found.notes += [*_noticed(found, listing), *_copied(copies.values(), found.class_names)]
    return found


def check_sizes(root: Path, source: str) -> None:
    """Refuse images of several sizes, as their decoding would, from a few hundred of them.

    Other defects are left to the decoding.

    Raises:
        UserError: with the two sizes and the key to set.
    """
    first: tuple[int, int] | None = None
    for where, size in _first_sizes(root, source):
        first = first or size
        if size != first:
            raise UserError(sizes_differ(where, size, first))


def _first_sizes(root: Path, source: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield names and sizes of images: evenly spread over files, or the first ones of parquet."""
    try:
        images = build_source(Component(name=source)).listing(root).images
        listed = list(images if source != "parquet" else islice(images, _LOOKED_AT))
        step = max(1, len(listed) // _LOOKED_AT)
        for image in listed[::step]:
            yield image.where, measure(image.encoded, image.where)
    except (UserError, OSError):
        return


def _take(
    found: Look, image: Found, size: tuple[int, int], pixels: NDArray[np.uint8], *, grey: bool
) -> None:
    found.labels.append(image.label)
    found.origin.append(image.origin)
    found.domains.append(image.domain)
    found.sizes[size] += 1
    found.grey += grey
    if len(found.samples[image.label]) < SAMPLES:
        found.samples[image.label].append(pixels)


def _wrong_classes(found: Look) -> Iterator[str]:
    """Classes that nobody can learn."""
    if len(found.class_names) < 2:
        yield f"there is one class, {found.class_names[0]}; a classifier needs two"
    untrained = [
        name
        for name, (train, test) in zip(found.class_names, found.counts, strict=True)
        if test and not train
    ]
    if untrained:
        yield f"{_some(untrained)}: only in the official test, with no image to train on"


def _lacking_domains(found: Look) -> Iterator[str]:
    """Say that some images have a domain and others have none."""
    lacking = sum(not name for name in found.domains)
    if 0 < lacking < len(found.domains):
        named = next(name for name in found.domains if name)
        yield (
            f"{lacking:,} of {len(found.domains):,} images have no domain, while others have one "
            f"({named}, ...); give every image a domain, or none"
        )


def _noticed(found: Look, listing: Listing) -> Iterator[str]:
    """What a run would not be refused for."""
    total = found.counts.sum(1)
    single = [name for name, n in zip(found.class_names, total, strict=True) if n == 1]
    if single:
        yield f"one image alone of {_some(single)}: it is trained on or tested on, never both"
    none = [name for name, n in zip(found.class_names, total, strict=True) if n == 0]
    if none:
        yield f"no image of {_some(none)}"
    if 0 < found.grey < sum(found.sizes.values()):
        yield f"{found.grey:,} grey images among colour ones become colour (data.channels)"
    if listing.left_out:
        yield f"left out, no images by their suffix: {_some(listing.left_out)}"
    wordless = [name for name in found.class_names if sum(map(str.isalpha, name)) < 2]
    if wordless:
        yield (
            f"{_some(wordless)}: no words, which a text encoder would read; rename the folders or "
            "set text.names"
        )


def _copied(groups: Iterable[Sequence[Found]], names: Sequence[str]) -> Iterator[str]:
    """Images that are there more than once, byte by byte; the worst kind first."""
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
    """All of a few sentences, or how many there are of them with the first."""
    if len(sentences) <= _NAMED:
        return list(sentences)
    return [*sentences[:_NAMED], f"{len(sentences) - _NAMED} more {what}"]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
