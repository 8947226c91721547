"""Data sources: one module per source, which lists its images as rows; `Source` does the rest."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.config import Component, component, content_of, files_of
from fedray.data import splits
from fedray.data.cache import image_set, images_key, save_images
from fedray.data.configurable import Configurable
from fedray.data.decoding import (
    AS_STORED,
    Allocate,
    Encoded,
    ReadOptions,
    Resampling,
    decode,
    decode_masks,
    in_memory,
    transparency_note,
)
from fedray.data.imageset import ImageSet, dominant_classes
from fedray.data.known import known_sets, spellings
from fedray.data.layout import unread_note
from fedray.data.listing import (
    Listing,
    Row,
    check_trained,
    domains_of,
    left_out_note,
    part_note,
    understood,
)
from fedray.plugins import plugin_of
from fedray.registry import Registry, version_of
from fedray.storage.cache import Arrays, kept_arrays

_log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 28
"""Bytes of encoded images that are held in memory; rows with more are read twice."""


class _Again(Collection[Encoded]):
    """The images of rows that are listed again at each iteration, so that none stays in memory."""

    def __init__(self, rows: Callable[[], Iterable[Row]], length: int) -> None:
        self._rows, self._length = rows, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Encoded]:
        return (row.image for row in self._rows())

    def __contains__(self, image: object) -> bool:
        return any(other is image for other in self)


class Source(Configurable, ABC):
    """A data source; a subclass lists its images as rows.

    Built from its typed parameters (`Params`), the keys `data.source.*`; most sources have none.

    Attributes:
        resampling: the filter for resizing, unless `data.resize` names another.
        kept: whether decoded images are stored in the node's cache.
        reads: the files that a source reads from a folder of the user, for messages; "" if the
            folder is not the user's, so that unread files in it are not named.
    """

    resampling: ClassVar[Resampling] = "bilinear"
    kept: ClassVar[bool] = True
    reads: ClassVar[str] = ""

    @abstractmethod
    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the class names and all rows.

        Args:
            root: the folder from `find_root`.
            options: the read options, for a source that generates its images.

        Raises:
            UserError: if files are missing or invalid; the message says which, and what to do.
        """

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return every file that is read; by default, those of the rows of the chosen classes.

        A source whose rows are not files overrides this method. Images are decoded again if the
        name, size or time of one of the files has changed.
        """
        return _paths_in(self.chosen(root, options).rows)

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return the folder to read; by default `root`, which must exist.

        Raises:
            UserError: if the folder does not exist.
        """
        if root is None:
            raise UserError(f"data.source={self.name} needs a folder: set data.root")
        if not root.is_dir():
            raise UserError(
                f"data.root={root} is not a folder; set data.root to the folder of the data"
            )
        return root

    def get_hint(self, root: Path) -> str:
        """Return where to get the data that `root` should hold, as the end of a sentence.

        For the folders of known sets, this is the command that gets them.
        """
        known = next((one for one in known_sets().values() if one.folder == root.name), None)
        if known is not None and known.source == self.name:
            return f"; get it with: fedray get {known.name}"
        if known is None or self.download_hint(root):
            return self.download_hint(root)
        return f"; fedray get {known.name} gets it for data.source={known.source}"

    def download_hint(self, root: Path) -> str:
        """Return a source's own advice for a folder that is no known set's, or ""."""
        return ""

    def chosen(self, root: Path, options: ReadOptions) -> Listing:
        """Return the rows of the requested classes.

        Raises:
            UserError: if a requested class does not exist, or a class name is not allowed.
        """
        where = f"data.source={self.name}: {root}"
        return understood(self.listing(root, options), options.classes, where)

    def notes(self, root: Path, options: ReadOptions) -> tuple[str, ...]:
        """Return remarks on splits, and on visible files and folders that are not read.

        Raises:
            UserError: as `listing`.
        """
        if not self.reads:
            return ()
        everything = replace(options, classes=None)
        split = [] if options.split is None else splits.split_files(root, options.split)
        reads = f"data.source={self.name} reads {self.reads}"
        listing = self.chosen(root, everything)
        has_all = type(self).files is Source.files
        read = _paths_in(listing.rows) if has_all else self.files(root, everything)
        return (*listing.notes, *unread_note(root, [*split, *read], reads))

    def read(self, root: Path, options: ReadOptions, allocate: Allocate = in_memory) -> ImageSet:
        """Decode the rows of the requested classes.

        Args:
            root: the folder from `find_root`.
            options: which rows to read, and how to decode them.
            allocate: returns the array for the pixels.

        Raises:
            UserError: if there are no rows, or one is invalid.
        """
        names, rows_of_classes, domain_names, _ = self.chosen(root, options)
        rows = _bounded(rows_of_classes)
        if not rows:
            raise UserError(f"data.source={self.name}: {root} holds no images")
        origin = np.array([row.origin for row in rows], np.int8)
        if options.split is not None:
            origin = self.split_origins(root, options.split, options, rows)
        present = {row.domain for row in rows if row.domain is not None}
        domains = domains_of(rows, [name for name in domain_names if name in present])
        encoded: Collection[Encoded] = [row.image for row in rows]
        if any(isinstance(image, bytes) and not image for image in encoded):
            encoded = _Again(lambda: self.chosen(root, options).rows, len(rows))
        encoded_masks = [row.mask for row in rows if row.mask is not None]

        def where(i: int) -> str:
            return rows[i].name()

        transparent = set[int]()
        pixels = decode(
            encoded,
            where,
            options,
            resampling=self.resampling,
            allocate=allocate,
            transparent=transparent,
        )
        notes = transparency_note(len(transparent), len(rows))
        if options.classes is None:
            notes += part_note(names, domain_names, len(rows))
        notes += left_out_note(domain_names, present)
        labels, masks = np.array([row.label for row in rows], np.int64), None
        if encoded_masks:
            images = list(encoded)
            masks = decode_masks(images, encoded_masks, where, options, classes=len(names))
            labels = dominant_classes(masks, len(names))
        elif options.split is None:
            check_trained(names, labels, origin, f"data.source={self.name}: {root}")
        return ImageSet(self.name, pixels, labels, names, origin, domains, masks, notes=notes)

    def split_origins(
        self, root: Path, split: str, options: ReadOptions, rows: Sequence[Row]
    ) -> NDArray[np.int8]:
        """Return each row's part of the split; the split file may list other classes, too."""
        all_rows = rows if options.classes is None else self.listing(root, options).rows
        paths, known_paths = self._paths(root, rows), self._paths(root, all_rows)
        return splits.origins(splits.split_files(root, split), paths, known_paths)

    def _paths(self, root: Path, rows: Iterable[Row]) -> list[str]:
        """Return the images' paths as a split file writes them."""
        paths = []
        for row in rows:
            path = row.name(root) if isinstance(row.image, Path) else row.path
            if path is None:
                raise UserError(
                    f"data.split names images by their paths, but {row.name(root)} of "
                    f"data.source={self.name} has none; remove data.split"
                )
            paths.append(path)
        return paths

    def _key(self, root: Path, options: ReadOptions) -> str:
        """Return the cache name of the images, computed from their files without decoding them."""
        split = options.split
        files = [] if split in (None, splits.LISTS) else splits.split_files(root, split)
        files = [*files, *self.files(root, options)]
        if split == splits.LISTS:  # later, because a domain without images is worse
            files += splits.split_files(root, split)
        code = version_of(type(self)), plugin_of(type(self))
        contents = map(content_of, files_of(self.params).values())
        params = self.params.model_dump(mode="json")
        key = images_key(root, files, params, asdict(options), spellings(), *code, *contents)
        return f"{self.name}-{key}"

    def _cached(self, root: Path, options: ReadOptions) -> ImageSet:
        """Return the images from the node's cache; decode them if they are not in it."""
        key = self._key(root, options)

        def make(making: Arrays) -> None:
            images = self.read(root, options, lambda shape: making.allocate("images", shape, "u1"))
            if self._key(root, options) != key:
                raise UserError(
                    f"data.source={self.name}: the files in {root} changed while they were read; "
                    "start again when they are complete"
                )
            save_images(images, making)

        return image_set(kept_arrays("images", key, "decoded images", make))

    def load(self, root: Path | None, options: ReadOptions, *, download: bool = False) -> ImageSet:
        """Load the images; `load_images` describes the arguments."""
        try:
            root = self.find_root(root, download=download)
            images = self._cached(root, options) if self.kept else self.read(root, options)
            for note in (*self.notes(root, options), *images.notes):
                _log_once(f"data.source={self.name}: {root}: {note}")
            return images
        except OSError as error:
            path = error.filename or root
            raise UserError(
                f"data.source={self.name}: {path} cannot be read: {error.strerror or error}; "
                "correct or remove it"
            ) from None


