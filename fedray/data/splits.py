"""Split files: JSON with the training and the test images.

It holds `train` and `test`, lists of paths, either alone or once for every domain:
`{"amazon": {"train": ["amazon/mug/frame_0001.jpg", ...], "test": [...]}, ...}`.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.data.imageset import TEST, TRAIN
from fedray.data.reading import read_json
from fedray.errors import UserError

_NAMES = {"train": TRAIN, "test": TEST}


def find_split_file(root: Path, split: str) -> Path:
    """Find the split file below the data's root.

    Raises:
        UserError: when it is not there.
    """
    file = root / split
    if Path(split).is_absolute() or ".." in Path(split).parts or not file.is_file():
        raise UserError(f"data.split={split} is not a file below data.root={root}; put it there")
    return file


def origins(file: Path, paths: Sequence[str]) -> NDArray[np.int8]:
    """Each image's part of the split.

    Args:
        file: the JSON file.
        paths: of n images.

    Returns:
        int8 [n], TRAIN or TEST.

    Raises:
        UserError: when the file is not such a JSON, or does not list exactly these paths, each
            once.
    """
    part: dict[str, int] = {}
    for path, origin in _read(file):
        if path in part:
            raise UserError(f"data.split: {file} lists '{path}' twice; remove one of them")
        part[path] = origin
    held = Counter(paths)
    twice = [path for path, count in held.items() if count > 1]
    if twice:
        raise UserError(
            f"data.split: {held[twice[0]]} images of the data have the path '{twice[0]}', so that "
            f"{file} cannot tell them apart; leave data.split out"
        )
    for found, expected, what in (
        (part.keys() - held, held.keys(), "which the data does not have"),
        (held.keys() - part.keys(), part.keys(), "which the file does not list"),
    ):
        if found:
            raise UserError(
                f"data.split: the paths of {file} and of the data do not match: {len(found)} like "
                f"'{min(found)}', {what} (it has '{min(expected, default='none')}', ...); mend the "
                "file or leave data.split out"
            )
    return np.array([part[path] for path in paths], np.int8)


def _read(file: Path) -> Iterator[tuple[str, int]]:
    """Yield every path with its part."""
    content = read_json(file)
    if isinstance(content, dict) and not content.keys() & _NAMES.keys():
        for domain in content.values():
            yield from _lists(domain, file)
    else:
        yield from _lists(content, file)


def _lists(content: Any, file: Path) -> Iterator[tuple[str, int]]:
    whole = isinstance(content, dict) and content.keys() == _NAMES.keys()
    if not whole or not all(isinstance(paths, list) for paths in content.values()):
        raise UserError(
            f"data.split: {file} does not hold the lists `train` and `test`, alone or once for "
            "every domain; expected for example "
            '{"train": ["a.jpg", ...], "test": ["b.jpg", ...]}'
        )
    for name, origin in _NAMES.items():
        for path in content[name]:
            if not isinstance(path, str):
                raise UserError(
                    f"data.split: {file} lists {reprlib.repr(path)} in `{name}`, which is no path; "
                    "mend or remove it"
                )
            yield path, origin
