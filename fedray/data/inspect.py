"""Inspection of an image folder before a run: classes, sizes, splits and problems.

The rows are those that a run reads. Every file is decoded once; only thumbnails are kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.data.decoding import (
    AS_STORED,
    ReadOptions,
    Thumbnail,
    stored_size,
    thumbnail,
    transparency_note,
)
from fedray.data.imageset import TEST, TRAIN, VALIDATION, ImageSet
from fedray.data.known import ids_among
from fedray.data.layout import check_regular, folders_of, is_image, is_split, is_visible, walk
from fedray.data.listing import Row, domains_of, only_tested, part_note, untrained
from fedray.data.sources import Source, sources
from fedray.data.sources.coop import is_coop
from fedray.data.sources.torchvision import torchvision_source

THUMBNAIL = 48
"""Width and height of a sample, in pixels."""
SAMPLES = 8
"""Samples that are kept per class."""
FOLDER_SOURCES = ("parquet", "image_folder", "domain_folder")
"""The sources of folders of images without masks and lists."""
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
        transparent: the number of images that are transparent in places.
        samples: up to `SAMPLES` thumbnails of each class, uint8 [S, S, 3].
        stops: problems for which a run would be refused, one sentence each.
        notes: remarks that do not stop a run, one sentence each.
    """

    source: str
    class_names: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    grey: int = 0
    transparent: int = 0
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
            if row.origin != VALIDATION:
                counts[row.label, int(row.origin == TEST)] += 1
        return counts

    @property
    def validation(self) -> int:
        """Return the number of official validation images."""
        return sum(row.origin == VALIDATION for row in self.rows)

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
    """Return the `data.source` that reads a folder: parquet, coop, domain_folder, ....

    Raises:
        UserError: if the folder does not exist or cannot be listed.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; name the folder of your images")
    if any(path.suffix in (".parquet", ".arrow") for path in walk(root, strict=False)):
        return "parquet"
    if is_coop(root):
        return "coop"
    if (torchvision := torchvision_source(root)) is not None:
        return torchvision
    with _readable():
        folders = folders_of(root)
        inside = [path for folder in folders for path in folder.iterdir() if is_visible(path.name)]
        nested = any(path.is_dir() for path in inside) and not any(map(is_split, folders))
    with_images = any(is_image(path.name) and not path.is_dir() for path in inside)
    return "domain_folder" if nested and not with_images else "image_folder"


@contextmanager
def _readable() -> Iterator[None]:
    """Turn an error of the file system into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read: {error.strerror or error}; correct or remove it"
        ) from None


def inspect_folder(root: Path, source: str, options: ReadOptions = AS_STORED) -> Look:
    """Decode every image once, as a run does, and collect counts, samples and problems.

    Args:
        root: the folder.
        source: the `data.source` that reads it.
        options: the classes and the split; images are decoded as they are stored.

    Raises:
        UserError: if there are no images, or the classes cannot be determined.
    """
    reader: Source = sources.get(source)()
    with _readable():
        listing = reader.chosen(root, options)
        look = Look(source, listing.class_names)
        copies: dict[str, list[Row]] = defaultdict(list)
        broken = []
        for row in listing.rows:
            where = row.name(root)
            try:
                digest, size, small = _decoded(row, where)
            except UserError as error:
                broken.append(str(error))
                continue
            path = where if isinstance(row.image, Path) else row.path
            without_image = row._replace(image=b"", where=where, path=path)
            copies[digest].append(without_image)
            look.rows.append(without_image)
            look.sizes[size] += 1
            look.grey += small.grey
            look.transparent += small.transparent
            if len(look.samples[row.label]) < SAMPLES:
                look.samples[row.label].append(small.pixels)
        look.stops += _first_few(broken, "images cannot be read")
        try:
            if options.split is not None and not broken:
                origins = reader.split_origins(root, options.split, options, look.rows)
                pairs = zip(look.rows, origins.tolist(), strict=True)
                look.rows = [row._replace(origin=origin) for row, origin in pairs]
            look.stops += _class_problems(look, options.split)
            domains_of(look.rows)
            look.notes += reader.notes(root, options)
        except UserError as error:
            look.stops.append(str(error))
    domains = {row.domain for row in look.rows if row.domain is not None}
    look.notes += part_note(look.class_names, domains, len(look.rows))
    look.notes = [*_remarks(look), *look.notes, *_duplicates(copies.values())]
    return look


def _decoded(row: Row, where: str) -> tuple[str, tuple[int, int], Thumbnail]:
    """Return the hash, the size and a thumbnail of a row's image.

    Raises:
        UserError: if a run could not decode the image.
    """
    content = row.image
    if isinstance(content, Path):
        try:
            check_regular(content)
            content = content.read_bytes()
        except OSError as error:
            raise UserError(
                f"{where} cannot be read: {error.strerror or error}; correct or remove it"
            ) from None
    digest = hashlib.sha256(
        content if isinstance(content, bytes) else np.asarray(content).tobytes()
    )
    return digest.hexdigest(), stored_size(content, where), thumbnail(content, where, THUMBNAIL)


def _class_problems(look: Look, split: str | None) -> Iterator[str]:
    """Yield a sentence for each problem of the classes that stops a run."""
    if len(look.class_names) < 2:
        yield f"there is one class, {look.class_names[0]}; a classifier needs at least two"
    if split is not None:
        return  # a split file may leave a class out of training
    labels, origin = ([getattr(row, key) for row in look.rows] for key in ("label", "origin"))
    if names := untrained(look.class_names, np.array(labels, np.int64), np.array(origin, np.int8)):
        yield only_tested(_some(names))


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
    yield from transparency_note(look.transparent, len(look.rows))
    few_letters = [name for name in look.class_names if sum(map(str.isalpha, name)) < 2]
    wordless = ids_among(look.class_names) or few_letters
    if wordless:
        yield (
            f"{_some(wordless)}: class names without words, which a text encoder needs; rename the "
            "folders or set text.names"
        )


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
