"""Download and unpack files of others: resumable, verified, bounded, whole or not at all.

Addresses are fetched with requests, repositories of the Hugging Face hub with huggingface_hub; both
use the proxies of the environment.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fedray.base.errors import UserError, one_line
from fedray.base.units import size_of
from fedray.data.origins import OriginFile
from fedray.storage.files import is_full

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS, READ_SECONDS = 3.0, 6.0
"""How long a server may take to accept a connection, and to send the next bytes."""
TRIES = 5
"""Attempts to go on with a download that breaks off, as long as each receives something."""
SAY_EVERY = 10.0
"""Seconds between two lines about a download."""
MOST_GROWTH = 20
"""Maximal size of an archive's content, in multiples of its own size; images hardly shrink."""
_CHUNK = 1 << 16
"""Bytes received at once; a connection that breaks off loses fewer."""
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)

Say = Callable[[str], object]


class Unreachable(UserError):
    """The server did not answer, or broke off too often."""


class NotTheFile(UserError):
    """The server answered with a web page; the file must be fetched with a browser."""


# --- addresses ------------------------------------------------------------------------------------


def fetch(file: OriginFile, path: Path, say: Say) -> None:
    """Download a file to `path`; a file that lies there already is only checked.

    What arrives is written to PATH.part, from where a later call goes on, and renamed at the end.

    Raises:
        Unreachable: if the server does not answer within seconds, or breaks off too often.
        NotTheFile: if the server answers with a web page.
        UserError: if the disk is too small, or the file is not the one described.
    """
    if path.is_file():
        check_file(path, file)
        return
    part = path.with_name(f"{path.name}.part")
    _complete(file, part, say)
    check_file(part, file)
    os.replace(part, path)


def _complete(file: OriginFile, part: Path, say: Say) -> None:
    """Download the rest of a partial file."""
    import requests

    failures = 0
    while True:
        before = _size(part)
        try:
            _receive(file, part, say)
            return
        except requests.HTTPError as error:
            raise Unreachable(
                f"{file.url} answers {error.response.status_code} ({error.response.reason}); the "
                "address may have changed"
            ) from None
        except requests.RequestException as error:
            goes_on = _size(part) > before
            failures = 1 if goes_on else failures + 1
            broke_off = goes_on or isinstance(error, requests.exceptions.ChunkedEncodingError)
            if not broke_off or failures == TRIES:
                kept = f"; {size_of(_size(part))} are kept" if _size(part) else ""
                why = one_line(f"{type(error).__name__}: {error}")[:200]
                raise Unreachable(f"{file.url} is out of reach ({why}){kept}") from None


def _receive(file: OriginFile, part: Path, say: Say) -> None:
    """Append what the server sends to a partial file.

    Raises:
        requests.RequestException: if the connection fails or breaks off.
    """
    import requests

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    wait = CONNECT_SECONDS, READ_SECONDS
    with requests.get(file.url, headers=headers, stream=True, timeout=wait) as reply:
        if reply.status_code == 416:  # the part is complete, or longer than the file
            if reply.headers.get("Content-Range", "").endswith(f"/{have}"):
                return
            part.unlink()
            raise requests.ConnectionError("the file on the server has changed")
        reply.raise_for_status()
        if "text/html" in reply.headers.get("Content-Type", "") and not file.name.endswith(".html"):
            raise NotTheFile(f"{file.url} answers with a web page instead of the file")
        begin = have if reply.status_code == 206 else 0
        length = reply.headers.get("Content-Length")
        total = begin + int(length) if length else file.bytes
        check_disk_space(part.parent, (total or 0) - begin, file.name)
        with _writable(part), part.open("ab" if begin else "wb") as out:
            for received in _watched(reply, file.name, begin, total, say):
                out.write(received)


