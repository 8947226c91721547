"""Images in one folder per class, optionally below one folder per domain."""

from __future__ import annotations

from pathlib import Path

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.folders import composed, folders_of, images_in, is_split, split_folders
from fedray.data.sources import Listing, Row, Source, sources


@sources.add
class ImageFolder(Source):
    """Images in one folder per class: ROOT/<class>/*.png, or ROOT/{train,test}/<class>/*.png.

    Class names are the folders' names in alphabetical order.

    Folders of class folders whose names have a word for a split (train, training; val, valid,
    validation, dev; test, testing, eval, evaluation) are the official splits, and the classes are
    those of the training images. Without a test split, the validation images are the official test.
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
        for folder in filter(is_split, folders):
            raise UserError(
                f"{folder} is named after a split, not after a domain; set "
                "data.source=image_folder, or rename it"
            )
        return _listing([(folder.name, folder) for folder in folders])


def _listing(domains: list[tuple[str | None, Path]]) -> Listing:
    """Return the images of class folders, each with its domain."""
    images = [
        (path, composed(folder.name), origin, domain)
        for domain, root in domains
        for origin, split in split_folders(root)
        for folder in folders_of(split)
        for path in images_in(folder)
    ]
    names = tuple(sorted({name for _, name, _, _ in images}))
    label = {name: i for i, name in enumerate(names)}
    rows = [Row(path, label[name], origin, domain) for path, name, origin, domain in images]
    return Listing(names, rows, tuple(sorted(domain for domain, _ in domains if domain)))
