"""Images in one folder per class: ROOT/<class>/*.png, or ROOT/{train,test}/<class>/*.png."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.data.decoding import decode
from fedray.data.imageset import TRAIN, ImageSet
from fedray.data.sources import Source, official_split, sources
from fedray.errors import UserError

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}


@sources.add
class ImageFolder(Source):
    """Class names are the folders' names in alphabetical order.

    When every folder below the root is called train, test, val, valid or validation, they are the
    official splits, and the classes are what they hold together.
    """

    name = "image_folder"

    def files(self, root: Path) -> list[Path]:
        """Every image, sorted by split, class and name.

        Raises:
            UserError: when there is no class, or a class has no image.
        """
        return [path for path, _, _ in self._rows(root)]

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Decode every image."""
        rows = self._rows(root)
        paths = [path for path, _, _ in rows]
        names = sorted({name for _, name, _ in rows})
        position = {name: i for i, name in enumerate(names)}
        return ImageSet(
            source=self.name,
            images=decode(paths, lambda i: str(paths[i]), image_size=image_size, channels=channels),
            labels=np.array([position[name] for _, name, _ in rows], np.int64),
            class_names=tuple(names),
            origin=np.array([origin for _, _, origin in rows], np.int8),
        )

    def paths(self, root: Path) -> list[str]:
        """Each file's path below the root."""
        return [path.relative_to(root).as_posix() for path in self.files(root)]

    @staticmethod
    def _rows(root: Path) -> list[tuple[Path, str, int]]:
        """(image, class name, official split) of every image."""
        folders = folders_of(root)
        origins = {folder: official_split(folder.name) for folder in folders}
        splits = [(origin, folder) for folder, origin in origins.items() if origin is not None]
        if not splits or len(splits) < len(folders):
            splits = [(TRAIN, root)]
        rows = []
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
                f"data.root={root} holds no folder of images; "
                "expected <class>/<image> or train/<class>/<image> below it"
            )
        return rows


def folders_of(parent: Path) -> list[Path]:
    """The folders in a folder, sorted; hidden ones aside."""
    return sorted(p for p in parent.iterdir() if p.is_dir() and not p.name.startswith("."))
