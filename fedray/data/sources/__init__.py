"""Data sources: one module per source, which lists its images as rows; `Source` does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedray.base.errors import UserError
from fedray.config import Component, Entry, component, content_of, files_of
from fedray.config.plugins import plugin_of
from fedray.config.registry import Registry, version_of
from fedray.data import splits
from fedray.data.cache import image_set, images_key, save_images
from fedray.data.decoding import (
    AS_STORED,
    Allocate,
    ReadOptions,
    Resampling,
    decode,
    decode_masks,
    in_memory,
)
from fedray.data.folders import unread
from fedray.data.imageset import ImageSet, dominant_classes
from fedray.data.known import known_sets, recognise, spellings
from fedray.data.listing import Listing, Row, check_trained, domains_of, understood
from fedray.storage.cache import Arrays, kept_arrays


class Source(Entry, ABC):
    """A data source; a subclass lists its images as rows.

    Built from its typed parameters (`Params`), the keys `data.source.*`; most sources have none.

    Attributes:
        resampling: the filter for resizing, unless `data.resize` names another.
        kept: whether decoded images are stored in the node's cache.
        reads_folder: whether the root is a folder of the user, of which unread files are counted.
    """

    resampling: ClassVar[Resampling] = "bilinear"
    kept: ClassVar[bool] = True
    reads_folder: ClassVar[bool] = False

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
        return self.chosen(root, options).files

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
        """Return the command that gets the known set whose folder `root` is, or ""."""
        for known in known_sets().values():
            if known.folder == root.name:
                other = "" if known.source == self.name else f" for data.source={known.source}"
                return f"; get it with: fedray get {known.name}{other}"
        return ""

    def chosen(self, root: Path, options: ReadOptions) -> Listing:
        """Return the rows of the requested classes.

        Raises:
            UserError: if a requested class does not exist, or a class name is not allowed.
        """
        return understood(self.listing(root, options), options.classes, self._where(root))

    def _where(self, root: Path) -> str:
        return f"data.source={self.name}: {root}"

    def read(self, root: Path, options: ReadOptions, allocate: Allocate = in_memory) -> ImageSet:
        """Decode the rows of the requested classes.

        Args:
            root: the folder from `find_root`.
            options: which rows to read, and how to decode them.
            allocate: returns the array for the pixels.

        Raises:
            UserError: if there are no rows, or one is invalid.
        """
        listing, where = self.chosen(root, options), self._where(root)
        rows, names = listing.rows, listing.class_names
        if not rows:
            raise UserError(f"{where} holds no images")
        origin = np.array([row.origin for row in rows], np.int8)
        if options.split is not None:
            every = rows if options.classes is None else self.listing(root, options).rows
            paths, known = self._paths(root, rows), self._paths(root, every)
            origin = splits.origins(splits.split_files(root, options.split), paths, known)
        domains, encoded = domains_of(rows, listing.domains), [row.image for row in rows]

        def name(i: int) -> str:
            return rows[i].name()

        pixels = decode(encoded, name, options, resampling=self.resampling, allocate=allocate)
        labels, masks = np.array([row.label for row in rows], np.int64), None
        if found := [row.mask for row in rows if row.mask is not None]:
            masks = decode_masks(encoded, found, name, options, classes=len(names))
            labels = dominant_classes(masks, len(names))
        images = ImageSet(self.name, pixels, labels, names, origin, domains, masks)
        if masks is None and options.split is None:
            check_trained(images, where)
        return images

    def _paths(self, root: Path, rows: Iterable[Row]) -> list[str]:
        """Return the images' paths as a split file writes them."""
        paths = []
        for row in rows:
            path = row.name(root) if isinstance(row.image, Path) else row.path
            if path is None:
                raise UserError(f"data.split: {row.name(root)} has no path; remove data.split")
            paths.append(path)
        return paths

    def _files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return all files that are read, with those of the split."""
        split = options.split
        given = [] if split in (None, splits.LISTS) else splits.split_files(root, split)
        files = [*given, *self.files(root, options)]
        if split == splits.LISTS:  # later, because a domain without images is worse
            files += splits.split_files(root, split)
        return files

    def _kept(self, root: Path, options: ReadOptions, files: Sequence[Path]) -> ImageSet:
        """Return the images from the node's cache; decode them if they are not in it."""
        code = version_of(type(self)), plugin_of(type(self))
        contents = list(map(content_of, files_of(self).values()))
        facts = self.model_dump(mode="json"), asdict(options), spellings(), *code, *contents

        def make(making: Arrays) -> None:
            images = self.read(root, options, lambda shape: making.allocate("images", shape, "u1"))
            if images_key(root, files, *facts) != key:
                raise UserError(
                    f"data.source={self.name}: the files in {root} changed while they were read; "
                    "start again when they are complete"
                )
            save_images(images, making)

        key = images_key(root, files, *facts)
        return image_set(kept_arrays("images", f"{self.name}-{key}", "decoded images", make))

    def load(self, root: Path | None, options: ReadOptions, *, download: bool = False) -> ImageSet:
        """Load the images; `load_images` describes the arguments."""
        try:
            root = self.find_root(root, download=download)
            files = self._files(root, options) if self.kept else []
            images = self._kept(root, options, files) if self.kept else self.read(root, options)
            where, left = f"data.source={self.name}", ""
            if self.reads_folder:
                where, left = self._where(root), unread(root, files)
            return replace(images, about=f"{where}: {_summary(images, left)}")
        except OSError as error:
            path = error.filename or root
            raise UserError(
                f"data.source={self.name}: {path} cannot be read: {error.strerror or error}; "
                "correct or remove it"
            ) from None


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
