"""Where images come from: one module per source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from fedray.data import splits
from fedray.data.cache import cached, source_key
from fedray.data.imageset import TEST, TRAIN, ImageSet
from fedray.errors import UserError
from fedray.plugins import Registry

__all__ = ["Source", "load_images", "official_split", "sources"]


class Source(ABC):
    """One place that images come from; a subclass says which files and how they are decoded."""

    name: ClassVar[str]
    """What `data.source` calls it."""

    def load(
        self,
        root: Path | None,
        *,
        image_size: int | None = None,
        channels: int | None = None,
        download: bool = False,
        split: str | None = None,
    ) -> ImageSet:
        """Give the images, decoded once per node and mapped read-only.

        Args:
            root: the folder of the data; None where the source has a place of its own.
            image_size: pixels per side; None keeps the source's own size.
            channels: 1 grey, 3 RGB; None keeps the source's own.
            download: whether files that are missing may be fetched.
            split: a JSON file below the root that says which images are for training and which for
                testing, instead of the official split (see `splits`).

        Raises:
            UserError: when files are missing or wrong; it says which and what to do.
        """
        root = self.locate(root, download=download)
        files, options = self.files(root), {"image_size": image_size, "channels": channels}
        if split is None:
            key = source_key(self.name, root, files, **options)
            return cached(key, lambda: self.decode(root, image_size=image_size, channels=channels))
        file = splits.locate(root, split)
        key = source_key(self.name, root, [*files, file], **options, split=split)

        def decode() -> ImageSet:
            origin = splits.origins(file, self.paths(root))
            images = self.decode(root, image_size=image_size, channels=channels)
            return replace(images, origin=origin, sha256="")

        return cached(key, decode)

    def locate(self, root: Path | None, *, download: bool) -> Path:
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

    def whence(self, root: Path) -> str:
        """Where the data comes from that `root` should hold: the end of a sentence, or nothing."""
        del root
        return ""

    @abstractmethod
    def files(self, root: Path) -> list[Path]:
        """Every file below `root` that images, labels or names are read from, sorted."""

    @abstractmethod
    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Read and decode all of it; called once per node."""

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


sources: Registry[Source] = Registry("data source", "fedray.data.sources")


def load_images(
    source: str,
    root: Path | None = None,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    download: bool = False,
    split: str | None = None,
) -> ImageSet:
    """Give the images of the source called `source`; arguments as in `Source.load`.

    Every process on a node may call it: the images are decoded once and mapped by all.

    Raises:
        UserError: when there is no such source, or its files are missing or wrong.
    """
    return sources.get(source)().load(
        root, image_size=image_size, channels=channels, download=download, split=split
    )


_SPLITS = {"train": TRAIN, "test": TEST, "validation": TEST, "valid": TEST, "val": TEST}


def official_split(name: str) -> int | None:
    """TRAIN or TEST for the name of a split, None for any other name.

    A validation split counts as TEST, since it is held out.
    """
    return _SPLITS.get(name.lower())
