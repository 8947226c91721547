"""Images in one folder per class, alone or below a folder for each domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedray.data.decoding import decode
from fedray.data.imageset import TRAIN, Domains, ImageSet
from fedray.data.reading import check_files, walk
from fedray.data.sources import (
    Found,
    Listing,
    Source,
    check_wanted,
    official_split,
    sources,
)
from fedray.errors import UserError

Row = tuple[Path, str, int]
"""An image, its class's name, its official split."""
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}


@sources.add
class ImageFolder(Source):
    """Images in one folder per class: ROOT/<class>/*.png, or ROOT/{train,test}/<class>/*.png.

    Class names are the folders' names in alphabetical order.

    When every folder below the root is called train, test, val, valid or validation, they are the
    official splits, and the classes are what they hold together.
    """

    name = "image_folder"

    def files(self, root: Path) -> list[Path]:
        """Every image, sorted by split, class and name.

        Raises:
            UserError: when there is no class, or a class has no image.
        """
        return [path for path, _, _ in self.taken(rows_of(root), root)]

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Decode every image of the classes that are wanted."""
        rows = self.taken(rows_of(root), root)
        return _decoded(self.name, rows, image_size, channels, names=self.wanted)

    def taken(self, rows: list[Row], root: Path) -> list[Row]:
        """The images of the classes that are wanted.

        Raises:
            UserError: when there is none of a class.
        """
        if self.wanted is None:
            return rows
        check_wanted(self.wanted, {name for _, name, _ in rows}, f"data.root={root}")
        return [row for row in rows if row[1] in self.wanted]

    def listing(self, root: Path) -> Listing:
        """Every image of the classes that are wanted."""
        return _listing(root, [(None, self.taken(rows_of(root), root))], self.wanted)

    def paths(self, root: Path) -> list[str]:
        """Each file's path below the root."""
        return [path.relative_to(root).as_posix() for path in self.files(root)]


@sources.add
class DomainFolder(ImageFolder):
    """Images in a folder per domain and class: ROOT/<domain>/<class>/*.png.

    Or ROOT/<domain>/{train,test}/<class>/*.png. The layout of Office-Caltech-10 and DomainNet:
    domains and classes are the folders' names in alphabetical order; a class need not be in every
    domain.
    """

    name = "domain_folder"

    def files(self, root: Path) -> list[Path]:
        """Every image, sorted by domain, split, class and name.

        Raises:
            UserError: when a domain has no class, or a class has no image.
        """
        return [path for _, rows in self._domains(root) for path, _, _ in rows]

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Decode every image of the classes that are wanted."""
        domains = self._domains(root)
        ids = np.repeat(np.arange(len(domains), dtype=np.int16), [len(rows) for _, rows in domains])
        every = [row for _, rows in domains for row in rows]
        names = tuple(name for name, _ in domains)
        return _decoded(self.name, every, image_size, channels, Domains(names, ids), self.wanted)

    def listing(self, root: Path) -> Listing:
        """Every image of the classes that are wanted, domain by domain."""
        return _listing(root, self._domains(root), self.wanted)

    def _domains(self, root: Path) -> list[tuple[str, list[Row]]]:
        """Every domain with its images of the classes that are wanted."""
        folders = folders_of(root)
        if not folders:
            raise UserError(f"data.root={root} holds no folder; expected <domain>/<class>/<image>")
        domains = [(folder.name, rows_of(folder)) for folder in folders]
        taken = set(self.taken([row for _, rows in domains for row in rows], root))
        found = [(name, [row for row in rows if row in taken]) for name, rows in domains]
        return [(name, rows) for name, rows in found if rows]


def rows_of(root: Path) -> list[Row]:
    """Image, class name and official split of every image below a folder of classes.

    Raises:
        UserError: when there is no class, or a class has no image.
    """
    folders = folders_of(root)
    origins = {folder: official_split(folder.name) for folder in folders}
    splits = [(origin, folder) for folder, origin in origins.items() if origin is not None]
    if not splits or len(splits) < len(folders):
        splits = [(TRAIN, root)]
    rows: list[Row] = []
    for origin, split in sorted(splits):
        for folder in folders_of(split):
            images = sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
            if not images:
                raise UserError(
                    f"{folder} holds no image ({', '.join(sorted(IMAGE_SUFFIXES))}); "
                    f"expected {split.name}/<class>/<image>: fill or remove the folder"
                )
            rows += [(image, folder.name, origin) for image in images]
    if not rows:
        raise UserError(
            f"{root} holds no folder of images; "
            "expected <class>/<image> or train/<class>/<image> below it"
        )
    return rows


def _listing(
    root: Path, groups: Sequence[tuple[str | None, list[Row]]], wanted: Sequence[str] | None
) -> Listing:
    """The images of rows in their order, by domain where there are any."""
    names = tuple(wanted or sorted({name for _, rows in groups for _, name, _ in rows}))
    position = {name: i for i, name in enumerate(names)}

    def images() -> Iterator[Found]:
        for domain, rows in groups:
            for path, name, origin in rows:
                where = path.relative_to(root).as_posix()
                yield Found(where, path, position[name], origin, domain)

    others = (path for path in walk(root) if path.suffix.lower() not in IMAGE_SUFFIXES)
    return Listing(names, images(), [path.relative_to(root).as_posix() for path in others])


def _decoded(
    source: str,
    rows: list[Row],
    image_size: int | None,
    channels: int | None,
    domains: Domains | None = None,
    names: Sequence[str] | None = None,
) -> ImageSet:
    """The images of rows in their order; their classes in the order of `names`, else sorted."""
    paths = [path for path, _, _ in rows]
    names = names or sorted({name for _, name, _ in rows})
    position = {name: i for i, name in enumerate(names)}
    return ImageSet(
        source=source,
        images=decode(paths, lambda i: str(paths[i]), image_size=image_size, channels=channels),
        labels=np.array([position[name] for _, name, _ in rows], np.int64),
        class_names=tuple(names),
        origin=np.array([origin for _, _, origin in rows], np.int8),
        domains=domains,
    )


def folders_of(parent: Path) -> list[Path]:
    """The folders in a folder, sorted; without hidden ones.

    Raises:
        UserError: when one is a link that leads nowhere.
    """
    entries = sorted(path for path in parent.iterdir() if not path.name.startswith("."))
    check_files(path for path in entries if not path.exists())
    return [path for path in entries if path.is_dir()]
