"""Where images come from: one module per source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.config import Component
from fedray.data import splits
from fedray.data.cache import cached, source_key
from fedray.data.configurable import Configurable, build
from fedray.data.imageset import TEST, TRAIN, ImageSet
from fedray.errors import UserError
from fedray.registry import Registry

__all__ = ["Source", "build_source", "load_images", "official_split", "sources"]


class Source(Configurable, ABC):
    """One data source; a subclass defines its files and how they are decoded.

    Made from its typed parameters (`Params`), which are those of `data.source`; most have none.
    """

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
            root: the folder of the data; None where the source needs none or has a default.
            image_size: pixels per side; None keeps the original size.
            channels: 1 grey, 3 RGB; None keeps the original ones.
            download: whether files that are missing may be fetched.
            split: a split file below the root, instead of the official split (see `splits`).

        Raises:
            UserError: when files are missing or wrong; it says which and what to do.
        """
        root = self.find_root(root, download=download)
        files = self.files(root)
        options: dict[str, Any] = {"image_size": image_size, "channels": channels}
        if params := self.params.model_dump(mode="json"):
            options["params"] = params
        if split is None:
            key = source_key(self.name, root, files, **options)
            return cached(key, lambda: self.decode(root, image_size=image_size, channels=channels))
        file = splits.find_split_file(root, split)
        key = source_key(self.name, root, [*files, file], **options, split=split)

        def decode() -> ImageSet:
            origin = splits.origins(file, self.paths(root))
            images = self.decode(root, image_size=image_size, channels=channels)
            return replace(images, origin=origin, sha256="")

        return cached(key, decode)

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

    Raises:
        UserError: when there is no such source, a parameter is wrong, or its files are missing or
            wrong.
    """
    component = Component(name=source) if isinstance(source, str) else source
    return build_source(component).load(
        root, image_size=image_size, channels=channels, download=download, split=split
    )


_SPLITS = {"train": TRAIN, "test": TEST, "validation": TEST, "valid": TEST, "val": TEST}


def official_split(name: str) -> int | None:
    """TRAIN or TEST for the name of a split, None for any other name.

    A validation split counts as TEST, since it is held out.
    """
    return _SPLITS.get(name.lower())
