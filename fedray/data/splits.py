"""Split files, which list the training and test images.

A JSON file holds `train` and `test`, lists of paths, either once or for every domain:
`{"amazon": {"train": ["amazon/mug/frame_0001.jpg", ...], "test": [...]}, ...}`. `data.split=lists`
reads the lists that sets of several domains come with: `<domain>_train.txt` and `<domain>_test.txt`
of DomainNet, with a path and a label in each line, or FedBN's `<domain>_train.pkl` and
`<domain>_test.pkl`. Pickles can hold only arrays and texts; anything else is refused unread.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Discriminator, Tag

from fedray.base.errors import UserError
from fedray.data.folders import composed
from fedray.data.imageset import TEST, TRAIN
from fedray.storage.files import read_text, read_typed

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


LISTS = "lists"
"""The value of `data.split` for the lists beside the images."""
_LIST = re.compile(r"(.+)_(train|test)\.(pkl|txt)")


def split_files(root: Path, split: str) -> list[Path]:
    """Return the split file below the data's root, or the lists beside the images.

    Raises:
        UserError: if the file or the lists do not exist, or a domain lacks one of its two lists.
    """
    if split == LISTS:
        return _lists(root)
    file = root / split
    if Path(split).is_absolute() or ".." in Path(split).parts or not file.is_file():
        raise UserError(f"data.split={split} is not a file below data.root={root}; move it there")
    return [file]


def _lists(root: Path) -> list[Path]:
    matches = [
        (match, path) for path in sorted(root.iterdir()) if (match := _LIST.fullmatch(path.name))
    ]
    pickles = [pair for pair in matches if pair[0][3] == "pkl"]
    chosen = pickles or matches
    found = {(match[1], match[2]) for match, _ in chosen}
    expected = {(domain, part) for domain, _ in found for part in ("train", "test")}
    missing = sorted(f"{domain}_{part}" for domain, part in expected - found)
    if not found or missing:
        what = f"{missing[0]} is missing" if missing else "there is no <domain>_train.pkl or .txt"
        raise UserError(
            f"data.split=lists: {what} in data.root={root}; add the lists of the set, or set "
            "data.split to a JSON file or to null"
        )
    return [path for _, path in chosen]


_ARRAYS = ("_reconstruct", "ndarray", "dtype", "scalar")
"""The names of numpy that a pickled array refers to."""


class _Texts(pickle.Unpickler):
    """Unpickle nothing but arrays and texts."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in _ARRAYS:
            return getattr(import_module(module.replace("numpy.core", "numpy._core")), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def _listed(file: Path) -> list[str]:
    """Return the paths that a list names."""
    if file.suffix == ".txt":
        lines = read_text(file, "data.split: the list", 1 << 28).splitlines()
        return [re.sub(r"\s+\d+\s*$", "", line) for line in lines if line.strip()]
    try:
        with file.open("rb") as opened:
            paths, *_ = _Texts(opened, encoding="latin1").load()
        return [str(path) for path in paths]
    except Exception as error:  # damaged pickles raise anything
        raise UserError(
            f"data.split: {file} is not a list of FedBN's, paths and labels ({error}); replace it"
        ) from None


def _content(files: Sequence[Path], known: set[str]) -> _Lists:
    """Return the paths in lists; a leading folder that the data do not have is dropped."""
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for file in files:
        for path in map(composed, _listed(file)):
            rest = path.partition("/")[2]
            parts[file.stem.rpartition("_")[2]].append(rest if rest in known else path)
    return _Lists(**parts)


def origins(files: Sequence[Path], paths: Sequence[str], known: Iterable[str]) -> NDArray[np.int8]:
    """Return each image's part of the split.

    Args:
        files: what `split_files` returns.
        paths: the paths of n images.
        known: the paths of all images of the data, which the file may list, too.

    Returns:
        int8 [n], TRAIN or TEST.

    Raises:
        UserError: if the file has another format, or does not list each path exactly once.
    """
    paths, known = [composed(path) for path in paths], set(map(composed, known))
    content: Any
    if len(files) == 1:
        content = read_typed(files[0], _Split, "data.split: the file", _EXPECTED)
    else:
        content = _content(files, known)
    file = files[0] if len(files) == 1 else f"one of {files[0]}, ..."
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
