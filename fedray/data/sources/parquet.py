"""Images in parquet files of the Hugging Face convention."""

from __future__ import annotations

import os
import re
import reprlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedray.data.decoding import decode
from fedray.data.imageset import TRAIN, Domains, ImageSet
from fedray.data.reading import check_file, parse_json, read_json, walk
from fedray.data.sources import Found, Listing, Source, official_split, sources
from fedray.errors import UserError

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")


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

    def files(self, root: Path) -> list[Path]:
        """The parquet files, and `dataset_info.json` where there is one.

        Raises:
            UserError: when there is no parquet file.
        """
        info = root / "dataset_info.json"
        return [*_parquet_files(root), *([info] if os.path.lexists(info) else [])]

    def decode(self, root: Path, *, image_size: int | None, channels: int | None) -> ImageSet:
        """Read all files and decode their images.

        Raises:
            UserError: for a missing column or class list, a label outside the classes, or an
                image that cannot be decoded; it names file and row.
        """
        files = _parquet_files(root)
        names = _class_names(root, files)
        folders = _domain_folders(root, files)
        encoded: list[bytes] = []
        labels: list[int] = []
        domains: list[str | None] = []
        starts: list[int] = []
        for path in files:
            starts.append(len(labels))
            for image, label, domain in _rows(path, _name(root, path), len(names)):
                encoded.append(image)
                labels.append(label)
                domains.append(domain or folders.get(path))
        if not encoded:
            raise UserError(f"the parquet files below data.root={root} hold no rows")

        def where(i: int) -> str:
            file = bisect_right(starts, i) - 1
            return f"{_name(root, files[file])}, row {i - starts[file]}"

        origins = np.array([_origin(root, path) for path in files], np.int8)
        return ImageSet(
            source=self.name,
            images=decode(encoded, where, image_size=image_size, channels=channels),
            labels=np.array(labels, np.int64),
            class_names=names,
            origin=np.repeat(origins, np.diff([*starts, len(labels)])),
            domains=_domains(domains, where),
        )

    def listing(self, root: Path) -> Listing:
        """Every row of every file.

        Raises:
            UserError: as `decode`; of a row when it is reached.
        """
        files = _parquet_files(root)
        names, folders = _class_names(root, files), _domain_folders(root, files)

        def images() -> Iterator[Found]:
            for path in files:
                file, origin = _name(root, path), _origin(root, path)
                for row, (image, label, domain) in enumerate(_rows(path, file, len(names))):
                    where = f"{file}, row {row}"
                    yield Found(where, image, label, origin, domain or folders.get(path))

        return Listing(names, images(), [])

    def paths(self, root: Path) -> list[str]:
        """Each row's `path` in the struct of its image.

        Raises:
            UserError: when a row has none.
        """
        found: list[str] = []
        for file in _parquet_files(root):
            for row, path in enumerate(_image_paths(file, _name(root, file))):
                if not isinstance(path, str):
                    raise UserError(
                        f"{_name(root, file)}, row {row} has no image path, by which data.split "
                        "names images; leave data.split out"
                    )
                found.append(path)
        return found


def _parquet_files(root: Path) -> list[Path]:
    """The parquet files below `root`, training files first, then by name; hidden ones not."""
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
    """The official split in a file's name or in that of a folder above it; TRAIN if in none."""
    for part in reversed(path.relative_to(root).parts):
        split = official_split(re.split(r"[-_.]", part)[0])
        if split is not None:
            return split
    return TRAIN


def _domain_folders(root: Path, files: list[Path]) -> dict[Path, str]:
    """Each file's top folder, where folders are domains; else nothing."""
    tops = {path: path.relative_to(root).parts[0] for path in files if path.parent != root}
    distinct = set(tops.values())
    named_after_split = any(official_split(name) is not None for name in distinct)
    if len(tops) < len(files) or len(distinct) < 2 or named_after_split:
        return {}
    return tops


