"""Find and read the files of a BERT: configuration, weights and tokenizer.

Weights are read without transformers, because importing its models takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.errors import UserError, one_line
from fedray.files import read_json
from fedray.language.encoders.bert_blocks import (
    ACTIVATIONS,
    PROJECTION,
    Bert,
    TowerShape,
    bert_sizes,
)
from fedray.language.encoders.weights import unreachable

TEXT_FILES = ["*.json", "*.txt", "*.model"]
_WEIGHTS = ["model.safetensors", "model-*.safetensors"]
_OLD_WEIGHTS = ["pytorch_model.bin", "pytorch_model-*.bin"]
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_BASE = {
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
"""Defaults of transformers for keys that a config.json may omit."""


def find_folder(path: str | None, name: str) -> Path:
    """Return the folder of a model and its tokenizer; download from the hub if necessary.

    Args:
        path: a local folder, or None for the hub.
        name: the name on the hub.

    Raises:
        UserError: if the folder is missing or lacks a file.
    """
    if path is not None:
        folder = Path(path).expanduser().resolve()
        key = f"text.encoder.path={path}"
    else:
        folder = _from_hub(name)
        key = f"text.encoder.model={name}"
    if not folder.is_dir():
        raise UserError(f"{key} is not a folder; give one with config.json, tokenizer and weights")
    if not (folder / "config.json").is_file() or not weight_files(folder):
        raise UserError(
            f"{key}: {folder} lacks config.json or model.safetensors; give a folder written by "
            "save_pretrained of a transformers model and of its tokenizer"
        )
    return folder


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*TEXT_FILES, *_WEIGHTS]))
        if not weight_files(folder):
            folder = Path(snapshot_download(name, allow_patterns=[*TEXT_FILES, *_OLD_WEIGHTS]))
        return folder
    except Exception as error:  # the network, the hub and its cache raise many types
        instead = "pass a local folder as text.encoder.path"
        raise unreachable(f"text.encoder '{name}'", error, instead) from None


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder: safetensors, or pickles if there are none."""
    for patterns in (_WEIGHTS, _OLD_WEIGHTS):
        files = [path for pattern in patterns for path in folder.glob(pattern)]
        if files:
            return files
    return []


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a folder.

    Raises:
        UserError: if the file is unreadable.
    """
    expected = "give a folder written by save_pretrained of a transformers model"
    config: dict[str, Any] = read_json(
        folder / "config.json", dict[str, Any], "text.encoder: the file", expected
    )
    return config


def read_bert(folder: Path, *, mean: bool, align: bool = False) -> Bert:
    """Read a BERT, or the text tower of an ALIGN; processes share the memory of safetensors.

    Args:
        folder: the folder with configuration and weights.
        mean: True if a text's output is the mean over its positions, False for the first position.
        align: True for the text tower of an ALIGN, with its projection.

    Raises:
        UserError: if the folder holds another model, or the weights are damaged.
    """
    whole = read_config(folder)
    kind, wanted = whole.get("model_type"), "align" if align else "bert"
    if kind != wanted:
        instead = f"set text.encoder.name={kind}, or " if kind in ("align", "bert") else ""
        raise UserError(
            f"text.encoder={wanted}: {folder} holds a model of the kind '{kind}'; {instead}"
            f"give a folder with {'an ALIGN' if align else 'a BERT'}"
        )
    config = {**_BASE, **(whole.get("text_config", {}) if align else whole)}
    for key in ("position_embedding_type", "is_decoder", "add_cross_attention"):
        if config[key] != _BASE[key]:
            raise _no_plain_bert(folder, key, config[key])
    if config["hidden_act"] not in ACTIVATIONS:
        raise _no_plain_bert(folder, "hidden_act", config["hidden_act"])
    sizes = bert_sizes(config)
    if align:
        width = align_width(whole)
        sizes[f"{PROJECTION}.weight"] = (width, config["hidden_size"])
        sizes[f"{PROJECTION}.bias"] = (width,)
    tensors = _tensors(folder, ("text_model.", "text_") if align else ("bert.",))
    _check_sizes(tensors, sizes, folder)
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    shape = TowerShape(heads, eps, config["hidden_act"], mean)
    return Bert({name: tensors[name] for name in sizes}, shape)


def align_width(config: Mapping[str, Any]) -> int:
    """Return the width of the projection of an ALIGN, given its configuration."""
    return int(config.get("projection_dim", 640))


def _no_plain_bert(folder: Path, key: str, value: object) -> UserError:
    return UserError(
        f"text.encoder: {folder} holds no plain BERT: its config.json has {key}={value}; give "
        "another folder"
    )


def _tensors(folder: Path, prefixes: Sequence[str]) -> dict[str, Tensor]:
    """Read all weights of a folder in float32, by current names without the given prefixes."""
    from safetensors import safe_open

    stored: dict[str, Tensor] = {}
    try:
        for path in weight_files(folder):
            if path.suffix == ".bin":
                stored |= torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                continue
            with safe_open(path, framework="pt") as file:
                stored |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # damaged files raise many types
        raise _unreadable(folder, error) from None
    return {_current(name, prefixes): tensor.to(torch.float32) for name, tensor in stored.items()}


def _current(name: str, prefixes: Sequence[str]) -> str:
    """Return a weight's current name in transformers, without the prefix of whole models."""
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    for prefix in prefixes:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _check_sizes(
    tensors: Mapping[str, Tensor], sizes: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    wrong = [n for n, size in sizes.items() if n not in tensors or tensors[n].shape != size]
    if wrong:
        actual = list(tensors[wrong[0]].shape) if wrong[0] in tensors else "nothing"
        raise UserError(
            f"text.encoder: {len(wrong)} of {len(sizes)} weights in {folder} do not match its "
            f"config.json, first {wrong[0]}: found {actual}, expected "
            f"{list(sizes[wrong[0]])}; give weights of the model that config.json describes"
        )


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer of transformers.

    Raises:
        UserError: if the files are damaged, or the tokenizer cannot pad.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # damaged files raise many types
        raise _unreadable(folder, error) from None
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers' answer to no files
        raise UserError(
            f"text.encoder: {folder} has no tokenizer, so that all words would read the same; add "
            "its tokenizer.json or vocab.txt, which save_pretrained of the tokenizer writes"
        )
    if tokenizer.pad_token is None:
        raise UserError(
            f"text.encoder: the tokenizer in {folder} cannot pad, unlike BERT's; give another "
            "text.encoder.path or model"
        )
    return tokenizer


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
        expected = "expected an object with max_seq_length"
        settings = read_json(sentence, dict[str, Any], "text.encoder: the file", expected)
        limit = min(limit, int(settings.get("max_seq_length") or limit))
    return limit


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"text.encoder: {folder} cannot be read ({one_line(error)}); give the folder of a BERT "
        "with its tokenizer"
    )
