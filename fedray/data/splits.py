"""Split files: JSON files that list the training and test images.

A split file holds `train` and `test`, lists of paths, either once or for every domain:
`{"amazon": {"train": ["amazon/mug/frame_0001.jpg", ...], "test": [...]}, ...}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Discriminator, Tag

from fedray.data.imageset import TEST, TRAIN
from fedray.data.layout import composed
from fedray.errors import UserError
from fedray.files import read_json

_EXPECTED = (
    "expected the lists `train` and `test`, once or for every domain, for example "
    '{"train": ["a.jpg", ...], "test": ["b.jpg", ...]}'
)


class _Lists(BaseModel, extra="forbid"):
    """Paths of the training and the test images."""

    train: list[str]
    test: list[str]


def _layout(content: Any) -> str:
    is_alone = isinstance(content, dict) and ("train" in content or "test" in content)
    return "alone" if is_alone else "by domain"


_Split = Annotated[
    Annotated[_Lists, Tag("alone")] | Annotated[dict[str, _Lists], Tag("by domain")],
    Discriminator(_layout),
]


def find_split_file(root: Path, split: str) -> Path:
    """Return the path of the split file below the data's root.

    Raises:
        UserError: if the file does not exist.
    """
    file = root / split
    if Path(split).is_absolute() or ".." in Path(split).parts or not file.is_file():
        raise UserError(f"data.split={split} is not a file below data.root={root}; move it there")
    return file


def origins(file: Path, paths: Sequence[str], known: Iterable[str]) -> NDArray[np.int8]:
    """Return each image's part of the split.

    Args:
        file: the JSON file.
        paths: the paths of n images.
        known: the paths of all images of the data, which the file may list, too.

    Returns:
        int8 [n], TRAIN or TEST.

    Raises:
        UserError: if the file has another format, or does not list each path exactly once.
    """
    content = read_json(file, _Split, "data.split: the file", _EXPECTED)
    paths, known = [composed(path) for path in paths], set(map(composed, known))
    part: dict[str, int] = {}
    for lists in [content] if isinstance(content, _Lists) else content.values():
        listed = [(p, TRAIN) for p in lists.train] + [(p, TEST) for p in lists.test]
        for path, origin in ((composed(path), origin) for path, origin in listed):
            if path in part:
                raise UserError(f"data.split: {file} lists '{path}' twice; remove one of them")
            part[path] = origin
    counts = Counter(paths)
    twice = [path for path, count in counts.items() if count > 1]
    if twice:
        raise UserError(
            f"data.split: {counts[twice[0]]} images of the data have the path '{twice[0]}', so "
            f"{file} cannot distinguish them; remove data.split"
        )
    for unmatched, expected, explanation in (
        (part.keys() - known, counts.keys(), "which the data does not have"),
        (counts.keys() - part.keys(), part.keys(), "which the file does not list"),
    ):
        if unmatched:
            raise UserError(
                f"data.split: the paths of {file} and of the data do not match: {len(unmatched)} "
                f"like '{min(unmatched)}', {explanation} (it has "
                f"'{min(expected, default='none')}', ...); correct the file or remove data.split"
            )
    return np.array([part[path] for path in paths], np.int8)
