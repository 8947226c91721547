"""Images in one folder per class, optionally below one folder per domain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR

from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TRAIN
from fedray.data.sources import Listing, Row, Source, official_split, sources
from fedray.errors import UserError

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}


@sources.add
class ImageFolder(Source):
    """Images in one folder per class: ROOT/<class>/*.png, or ROOT/{train,test}/<class>/*.png.

    Class names are the folders' names in alphabetical order.

    If all folders below the root are named train, test, val, valid or validation, they are the
    official splits, and the classes are the union of their folders.
    """

    name = "image_folder"

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images, ordered by split, class and name."""
        return _listing([(None, root)])


@sources.add
class DomainFolder(Source):
    """Images in a folder per domain and class: ROOT/<domain>/<class>/*.png.

    Or ROOT/<domain>/{train,test}/<class>/*.png. The layout of Office-Caltech-10 and DomainNet:
    domains and classes are the folders' names in alphabetical order; domains may lack classes.
    """

    name = "domain_folder"

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images, ordered by domain, split, class and name."""
        folders = folders_of(root)
        if not folders:
            raise UserError(
                f"data.root={root} contains no folder; expected <domain>/<class>/<image>"
            )
        return _listing([(folder.name, folder) for folder in folders])


def _listing(domains: list[tuple[str | None, Path]]) -> Listing:
    """Return the images of class folders, each with its domain."""
    images = [(domain, *image) for domain, folder in domains for image in _images(folder)]
    names = tuple(sorted({name for _, _, name, _ in images}))
    label = {name: i for i, name in enumerate(names)}
    return Listing(
        names, [Row(path, label[name], origin, domain) for domain, path, name, origin in images]
    )


def _images(root: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield path, class name and official split of every image below a folder of classes."""
    folders = folders_of(root)
    origins = {folder: official_split(folder.name) for folder in folders}
    splits = [(origin, folder) for folder, origin in origins.items() if origin is not None]
    if not splits or len(splits) < len(folders):
        splits = [(TRAIN, root)]
    if not any(folders_of(split) for _, split in splits):
        raise UserError(
            f"{root} contains no folder of images; "
            "expected <class>/<image> or train/<class>/<image> below it"
        )
    for origin, split in sorted(splits):
        for folder in folders_of(split):
            remedy = f"expected {split.name}/<class>/<image>: fill or remove the folder"
            yield from ((image, folder.name, origin) for image in images_in(folder, remedy))


def images_in(folder: Path, remedy: str) -> list[Path]:
    """Return the images in a folder, sorted.

    Raises:
        UserError: if there is none; `remedy` ends the message.
    """
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(f"{folder} contains no image ({suffixes}); {remedy}")
    return images


def folders_of(parent: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones.

    Raises:
        OSError: if a link leads nowhere.
    """
    entries = sorted(path for path in parent.iterdir() if not path.name.startswith("."))
    return [path for path in entries if S_ISDIR(path.stat().st_mode)]
