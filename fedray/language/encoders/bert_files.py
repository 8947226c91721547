"""The files of a BERT: their folder, the weights and the tokenizer.

Weights are read without transformers, whose models take seconds to import.
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
"""transformers' defaults, which a config.json may omit."""


def find_folder(path: str | None, name: str) -> Path:
    """Return the folder of a model with its tokenizer; download it if the hub has it.

    Args:
        path: a local folder, or None for the hub.
        name: the name on the hub.

    Raises:
        UserError: if it is missing or lacks a file.
    """
    if path is not None:
        folder = Path(path).expanduser().resolve()
        key = f"text.encoder.path={path}"
    else:
        folder = _from_hub(name)
        key = f"text.encoder.model={name}"
    if not folder.is_dir():
        raise UserError(f"{key} is no folder; give one with config.json, tokenizer and weights")
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
    except Exception as error:  # whatever the network, the hub or its cache may raise
        instead = "pass a local folder as text.encoder.path"
        raise unreachable(f"text.encoder '{name}'", error, instead) from None


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's files of weights, safetensors rather than pickles."""
    for patterns in (_WEIGHTS, _OLD_WEIGHTS):
        files = [path for pattern in patterns for path in folder.glob(pattern)]
        if files:
            return files
    return []


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json.

    Raises:
        UserError: if it cannot be read.
    """
    expected = "give a folder written by save_pretrained of a transformers model"
    config: dict[str, Any] = read_json(
        folder / "config.json", dict[str, Any], "text.encoder: the file", expected
    )
    return config


def read_bert(folder: Path, *, mean: bool, align: bool = False) -> Bert:
    """Read a BERT, or the text tower of an ALIGN; safetensors are mapped and so shared.

    Args:
        folder: configuration and weights.
        mean: read a text as the mean over its positions, else at the first.
        align: whether it should be an ALIGN, with its projection.

    Raises:
        UserError: if the folder holds another model, or its weights are damaged.
    """
    whole = read_config(folder)
    kind, wanted = whole.get("model_type"), "align" if align else "bert"
    if kind != wanted:
        instead = f"set text.encoder.name={kind}, or " if kind in ("align", "bert") else ""
        raise UserError(
            f"text.encoder={wanted}: {folder} holds a model of the kind '{kind}'; {instead}"
            f"give a folder of {'an ALIGN' if align else 'a BERT'}"
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
    """Return the width of an ALIGN's projection."""
    return int(config.get("projection_dim", 640))


def _no_plain_bert(folder: Path, key: str, value: object) -> UserError:
    return UserError(
        f"text.encoder: {folder} holds no plain BERT, its config.json has {key}={value}; give "
        "another folder"
    )


def _tensors(folder: Path, prefixes: Sequence[str]) -> dict[str, Tensor]:
    """Read all weights of a folder in float32, by today's names without some prefixes."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    try:
        for path in weight_files(folder):
            if path.suffix == ".bin":
                found |= torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                continue
            with safe_open(path, framework="pt") as file:
                found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # damaged files raise anything
        raise _unreadable(folder, error) from None
    return {_today(name, prefixes): tensor.to(torch.float32) for name, tensor in found.items()}


def _today(name: str, prefixes: Sequence[str]) -> str:
    """Return a weight's name as transformers has it now, without the prefix of whole models."""
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
        found = list(tensors[wrong[0]].shape) if wrong[0] in tensors else "nothing"
        raise UserError(
            f"text.encoder: {len(wrong)} of {len(sizes)} weights in {folder} are not as its "
            f"config.json describes them, first {wrong[0]}: found {found}, expected "
            f"{list(sizes[wrong[0]])}; give weights of the model that config.json describes"
        )


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer of transformers.

    Raises:
        UserError: if its files are damaged, or it cannot pad.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # damaged files raise anything
        raise _unreadable(folder, error) from None
    if tokenizer.pad_token is None:
        raise UserError(
            f"text.encoder: the tokenizer in {folder} cannot pad, as BERT's can; give another "
            "text.encoder.path or model"
        )
    return tokenizer


def most_tokens(positions: int, tokenizer: Any, folder: Path) -> int:
    """Return the most tokens of a text, for a model with a number of positions.

    Raises:
        UserError: if sentence_bert_config.json cannot be read.
    """
    limit = min(positions, int(tokenizer.model_max_length))
    sentence = folder / "sentence_bert_config.json"
    if sentence.is_file():
        expected = "expected an object with max_seq_length"
        found = read_json(sentence, dict[str, Any], "text.encoder: the file", expected)
        limit = min(limit, int(found.get("max_seq_length") or limit))
    return limit


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"text.encoder: {folder} cannot be read ({one_line(error)}); give the folder of a BERT, "
        "with its tokenizer"
    )
