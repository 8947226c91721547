"""Images in parquet files of the Hugging Face convention."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TRAIN
from fedray.data.sources import Listing, Row, Source, official_split, sources, walk
from fedray.errors import UserError
from fedray.files import parse_json, read_json

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")
_INFO = "dataset_info.json"
_EXAMPLE = '{"class_names": ["...", ...]}'
_EXPECTED = f"expected a description of the Hugging Face convention, or {_EXAMPLE}"


@sources.add
class Parquet(Source):
    """Parquet files of the Hugging Face convention: every `*.parquet` below the root.

    For example `train-00000-of-00001.parquet`. Columns: `image` (or `img`), a struct of `bytes` (an
    encoded image) and `path`; `label` (or `fine_label`), an integer; `domain`, a string, where
    there are domains. Without that column, files that all lie in two or more different folders
    below the root, which are not named after splits, have these folders as domains.

    The official split is what the file's name, or a folder above it, starts with (train, test,
    validation); any other file is training data. In a split file an image is called as its `path`
    says. Class names come from `class_names` or
    `features.label.names` in `dataset_info.json` at the root, else from the files' metadata.
    Rows keep their order: training files before test files, each sorted by name.
    """

    name = "parquet"

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return the parquet files, and `dataset_info.json` where there is one."""
        info = root / _INFO
        return [*_parquet_files(root), *([info] if os.path.lexists(info) else [])]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Return every row of every file."""
        files = _parquet_files(root)
        names, folders = _class_names(root, files), _domain_folders(root, files)

        def rows() -> Iterator[Row]:
            for path in files:
                file, origin = _name(root, path), _origin(root, path)
                for row in _rows(path, file, len(names)):
                    yield row._replace(origin=origin, domain=row.domain or folders.get(path))

        return Listing(names, rows())


def _parquet_files(root: Path) -> list[Path]:
    """Return the parquet files below `root`, training files first, then by name."""
    found = [path for path in walk(root) if path.suffix == ".parquet"]
    if not found:
        raise UserError(
            f"no *.parquet file below data.root={root}; "
            "expected for example train-00000-of-00001.parquet there"
        )
    return sorted(found, key=lambda path: (_origin(root, path), _name(root, path)))


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _origin(root: Path, path: Path) -> int:
    """Return the official split in the name of a file or a folder above it; TRAIN if in none."""
    for part in reversed(path.relative_to(root).parts):
        split = official_split(re.split(r"[-_.]", part)[0])
        if split is not None:
            return split
    return TRAIN


def _domain_folders(root: Path, files: list[Path]) -> dict[Path, str]:
    """Return each file's top folder if folders are domains; else nothing."""
    tops = {path: path.relative_to(root).parts[0] for path in files if path.parent != root}
    distinct = set(tops.values())
    named_after_split = any(official_split(name) is not None for name in distinct)
    if len(tops) < len(files) or len(distinct) < 2 or named_after_split:
        return {}
    return tops


def _rows(path: Path, file: str, classes: int) -> Iterator[Row]:
    """Yield every row of a file, checked, without its split."""
    table = _open(path, file)
    columns = table.schema_arrow.names
    image_column = _column(columns, _IMAGE_COLUMNS, file)
    label_column = _column(columns, _LABEL_COLUMNS, file)
    wanted = [image_column, label_column, *(["domain"] if "domain" in columns else [])]
    for number, (image, label, *domain) in enumerate(_values(table, wanted, file)):
        where = f"{file}, row {number}"
        content, name = image, None
        if isinstance(image, dict):
            content, name = image.get("bytes"), image.get("path")
        if not isinstance(content, bytes):
            raise UserError(
                f"{where}: column '{image_column}' holds no image bytes; "
                "expected a struct of bytes and path"
            )
        if isinstance(label, bool) or not isinstance(label, int):
            raise UserError(
                f"{where}: label {reprlib.repr(label)} is not an integer; "
                f"expected 0..{classes - 1} in column '{label_column}'"
            )
        if not 0 <= label < classes:
            raise UserError(
                f"{where}: label {label} is outside the {classes} classes "
                f"(0..{classes - 1}); mend the row or the class names in {_INFO}"
            )
        of_row = next(iter(domain), None)
        if of_row is not None and not isinstance(of_row, str):
            raise UserError(f"{where}: the domain {reprlib.repr(of_row)} is not a string; mend it")
        yield Row(content, label, TRAIN, of_row, where=where, path=name)


def _values(table: Any, columns: list[str], file: str) -> Iterator[tuple[Any, ...]]:
    """Yield every row's values of some columns."""
    batches = table.iter_batches(batch_size=4096, columns=columns)
    while True:
        with _readable(file):
            batch = next(batches, None)
            values = batch and [batch.column(name).to_pylist() for name in columns]
        if values is None:
            return
        yield from zip(*values, strict=True)


def _open(path: Path, file: str) -> Any:
    import pyarrow.parquet as pq

    with _readable(file):
        return pq.ParquetFile(path, page_checksum_verification=True)


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Raise a UserError for what pyarrow cannot read."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, LookupError, MemoryError, pa.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{file} cannot be read as parquet ({reason}); replace it") from None


def _column(columns: list[str], wanted: tuple[str, ...], file: str) -> str:
    for name in wanted:
        if columns.count(name) > 1:
            raise UserError(f"{file} has {columns.count(name)} columns called {name}; keep one")
        if name in columns:
            return name
    raise UserError(
        f"{file} has the columns {', '.join(columns)}; expected one called {' or '.join(wanted)}"
    )


def _class_names(root: Path, files: list[Path]) -> tuple[str, ...]:
    info = root / _INFO
    if os.path.lexists(info):
        content = read_json(info, Any, "the file", _EXPECTED)
        names = content.get("class_names") if isinstance(content, dict) else None
        names = _feature_names(content) if names is None else names
        if names is not None:
            return _checked(names, str(info))
    found = {}
    for path in files:
        file = _name(root, path)
        metadata = (_open(path, file).schema_arrow.metadata or {}).get(b"huggingface", b"{}")
        described = parse_json(metadata, Any, f"the metadata `huggingface` of {file}", _EXPECTED)
        names = _feature_names(described.get("info") if isinstance(described, dict) else None)
        if names is not None:
            found[path] = _checked(names, file)
    if not found:
        raise UserError(
            f"the class names of data.root={root} are unknown: neither {_INFO} nor the files' "
            f"metadata has them; add {_INFO} with {_EXAMPLE}"
        )
    if len(set(found.values())) > 1:
        raise UserError(
            f"the parquet files below data.root={root} disagree on the class names; add {_INFO} "
            f"with {_EXAMPLE}"
        )
    return next(iter(found.values()))


def _feature_names(info: Any) -> Any:
    """Return `features.label.names` of a Hugging Face description, or None."""
    for label in _LABEL_COLUMNS:
        names = info
        for key in ("features", label, "names"):
            names = names.get(key) if isinstance(names, dict) else None
        if names is not None:
            return names
    return None


def _checked(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise UserError(f"{where}: class names must be a list of strings")
    return tuple(names)
