"""Images in parquet files of the Hugging Face convention."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from fedray.base.errors import UserError, shown
from fedray.data.decoding import ReadOptions
from fedray.data.folders import files_below, split_of, status_of
from fedray.data.imageset import TRAIN
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import parse_typed, read_typed

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")
_INFO = "dataset_info.json"
_CLASS_KEYS = (("class_names",), *(("features", column, "names") for column in _LABEL_COLUMNS))
"""Where a description has the names of the classes."""
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})")
_EXAMPLE = '{"class_names": ["...", ...]}'
_EXPECTED = f"expected a description of the Hugging Face convention, or {_EXAMPLE}"


@sources.add
class Parquet(Source):
    """Parquet files of the Hugging Face convention: every `*.parquet` below the root.

    For example `train-00000-of-00001.parquet`. Columns: `image` (or `img`), a struct of `bytes` (an
    encoded image) and `path`; `label` (or `fine_label`), an integer; optionally `domain`, a
    string. Without that column, folders below the root are the domains, if there are at least two
    that together hold all files and none is named after a split.

    The official split is the word for one in the name of the file or a folder above it (as in
    `image_folder`): `flowers_test.parquet`, `data.train.parquet`, `test/0000.parquet`. If no name
    has one, all rows are training data. A split file refers to an image by its `path`.
    Class names come from `class_names` or `features.label.names` in `dataset_info.json` at the
    root, else from the files' metadata. Rows keep their order: training files before test files,
    each sorted by name.
    """

    name = "parquet"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the parquet files, and `dataset_info.json` if it exists."""
        info = root / _INFO
        return [*_origins(root), *([info] if info.exists() else [])]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all rows of all files."""
        origins = _origins(root)
        names, folders = _class_names(root, origins), _domain_folders(root, origins)
        rows = [
            row._replace(origin=origin, domain=row.domain or folders.get(path))
            for path, origin in origins.items()
            for row in _rows(path, _below(root, path))
        ]
        return Listing(names, rows, tuple(sorted({*folders.values()})))


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _origins(root: Path) -> dict[Path, int]:
    """Return the split of each parquet file below `root`: training first, each sorted by name."""
    files = [path for path in files_below(root) if path.suffix == ".parquet"]
    if not files:
        raise UserError(
            f"no *.parquet file below data.root={root}; expected for example "
            "train-00000-of-00001.parquet there"
        )
    _check_complete(root, files)
    splits = {path: split_of(_below(root, path), path) for path in files}
    unnamed = [path for path, split in splits.items() if split is None]
    if unnamed and len(unnamed) < len(files):
        raise UserError(
            f"the name of {_below(root, unnamed[0])} has no word for a split, unlike others; "
            f"rename it (train, validation or test), or move it out of {root}"
        )
    found = {path: TRAIN if split is None else split for path, split in splits.items()}
    return dict(sorted(found.items(), key=lambda item: (item[1], _below(root, item[0]))))


def _check_complete(root: Path, files: Sequence[Path]) -> None:
    """Refuse a data set of several revisions, or without some of its shards."""
    snapshots = (re.search("/snapshots/([^/]+)", path.parent.as_posix()) for path in files)
    revisions = {match[1] for match in snapshots if match}
    if len(revisions) > 1:
        raise UserError(
            f"data.root={root} holds {len(revisions)} revisions of a data set, "
            f"{' and '.join(sorted(revisions))} in snapshots/; set data.root to the folder of one"
        )
    shards = Counter(match.groups() for path in files if (match := _SHARD.match(path.as_posix())))
    for prefix, _, total in shards:
        for number in range(int(total)):
            if shards[prefix, f"{number:05}", total] != 1:
                where = _below(root, Path(f"{prefix}-{number:05}-of-{total}"))
                raise UserError(
                    f"data.root={root} is incomplete: {where} is missing or exists twice; keep "
                    "each part once"
                )


def _domain_folders(root: Path, files: Collection[Path]) -> dict[Path, str]:
    """Return each file's top folder if these folders are domains; else an empty dict."""
    tops = {path: path.relative_to(root).parts[0] for path in files if path.parent != root}
    distinct = {*tops.values()}
    is_split = any(split_of(name, root / name) is not None for name in distinct)
    return {} if len(tops) < len(files) or len(distinct) < 2 or is_split else tops


def _rows(path: Path, file: str) -> Iterator[Row]:
    """Yield every row of a file, without its split."""
    with _readable(file):
        table = _open(path, file)
        columns = table.schema_arrow.names
        image_column = _column(columns, _IMAGE_COLUMNS, file)
        selected = [image_column, _column(columns, _LABEL_COLUMNS, file)]
        selected += ["domain"] if "domain" in columns else []
        values = [column.to_pylist() for column in table.read(selected).select(selected).columns]
    for number, (image, label, *domain) in enumerate(zip(*values, strict=True)):
        where = f"{file}, row {number}"
        stored = image if isinstance(image, dict) else {"bytes": image}
        if not isinstance(stored.get("bytes"), bytes):
            raise UserError(
                f"{where}: column '{image_column}' contains no image bytes; "
                "expected a struct of bytes and path"
            )
        place = next(iter(domain), None)
        if place is not None and not isinstance(place, str):
            raise UserError(f"{where}: the domain {shown(place)} is no string")
        yield Row(stored["bytes"], label, TRAIN, place, where=where, path=stored.get("path"))


def _open(path: Path, file: str) -> Any:
    import pyarrow.parquet as pq

    status_of(path)
    with _readable(file):
        return pq.ParquetFile(path, page_checksum_verification=True)


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Turn pyarrow's errors into a UserError."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, LookupError, MemoryError, pa.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{file} cannot be read as parquet ({reason}); replace it") from None


def _column(columns: list[str], candidates: tuple[str, ...], file: str) -> str:
    found = [name for name in columns if name in candidates]
    if len(found) != 1:
        raise UserError(
            f"{file} has the columns {', '.join(columns)}; expected one called "
            f"{' or '.join(candidates)}"
        )
    return found[0]


def _class_names(root: Path, files: Iterable[Path]) -> tuple[str, ...]:
    """Return the class names of `dataset_info.json`, else those of the files' metadata."""
    info, found = root / _INFO, set[tuple[str, ...]]()
    if info.exists():
        found.add(_names(read_typed(info, Any, "the file", _EXPECTED), str(info)))
    for path in files if found <= {()} else ():
        file = _below(root, path)
        metadata = (_open(path, file).schema_arrow.metadata or {}).get(b"huggingface", b"{}")
        described = parse_typed(metadata, Any, f"the metadata `huggingface` of {file}", _EXPECTED)
        found.add(_names(_item(described, "info"), file))
    found.discard(())
    if len(found) != 1:
        raise UserError(
            f"the parquet files below data.root={root} have no class names, or different ones; add "
            f"{_INFO} with {_EXAMPLE}"
        )
    return found.pop()


def _names(described: Any, where: str) -> tuple[str, ...]:
    """Return the class names in a description; () if it has none."""
    for keys in _CLASS_KEYS:
        names = reduce(_item, keys, described)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
        if names is not None:
            raise UserError(f"{where}: class names must be a list of strings")
    return ()


def _item(tree: Any, key: str) -> Any:
    return tree.get(key) if isinstance(tree, dict) else None
