"""CoOp's ten data sets with its splits, from a folder in the layout of its DATASETS.md.

Zhou et al., "Learning to Prompt for Vision-Language Models", IJCV 2022,
https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md. The usual benchmark of prompt methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, NonNegativeInt

from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TEST, TRAIN, VALIDATION
from fedray.data.sources import Listing, Row, Source, sources
from fedray.errors import UserError
from fedray.files import read_json, read_text

_GUIDE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
_DRIVE = "https://drive.google.com/file/d/"
_VGG = "https://www.robots.ox.ac.uk/~vgg/data/"
_ORIGINS = {"train": TRAIN, "val": VALIDATION, "test": TEST}


class _Set(NamedTuple):
    """One data set: its folder and its images' folder as CoOp names them, and their sources."""

    name: str
    home: str
    images: str
    source: str
    split_id: str = ""
    """Google Drive's id of the split file; a set without one is split by its official lists."""

    @property
    def split(self) -> str:
        """Return the name of the file that identifies the data set."""
        return f"split_zhou_{self.name}.json" if self.split_id else "images_variant_train.txt"

    @property
    def download_hint(self) -> str:
        """Return where to get the data set."""
        split = f" and {self.split} from {_DRIVE}{self.split_id}" if self.split_id else ""
        return f"get {self.name} from {self.source}{split}, as {_GUIDE} says"


_CARS = "https://github.com/pytorch/vision/issues/7545#issuecomment-1631441616"
"""Where to get Stanford Cars, whose own page is offline."""
_SUN = "http://vision.princeton.edu/projects/2010/SUN/SUN397.tar.gz"
_FOOD = "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/"
_OBJECTS, _CALTECH = "101_ObjectCategories", "https://data.caltech.edu/records/mzrjq-6wc02"
_EUROSAT = "http://madm.dfki.de/files/sentinel/EuroSAT.zip"
_AIRCRAFT = f"{_VGG}fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz (its data/)"
_PETS, _FLOWERS = f"{_VGG}pets/data/images.tar.gz", f"{_VGG}flowers/102/102flowers.tgz"
_DTD = f"{_VGG}dtd/download/dtd-r1.0.1.tar.gz"
_UCF = f"{_DRIVE}10Jqome3vtUA2keJkNanAiFpgbyC9Hc2O (UCF-101-midframes.zip)"
_SETS = (
    _Set("Caltech101", "caltech-101", _OBJECTS, _CALTECH, "1hyarUivQE36mY6jSomru6Fjd-JzwcCzN"),
    _Set("OxfordPets", "oxford_pets", "images", _PETS, "1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs"),
    _Set("StanfordCars", "stanford_cars", "", _CARS, "1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT"),
    _Set("OxfordFlowers", "oxford_flowers", "jpg", _FLOWERS, "1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT"),
    _Set("Food101", "food-101", "images", _FOOD, "1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl"),
    _Set("FGVCAircraft", "fgvc_aircraft", "images", _AIRCRAFT),
    _Set("SUN397", "sun397", "SUN397", _SUN, "1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq"),
    _Set("DescribableTextures", "dtd", "images", _DTD, "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x"),
    _Set("EuroSAT", "eurosat", "2750", _EUROSAT, "1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o"),
    _Set("UCF101", "ucf101", "UCF-101-midframes", _UCF, "1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y"),
)


