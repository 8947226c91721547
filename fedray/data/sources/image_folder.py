"""Images in one folder per class, optionally below one folder per domain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedray.data.decoding import ReadOptions
from fedray.data.layout import (
    IMAGE_SUFFIXES,
    composed,
    folders_of,
    images_in,
    is_split,
    split_folders,
    validation_note,
    with_official_test,
)
from fedray.data.sources import Listing, Row, Source, sources
from fedray.errors import UserError


@sources.add
class ImageFolder(Source):
    """Images in one folder per class: ROOT/<class>/*.png, or ROOT/{train,test}/<class>/*.png.

    Class names are the folders' names in alphabetical order.

    Folders of class folders whose names have a word for a split (train, training; val, valid,
    validation, dev; test, testing, eval, evaluation) are the official splits, and the classes are
    those of the training images. Without a test split, the validation images are the official test.
    """

    name = "image_folder"
    reads = f"images ({', '.join(sorted(IMAGE_SUFFIXES))}) directly in the folder of their class"

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
    reads = ImageFolder.reads

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images, ordered by domain, split, class and name."""
        folders = folders_of(root)
        if not folders:
            raise UserError(
                f"data.root={root} contains no folder; expected <domain>/<class>/<image>"
            )
        for folder in filter(is_split, folders):
            raise UserError(
                f"{folder} is named after a split, not after a domain; set "
                "data.source=image_folder, or rename it"
            )
        return _listing([(folder.name, folder) for folder in folders])


def _listing(domains: list[tuple[str | None, Path]]) -> Listing:
    """Return the images of class folders, each with its domain."""
    images = [(domain, *image) for domain, folder in domains for image in _images(folder)]
    names = tuple(sorted({name for _, _, name, _, _ in images}))
    label = {name: i for i, name in enumerate(names)}
    splits = {(origin, split) for *_, origin, split in images}
    final = {origin: with_official_test(origin, dict(splits)) for origin, _ in splits}
    rows = [Row(path, label[name], final[o], domain) for domain, path, name, o, _ in images]
    return Listing(names, rows, notes=validation_note(splits))


def _images(root: Path) -> Iterator[tuple[Path, str, int, str]]:
    """Yield path, class, split and the split folder's name of every image below class folders."""
    splits = split_folders(root)
    if not any(folders_of(split) for _, split in splits):
        raise UserError(
            f"{root} contains no folder of images; "
            "expected <class>/<image> or train/<class>/<image> below it"
        )
    for origin, split in splits:
        for folder in folders_of(split):
            remedy = f"expected {split.name}/<class>/<image>: fill or remove the folder"
            name = composed(folder.name)
            yield from ((image, name, origin, split.name) for image in images_in(folder, remedy))
