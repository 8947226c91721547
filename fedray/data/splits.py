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
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedray.base.errors import UserError
from fedray.data.folders import composed
from fedray.data.imageset import TEST, TRAIN
from fedray.storage.files import read_text, read_typed

LISTS = "lists"
"""The value of `data.split` for the lists beside the images."""
_LIST = re.compile(r"(.+)_(train|test)\.(pkl|txt)")
_EXPECTED = (
    "expected the lists `train` and `test`, once or for every domain, for example "
    '{"train": ["a.jpg", ...], "test": ["b.jpg", ...]}'
)


class _Lists(BaseModel, extra="forbid"):
    """Paths of the training and the test images."""

    train: list[str]
    test: list[str]


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
    named = [path for path in sorted(root.iterdir()) if _LIST.fullmatch(path.name)]
    chosen = [path for path in named if path.suffix == ".pkl"] or named
    stems = {path.stem for path in chosen}
    domains = {stem.rpartition("_")[0] for stem in stems} or {"<domain>"}
    needed = {f"{domain}_{part}" for domain in domains for part in ("train", "test")}
    for missing in sorted(needed - stems):
        raise UserError(
            f"data.split=lists: {missing}.pkl or .txt is missing in data.root={root}; add the "
            "lists of the set, or set data.split to a JSON file or to null"
        )
    return chosen


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
            f"data.split: {file} is not a list of FedBN's, paths and labels ({error})"
        ) from None


def _parts(files: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Yield each path in a split file, or in lists, with its part of the split."""
    if len(files) > 1:
        for file in files:
            origin = TRAIN if file.stem.endswith("_train") else TEST
            yield from ((path, origin) for path in _listed(file))
        return
    what = "data.split: the file"
    content = read_typed(files[0], dict[str, Any], what, _EXPECTED)
    one = _Lists if {"train", "test"} & content.keys() else dict[str, _Lists]
    read: Any = read_typed(files[0], one, what, _EXPECTED)
    for lists in [read] if isinstance(read, _Lists) else read.values():
        yield from ((path, TRAIN) for path in lists.train)
        yield from ((path, TEST) for path in lists.test)


def origins(files: Sequence[Path], paths: Sequence[str], known: Iterable[str]) -> list[int]:
    """Return the part of the split, TRAIN or TEST, of the images with these paths.

    The files may list all `known` paths of the data. A leading folder that the data do not have is
    dropped.

    Raises:
        UserError: if the file has another format, or does not list each path exactly once.
    """
    paths, known = [composed(path) for path in paths], set(map(composed, known))
    file = f"data.split: {files[0]}" if len(files) == 1 else f"data.split: one of {files[0]}, ..."
    part: dict[str, int] = {}
    for name, origin in _parts(files):
        path = composed(name)
        if path not in known and (below := path.partition("/")[2]) in known:
            path = below
        if path in part:
            raise UserError(f"{file} lists '{path}' twice; remove one of them")
        part[path] = origin
    wrong = {
        "that the data does not have": part.keys() - known,
        "missing": set(paths) - part.keys(),
        "that several images of the data have": {p for p, n in Counter(paths).items() if n > 1},
    }
    for problem, some in wrong.items():
        if some:
            raise UserError(
                f"{file} does not fit the data: {len(some)} like '{min(some)}' {problem} (the data "
                f"has '{min(paths)}', ...); correct the file or remove data.split"
            )
    return [part[path] for path in paths]
