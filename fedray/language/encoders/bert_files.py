"""Find and read the files of a BERT of transformers: configuration, weights and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from fedray.base.errors import UserError, one_line
from fedray.language.encoders.weights import (
    check_texts,
    check_vocabulary,
    hub_folder,
    unreachable,
)
from fedray.storage.files import read_typed

Pooling = Literal["cls", "mean"]

TEXT_FILES = ["*.json", "*.txt", "*.model"]
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "*.model")
_WEIGHTS = ["model.safetensors", "model-*.safetensors"]
_OLD_WEIGHTS = ["pytorch_model.bin", "pytorch_model-*.bin"]


def find_folder(path: str | None, name: str) -> Path:
    """Return the folder of a model and its tokenizer; download from the hub if necessary.

    Args:
        path: a local folder, or None for the hub.
        name: the name on the hub.

    Raises:
        UserError: if the folder is missing or lacks a file.
    """
    if path is not None:
        folder = Path(path).expanduser().absolute()
        key = f"text.encoder.path={path}"
    else:
        folder = _from_hub(name)
        key = f"text.encoder.model={name}"
    if not has_model(folder):
        raise UserError(
            f"{key}: {folder} lacks config.json or model.safetensors; give a folder written by "
            "save_pretrained of a transformers model and of its tokenizer"
        )
    return folder


def _from_hub(name: str) -> Path:
    try:
        folder = hub_folder(name, [*TEXT_FILES, *_WEIGHTS], _is_complete)
        if weight_files(folder):
            return folder
        return hub_folder(name, [*TEXT_FILES, *_OLD_WEIGHTS], _is_complete)
    except Exception as error:  # the network, the hub and its cache raise many types
        instead = "pass a local folder as text.encoder.path"
        raise unreachable(f"text.encoder '{name}'", error, instead, name=name) from None


def has_model(folder: Path) -> bool:
    """Return True if a folder has a configuration and weights."""
    return (folder / "config.json").is_file() and bool(weight_files(folder))


def _is_complete(folder: Path) -> bool:
    return has_model(folder) and any(any(folder.glob(pattern)) for pattern in _TOKENIZERS)


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: safetensors, or pickles if there are none."""
    for patterns in (_WEIGHTS, _OLD_WEIGHTS):
        files = [path for pattern in patterns for path in folder.glob(pattern)]
        if files:
            return files
    return []


def text_files(folder: Path) -> list[Path]:
    """Return the files of a folder that describe the model and its tokenizer."""
    return [path for pattern in TEXT_FILES for path in folder.glob(pattern)]


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a folder.

    Raises:
        UserError: if the file is unreadable.
    """
    return _read(folder / "config.json", "give a folder of a transformers model")


def _read(file: Path, expected: str) -> dict[str, Any]:
    content: dict[str, Any] = read_typed(file, dict[str, Any], "text.encoder: the file", expected)
    return content


def load_model(folder: Path, *, align: bool) -> Any:
    """Load a `BertModel`, or a whole `AlignModel`, in float32.

    Raises:
        UserError: if the folder holds another model, or weights are missing, left over or damaged.
    """
    from transformers import AlignModel, BertModel

    config, wanted = read_config(folder), "align" if align else "bert"
    is_of_2019 = "type_vocab_size" in config and (folder / "vocab.txt").is_file()
    kind = config.get("model_type") or ("bert" if is_of_2019 else None)
    if kind != wanted:
        raise UserError(
            f"text.encoder={wanted}: {folder} holds a model of the kind '{kind}'; give another "
            "text.encoder or folder"
        )
    options = {} if align else {"add_pooling_layer": False, "attn_implementation": "sdpa"}
    loader: Any = AlignModel if align else BertModel
    try:
        with _quiet():
            model, found = loader.from_pretrained(
                folder,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # damaged files raise many types
        raise unreadable(folder, error) from None
    _check_complete(folder, found)
    if getattr(model.config, "is_decoder", False):
        raise UserError(f"text.encoder: {folder} holds a decoder (is_decoder); give a plain BERT")
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from reporting what `_check_complete` judges, and from drawing bars."""
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