def _rows(path: Path, file: str, classes: int) -> Iterator[tuple[bytes, int, str | None]]:
    """Yield (encoded image, label, domain) of every row, checked."""
    table = _open(path, file)
    columns = table.schema_arrow.names
    image_column = _column(columns, _IMAGE_COLUMNS, file)
    label_column = _column(columns, _LABEL_COLUMNS, file)
    wanted = [image_column, label_column, *(["domain"] if "domain" in columns else [])]
    row = 0
    for columns_read in _batches(table, wanted, file):
        images, labels, *rest = columns_read
        domains = rest[0] if rest else [None] * len(labels)
        for image, label, domain in zip(images, labels, domains, strict=True):
            content = image.get("bytes") if isinstance(image, dict) else image
            if not isinstance(content, bytes):
                raise UserError(
                    f"{file}, row {row}: column '{image_column}' holds no image bytes; "
                    "expected a struct of bytes and path"
                )
            if isinstance(label, bool) or not isinstance(label, int):
                raise UserError(
                    f"{file}, row {row}: label {reprlib.repr(label)} is not an integer; "
                    f"expected 0..{classes - 1} in column '{label_column}'"
                )
            if not 0 <= label < classes:
                raise UserError(
                    f"{file}, row {row}: label {label} is outside the {classes} classes "
                    f"(0..{classes - 1}); mend the row or the class names in dataset_info.json"
                )
            if domain is not None and not isinstance(domain, str):
                raise UserError(
                    f"{file}, row {row}: the domain {reprlib.repr(domain)} is not a string; mend it"
                )
            yield content, label, domain
            row += 1


def _batches(table: Any, columns: list[str], file: str) -> Iterator[list[list[Any]]]:
    """Some rows after others: the values of each column."""
    batches = table.iter_batches(batch_size=4096, columns=columns)
    while True:
        with _readable(file):
            batch = next(batches, None)
            values = batch and [batch.column(name).to_pylist() for name in columns]
        if values is None:
            return
        yield values


def _image_paths(path: Path, file: str) -> list[Any]:
    """The `path` of every row's image, None where there is none; no image is read."""
    table = _open(path, file)
    column = _column(table.schema_arrow.names, _IMAGE_COLUMNS, file)
    with _readable(file):
        rows = table.read(columns=[f"{column}.path"])
        if column not in rows.column_names:
            return [None] * table.metadata.num_rows
        images = rows.column(column).to_pylist()
    return [image.get("path") if isinstance(image, dict) else None for image in images]


def _open(path: Path, file: str) -> Any:
    import pyarrow.parquet as pq

    check_file(path)
    with _readable(file):
        return pq.ParquetFile(path, page_checksum_verification=True)


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Say of what pyarrow cannot read that it is damaged.

    Raises:
        UserError: when it raises an error.
    """
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
    info = root / "dataset_info.json"
    if os.path.lexists(info):
        content = read_json(info)
        names = content.get("class_names") if isinstance(content, dict) else None
        names = _feature_names(content) if names is None else names
        if names is not None:
            return _checked(names, str(info))
    found = {}
    for path in files:
        metadata = _open(path, path.name).schema_arrow.metadata or {}
        described = parse_json(
            metadata.get(b"huggingface", b"{}"), f"the metadata `huggingface` of {path.name}"
        )
        names = _feature_names(described.get("info") if isinstance(described, dict) else None)
        if names is not None:
            found[path] = _checked(names, path.name)
    if not found:
        raise UserError(
            f"the class names of data.root={root} are unknown: neither dataset_info.json nor the "
            'files\' metadata has them; add dataset_info.json with {"class_names": ["...", ...]}'
        )
    if len(set(found.values())) > 1:
        raise UserError(
            f"the parquet files below data.root={root} disagree on the class names; "
            'add dataset_info.json with {"class_names": ["...", ...]}'
        )
    return next(iter(found.values()))


def _feature_names(info: Any) -> Any:
    """`features.label.names` of a Hugging Face description, or None."""
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


def _domains(domains: list[str | None], where: Callable[[int], str]) -> Domains | None:
    names = sorted({name for name in domains if name})
    if not names:
        return None
    position = {name: i for i, name in enumerate(names)}
    if len(names) > np.iinfo(np.int16).max:
        raise UserError(
            f"the column domain has {len(names):,} different values, too many; rename the column"
        )
    ids = np.empty(len(domains), np.int16)
    for i, name in enumerate(domains):
        if not name:
            raise UserError(f"{where(i)} has no domain, while others have one ({names[0]}, ...)")
        ids[i] = position[name]
    return Domains(tuple(names), ids)
