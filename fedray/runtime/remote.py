"""Results at a URI: where the copy of a folder is, and what is there.

FEDRAY_RESULTS=s3://bucket/results, gs://..., hdfs://..., file:///...: what pyarrow's file systems
know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from fedray.errors import UserError
from fedray.files import is_temporary, results_home, results_uri
from fedray.masking import mask

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

T = TypeVar("T")
Read = Callable[[str], bytes | None]
"""Reads a file of a folder, here or there; None where there is none."""
_SEED = re.compile(r"seed_\d+")


def uri_of(folder: Path) -> str | None:
    """Where the copy of a folder of results is; None where FEDRAY_RESULTS is no URI."""
    uri = results_uri()
    if uri is None:
        return None
    home, folder = results_home(), folder.resolve()
    name = Path(folder.name)
    if folder.is_relative_to(home):
        name = folder.relative_to(home)
    elif _SEED.fullmatch(folder.name):  # every experiment has them
        name = Path(folder.parent.name, folder.name)
    return f"{uri.rstrip('/')}/{name.as_posix()}"


def file_system(uri: str) -> tuple[FileSystem, str]:
    """The file system of a URI, and the path there.

    Raises:
        UserError: when there is none.
    """
    import pyarrow
    from pyarrow.fs import FileSystem

    try:
        found: tuple[Any, str] = FileSystem.from_uri(uri)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(
            mask(
                f"FEDRAY_RESULTS: {uri} cannot be used ({error}); give a folder, or a URI such as "
                "s3://bucket/results"
            )
        ) from None
    return found


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Say in a sentence that a URI cannot be read.

    Raises:
        UserError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(mask(f"FEDRAY_RESULTS: {uri} cannot be read ({error})")) from None


def files_at(files: FileSystem, root: str) -> dict[str, str]:
    """The files below a path: their names from there, and their paths."""
    from pyarrow.fs import FileSelector, FileType

    found = files.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    paths = [each.path for each in found if each.type == FileType.File]
    return {str(PurePosixPath(path).relative_to(root)): path for path in paths}


def reader(files: FileSystem, root: str) -> Read:
    """Reads the files at a path."""

    def read(name: str) -> bytes | None:
        try:
            with files.open_input_stream(str(PurePosixPath(root) / name)) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    return read


def by_entry(names: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """What is below each file and folder of a folder, by its name from there; of a file, ""."""
    found: dict[str, dict[str, T]] = {}
    for name, what in names.items():
        entry, _, rest = name.partition("/")
        found.setdefault(entry, {})[rest] = what
    return found


def is_being_written(name: str | PurePath) -> bool:
    """Whether it, or a folder that it is in, is still being written."""
    return any(map(is_temporary, PurePath(name).parts))