def _check_complete(folder: Path, found: Mapping[str, Any]) -> None:
    """Refuse weights that transformers would draw, and blocks that it would leave out."""
    missing = sorted(name for name in found["missing_keys"] if "pooler." not in name)
    surplus = sorted(name for name in found["unexpected_keys"] if ".layer." in name)
    for names, what in ((missing, "lacks"), (surplus, "has, beyond what its config.json says,")):
        if names:
            raise UserError(
                f"text.encoder: {folder} {what} {len(names)} weights, first {names[0]}; give "
                "weights and config.json of one model"
            )


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer of transformers.

    Raises:
        UserError: if the files are damaged or missing, the tokenizer cannot pad, or would put the
            texts of a cased vocabulary in lower case.
    """
    from transformers import AutoTokenizer, BertTokenizer

    check_texts(text_files(folder), "text.encoder")
    loader = AutoTokenizer if read_config(folder).get("model_type") else BertTokenizer
    try:
        tokenizer = loader.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # damaged files raise many types
        raise unreadable(folder, error) from None
    check_vocabulary(tokenizer, f"text.encoder: {folder}")
    if not (folder / "tokenizer.json").is_file():
        _check_case(tokenizer, folder)
    return tokenizer


def _check_case(tokenizer: Any, folder: Path) -> None:
    """Raise a UserError if words have capitals that no text keeps, unless the folder wants that."""
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and "do_lower_case" in _read(settings, "give a tokenizer's file"):
        return
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word[0].isupper())
    if words and words[0] not in tokenizer.tokenize(words[0]):
        raise UserError(
            f"text.encoder: {folder} does not say whether its tokenizer puts texts in lower case, "
            f"and its vocab.txt has words with capitals, such as '{words[0]}'; write "
            '{"do_lower_case": false} into its tokenizer_config.json'
        )


def check_sentence_encoder(folder: Path, pooling: Pooling) -> None:
    """Check what a folder in the layout of sentence-transformers prescribes; accept other folders.

    The last layer of such an encoder may scale its output to length 1, as methods do here.

    Args:
        folder: the folder; modules.json is the mark of sentence-transformers.
        pooling: the pooling that is set.

    Raises:
        UserError: if the folder prescribes another pooling, or what `BertEncoder` cannot do.
    """
    if not (folder / "modules.json").is_file():
        return
    expected = "give a file that sentence-transformers wrote"
    place = "text.encoder: the file"
    modules = read_typed(folder / "modules.json", list[dict[str, Any]], place, expected)
    kinds = {str(m.get("type")).rpartition(".")[2]: str(m.get("path", "")) for m in modules}
    prescribed = _prescribed(
        _read(folder / kinds.get("Pooling", "1_Pooling") / "config.json", expected)
    )
    others = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
    optional = {"config_sentence_transformers.json": "default_prompt_name"}
    optional |= {"sentence_bert_config.json": "do_lower_case"}
    others += [
        f"{key} in {name}"
        for name, key in optional.items()
        if (folder / name).is_file() and _read(folder / name, expected).get(key)
    ]
    if others:
        raise UserError(
            f"text.encoder: the sentence encoder {folder} has {others[0]}, which is not supported; "
            "give one with a transformer and a pooling alone"
        )
    if prescribed != pooling:
        raise UserError(
            f"text.encoder: {folder} is a sentence encoder with the pooling {prescribed}, but "
            f"text.encoder.pooling={pooling}; set it to {prescribed}, or give another one"
        )


def _prescribed(settings: Mapping[str, Any]) -> str:
    """Return the pooling of a sentence encoder's configuration, in its old or new form."""
    modes = settings.get("pooling_mode") or [
        key.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
        for key, is_on in settings.items()
        if key.startswith("pooling_mode_") and is_on is True
    ]
    return modes if isinstance(modes, str) else "+".join(sorted(modes)) or "mean"


def most_tokens(positions: int, tokenizer: Any, folder: Path) -> int:
    """Return the maximal number of tokens of a text.

    Args:
        positions: number of position embeddings.
        tokenizer: the tokenizer, with its own limit.
        folder: the model's folder, whose sentence_bert_config.json may hold a limit.

    Raises:
        UserError: if sentence_bert_config.json is unreadable.
    """
    limit = min(positions, int(tokenizer.model_max_length))
    sentence = folder / "sentence_bert_config.json"
    if sentence.is_file():
        settings = _read(sentence, "expected an object with max_seq_length")
        limit = min(limit, int(settings.get("max_seq_length") or limit))
    return limit


def unreadable(folder: Path, error: Exception) -> UserError:
    """Return the error for a folder that transformers cannot read."""
    return UserError(
        f"text.encoder: {folder} cannot be read ({one_line(error)}); give the folder of a BERT "
        "with its tokenizer"
    )
