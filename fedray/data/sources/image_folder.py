"""Images in one folder per class, optionally below one folder per domain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.layout import (
    IMAGE_SUFFIXES,
    composed,
    folders_of,
    images_in,
    is_image,
    is_split,
    other_files_hint,
    split_folders,
    validation_note,
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
    reads = f"images ({', '.join(sorted(IMAGE_SUFFIXES))}) directly in the folder of their class"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the images and the lists of their classes."""
        return [*super().files(root, options), *_lists(root)]

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

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the images and the lists of their classes."""
        lists = [file for folder in folders_of(root) for file in _lists(folder)]
        return [*super().files(root, options), *lists]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images, ordered by domain, split, class and name."""
        folders = folders_of(root)
        if not folders:
            raise UserError(
                f"data.root={root} contains no folder{other_files_hint(root)}; "
                "expected <domain>/<class>/<image>"
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
    named = sorted({composed(domain) for domain, _ in domains if domain is not None})
    return Listing(names, rows, tuple(named), validation_note(splits))


def _images(root: Path) -> Iterator[tuple[Path, str, int, str]]:
    """Yield path, class, split and the split folder's name of every image below class folders."""
    splits = split_folders(root)
    if not any(folders_of(split) for _, split in splits):
        raise UserError(
            f"{root} contains no folder of images{other_files_hint(root)}; "
            "expected <class>/<image> or train/<class>/<image> below it"
        )
    lists = {split: annotations_of(split) for _, split in splits}
    for origin, split in splits:
        if annotations := lists[split]:
            yield from ((path, name, origin, split.name) for path, name in _annotated(annotations))
            continue
        if any(lists.values()) and _is_unlabelled(split):
            continue  # Tiny-ImageNet's test/images
        for folder in folders_of(split):
            remedy = f"expected {split.name}/<class>/<image>: fill or remove the folder"
            name = composed(folder.name)
            inner = folder / _INNER
            deeper = not _has_images(folder) and folders_of(folder) == [inner]
            images = inner if deeper else folder
            yield from ((image, name, origin, split.name) for image in images_in(images, remedy))


_INNER = "images"
"""The folder of images in a class folder, and in a split with annotations, of Tiny-ImageNet."""


def _has_images(folder: Path) -> bool:
    return any(is_image(path.name) for path in folder.iterdir())


def annotations_of(split: Path) -> Path | None:
    """Return the file with the classes of the images in `split/images`; None if there is none."""
    file = split / f"{split.name}_annotations.txt"
    return file if file.is_file() and (split / _INNER).is_dir() else None


def _lists(root: Path) -> list[Path]:
    """Return the files with the classes of images below a folder of splits."""
    found = (annotations_of(split) for _, split in split_folders(root))
    return [file for file in found if file is not None]


def _is_unlabelled(split: Path) -> bool:
    return [folder.name for folder in folders_of(split)] == [_INNER]


def _annotated(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the class of every image that Tiny-ImageNet's list names.

    Raises:
        UserError: if the list and the images do not match.
    """
    folder = file.parent / _INNER
    lines = [line.split("\t") for line in read_text(file, "the list", 1 << 28).splitlines()]
    classes = {line[0]: composed(line[1]) for line in lines if len(line) > 1}
    images = images_in(folder, f"expected the images of {file}")
    for name in sorted({image.name for image in images} ^ classes.keys()):
        what = "has no image" if name in classes else "lists no class of"
        raise UserError(f"{file} {what} {_INNER}/{name}; unpack the archive again")
    yield from ((image, classes[image.name]) for image in images)
