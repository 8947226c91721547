"""CoOp's ten data sets with its splits, from a folder in the layout of its DATASETS.md.

Zhou et al., "Learning to Prompt for Vision-Language Models", IJCV 2022,
https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md. The usual benchmark of prompt methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, NonNegativeInt

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TEST, TRAIN, VALIDATION
from fedray.data.known import CoOpLayout, KnownSet, known_sets
from fedray.data.layout import packed_hint
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import read_text, read_typed

_GUIDE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
_AIRCRAFT = tuple(f"images_variant_{part}.txt" for part in ("train", "val", "test"))
"""The official lists of FGVC-Aircraft, the one set without a split file of CoOp's."""
_ORIGINS = {"train": TRAIN, "val": VALIDATION, "test": TEST}


def _sets() -> dict[str, KnownSet]:
    """Return the known sets of CoOp's layout by the file that identifies each."""
    return {data_set.coop.split: data_set for data_set in known_sets().values() if data_set.coop}


def _origin(data_set: KnownSet) -> str:
    """Return where to get a data set."""
    files = [
        f"{file.to} from {file.url}" if file.to else f"from {file.url}"
        for file in data_set.origin.files
        if not data_set.origin.by_hand or file.to
    ]
    if data_set.origin.by_hand:
        files.insert(0, f"from {data_set.origin.page} ({data_set.origin.by_hand})")
    name = _layout(data_set).name
    return f"get {name} {' and '.join(files)}, as {_GUIDE} says"


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
        for data_set in _sets().values():
            if data_set.folder == root.name:
                return f"; {_origin(data_set)}"
        return f"; {_GUIDE} says where CoOp's sets come from"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the split file, or the official lists, and every image."""
        data_set, images = _find(root), super().files(root, options)
        missing = [image for image in images if not image.is_file()]
        if missing:
            raise UserError(
                f"data.source=coop: {missing[0]} and {len(missing) - 1} more of the {len(images)} "
                f"images in the split of {_layout(data_set).name} are missing{packed_hint(root)}; "
                f"{_origin(data_set)}"
            )
        return [*_lists(root, data_set), *images]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images: those of train, then val, then test."""
        data_set, layout = _find(root), _layout(_find(root))
        images = root / layout.images
        entries = list(_entries(root, data_set))
        rows = [Row(images / path, label, origin) for path, label, _, origin in entries]
        return Listing(_class_names(entries, root / layout.split), rows)


def is_coop(root: Path) -> bool:
    """Return True if a folder holds a data set in CoOp's layout, even without its split file."""
    return any(
        (root / split).is_file()
        or (root.name == data_set.folder and (root / _layout(data_set).images).is_dir())
        for split, data_set in _sets().items()
    )


def _layout(data_set: KnownSet) -> CoOpLayout:
    assert data_set.coop is not None
    return data_set.coop


def _missing(root: Path) -> UserError:
    """Return the error for a root without a data set; it names the one the folder suggests."""
    for split, data_set in _sets().items():
        if root.name == data_set.folder:
            return UserError(
                f"data.source=coop: {root / split} is missing{packed_hint(root)}; "
                f"{_origin(data_set)}"
            )
    return UserError(
        f"data.source=coop: data.root={root} is not the folder of one of CoOp's data sets, such as "
        f"{', '.join(data_set.folder for data_set in _sets().values())} with "
        "split_zhou_<Name>.json (fgvc_aircraft: images_variant_train.txt); set data.root to one; "
        f"{_GUIDE} says where to get each"
    )


def _find(root: Path) -> KnownSet:
    """Return the data set that `root` holds."""
    matches = [split for split in _sets() if (root / split).is_file()]
    if not matches:
        raise _missing(root)
    if len(matches) > 1:
        raise UserError(
            f"data.source=coop: {root} holds both {matches[0]} and {matches[1]}; every "
            "data set needs a separate folder"
        )
    return _sets()[matches[0]]


def _lists(root: Path, data_set: KnownSet) -> list[Path]:
    """Return the files that list the images and their classes."""
    split = _layout(data_set).split
    if split != _AIRCRAFT[0]:
        return [root / split]
    lists = [root / name for name in ("variants.txt", *_AIRCRAFT)]
    for path in lists:
        if not path.is_file():
            raise UserError(f"data.source=coop: {path} is missing; {_origin(data_set)}")
    return lists


def _entries(root: Path, data_set: KnownSet) -> Iterator[tuple[str, int, str, int]]:
    """Yield (path, label, class name, origin) of every image, in the order train, val, test."""
    lists = _lists(root, data_set)
    entries = _zhou(*lists) if len(lists) == 1 else _aircraft(*lists)
    paths = set()
    for entry in entries:
        if entry[0] in paths:
            raise UserError(
                f"{root / _layout(data_set).split} names '{entry[0]}' twice; {_origin(data_set)}"
            )
        paths.add(entry[0])
        yield entry


def _zhou(file: Path) -> Iterator[tuple[str, int, str, int]]:
    expected = (
        "expected the lists train, val and test of "
        '["path/below/the/images.jpg", label from 0, "class name"]: replace it'
    )
    split = read_typed(file, _Split, "the file", expected)
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
