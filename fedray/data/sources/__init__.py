"""Data sources: one module per source, which lists its images as rows; `Source` does the rest."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.config import Component
from fedray.data import splits
from fedray.data.cache import image_set, images_key, save_images
from fedray.data.configurable import Configurable, build
from fedray.data.decoding import (
    AS_STORED,
    Allocate,
    Encoded,
    ReadOptions,
    Resampling,
    decode,
    decode_masks,
    in_memory,
)
from fedray.data.imageset import TEST, TRAIN, Domains, ImageSet, dominant_classes
from fedray.errors import UserError, nearest
from fedray.node_cache import Arrays, kept_arrays
from fedray.plugins import plugin_of
from fedray.registry import Registry


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
    """

    class_names: tuple[str, ...]
    rows: Iterable[Row]
    domains: tuple[str, ...] = ()


class Source(Configurable, ABC):
    """A data source; a subclass lists its images as rows.

    Built from its typed parameters (`Params`), the keys `data.source.*`; most sources have none.

    Attributes:
        resampling: the filter for resizing, unless `data.resize` names another.
        kept: whether decoded images are stored in the node's cache.
    """

    resampling: ClassVar[Resampling] = "bilinear"
    kept: ClassVar[bool] = True

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
        rows = self.chosen(root, options).rows
        encoded = (item for row in rows for item in (row.image, row.mask))
        return [item for item in encoded if isinstance(item, Path)]

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

    def download_hint(self, root: Path) -> str:
        """Return where to get the data that `root` should hold, as the end of a sentence."""
        return ""

    def chosen(self, root: Path, options: ReadOptions) -> Listing:
        """Return the rows of the requested classes.

        Raises:
            UserError: if a requested class does not exist, or a class name is not allowed.
        """
        listing = self.listing(root, options)
        check_names(listing.class_names, f"data.source={self.name}: {root}")
        if options.classes is None:
            return listing
        return only_classes(listing, options.classes, f"data.source={self.name} ({root})")

    def read(self, root: Path, options: ReadOptions, allocate: Allocate = in_memory) -> ImageSet:
        """Decode the rows of the requested classes.

        Args:
            root: the folder from `find_root`.
            options: which rows to read, and how to decode them.
            allocate: returns the array for the pixels.

        Raises:
            UserError: if there are no rows, or one is invalid.
        """
        names, rows_of_classes, domain_names = self.chosen(root, options)
        rows = list(rows_of_classes)
        if not rows:
            raise UserError(f"data.source={self.name}: {root} holds no images")
        origin = np.array([row.origin for row in rows], np.int8)
        if options.split is not None:
            origin = self._split(root, options.split, options, rows)
        domains = domains_of(rows, domain_names)
        encoded = [row.image for row in rows]
        encoded_masks = [row.mask for row in rows if row.mask is not None]

        def where(i: int) -> str:
            return rows[i].name()

        pixels = decode(encoded, where, options, resampling=self.resampling, allocate=allocate)
        labels, masks = np.array([row.label for row in rows], np.int64), None
        if encoded_masks:
            masks = decode_masks(encoded, encoded_masks, where, options, classes=len(names))
            labels = dominant_classes(masks, len(names))
        return ImageSet(self.name, pixels, labels, names, origin, domains, masks)

    def _split(
        self, root: Path, split: str, options: ReadOptions, rows: Sequence[Row]
    ) -> NDArray[np.int8]:
        """Return each row's part of the split; the split file may list other classes, too."""
        all_rows = rows if options.classes is None else self.listing(root, options).rows
        paths, known_paths = self._paths(root, rows), self._paths(root, all_rows)
        return splits.origins(splits.find_split_file(root, split), paths, known_paths)

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
        split = [] if options.split is None else [splits.find_split_file(root, options.split)]
        files = [*split, *self.files(root, options)]
        params = self.params.model_dump(mode="json")
        key = images_key(root, files, params, asdict(options), plugin_of(type(self)))
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
            if not self.kept:
                return self.read(root, options)
            return self._cached(root, options)
        except OSError as error:
            path = error.filename or root
            raise UserError(
                f"data.source={self.name}: {path} cannot be read: {error.strerror or error}; "
                "correct or remove it"
            ) from None


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
    component = Component(name=source) if isinstance(source, str) else source
    instance: Source = build(component, "data source", "data.source")
    return instance.load(root, options, download=download)


def only_classes(listing: Listing, names: tuple[str, ...], where: str) -> Listing:
    """Return the rows of some classes, labelled by their positions in `names`.

    Raises:
        UserError: if a class does not exist, or rows have masks, which contain other classes, too.
    """
    missing = [name for name in names if name not in listing.class_names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"data.classes names '{missing[0]}'{more}, which {where} does not have among its "
            f"{len(listing.class_names)} classes; correct the spelling."
            f"{nearest(missing[0], sorted(listing.class_names))}"
        )
    label = {listing.class_names.index(name): i for i, name in enumerate(names)}

    def rows() -> Iterator[Row]:
        for row in listing.rows:
            if row.mask is not None:
                raise UserError(
                    f"data.classes selects images by their class, but the masks of {where} have "
                    "several classes each; remove data.classes"
                )
            if row.label in label:
                yield row._replace(label=label[row.label])

    return Listing(names, rows(), listing.domains)


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
    lacking = next((row for row in rows if not row.domain), None)
    if lacking is not None:
        raise UserError(
            f"{lacking.name()} has no domain, but others have one ({names[0]}, ...); give every "
            "image a domain, or none"
        )
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    return Domains(names, np.array([position[row.domain] for row in rows], np.int16))


def walk(root: Path) -> Iterator[Path]:
    """Yield every file below a folder, following links to folders; hidden names are skipped.

    Raises:
        UserError: if a folder cannot be listed, or a link leads back to a folder above it.
    """

    def refuse(error: OSError) -> None:
        raise UserError(
            f"{error.filename} cannot be listed: {error.strerror}; correct or remove it"
        )

    for folder, subfolders, files in os.walk(root, onerror=refuse, followlinks=True):
        path = Path(folder)
        if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{folder} is a link to a folder that contains it; remove it")
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (path / name for name in sorted(files) if not name.startswith("."))


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


_SPLITS = {"train": TRAIN, "test": TEST, "validation": TEST, "valid": TEST, "val": TEST}


def official_split(name: str) -> int | None:
    """Return TRAIN or TEST for the name of a split, or None for any other name.

    A validation split counts as TEST, because it is held out.
    """
    return _SPLITS.get(name.lower())
