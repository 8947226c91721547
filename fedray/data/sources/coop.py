"""CoOp's ten data sets with its splits, from a folder in the layout of its DATASETS.md.

Zhou et al., "Learning to Prompt for Vision-Language Models", IJCV 2022,
https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md. What prompt methods compare on.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fedray.data.decoding import decode
from fedray.data.imageset import TEST, TRAIN, VALIDATION, ImageSet
from fedray.data.reading import read_json, read_text
from fedray.data.sources import Source, sources
from fedray.errors import UserError

_GUIDE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
_DRIVE = "https://drive.google.com/file/d/"
_VGG = "https://www.robots.ox.ac.uk/~vgg/data/"
_ORIGINS = {"train": TRAIN, "val": VALIDATION, "test": TEST}


class _Set(NamedTuple):
    """One data set: CoOp's names of its folder and its images' folder, and where both come from."""

    name: str
    home: str
    images: str
    source: str
    split_id: str = ""
    """Of the split file on Google Drive; the official lists are the split of a set without one."""

    @property
    def split(self) -> str:
        """The file by which the data set is recognised."""
        return f"split_zhou_{self.name}.json" if self.split_id else "images_variant_train.txt"

    @property
    def download_hint(self) -> str:
        """Where to get it."""
        split = f" and {self.split} from {_DRIVE}{self.split_id}" if self.split_id else ""
        return f"get {self.name} from {self.source}{split}, as {_GUIDE} says"


CARS_URL = "https://github.com/pytorch/vision/issues/7545#issuecomment-1631441616"
"""Where Stanford Cars can be had since its own page is gone."""

_UCF = f"{_DRIVE}10Jqome3vtUA2keJkNanAiFpgbyC9Hc2O (UCF-101-midframes.zip)"
_SETS = (
    _Set(
        "Caltech101",
        "caltech-101",
        "101_ObjectCategories",
        "https://data.caltech.edu/records/mzrjq-6wc02",
        "1hyarUivQE36mY6jSomru6Fjd-JzwcCzN",
    ),
    _Set(
        "OxfordPets",
        "oxford_pets",
        "images",
        f"{_VGG}pets/data/images.tar.gz",
        "1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs",
    ),
    _Set("StanfordCars", "stanford_cars", "", CARS_URL, "1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT"),
    _Set(
        "OxfordFlowers",
        "oxford_flowers",
        "jpg",
        f"{_VGG}flowers/102/102flowers.tgz",
        "1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT",
    ),
    _Set(
        "Food101",
        "food-101",
        "images",
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        "1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl",
    ),
    _Set(
        "FGVCAircraft",
        "fgvc_aircraft",
        "images",
        f"{_VGG}fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz (its data/)",
    ),
    _Set(
        "SUN397",
        "sun397",
        "SUN397",
        "http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz",
        "1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq",
    ),
    _Set(
        "DescribableTextures",
        "dtd",
        "images",
        f"{_VGG}dtd/download/dtd-r1.0.1.tar.gz",
        "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x",
    ),
    _Set(
        "EuroSAT",
        "eurosat",
        "2750",
        "http://madm.dfki.de/files/sentinel/EuroSAT.zip",
        "1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o",
    ),
    _Set("UCF101", "ucf101", "UCF-101-midframes", _UCF, "1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y"),
)


class _Row(NamedTuple):
    image: Path
    label: int
    name: str
    origin: int


@sources.add
class CoOp(Source):
    """One of CoOp's ten data sets, with its split and class names; root is its folder.

    The split file in the folder (oxford_pets, ...) identifies the set. Classes are the split file's
    labels, in their order, with spaces for the underscores in their names. CoOp's val is for
    validation alone: nobody trains or is tested on it, and only few-shot protocols use it. Images
    are scaled bicubically, as CLIP's preprocessing does.
    """

    name = "coop"
    resampling = "bicubic"

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return `root`.

        Raises:
            UserError: when it is not there; it says where the set comes from.
        """
        if root is not None and not root.is_dir():
            raise _missing(root)
        return super().find_root(root, download=download)

    def download_hint(self, root: Path) -> str:
        """The archive and the split file of the set that the folder is called after."""
        known = next((known for known in _SETS if known.home == root.name), None)
        return (
            f"; {known.download_hint}" if known else f"; {_GUIDE} says where CoOp's sets come from"
        )

    def files(self, root: Path) -> list[Path]:
        """The split file, or the official lists, and every image.

        Raises:
            UserError: when one is not there; it says where the set comes from.
        """
        found = _find(root)
        images = [row.image for row in _rows(root, found)]
        lost = [image for image in images if not image.is_file()]
        if lost:
            raise UserError(
                f"data.source=coop: {lost[0]} is not there, nor are {len(lost) - 1} more of the "
                f"{len(images)} images that {found.name}'s split names; {found.download_hint}"
            )
        return [*_lists(root, found), *images]

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Decode every image: those of train, then val, then test."""
        found = _find(root)
        rows = list(_rows(root, found))
        images = [row.image for row in rows]
        names = _class_names(rows, root / found.split)
        return ImageSet(
            source=self.name,
            images=decode(
                images,
                lambda i: str(images[i]),
                image_size=image_size,
                channels=channels,
                resampling=self.resampling,
            ),
            labels=np.array([row.label for row in rows], np.int64),
            class_names=names,
            origin=np.array([row.origin for row in rows], np.int8),
        )

    def paths(self, root: Path) -> list[str]:
        """Each image's path below the root."""
        return [row.image.relative_to(root).as_posix() for row in _rows(root, _find(root))]


