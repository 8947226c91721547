"""Where files of others come from, and how they are downloaded, checked and unpacked.

Addresses are fetched with requests, repositories of the Hugging Face hub with huggingface_hub; both
use the proxies of the environment.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints

from fedray.base.errors import UserError, named, one_line
from fedray.base.units import size_of
from fedray.config import Frozen

_SECONDS = 3.0, 6.0
"""How long a server may take to accept a connection, and to send the next bytes."""
_SAY_EVERY = 10.0
"""Seconds between two lines about a download."""
_CHUNK = 1 << 16
"""Bytes received at once; a connection that breaks off loses fewer."""

Say = Callable[[str], object]
Checksum = Annotated[str, StringConstraints(pattern=r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$")]


class OriginFile(Frozen):
    """One file to fetch."""

    url: str
    """Its address."""
    bytes: int | None = None
    """Its size; None if unknown."""
    checksum: Checksum | None = None
    """md5:... or sha256:...; None if unknown."""
    unpack: bool = False
    """Whether it is an archive (or a .gz file) whose content is needed."""
    to: str = ""
    """Its place below the set's folder: the folder of an archive's content, the path of any other
    file; "" is the set's folder."""
    top: str = ""
    """The folder in the archive whose content is needed; "" for the whole archive."""
    inner: str = ""
    """An archive in the content that is unpacked, too; "" without one."""
    saved_as: str = ""
    """The file's name, if its address does not end with it."""

    @property
    def name(self) -> str:
        """The name of the file, also if it is fetched by hand."""
        place = "" if self.unpack else self.to
        return self.saved_as or PurePosixPath(place or urlsplit(self.url).path).name


class Origin(Frozen):
    """Where a data set or a model comes from."""

    page: str
    """Its web page."""
    licence: str = ""
    """Its licence, or the terms that the page states; "" if it states none."""
    files: Annotated[tuple[OriginFile, ...], Field(strict=False)] = ()
    """The files to fetch, for the layout that the shipped experiments read."""
    hub: str | None = None
    """Its repository on huggingface.co, which is fetched instead of the files."""
    by_hand: str = ""
    """What to do by hand, where not everything can be fetched."""


class NotTheFile(UserError):
    """The server answered with a web page; the file must be fetched with a browser."""


def fetch(file: OriginFile, path: Path, say: Say) -> None:
    """Download a file to `path`; a file that lies there already is only checked.

    What arrives is written to PATH.part, from where a later call goes on, and renamed at the end.

    Raises:
        NotTheFile: if the server answers with a web page.
        UserError: if the file cannot be fetched or written, or is not the one described.
    """
    part = path.with_name(f"{path.name}.part")
    if not path.is_file():
        try:
            _receive(file, part, say)
        except OSError as error:  # requests' errors are OSErrors, too
            raise UserError(
                f"{file.url} cannot be fetched to {part} ({one_line(named(error))[:200]}); run the "
                f"same command again, which goes on, or put {file.name} into {path.parent} yourself"
            ) from None
        os.replace(part, path)
    _check(path, file)


def _receive(file: OriginFile, part: Path, say: Say) -> None:
    """Append what the server sends to a partial file; report every few seconds."""
    import requests

    done = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    told, whole = -_SAY_EVERY, f" of {size_of(file.bytes)}" if file.bytes else ""
    asked = requests.get(file.url, headers=headers, stream=True, timeout=_SECONDS)
    with asked as reply, part.open("ab") as out:
        if reply.status_code == 416:  # nothing is missing; a file that has changed fails its check
            return
        reply.raise_for_status()
        if "text/html" in reply.headers.get("Content-Type", "") and not file.name.endswith(".html"):
            raise NotTheFile(f"{file.url} answers with a web page instead of the file")
        if reply.status_code != 206:  # the server begins anew
            out.truncate(0)
        for received in reply.iter_content(_CHUNK):
            if time.monotonic() - told > _SAY_EVERY:
                told = time.monotonic()
                say(f"{file.name}: {size_of(out.tell())}{whole}")
            out.write(received)


def _check(path: Path, file: OriginFile) -> None:
    """Compare a file with its checksum, else its size, if one is known; remove a wrong one."""
    if file.checksum is not None:
        kind, _, expected = file.checksum.partition(":")
        with path.open("rb") as content:
            actual = hashlib.file_digest(content, kind).hexdigest()
    else:
        kind, expected, actual = "size", f"{file.bytes or 0:,}", f"{path.stat().st_size:,}"
    if actual != expected and (file.checksum or file.bytes):
        path.unlink()
        raise UserError(
            f"{file.name} has the {kind} {actual}, expected {expected}; it was removed, fetch it "
            f"again from {file.url}"
        )


def unpack(archive: Path, folder: Path, top: str = "") -> None:
    """Unpack the folder `top` of a tar, zip or gz file; no member is written outside `folder`.

    Files that lie there are replaced.

    Raises:
        UserError: if the archive is damaged, has no folder `top`, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as stage:
        try:
            _extract(archive, Path(stage))
            if not Path(stage, top).is_dir():
                raise FileNotFoundError(f"no folder {top}")
            shutil.copytree(Path(stage, top), folder, dirs_exist_ok=True, copy_function=os.replace)
        except Exception as error:  # damaged archives raise anything
            raise UserError(
                f"{archive} cannot be unpacked to {folder} ({one_line(error)}); free some space "
                "or fetch it again"
            ) from None


def _extract(archive: Path, folder: Path) -> None:
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    else:
        plain = folder / archive.name.removesuffix(".gz")
        with gzip.open(archive) as source, plain.open("wb") as out:
            shutil.copyfileobj(source, out)


def fetch_hub(repo: str, kind: str, patterns: Sequence[str], folder: Path | None) -> None:
    """Download files of a repository on the hub, and compare them with the hub's checksums.

    What an interrupted call has received is kept.

    Args:
        repo: OWNER/NAME.
        kind: "model" or "dataset".
        patterns: names of files with wildcards; pickled weights only if there are no safetensors.
        folder: where the files go; None: the hub's cache.

    Raises:
        UserError: if the hub does not answer, or the files are missing, or do not fit on the disk.
    """
    from huggingface_hub import HfApi, constants

    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        describe = api.dataset_info if kind == "dataset" else api.model_info
        info = describe(repo, timeout=_SECONDS[1])
        names = [file.rfilename for file in info.siblings or ()]
        files = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
        if any(name.endswith(".safetensors") for name in files):
            files = [name for name in files if not name.endswith(".bin")]
        api.snapshot_download(repo, repo_type=kind, local_dir=folder, allow_patterns=files)
        checked = api.verify_repo_checksums(repo, repo_type=kind, local_dir=folder)
    except Exception as error:  # the network, the hub and its cache raise many types
        raise UserError(
            f"{repo} cannot be fetched from {constants.ENDPOINT} ({one_line(named(error))[:200]})"
        ) from None
    for one in checked.mismatches:
        path = checked.verified_path / one["path"]
        path.resolve().unlink()  # in the hub's cache, the path is a link
        path.unlink(missing_ok=True)
    if not files or checked.mismatches:
        wrong = ", ".join(one["path"] for one in checked.mismatches) or " ".join(patterns)
        raise UserError(f"{repo}: {wrong} is missing or differs from its checksum; try again")
