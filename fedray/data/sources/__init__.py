"""Data sources: one module per source, which lists its images as rows; `Source` does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedray.base.errors import UserError
from fedray.config import Component, Entry, Experiment, NoEffect, component, content_of, files_of
from fedray.config.plugins import plugin_of
from fedray.config.registry import Registry, version_of
from fedray.data.decoding import (
    AS_STORED,
    Allocate,
    ReadOptions,
    Resampling,
    decode,
    decode_masks,
    in_memory,
)
from fedray.data.folders import status_of, unread
from fedray.data.imageset import ImageSet, dominant_classes
from fedray.data.known import known_sets, recognise, spellings
from fedray.data.listing import Listing, Row, domains_of, select_rows
from fedray.data.splits import split_files
from fedray.storage.cache import Arrays, content_key, kept_arrays

_FORMAT = 5
"""Version of the decoded images in the cache."""


class Source(Entry, ABC):
    """A data source; a subclass lists its images as rows.

    Built from its typed parameters (`Params`), the keys `data.source.*`; most sources have none.

    Attributes:
        resampling: the filter for resizing, unless `data.resize` names another.
        kept: whether decoded images are stored in the node's cache.
        reads_root: whether the source reads a folder of the user.
    """

    resampling: ClassVar[Resampling] = "bilinear"
    kept: ClassVar[bool] = True
    reads_root: ClassVar[bool] = True

    @classmethod
    def unread(cls, experiment: Experiment) -> Mapping[str, NoEffect]:
        """Return the keys of a folder, if the source reads none."""
        keys = () if cls.reads_root else ("data.root", "data.download")
        return dict.fromkeys(keys, NoEffect("reads no folder"))

    @abstractmethod
    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the class names and all rows; sources that generate images look at the options.

        Raises:
            UserError: if files are missing or invalid; the message says which, and what to do.
        """

    def files(self, root: Path, options: ReadOptions) -> list[Path] | None:
        """Return every file that is read; None: those of the rows of the chosen classes.

        A source whose rows are not files overrides this method. Images are decoded again if the
        name, size or time of one of the files has changed.
        """
        return None

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return the folder to read; by default `root`, which must exist.

        Raises:
            UserError: if the folder does not exist.
        """
        if root is None or not root.is_dir():
            hint = self.get_hint(root) if root else ""
            raise UserError(
                f"data.source={self.name}: data.root={root} is not a folder; set data.root to the "
                f"folder of the data{hint}"
            )
        return root

    def get_hint(self, root: Path) -> str:
        """Return the command that gets the known set whose folder `root` is, or ""."""
        for known in known_sets().values():
            if known.folder == root.name:
                other = "" if known.source == self.name else f" for data.source={known.source}"
                return f"; get it with: fedray get {known.name}{other}"
        return ""

    def chosen(self, root: Path, options: ReadOptions) -> Listing:
        """Return the rows that a run reads (see `listing.select_rows`)."""
        where = f"data.source={self.name}: {root}"
        return select_rows(self.listing(root, options), options, root, where)

    def read(
        self, listing: Listing, options: ReadOptions, allocate: Allocate = in_memory
    ) -> ImageSet:
        """Decode the rows of a listing from `chosen`; raise a UserError if one is invalid."""
        rows, classes = listing.rows, len(listing.class_names)
        encoded = [row.image for row in rows]

        def name(i: int) -> str:
            return rows[i].name()

        domains = domains_of(listing)
        pixels = decode(encoded, name, options, resampling=self.resampling, allocate=allocate)
        labels, masks = np.array([row.label for row in rows], np.int64), None
        origin = np.array([row.origin for row in rows], np.int8)
        if found := [row.mask for row in rows if row.mask is not None]:
            masks = decode_masks(encoded, found, name, options, classes=classes)
            labels = dominant_classes(masks, classes)
        return ImageSet(self.name, pixels, labels, listing.class_names, origin, domains, masks)

    def load(self, root: Path | None, options: ReadOptions, *, download: bool = False) -> ImageSet:
        """Load the images; `load_images` describes the arguments."""
        try:
            is_given, root = root is not None, self.find_root(root, download=download)
            files: Sequence[Path] = ()
            if self.kept:
                images, files = self._kept(root, options)
            else:
                images = self.read(self.chosen(root, options), options)
            where, left = f"data.source={self.name}", ""
            if is_given and self.kept:
                where, left = f"{where}: {root}", unread(root, files)
            return replace(images, about=f"{where}: {_summary(images, left)}")
        except OSError as error:
            path = error.filename or root
            raise UserError(
                f"data.source={self.name}: {path} cannot be read: {error.strerror or error}; "
                "correct or remove it"
            ) from None

    def _kept(self, root: Path, options: ReadOptions) -> tuple[ImageSet, Sequence[Path]]:
        """Return the images from the node's cache, decoded if they are not in it, and all files."""
        files, listing = self.files(root, options), None
        if files is None:
            listing = self.chosen(root, options)
            files = listing.files
        elif options.split is not None:
            files = [*files, *split_files(root, options.split)]
        code = version_of(type(self)), plugin_of(type(self))
        contents = list(map(content_of, files_of(self).values()))
        facts = self.model_dump(mode="json"), asdict(options), spellings(), *code, *contents
        key = images_key(root, files, *facts)

        def make(making: Arrays) -> None:
            chosen = listing or self.chosen(root, options)
            images = self.read(
                chosen, options, lambda shape: making.allocate("images", shape, "u1")
            )
            if images_key(root, files, *facts) != key:
                raise UserError(
                    f"data.source={self.name}: the files in {root} changed while they were read; "
                    "start again when they are complete"
                )
            images.store(making)

        name = f"{self.name}-{key}"
        return ImageSet.stored(kept_arrays("images", name, "decoded images", make)), files


def images_key(root: Path, files: Iterable[Path], *options: Any) -> str:
    """Return the cache name of decoded images, without decoding them.

    It covers the options, the version of the image library, and the files' sizes, times (of
    modification, which can be set, and of change, which cannot), and names relative to `root`, so
    that the folder can be moved.

    Raises:
        UserError: if one is not a regular file; OSError: if one is missing.
    """
    import PIL

    entries = []
    for path in sorted(files):
        status = status_of(path)
        name = path.relative_to(root).as_posix()
        entries.append([name, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return content_key(_FORMAT, PIL.__version__, options, entries)


def _summary(images: ImageSet, left: str) -> str:
    """Return the numbers of images, classes and domains, and what was not read, in one line."""
    _, test, validation = np.bincount(images.origin, minlength=3)
    domains = () if images.domains is None else images.domains.names
    known = recognise(images.class_names, domains)
    parts = [
        f"{len(images):,} images of {len(images.class_names):,} classes",
        *([] if known is None else [f"recognised as {known.data_set.title}"]),
        *([f"{len(domains)} domains ({', '.join(domains[:6])})"] if domains else []),
        f"{test:,} of them the official test" if test else "no official test",
        *([f"{validation:,} official validation images for few-shot protocols"] * bool(validation)),
    ]
    return ", ".join(parts) + (f"; {left}" if left else "")


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
