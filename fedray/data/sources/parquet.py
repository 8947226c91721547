"""Images in parquet files of the Hugging Face convention."""

from __future__ import annotations

import os
import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TRAIN
from fedray.data.layout import (
    check_regular,
    other_files_hint,
    split_of,
    split_words,
    validation_note,
    walk,
    with_official_test,
)
from fedray.data.sources import Listing, Row, Source, sources
from fedray.storage.files import parse_typed, read_typed

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")
_INFO = "dataset_info.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})")
_BATCH = 64
"""Rows that are read at once, at most; their images are in memory together."""
_MOST_BYTES = 1 << 30
"""Bytes that the images of a batch take at most, as far as the file's description tells."""
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
    reads = f"*.parquet and {_INFO}"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the parquet files, and `dataset_info.json` if it exists."""
        info = root / _INFO
        return [*_parquet_files(root), *([info] if os.path.lexists(info) else [])]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return all rows of all files."""
        files = _parquet_files(root)
        names, folders = _class_names(root, files), _domain_folders(root, files)
        domain_names = _domain_names(root, files)
        origins = {path: _origin(root, path) for path in files}
        final = {path: with_official_test(o, origins.values()) for path, o in origins.items()}

        def rows() -> Iterator[Row]:
            for path in files:
                for row in _rows(path, _name(root, path), len(names), domain_names):
                    domain = row.domain or folders.get(path)
                    yield row._replace(origin=final[path], domain=domain)

        named = ((origin, _name(root, path)) for path, origin in origins.items())
        domains = tuple(sorted(set(folders.values()) or set(domain_names)))
        return Listing(names, rows(), domains, validation_note(named))


def _parquet_files(root: Path) -> list[Path]:
    """Return the parquet files below `root`, training files first, each sorted by name."""
    files = [path for path in walk(root) if path.suffix == ".parquet"]
    if not files:
        raise UserError(
            f"no *.parquet file below data.root={root}{other_files_hint(root)}; "
            "expected for example train-00000-of-00001.parquet there"
        )
    _check_complete(root, files)
    splits = {path: split_of(_name(root, path), path) for path in files}
    unnamed = [path for path, origin in splits.items() if origin is None]
    if unnamed and len(unnamed) < len(files):
        named = next(path for path in files if path not in unnamed)
        raise UserError(
            f"the name of {_name(root, unnamed[0])} has no word for a split, unlike that of "
            f"{_name(root, named)}; rename it (train, validation or test), or move it out of {root}"
        )
    return sorted(files, key=lambda path: (_origin(root, path), _name(root, path)))


def _check_complete(root: Path, files: list[Path]) -> None:
    """Refuse a data set of several revisions, or without some of its shards.

    Raises:
        UserError: with the folders of the revisions, or with the first shard that is missing.
    """
    folders = [path.parent.parts for path in files]
    revisions = sorted(
        {parts[parts.index("snapshots") + 1] for parts in folders if "snapshots" in parts[:-1]}
    )
    if len(revisions) > 1:
        raise UserError(
            f"data.root={root} holds {len(revisions)} revisions of a data set, "
            f"{' and '.join(revisions)} in snapshots/; set data.root to the folder of one"
        )
    shards = defaultdict[tuple[Path, str, int], list[int]](list)
    for path in files:
        if match := _SHARD.match(path.name):
            prefix, number, total = match.groups()
            shards[path.parent, prefix, int(total)].append(int(number))
    for (folder, prefix, total), numbers in shards.items():
        for number in range(total):
            if (copies := numbers.count(number)) != 1:
                where = _name(root, folder / f"{prefix}-{number:05}-of-{total:05}")
                what = "is missing" if not copies else f"exists {copies} times"
                raise UserError(
                    f"data.root={root} is incomplete: of the {total} parts of {prefix}, {where} "
                    f"{what}; keep each part once"
                )


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _origin(root: Path, path: Path) -> int:
    """Return the split that a file or a folder above it is named after; TRAIN if none."""
    origin = split_of(_name(root, path), path)
    return TRAIN if origin is None else origin


def _domain_folders(root: Path, files: list[Path]) -> dict[Path, str]:
    """Return each file's top folder if these folders are domains; else an empty dict."""
    tops = {path: path.relative_to(root).parts[0] for path in files if path.parent != root}
    distinct = set(tops.values())
    named_after_split = any(map(split_words, distinct))
    if len(tops) < len(files) or len(distinct) < 2 or named_after_split:
        return {}
    return tops