def _below(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("the path leads out of the images' folder")
    return path


_Entry = tuple[Annotated[str, AfterValidator(_below)], NonNegativeInt, str]
"""An image's path below the images' folder, its label, its class's name."""


class _Split(BaseModel):
    """The content of a split_zhou_<Name>.json."""

    train: list[_Entry]
    val: list[_Entry]
    test: list[_Entry]


@sources.add
class CoOp(Source):
    """One of CoOp's ten data sets, with its split and class names; root is its folder.

    The split file in the folder (oxford_pets, ...) identifies the data set. Classes are the split
    file's labels, in their order; underscores in their names become spaces. CoOp's val is used for
    validation only: no client trains or is tested on it, and only few-shot protocols use it. Images
    are scaled bicubically, as in CLIP's preprocessing.
    """

    name = "coop"
    resampling = "bicubic"
    reads = "the images that the split names"

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        if root is not None and not root.is_dir():
            raise _missing(root)
        return super().find_root(root, download=download)

    def download_hint(self, root: Path) -> str:
        named_set = next((data_set for data_set in _SETS if data_set.home == root.name), None)
        if named_set is None:
            return f"; {_GUIDE} says where CoOp's sets come from"
        return f"; {named_set.download_hint}"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the split file, or the official lists, and every image."""
        data_set, images = _find(root), super().files(root, options)
        missing = [image for image in images if not image.is_file()]
        if missing:
            raise UserError(
                f"data.source=coop: {missing[0]} and {len(missing) - 1} more of the {len(images)} "
                f"images in the split of {data_set.name} are missing; {data_set.download_hint}"
            )
        return [*_lists(root, data_set), *images]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images: those of train, then val, then test."""
        data_set = _find(root)
        images = root / data_set.images
        entries = list(_entries(root, data_set))
        rows = [Row(images / path, label, origin) for path, label, _, origin in entries]
        return Listing(_class_names(entries, root / data_set.split), rows)


def is_coop(root: Path) -> bool:
    """Return True if a folder holds a data set in CoOp's layout."""
    return any((root / data_set.split).is_file() for data_set in _SETS)


def _missing(root: Path) -> UserError:
    """Return the error for a root without a data set; it names the one the folder suggests."""
    for data_set in _SETS:
        if root.name == data_set.home:
            return UserError(
                f"data.source=coop: {root / data_set.split} is missing; {data_set.download_hint}"
            )
    return UserError(
        f"data.source=coop: data.root={root} is not the folder of one of CoOp's data sets, such as "
        f"{', '.join(data_set.home for data_set in _SETS)} with split_zhou_<Name>.json "
        f"(fgvc_aircraft: images_variant_train.txt); set data.root to one; {_GUIDE} says where "
        "to get each"
    )


def _find(root: Path) -> _Set:
    """Return the data set that `root` holds."""
    matches = [data_set for data_set in _SETS if (root / data_set.split).is_file()]
    if not matches:
        raise _missing(root)
    if len(matches) > 1:
        raise UserError(
            f"data.source=coop: {root} holds both {matches[0].split} and {matches[1].split}; every "
            "data set needs a separate folder"
        )
    return matches[0]


def _lists(root: Path, data_set: _Set) -> list[Path]:
    """Return the files that list the images and their classes."""
    if data_set.split_id:
        return [root / data_set.split]
    variants = [f"images_variant_{part}.txt" for part in _ORIGINS]
    lists = [root / name for name in ("variants.txt", *variants)]
    for path in lists:
        if not path.is_file():
            raise UserError(f"data.source=coop: {path} is missing; {data_set.download_hint}")
    return lists


def _entries(root: Path, data_set: _Set) -> Iterator[tuple[str, int, str, int]]:
    """Yield (path, label, class name, origin) of every image, in the order train, val, test."""
    entries = (
        _zhou(root / data_set.split) if data_set.split_id else _aircraft(*_lists(root, data_set))
    )
    paths = set()
    for entry in entries:
        if entry[0] in paths:
            raise UserError(
                f"{root / data_set.split} names '{entry[0]}' twice; {data_set.download_hint}"
            )
        paths.add(entry[0])
        yield entry


def _zhou(file: Path) -> Iterator[tuple[str, int, str, int]]:
    expected = (
        "expected the lists train, val and test of "
        '["path/below/the/images.jpg", label from 0, "class name"]: replace it'
    )
    split = read_json(file, _Split, "the file", expected)
    for part, origin in _ORIGINS.items():
        yield from ((*entry, origin) for entry in getattr(split, part))


def _aircraft(variants: Path, *lists: Path) -> Iterator[tuple[str, int, str, int]]:
    """Read FGVCAircraft's official lists, with lines such as "1025794 707-320"."""
    names = _lines(variants)
    labels = {name.strip(): i for i, name in enumerate(names)}
    for file, origin in zip(lists, _ORIGINS.values(), strict=True):
        for line in _lines(file):
            image, _, name = line.strip().partition(" ")
            if name not in labels:
                raise UserError(f"{file}: '{line}' names a variant that {variants} does not have")
            yield f"{image}.jpg", labels[name], name, origin


def _lines(file: Path) -> list[str]:
    return read_text(file, "the list", 1 << 28).splitlines()


def _class_names(entries: list[tuple[str, int, str, int]], file: Path) -> tuple[str, ...]:
    """Return the names of the labels 0 to C - 1."""
    names: dict[int, str] = {}
    for _, label, name, _ in entries:
        if names.setdefault(label, name) != name:
            raise UserError(
                f"{file} names class {label} both '{names[label]}' and '{name}'; replace it"
            )
    if sorted(names) != list(range(len(names))) or not names:
        raise UserError(
            f"{file} has {len(names)} labels up to {max(names, default=-1)}; expected 0, 1, 2, ..."
            " without a gap: replace it"
        )
    return tuple(names[label].replace("_", " ") for label in range(len(names)))
