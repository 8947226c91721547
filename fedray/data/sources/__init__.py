"""Where images come from: one module per source, which lists rows; `Source` does the rest."""

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
        label: its class, a position in the class names; of an image with a mask, the dominant
            class of the mask counts instead.
        origin: TRAIN, TEST or VALIDATION, its official split.
        domain: its domain's name; None without domains.
        mask: each pixel's class, for dense prediction (see `decode_masks`).
        where: what messages call it ("train.parquet, row 7"); a file is called by its path.
        path: what a split file calls it; a file is called by its path below the root.
    """

    image: Encoded
    label: int = 0
    origin: int = TRAIN
    domain: str | None = None
    mask: Encoded | None = None
    where: str = ""
    path: str | None = None

    def name(self, root: Path | None = None) -> str:
        """Return what messages call the image, below a root where there is one."""
        if not isinstance(self.image, Path):
            return self.where
        return str(self.image) if root is None else self.image.relative_to(root).as_posix()


class Listing(NamedTuple):
    """The images of a source, none of them decoded yet.

    Attributes:
        class_names: C names.
        rows: the images in the order of a run; a source may read them lazily.
        domains: names of the domains in their order; empty: sorted, as far as rows have any.
    """

    class_names: tuple[str, ...]
    rows: Iterable[Row]
    domains: tuple[str, ...] = ()


class Source(Configurable, ABC):
    """One data source; a subclass lists its images as rows.

    Made from its typed parameters (`Params`), which are those of `data.source`; most have none.

    Attributes:
        resampling: how images of other sizes are scaled, unless `data.resize` says otherwise.
        kept: whether decoded images are kept in the node's cache.
    """

    resampling: ClassVar[Resampling] = "bilinear"
    kept: ClassVar[bool] = True

    @abstractmethod
    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return the class names and all rows.

        Args:
            root: the folder from `find_root`.
            options: what the rows are read for; of use to a source that draws its images.

        Raises:
            UserError: when files are missing or wrong; it says which and what to do.
        """

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return every file that is read: by default those of the rows of the chosen classes.

        A source whose rows are not files overrides this. Images are decoded again when the name,
        size or time of one of the files has changed.
        """
        rows = self.chosen(root, options).rows
        both = (part for row in rows for part in (row.image, row.mask))
        return [part for part in both if isinstance(part, Path)]

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return the folder to read; by default `root`, which must be there.

        Raises:
            UserError: when it is not.
        """
        if root is None:
            raise UserError(f"data.source={self.name} needs a folder: set data.root")
        if not root.is_dir():
            raise UserError(f"data.root={root} is not a folder; set data.root to where the data is")
        return root

    def download_hint(self, root: Path) -> str:
        """Return where the data that `root` should hold comes from, to end a sentence."""
        return ""

    def chosen(self, root: Path, options: ReadOptions) -> Listing:
        """Return the rows of the classes that are asked for.

        Raises:
            UserError: when there is no class of a name, or a name cannot be that of a class.
        """
        listing = self.listing(root, options)
        check_names(listing.class_names, f"data.source={self.name}: {root}")
        if options.classes is None:
            return listing
        return only_classes(listing, options.classes, f"data.source={self.name} ({root})")

    def read(self, root: Path, options: ReadOptions, allocate: Allocate = in_memory) -> ImageSet:
        """Decode the rows of the classes that are asked for.

        Args:
            root: the folder from `find_root`.
            options: which rows, and how they are decoded.
            allocate: gives the array of the pixels.

        Raises:
            UserError: when there are none, or one is wrong.
        """
        names, listed, domain_names = self.chosen(root, options)
        rows = list(listed)
        if not rows:
            raise UserError(f"data.source={self.name}: {root} holds no images")
        origin = np.array([row.origin for row in rows], np.int8)
        if options.split is not None:
            origin = self._split(root, options.split, options, rows)
        domains = domains_of(rows, domain_names)
        encoded = [row.image for row in rows]
        masked = [row.mask for row in rows if row.mask is not None]

        def where(i: int) -> str:
            return rows[i].name()

        pixels = decode(encoded, where, options, resampling=self.resampling, allocate=allocate)
        labels, masks = np.array([row.label for row in rows], np.int64), None
        if masked:
            masks = decode_masks(encoded, masked, where, options, classes=len(names))
            labels = dominant_classes(masks, len(names))
        return ImageSet(self.name, pixels, labels, names, origin, domains, masks)

    def _split(
        self, root: Path, split: str, options: ReadOptions, rows: Sequence[Row]
    ) -> NDArray[np.int8]:
        """Return the part of each row in the split file, which may list the other classes too."""
        every = rows if options.classes is None else self.listing(root, options).rows
        paths, known = self._paths(root, rows), self._paths(root, every)
        return splits.origins(splits.find_split_file(root, split), paths, known)

    def _paths(self, root: Path, rows: Iterable[Row]) -> list[str]:
        """Return what a split file calls each image."""
        paths = []
        for row in rows:
            path = row.name(root) if isinstance(row.image, Path) else row.path
            if path is None:
                raise UserError(
                    f"data.split names images by their paths, but {row.name(root)} of "
                    f"data.source={self.name} has none; leave data.split out"
                )
            paths.append(path)
        return paths

    def _key(self, root: Path, options: ReadOptions) -> str:
        """Name what is read by its files, without decoding it."""
        split = [] if options.split is None else [splits.find_split_file(root, options.split)]
        files = [*split, *self.files(root, options)]
        params = self.params.model_dump(mode="json")
        key = images_key(root, files, params, asdict(options), plugin_of(type(self)))
        return f"{self.name}-{key}"

    def _kept(self, root: Path, options: ReadOptions) -> ImageSet:
        """Return the images from the node's cache."""
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
        """Return the images as `load_images` does."""
        try:
            root = self.find_root(root, download=download)
            if not self.kept:
                return self.read(root, options)
            return self._kept(root, options)
        except OSError as error:
            what = error.filename or root
            raise UserError(
                f"data.source={self.name}: {what} cannot be read: {error.strerror or error}; "
                "mend or remove it"
            ) from None


