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
from fedray.data.known import CoOpLayout, known_sets
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import read_text, read_typed

_AIRCRAFT = tuple(f"images_variant_{part}.txt" for part in ("train", "val", "test"))
"""The official lists of FGVC-Aircraft, the one set without a split file of CoOp's."""
_ORIGINS = {"train": TRAIN, "val": VALIDATION, "test": TEST}


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

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all images: those of train, then val, then test."""
        layout = _layout(root)
        is_aircraft = layout.split == _AIRCRAFT[0]
        lists = [
            root / name
            for name in (("variants.txt", *_AIRCRAFT) if is_aircraft else (layout.split,))
        ]
        for file in lists:
            if not file.is_file():
                raise UserError(f"data.source=coop: {file} is missing{self.get_hint(root)}")
        entries = list(_aircraft(*lists) if is_aircraft else _zhou(*lists))
        rows = [Row(root / layout.images / path, label, part) for path, label, _, part in entries]
        paths = {row.image for row in rows if isinstance(row.image, Path)}
        if missing := [path for path in paths if not path.is_file()]:
            raise UserError(
                f"data.source=coop: {min(missing)} and {len(missing) - 1} more of the {len(paths)} "
                f"images in {layout.split} are missing{self.get_hint(root)}"
            )
        names = {label: name for _, label, name, _ in entries}
        is_one_to_one = all(names[label] == name for _, label, name, _ in entries)
        if len(paths) < len(rows) or not is_one_to_one or sorted(names) != list(range(len(names))):
            raise UserError(
                f"{lists[0]} names an image twice, or a label of {len(names)} twice or not at all; "
                "replace it"
            )
        words = tuple(names[label].replace("_", " ") for label in sorted(names))
        return Listing(words, rows, lists=tuple(lists))


def _layouts() -> dict[str, CoOpLayout]:
    """Return the layouts of the known sets by the set's folder."""
    return {one.folder: one.coop for one in known_sets().values() if one.coop is not None}


def is_coop(root: Path) -> bool:
    """Return True if a folder holds a data set in CoOp's layout, even without its split file."""
    own = _layouts().get(root.name)
    has_split = any((root / layout.split).is_file() for layout in _layouts().values())
    return has_split or (own is not None and (root / own.images).is_dir())


def _layout(root: Path) -> CoOpLayout:
    """Return the layout of the set that `root` holds, or that its name promises."""
    layouts = _layouts()
    found = [layout for layout in layouts.values() if (root / layout.split).is_file()]
    if not found and root.name in layouts:
        found = [layouts[root.name]]
    if len(found) != 1:
        raise UserError(
            f"data.source=coop: data.root={root} holds {len(found)} of CoOp's data sets; expected "
            f"the folder of one, such as {', '.join(layouts)} with split_zhou_<Name>.json "
            "(fgvc_aircraft: images_variant_train.txt)"
        )
    return found[0]


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
    labels = {name: i for i, name in enumerate(_lines(variants))}
    for file, origin in zip(lists, _ORIGINS.values(), strict=True):
        for line in _lines(file):
            image, _, name = line.partition(" ")
            if name not in labels:
                raise UserError(f"{file}: '{line}' names a variant that {variants} does not have")
            yield f"{image}.jpg", labels[name], name, origin


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in read_text(file, "the list", 1 << 28).splitlines()]
