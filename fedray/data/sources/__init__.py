"""Where images come from: one module per source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedray.config import Component
from fedray.data import splits
from fedray.data.cache import allocate, cached, source_key
from fedray.data.configurable import Configurable, build
from fedray.data.decoding import Resampling, asked_resizing, resizing
from fedray.data.imageset import TEST, TRAIN, Domains, ImageSet
from fedray.data.reading import check_files
from fedray.errors import UserError, nearest
from fedray.plugins import plugin_of
from fedray.registry import Registry

__all__ = [
    "Found",
    "Listing",
    "Source",
    "build_source",
    "check_names",
    "load_images",
    "official_split",
    "sources",
]


class Found(NamedTuple):
    """An image as it lies there.

    Attributes:
        where: names it: a path below the root, or file and row.
        encoded: its file, or the file's bytes.
        label: its class, a position in the names.
        origin: TRAIN or TEST, its official split.
        domain: its domain's name; None without domains.
    """

    where: str
    encoded: Path | bytes
    label: int
    origin: int
    domain: str | None = None


class Listing(NamedTuple):
    """Files of images of one's own, none of them read yet.

    Attributes:
        class_names: C names, as a run would have them.
        images: in the order of a run.
        left_out: files that are no images by their suffix, relative to the root.
    """

    class_names: tuple[str, ...]
    images: Iterator[Found]
    left_out: list[str]


class Source(Configurable, ABC):
    """One data source; a subclass defines its files and how they are decoded.

    Made from its typed parameters (`Params`), which are those of `data.source`; most have none.

    Attributes:
        wanted: the classes that are asked for, in the order of their labels; None for all. A source
            that can leave the others' files unread does so; from the others they are taken out.
        resampling: how images of other sizes are scaled, unless `data.resize` says otherwise.
    """

    wanted: tuple[str, ...] | None = None
    resampling: ClassVar[Resampling] = "bilinear"

    def load(
        self,
        root: Path | None,
        *,
        image_size: int | None = None,
        channels: int | None = None,
        download: bool = False,
        split: str | None = None,
        verified_since: float = 0.0,
    ) -> ImageSet:
        """Give the images, decoded once per node and mapped read-only.

        Args:
            root: the folder of the data; None where the source needs none or has a default.
            image_size: pixels per side; None keeps the original size.
            channels: 1 grey, 3 RGB; None keeps the original ones.
            download: whether files that are missing may be fetched.
            split: a split file below the root, instead of the official split (see `splits`).
            verified_since: images that were decoded before this time are decoded again and
                compared (see `cached`).

        Raises:
            UserError: when files are missing or wrong; it says which and what to do.
        """
        try:
            root = self.find_root(root, download=download)
            return self._cached(root, split, verified_since, image_size, channels)
        except OSError as error:
            what = error.filename or root
            raise UserError(
                f"data.source={self.name}: {what} cannot be read: {error.strerror or error}; "
                "mend or remove it"
            ) from None

    def _cached(
        self,
        root: Path,
        split: str | None,
        verified_since: float,
        image_size: int | None,
        channels: int | None,
    ) -> ImageSet:
        file = None if split is None else splits.find_split_file(root, split)

        def key() -> str:
            files = [*self.files(root), *([] if file is None else [file])]
            check_files(files)
            options: dict[str, Any] = {"image_size": image_size, "channels": channels}
            if params := self.params.model_dump(mode="json"):
                options["params"] = params
            if split is not None:
                options["split"] = split
            if (resize := asked_resizing()) is not None:
                options["resize"] = resize
            if self.wanted is not None:
                options["classes"] = self.wanted
            if (plugin := plugin_of(type(self))) is not None:
                options["plugin"] = plugin
            return source_key(self.name, root, files, **options)

        def decode() -> ImageSet:
            origin = None if file is None else splits.origins(file, self.paths(root))
            images = self.decode(root, image_size=image_size, channels=channels)
            if key() != before:
                raise UserError(
                    f"data.source={self.name}: the files in {root} changed while they were read; "
                    "start again when they are complete"
                )
            check_names(images.class_names, f"data.source={self.name}: {root}")
            if origin is not None:
                images = replace(images, origin=origin, sha256="")
            return images if self.wanted is None else only_classes(images, self.wanted)

        before = key()
        return cached(before, decode, verified_since=verified_since)

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return the folder to read; by default `root`, which must be there.

        Raises:
            UserError: when it is not.
        """
        del download
        if root is None:
            raise UserError(f"data.source={self.name} needs a folder: set data.root")
        if not root.is_dir():
            raise UserError(f"data.root={root} is not a folder; set data.root to where the data is")
        return root

    def download_hint(self, root: Path) -> str:
        """Where the data comes from that `root` should hold: the end of a sentence, or nothing."""
        del root
        return ""

    @abstractmethod
    def files(self, root: Path) -> list[Path]:
        """Every file below `root` that images, labels or names are read from, sorted."""

    @abstractmethod
    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Read and decode all of it; called once per node."""

    def listing(self, root: Path) -> Listing:
        """What a run would read, one image after the other, for whoever wants to look at it.

        Raises:
            UserError: when there is nothing to list, or the source is not one of files of images.
        """
        del root
        raise UserError(
            f"data.source={self.name} is not one of images of your own; its files are looked at by "
            "a run. For a folder of images set data.source=image_folder, domain_folder or parquet"
        )

    def paths(self, root: Path) -> list[str]:
        """Each image's path as a split file names it, in the order of `decode`.

        Raises:
            UserError: when the images have none.
        """
        del root
        raise UserError(
            f"data.split names images by their paths, but those of data.source={self.name} have "
            "none; leave data.split out"
        )


sources: Registry[type[Source]] = Registry("data source", "fedray.data.sources")


def build_source(component: Component) -> Source:
    """Make the source that `data.source` names.

    Raises:
        UserError: when there is none of this name, or a parameter is unknown or out of bounds.
    """
    source: Source = build(component, "data source", "data.source")
    return source


def load_images(
    source: str | Component,
    root: Path | None = None,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    download: bool = False,
    split: str | None = None,
    verified_since: float = 0.0,
    resize: Resampling | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Give the images of a source; every process on a node may call it.

    The images are decoded once and mapped by all.

    Args:
        source: its name, or its name with its parameters.
        root: the folder of the data; None where the source needs none or has a default.
        image_size: pixels per side; None keeps the original size.
        channels: 1 grey, 3 RGB; None keeps the original ones.
        download: whether files that are missing may be fetched.
        split: a split file below the root, instead of the official split (see `splits`).
        verified_since: images that were decoded before this time are decoded again and compared
            (see `cached`).
        resize: how images are scaled (see `resizing`); None leaves it to the source.
        classes: names of the classes to take, in the order of their labels; None for all.

    Raises:
        UserError: when there is no such source, a parameter is wrong, or its files are missing or
            wrong.
    """
    component = Component(name=source) if isinstance(source, str) else source
    chosen = build_source(component)
    chosen.wanted = None if classes is None else tuple(classes)
    with resizing(resize):
        images = chosen.load(
            root,
            image_size=image_size,
            channels=channels,
            download=download,
            split=split,
            verified_since=verified_since,
        )
    return images if chosen.wanted is None else only_classes(images, chosen.wanted)