@cache
def _log_once(note: str) -> None:
    """Log a remark on the data once per process."""
    _log.warning("%s", note)


def _paths_in(rows: Iterable[Row]) -> list[Path]:
    """Return the files of the images and masks of rows."""
    encoded = (item for row in rows for item in (row.image, row.mask))
    return [item for item in encoded if isinstance(item, Path)]


def _bounded(rows: Iterable[Row]) -> list[Row]:
    """Return rows; without the bytes of their images if these exceed `_MOST_BYTES`."""
    kept, total = list[Row](), 0
    for row in rows:
        total += len(row.image) if isinstance(row.image, bytes) else 0
        kept.append(row if total <= _MOST_BYTES else _without_bytes(row))
    return kept if total <= _MOST_BYTES else [_without_bytes(row) for row in kept]


def _without_bytes(row: Row) -> Row:
    return row._replace(image=b"") if isinstance(row.image, bytes) else row


sources: Registry[type[Source]] = Registry("data source", "fedray.data.sources")


def load_images(
    source: str | Component,
    root: Path | None = None,
    options: ReadOptions = AS_STORED,
    *,
    download: bool = False,
) -> ImageSet:
    """Return the images of a source; every process of a node may call this.

    The images are decoded once per node, and all processes map them read-only.

    Args:
        source: the source's name, or its name with parameters.
        root: the folder of the data; None if the source needs none or has a default.
        options: which images to read, and how to decode them.
        download: whether missing files may be downloaded.

    Raises:
        UserError: if the source is unknown, a parameter is invalid, or files are missing or
            invalid.
    """
    chosen = component("data source", source) if isinstance(source, str) else source
    instance: Source = chosen.build()
    return instance.load(root, options, download=download)