def _rows(path: Path, file: str, classes: int, domain_names: Sequence[str]) -> Iterator[Row]:
    """Yield every row of a file, checked, without its split."""
    table = _open(path, file)
    columns = table.schema_arrow.names
    image_column = _column(columns, _IMAGE_COLUMNS, file)
    label_column = _column(columns, _LABEL_COLUMNS, file)
    selected = [image_column, label_column, *(["domain"] if "domain" in columns else [])]
    for number, (image, label, *domain) in enumerate(_values(table, selected, file)):
        where = f"{file}, row {number}"
        content, name = image, None
        if isinstance(image, dict):
            content, name = image.get("bytes"), image.get("path")
        if not isinstance(content, bytes):
            raise UserError(
                f"{where}: column '{image_column}' contains no image bytes; "
                "expected a struct of bytes and path"
            )
        if isinstance(label, bool) or not isinstance(label, int):
            raise UserError(
                f"{where}: label {reprlib.repr(label)} is not an integer; "
                f"expected 0..{classes - 1} in column '{label_column}'"
            )
        if label == -1:
            raise UserError(
                f"{where}: label -1 stands for an image without a label; move {file} out of the "
                "folder, or remove such rows"
            )
        if not 0 <= label < classes:
            raise UserError(
                f"{where}: label {label} is outside the {classes} classes "
                f"(0..{classes - 1}); correct the row or the class names in {_INFO}"
            )
        domain_name = next(iter(domain), None)
        if isinstance(domain_name, int) and 0 <= domain_name < len(domain_names):
            domain_name = domain_names[domain_name]
        if domain_name is not None and not isinstance(domain_name, str):
            raise UserError(
                f"{where}: the domain {reprlib.repr(domain_name)} is not a string, and "
                f"neither {_INFO} nor the file's metadata names it; correct it"
            )
        yield Row(content, label, TRAIN, domain_name, where=where, path=name)


def _batch_rows(table: Any) -> int:
    """Return how many rows can be read at once.

    A file may store a large value once and repeat it in every row, so that it takes a thousand
    times its size in memory. A value is no larger than its column in a group of rows.
    """
    groups = [table.metadata.row_group(number) for number in range(table.metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    largest = max((column.total_uncompressed_size for column in columns), default=0)
    return int(min(_BATCH, max(1, _MOST_BYTES // max(1, largest))))


def _values(table: Any, columns: list[str], file: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns, row by row."""
    batches = table.iter_batches(batch_size=_batch_rows(table), columns=columns)
    while True:
        with _readable(file):
            batch = next(batches, None)
            values = batch and [batch.column(name).to_pylist() for name in columns]
        if values is None:
            return
        yield from zip(*values, strict=True)


def _open(path: Path, file: str) -> Any:
    import pyarrow.parquet as pq

    check_regular(path)
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
    for name in candidates:
        if columns.count(name) > 1:
            raise UserError(f"{file} has {columns.count(name)} columns called {name}; keep one")
        if name in columns:
            return name
    raise UserError(
        f"{file} has the columns {', '.join(columns)}; expected one called "
        f"{' or '.join(candidates)}"
    )


def _class_names(root: Path, files: list[Path]) -> tuple[str, ...]:
    info = root / _INFO
    if os.path.lexists(info):
        content = read_typed(info, Any, "the file", _EXPECTED)
        names = content.get("class_names") if isinstance(content, dict) else None
        names = _feature_names(content, _LABEL_COLUMNS) if names is None else names
        if names is not None:
            return _checked(names, str(info))
    names_by_file = {}
    for path in files:
        file = _name(root, path)
        names = _feature_names(_described(path, file), _LABEL_COLUMNS)
        if names is not None:
            names_by_file[path] = _checked(names, file)
    if not names_by_file:
        raise UserError(
            f"the class names of data.root={root} are unknown: neither {_INFO} nor the files' "
            f"metadata has them; add {_INFO} with {_EXAMPLE}"
        )
    if len(set(names_by_file.values())) > 1:
        raise UserError(
            f"the parquet files below data.root={root} disagree on the class names; add {_INFO} "
            f"with {_EXAMPLE}"
        )
    return next(iter(names_by_file.values()))


def _domain_names(root: Path, files: list[Path]) -> tuple[str, ...]:
    """Return the names of domains that a `domain` column refers to by number; () without names."""
    info = root / _INFO
    content = read_typed(info, Any, "the file", _EXPECTED) if os.path.lexists(info) else None
    candidates = [(content, str(info))]
    candidates += [(_described(path, _name(root, path)), _name(root, path)) for path in files[:1]]
    for described, where in candidates:
        if (names := _feature_names(described, ("domain",))) is not None:
            return _checked(names, where)
    return ()


def _described(path: Path, file: str) -> Any:
    """Return the description in a file's metadata; None if it has none."""
    metadata = (_open(path, file).schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    described = parse_typed(metadata, Any, f"the metadata `huggingface` of {file}", _EXPECTED)
    return described.get("info") if isinstance(described, dict) else None


def _feature_names(info: Any, columns: tuple[str, ...]) -> Any:
    """Return `features.<column>.names` of a Hugging Face description, or None."""
    for column in columns:
        names = info
        for key in ("features", column, "names"):
            names = names.get(key) if isinstance(names, dict) else None
        if names is not None:
            return names
    return None


def _checked(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise UserError(f"{where}: class names must be a list of strings")
    return tuple(names)