def check_wanted(wanted: Sequence[str], there: Collection[str], where: str) -> None:
    """Refuse classes that the data does not have.

    Args:
        wanted: `data.classes`.
        there: the names of the data's classes.
        where: what holds the data.

    Raises:
        UserError: naming the first of them, and the nearest name that there is.
    """
    missing = [name for name in wanted if name not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"data.classes names '{missing[0]}'{more}, which {where} does not have among its "
            f"{len(there)} classes; spell them as there.{nearest(missing[0], sorted(there))}"
        )


def only_classes(images: ImageSet, wanted: Sequence[str]) -> ImageSet:
    """The images of some classes, whose labels are their positions in `wanted`.

    Raises:
        UserError: when there is no class of a name, or the images have masks, whose pixels name
            the other classes too.
    """
    if images.class_names == tuple(wanted):
        return images
    if images.masks is not None:
        raise UserError(
            f"data.classes takes images by their class, but those of data.source={images.source} "
            "have masks of several; leave it out"
        )
    check_wanted(wanted, images.class_names, f"data.source={images.source}")
    label = np.full(len(images.class_names), -1, np.int64)
    label[[images.class_names.index(name) for name in wanted]] = np.arange(len(wanted))
    kept = np.flatnonzero(label[images.labels] >= 0)
    pixels = allocate((len(kept), *images.images.shape[1:]))
    for start in range(0, len(kept), _AT_ONCE):
        part = kept[start : start + _AT_ONCE]
        pixels[start : start + len(part)] = images.images[part]
    domains = images.domains
    if domains is not None:
        domains = Domains(domains.names, domains.ids[kept])
    return ImageSet(
        images.source,
        pixels,
        label[images.labels[kept]],
        tuple(wanted),
        images.origin[kept],
        domains,
    )


_AT_ONCE = 1024
"""Images that are copied at once."""


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
    """TRAIN or TEST for the name of a split, None for any other name.

    A validation split counts as TEST, since it is held out.
    """
    return _SPLITS.get(name.lower())