def _missing(root: Path) -> UserError:
    """The error message when `root` holds no set; names the one that its name suggests."""
    for known in _SETS:
        if root.name == known.home:
            return UserError(
                f"data.source=coop: {root / known.split} is not there; {known.download_hint}"
            )
    return UserError(
        f"data.source=coop: data.root={root} is not the folder of one of CoOp's data sets, such as "
        f"{', '.join(known.home for known in _SETS)} with split_zhou_<Name>.json (fgvc_aircraft: "
        f"images_variant_train.txt); set data.root to one; {_GUIDE} says where each comes from"
    )


def _find(root: Path) -> _Set:
    """Which set `root` holds."""
    found = [known for known in _SETS if (root / known.split).is_file()]
    if not found:
        raise _missing(root)
    if len(found) > 1:
        raise UserError(
            f"data.source=coop: {root} holds both {found[0].split} and {found[1].split}; every "
            "data set needs a separate folder"
        )
    return found[0]


def _lists(root: Path, found: _Set) -> list[Path]:
    """The files with the images' classes."""
    if found.split_id:
        return [root / found.split]
    variants = [f"images_variant_{part}.txt" for part in _ORIGINS]
    lists = [root / name for name in ("variants.txt", *variants)]
    for path in lists:
        if not path.is_file():
            raise UserError(f"data.source=coop: {path} is not there; {found.download_hint}")
    return lists


def _rows(root: Path, found: _Set) -> Iterator[_Row]:
    """Every image once: those of train, val and test, each in its list's order."""
    listed = _zhou(root / found.split) if found.split_id else _aircraft(*_lists(root, found))
    seen = set()
    for path, label, name, origin in listed:
        if path in seen:
            raise UserError(f"{root / found.split} names '{path}' twice; {found.download_hint}")
        seen.add(path)
        yield _Row(root / found.images / path, label, name, origin)


def _zhou(file: Path) -> Iterator[tuple[str, int, str, int]]:
    """(path, label, class name, origin) of a split_zhou_<Name>.json."""
    content = read_json(file, "replace it")
    if not isinstance(content, dict) or not all(
        isinstance(content.get(part), list) for part in _ORIGINS
    ):
        raise UserError(f"{file} does not hold the lists train, val and test; replace it")
    for part, origin in _ORIGINS.items():
        for i, row in enumerate(content[part]):
            if not _is_row(row):
                raise UserError(
                    f"{file}: {part}, row {i} is {reprlib.repr(row)}; expected "
                    '["path/below/the/images.jpg", label from 0, "class name"]'
                )
            yield row[0], row[1], row[2], origin


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or [type(value) for value in row] != [str, int, str]:
        return False
    path = PurePosixPath(row[0])
    return row[1] >= 0 and not path.is_absolute() and ".." not in path.parts


def _aircraft(variants: Path, *lists: Path) -> Iterator[tuple[str, int, str, int]]:
    """(path, label, class name, origin) of FGVCAircraft's official lists: "1025794 707-320"."""
    names = read_text(variants, "replace it").splitlines()
    labels = {name.strip(): i for i, name in enumerate(names)}
    for file, origin in zip(lists, _ORIGINS.values(), strict=True):
        for line in read_text(file, "replace it").splitlines():
            image, _, name = line.strip().partition(" ")
            if name not in labels:
                raise UserError(f"{file}: '{line}' names a variant that {variants} does not have")
            yield f"{image}.jpg", labels[name], name, origin


def _class_names(rows: list[_Row], file: Path) -> tuple[str, ...]:
    """The name of each label, 0 to C - 1."""
    names: dict[int, str] = {}
    for row in rows:
        if names.setdefault(row.label, row.name) != row.name:
            raise UserError(
                f"{file} calls the class {row.label} both '{names[row.label]}' and '{row.name}'; "
                "replace it"
            )
    if sorted(names) != list(range(len(names))) or not names:
        raise UserError(
            f"{file} has {len(names)} labels up to {max(names, default=-1)}; expected 0, 1, 2, ..."
            " without a gap: replace it"
        )
    return tuple(names[label].replace("_", " ") for label in range(len(names)))
