"""Images in one folder per class, optionally below one folder per domain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.folders import (
    composed,
    folders_of,
    has_images,
    images_in,
    is_split,
    split_folders,
    with_official_test,
)
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import read_text


@sources.add
class ImageFolder(Source):
    """Images in one folder per class: ROOT/<class>/*.png, or ROOT/{train,test}/<class>/*.png.

    Class names are the folders' names in alphabetical order.

    Tiny-ImageNet's archive is read, too: images one folder deeper, `<class>/images`, and validation
    images in `val/images`, whose classes are in `val/val_annotations.txt`.

    Folders of class folders whose names have a word for a split (train, training; val, valid,
    validation, dev; test, testing, eval, evaluation) are the official splits, and the classes are
    those of the training images. Without a test split, the validation images are the official test.
    """

    name = "image_folder"
    reads_folder = True

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
    reads_folder = True

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
    splits = [(domain, *split) for domain, folder in domains for split in _splits(folder)]
    lists = [file for _, _, folder in splits if (file := _annotations(folder)) is not None]
    images = [
        (path, name, origin, domain)
        for domain, origin, folder in splits
        for path, name in _images(folder)
    ]
    names = tuple(sorted({name for _, name, _, _ in images}))
    label = {name: i for i, name in enumerate(names)}
    origins = {origin for _, _, origin, _ in images}
    final = {origin: with_official_test(origin, origins) for origin in origins}
    rows = [Row(path, label[name], final[origin], domain) for path, name, origin, domain in images]
    named = tuple(sorted(domain for domain, _ in domains if domain is not None))
    return Listing(names, rows, named, tuple(lists))


def _splits(root: Path) -> list[tuple[int, Path]]:
    """Return each split with its folder of class folders, but not Tiny-ImageNet's test/images."""
    splits = split_folders(root)
    if not any(folders_of(folder) for _, folder in splits):
        raise UserError(
            f"{root} contains no folder of images; expected <class>/<image> or "
            "train/<class>/<image> below it"
        )
    if not any(_annotations(folder) for _, folder in splits):
        return splits
    return [split for split in splits if _annotations(split[1]) or not _is_unlabelled(split[1])]


def _images(split: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and class of every image of a split."""
    if annotations := _annotations(split):
        yield from _annotated(annotations)
        return
    for folder in folders_of(split):
        name, inner = composed(folder.name), folder / _INNER
        is_deeper = not has_images(folder) and folders_of(folder) == [inner]
        yield from ((image, name) for image in images_in(inner if is_deeper else folder))


_INNER = "images"
"""The folder of images in a class folder, and in a split with annotations, of Tiny-ImageNet."""


def _annotations(split: Path) -> Path | None:
    """Return the file with the classes of the images in `split/images`; None if there is none."""
    file = split / f"{split.name}_annotations.txt"
    return file if file.is_file() and (split / _INNER).is_dir() else None


def _is_unlabelled(split: Path) -> bool:
    return [folder.name for folder in folders_of(split)] == [_INNER]


def _annotated(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the class of every image that Tiny-ImageNet's list names.

    Raises:
        UserError: if the list and the images do not match.
    """
    lines = [line.split("\t") for line in read_text(file, "the list", 1 << 28).splitlines()]
    classes = {line[0]: composed(line[1]) for line in lines if len(line) > 1}
    images = images_in(file.parent / _INNER)
    for name in sorted({image.name for image in images} ^ classes.keys()):
        what = "has no image" if name in classes else "lists no class of"
        raise UserError(f"{file} {what} {_INNER}/{name}; unpack the archive again")
    yield from ((image, classes[image.name]) for image in images)