def _watched(
    reply: requests.Response, name: str, begin: int, total: int | None, say: Say
) -> Iterator[bytes]:
    """Yield what a server sends; report at the beginning and every few seconds."""
    done, told = begin, -SAY_EVERY
    of = f" of {size_of(total)}" if total else ""
    for received in reply.iter_content(_CHUNK):
        if time.monotonic() - told > SAY_EVERY:
            say(f"{name}: {size_of(done)}{of}")
            told = time.monotonic()
        done += len(received)
        yield received


def check_file(path: Path, file: OriginFile) -> None:
    """Check the checksum of a file, else its size, if one is known; a wrong file is removed.

    Raises:
        UserError: if the file is not the one described.
    """
    if file.checksum is not None:
        kind, _, expected = file.checksum.partition(":")
        with path.open("rb") as content:
            actual = hashlib.file_digest(content, kind).hexdigest()
    elif file.bytes is not None:
        kind, expected, actual = "size", f"{file.bytes:,}", f"{_size(path):,}"
    else:
        return
    if actual != expected:
        path.unlink()
        raise UserError(
            f"{file.name} has the {kind} {actual}, expected {expected}; it was removed, fetch it "
            f"again from {file.url}"
        )


def check_disk_space(folder: Path, needed: int, what: str) -> None:
    """Check the free space of a folder's disk before something is written.

    Raises:
        UserError: if it is too small.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{what} needs {size_of(needed)}, but only {size_of(free)} are free in {folder}; free "
            "some space, then run the same command again"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Turn errors of writing into a `UserError`; those of requests are OSErrors, too."""
    import requests

    try:
        yield
    except (requests.RequestException, gzip.BadGzipFile):
        raise
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); free some space or change its "
            "permissions, then run the same command again"
        ) from None


# --- archives -------------------------------------------------------------------------------------


def unpack(archive: Path, folder: Path, top: str = "") -> None:
    """Unpack a tar, zip or gz file; only regular files, only below `folder`.

    Args:
        archive: the file.
        folder: where the content goes; files that lie there are replaced.
        top: the folder in the archive whose content is needed; "" for the whole archive.

    Raises:
        UserError: if the archive is damaged, unsafe or implausibly large, has no folder `top`, or
            the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limit = MOST_GROWTH * archive.stat().st_size
    try:
        with _writable(folder):
            if tarfile.is_tarfile(archive):
                count = _unpack_tar(archive, folder, top, limit)
            elif zipfile.is_zipfile(archive):
                count = _unpack_zip(archive, folder, top, limit)
            else:
                count = _unpack_gz(archive, folder / archive.name.removesuffix(".gz"), limit)
        if not count:
            raise UserError(f"{archive} has no files{f' in the folder {top}' if top else ''}")
    except (*_DAMAGED, gzip.BadGzipFile, RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"{archive} cannot be unpacked: {one_line(error)}; fetch it again"
        ) from None


def _unpack_tar(archive: Path, folder: Path, top: str, limit: int) -> int:
    """Unpack a tar file; return the number of files."""
    total = count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            name = _below(member.name, top)
            if name and member.isreg():
                total = _bounded(total + member.size, limit, archive)
                tar.extract(member.replace(name=name, deep=False), folder, filter="data")
                count += 1
    return count


def _unpack_zip(archive: Path, folder: Path, top: str, limit: int) -> int:
    """Unpack a zip file; return the number of files."""
    count = 0
    with zipfile.ZipFile(archive) as content:
        total = _bounded(sum(info.file_size for info in content.infolist()), limit, archive)
        check_disk_space(folder, total, f"the content of {archive.name}")
        for info in content.infolist():
            name = _below(info.filename, top)
            if not name or info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with content.open(info) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, _CHUNK)
            count += 1
    return count


def _unpack_gz(archive: Path, target: Path, limit: int) -> int:
    """Unpack a single file; return 1."""
    total = 0
    with gzip.open(archive) as source, target.open("wb") as out:
        while received := source.read(_CHUNK):
            total = _bounded(total + len(received), limit, archive)
            out.write(received)
    return 1


def _below(name: str, top: str) -> str:
    """Return the name of an archive's member below `top`; "" if it is elsewhere.

    Raises:
        UserError: if the name leads out of the archive.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise UserError(f"the archive has the unsafe name {name!r}; fetch it again")
    try:
        inner = path.relative_to(top)
    except ValueError:
        return ""
    return "" if inner == PurePosixPath() else inner.as_posix()


