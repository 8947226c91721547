"""Folders of models: find or download them, read them, hash their content.

Whatever a library raises becomes one sentence that names the key, and the file or repository.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
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
_CONFIGS = ("config.json", "open_clip_config.json")
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
    return next((files for pattern in WEIGHTS if (files := matches(folder, [pattern]))), [])


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
    """Return the local folder `path` of a model, or that of a repository of the hub.

    Raises:
        UserError: with `key`, if configuration, weights or, on the hub, `words` are missing.
    """
    if path is None:
        return hub_folder(key, repository, words=words)
    # Links are not followed: files of the hub's cache are links to files without a suffix.
    folder = Path(path).expanduser().absolute()
    if not _is_complete(folder):
        raise UserError(
            f"{key}: {folder} lacks a configuration ({', '.join(_CONFIGS)}) or weights (such as "
            f"{WEIGHTS[3]}); give the folder of a model"
        )
    return folder


def hub_folder(key: str, repository: str, *, model: bool = True, words: bool = False) -> Path:
    """Return the folder with the files of OWNER/NAME of the Hugging Face hub.

    Files in the local cache are used without asking the hub. `model` says that configuration and
    weights are needed, `words` that a tokenizer is.

    Raises:
        UserError: with `key`, if the files are not in the cache and the hub does not give them.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    api = HfApi(endpoint=constants.ENDPOINT)
    with reading(f"{key}: '{repository}' of the Hugging Face hub (or set {key}.path)"):
        try:
            cached = api.snapshot_download(repository, local_files_only=True)
        except LocalEntryNotFoundError as error:  # which may lack a file that is not needed
            cached = getattr(error, "snapshot_path", None) or ""
        if cached and _is_complete(Path(cached), model=model, words=words):
            return Path(cached)
        names = api.list_repo_files(repository)
        best = next((name for name in WEIGHTS if model and matching(names, name)), "")
        folder = Path(api.snapshot_download(repository, allow_patterns=[*TEXT_FILES, best]))
        if not _is_complete(folder, model=model, words=words):
            raise ValueError("it lacks configuration, weights or tokenizer")
    return folder


def _is_complete(folder: Path, *, model: bool = True, words: bool = False) -> bool:
    has_model = bool(matches(folder, _CONFIGS) and weight_files(folder))
    return (has_model or not model) and (not words or bool(matches(folder, TOKENIZERS)))


def load_pretrained(loader: Any, folder: Path, key: str, **options: Any) -> Any:
    """Load a model of transformers, of the class `loader`, from a folder, in float32.

    Raises:
        UserError: with `key`, if the folder cannot be read, lacks weights, which transformers would
            draw, or has blocks that transformers would leave out.
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