sources: Registry[type[Source]] = Registry("data source", "fedray.data.sources")


def load_images(
    source: str | Component,
    root: Path | None = None,
    options: ReadOptions = AS_STORED,
    *,
    download: bool = False,
) -> ImageSet:
    """Return the images of a source; every process on a node may call it.

    The images are decoded once per node and mapped read-only by all.

    Args:
        source: its name, or its name with its parameters.
        root: the folder of the data; None where the source needs none or has a default.
        options: which images, and how they are decoded.
        download: whether files that are missing may be fetched.

    Raises:
        UserError: when there is no such source, a parameter is wrong, or its files are missing or
            wrong.
    """
    component = Component(name=source) if isinstance(source, str) else source
    made: Source = build(component, "data source", "data.source")
    return made.load(root, options, download=download)


def only_classes(listing: Listing, wanted: tuple[str, ...], where: str) -> Listing:
    """Return the rows of some classes, whose labels are their positions in `wanted`.

    Raises:
        UserError: when there is no class of a name, or rows have masks, whose pixels name the
            other classes too.
    """
    missing = [name for name in wanted if name not in listing.class_names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"data.classes names '{missing[0]}'{more}, which {where} does not have among its "
            f"{len(listing.class_names)} classes; spell them as there."
            f"{nearest(missing[0], sorted(listing.class_names))}"
        )
    label = {listing.class_names.index(name): i for i, name in enumerate(wanted)}

    def rows() -> Iterator[Row]:
        for row in listing.rows:
            if row.mask is not None:
                raise UserError(
                    f"data.classes takes images by their class, but those of {where} have masks "
                    "of several; leave it out"
                )
            if row.label in label:
                yield row._replace(label=label[row.label])

    return Listing(wanted, rows(), listing.domains)


def domains_of(rows: Sequence[Row], names: Sequence[str] = ()) -> Domains | None:
    """Return the domains of rows; None if no row has one.

    Args:
        rows: n rows.
        names: of the domains in their order; empty: those of the rows, sorted.

    Raises:
        UserError: when a row has no domain and another has one, or there are too many.
    """
    names = tuple(names) or tuple(sorted({row.domain for row in rows if row.domain}))
    if not names:
        return None
    if len(names) > np.iinfo(np.int16).max:
        raise UserError(
            f"the images have {len(names):,} different domains, too many; leave the domains out"
        )
    lacking = next((row for row in rows if not row.domain), None)
    if lacking is not None:
        raise UserError(
            f"{lacking.name()} has no domain, while others have one ({names[0]}, ...); give every "
            "image a domain, or none"
        )
    position: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    return Domains(names, np.array([position[row.domain] for row in rows], np.int16))


def walk(root: Path) -> Iterator[Path]:
    """Yield every file below a folder, through links to folders too, but nothing hidden.

    Raises:
        UserError: when a folder cannot be listed, or a link leads back to a folder above it.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be listed: {error.strerror}; mend or remove it")

    for folder, inner, files in os.walk(root, onerror=refuse, followlinks=True):
        place = Path(folder)
        if place.is_symlink() and place.parent.resolve().is_relative_to(place.resolve()):
            raise UserError(f"{folder} is a link to a folder that it is in; remove it")
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        yield from (place / name for name in sorted(files) if not name.startswith("."))


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse names that cannot name different classes in a text and in a file.

    Raises:
        UserError: with the first that is empty, there twice or not of Unicode characters.
    """
    first: dict[str, int] = {}
    for label, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{where}: class {label} has an empty name; give it one")
        if first.setdefault(name, label) != label:
            raise UserError(
                f"{where}: the classes {first[name]} and {label} are both called '{name}'; "
                "give every class its own name"
            )
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise UserError(
                f"{where}: the name of class {label}, {name!r}, is not UTF-8; rename it"
            )


_SPLITS = {"train": TRAIN, "test": TEST, "validation": TEST, "valid": TEST, "val": TEST}


def official_split(name: str) -> int | None:
    """Return TRAIN or TEST for the name of a split, None for any other name.

    A validation split counts as TEST, since it is held out.
    """
    return _SPLITS.get(name.lower())