def _bounded(total: int, limit: int, archive: Path) -> int:
    """Return a total; raise a `UserError` if it exceeds the limit."""
    if total > limit:
        raise UserError(
            f"the content of {archive} is more than {MOST_GROWTH} times as large as the archive, "
            "which no images are; fetch it again"
        )
    return total


# --- the Hugging Face hub -------------------------------------------------------------------------


def fetch_hub(repo: str, kind: str, patterns: Sequence[str], folder: Path | None, say: Say) -> None:
    """Download files of a repository on the hub, and compare them with the hub's checksums.

    What an interrupted call has received is kept.

    Args:
        repo: OWNER/NAME.
        kind: "model" or "dataset".
        patterns: names of files with wildcards.
        folder: where the files go; None: the hub's cache.
        say: called with progress.

    Raises:
        Unreachable: if the hub does not answer within seconds.
        UserError: if the disk is too small, the repository is missing, or a file is wrong.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    _reach_hub()
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        describe = api.dataset_info if kind == "dataset" else api.model_info
        info = describe(repo, files_metadata=True, timeout=READ_SECONDS)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        files = _chosen(sizes, patterns)
        total = sum(sizes[name] for name in files)
        where = folder or Path(constants.HF_HUB_CACHE)
        where.mkdir(parents=True, exist_ok=True)
        say(f"{repo}: {len(files)} files, {size_of(total)}, to {where}")
        have = sum(path.stat().st_size for path in folder.rglob("*")) if folder else 0
        check_disk_space(where, total - have, repo)
        snapshot_download(
            repo,
            repo_type=kind,
            local_dir=folder,
            allow_patterns=files,
            endpoint=constants.ENDPOINT,
        )
        checked = api.verify_repo_checksums(repo, repo_type=kind, local_dir=folder)
    except UserError:
        raise
    except Exception as error:  # the network, the hub and its cache raise many types
        raise _explained(repo, error) from None
    for mismatch in checked.mismatches:
        path = checked.verified_path / mismatch["path"]
        path.resolve().unlink()
        path.unlink(missing_ok=True)
    if checked.mismatches:
        wrong = checked.mismatches[0]
        raise UserError(
            f"{repo}: {wrong['path']} has the {wrong['algorithm']} {wrong['actual']}, expected "
            f"{wrong['expected']}; it was removed, run the same command again"
        )


def _reach_hub() -> None:
    """Ask the hub for any answer, because huggingface_hub itself waits for minutes.

    Raises:
        Unreachable: if there is none within seconds.
    """
    import requests
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise Unreachable("HF_HUB_OFFLINE is set; unset it to download from the hub")
    try:
        requests.head(constants.ENDPOINT, timeout=(CONNECT_SECONDS, READ_SECONDS))
    except requests.RequestException as error:
        why = one_line(f"{type(error).__name__}: {error}")[:200]
        raise Unreachable(f"{constants.ENDPOINT} is out of reach ({why})") from None


def _chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match a pattern; pickled weights only if there are no safetensors."""
    files = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
    if any(name.endswith(".safetensors") for name in files):
        files = [name for name in files if not name.endswith(".bin")]
    if not files:
        raise UserError(f"the repository has none of the files {', '.join(patterns)}; it has moved")
    return files


def _explained(repo: str, error: Exception) -> UserError:
    if is_full(error):
        return UserError(f"{repo}: the disk is full; free some space, then run the command again")
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "GatedRepoError"):
        return UserError(f"{repo} is not open on the hub ({kind}); it may have moved")
    return Unreachable(f"the download of {repo} broke off ({kind}: {one_line(error)[:200]})")
