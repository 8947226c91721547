"""Weight files and folders of models: find or download them, read them, hash their content.

Whatever a library raises becomes one sentence that names the key, and the file or repository.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import filter as matching
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.base.errors import UserError, one_line
from fedray.data.weights import WEIGHTS

TEXT_FILES = ("*.json", "*.txt", "*.model")
"""Names of the files that describe a model and its tokenizer."""
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model")
"""Names of the files with the words of a tokenizer."""
_NESTED = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")  # DataParallel, torch.compile
_MOST_SHOWN = 300


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a library raises about files or the hub into the UserError "what: reason"."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files, the network and the hub raise many types
        reason = one_line(error)[:_MOST_SHOWN] or type(error).__name__
        if "Weights only" in reason:  # torch goes on with advice to switch off safety
            reason = "it is damaged, or a pickle of other objects than tensors"
        raise UserError(f"{what}: {reason}") from None


def matches(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the files of a folder that match any of some patterns."""
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: one, or the parts of one; empty without any."""
    return next((found for pattern in WEIGHTS if (found := matches(folder, [pattern]))), [])


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


def find_folder(key: str, path: str | None, repository: str, *, words: bool = False) -> Path:
    """Return the folder of a model with configuration and weights.

    Args:
        key: the experiment's key, for messages.
        path: a local folder, or None for the hub.
        repository: the name on the hub.
        words: whether a folder of the hub needs a tokenizer, too.

    Raises:
        UserError: if the folder has no such files, or the hub does not give them.
    """
    # Links are not followed: files of the hub's cache are links to files without a suffix.
    if path is None:
        folder = hub_folder(key, repository, words=words)
    else:
        folder = Path(path).expanduser().absolute()
    if not _has_model(folder):
        raise UserError(
            f"{key}: {folder} lacks a configuration (config.json, open_clip_config.json) or "
            f"weights (such as {WEIGHTS[3]}); give the folder of a model"
        )
    return folder


def hub_folder(key: str, repository: str, *, model: bool = True, words: bool = False) -> Path:
    """Return the folder with the files of a repository of the Hugging Face hub.

    Files in the local cache are used without asking the hub.

    Args:
        key: the experiment's key, for messages.
        repository: OWNER/NAME.
        model: whether configuration and weights are needed.
        words: whether a tokenizer is needed.

    Raises:
        UserError: if the files are not in the cache and the hub does not give them.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    api = HfApi(endpoint=constants.ENDPOINT)
    with reading(f"{key}: '{repository}' of the Hugging Face hub (or set {key}.path)"):
        try:
            cached = api.snapshot_download(repository, local_files_only=True)
        except LocalEntryNotFoundError as error:  # which may lack a file that is not needed
            cached = getattr(error, "snapshot_path", None) or ""
        folder = Path(cached)
        has_words = not words or matches(folder, TOKENIZERS)
        if cached and has_words and (not model or _has_model(folder)):
            return folder
        names = api.list_repo_files(repository)
        best = next((name for name in WEIGHTS if model and matching(names, name)), "")
        return Path(api.snapshot_download(repository, allow_patterns=[*TEXT_FILES, best]))


def _has_model(folder: Path) -> bool:
    configs = (folder / "config.json", folder / "open_clip_config.json")
    return any(path.is_file() for path in configs) and bool(weight_files(folder))


def is_torchscript(path: Path) -> bool:
    """Return True for a TorchScript program, such as OpenAI's files, instead of a state dict."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_weights(path: Path, key: str) -> dict[str, Tensor]:
    """Read the tensors of a weight file by name; large files are mapped where possible.

    The format follows from the content: safetensors, a state dict of any version of torch (alone or
    in a checkpoint, as "state_dict" or "model"), or a TorchScript program. Prefixes that wrappers
    of modules add to all names are removed.

    Raises:
        UserError: with key and file, if the file holds no tensors, holds NaN, or cannot be read.
    """
    with reading(f"{key}: {path} is not a weight file"):
        state = _tensors(path)
        if not state:
            raise ValueError("it holds no state dict, that is, tensors by name")
        for wrapper in _WRAPPERS:
            if all(name.startswith(wrapper) for name in state):
                state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
        if damaged := [name for name, tensor in state.items() if tensor.isnan().any()]:
            raise ValueError(f"it has values that are no numbers in {damaged[0]}")
    return state


def _tensors(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        is_safe = file.read(9)[8:] == b"{"
    if is_safe:
        from safetensors.torch import load_file

        return load_file(path)
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


def load_pretrained(loader: Any, folder: Path, key: str, **options: Any) -> Any:
    """Load a model of transformers from a folder in float32, complete.

    Args:
        loader: the class, such as BertModel.
        folder: the folder.
        key: the experiment's key, for messages.
        **options: further options of `from_pretrained`.

    Raises:
        UserError: if the folder cannot be read, lacks weights, which transformers would draw, or
            has blocks that transformers would leave out.
    """
    with reading(f"{key}: {folder}"), _quiet():
        model, info = loader.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True, **options
        )
    missing = sorted(name for name in info["missing_keys"] if "pooler." not in name)
    surplus = sorted(name for name in info["unexpected_keys"] if ".layer" in name)
    for names, what in ((missing, "lacks"), (surplus, "has, beyond what its config.json says,")):
        if names:
            raise UserError(f"{key}: {folder} {what} {len(names)} weights, first {names[0]}")
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from reporting what `load_pretrained` judges, and from drawing bars."""
    from transformers.utils import logging

    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


def check_vocabulary(tokenizer: Any) -> None:
    """Raise a ValueError if a tokenizer of transformers has no words, its answer to no files."""
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError("there is no tokenizer (tokenizer.json or vocab.txt)")


def check_ids(ids: Tensor, rows: int) -> None:
    """Raise a UserError if a tokenizer gives ids for which its model has no word embedding."""
    if int(ids.max()) >= rows:
        raise UserError(
            f"the tokenizer of the text encoder gives the id {int(ids.max())}, but its model has "
            f"{rows} word embeddings; give the tokenizer files of this model"
        )
