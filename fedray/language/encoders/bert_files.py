"""A BERT out of a folder: where it is, its weights, its tokenizer.

transformers' models cost seconds to import. A BERT in safetensors is read without them; what is
another kind, or not as expected, transformers reads, or says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.errors import UserError
from fedray.language.activations import ACTIVATIONS
from fedray.language.encoders.base import freeze
from fedray.language.encoders.packed import BertShape, PackedBert, bert_names
from fedray.language.encoders.weights import unreachable

TEXT_FILES = ["*.json", "*.txt", "*.model"]
_WEIGHTS = ["model.safetensors", "model-*.safetensors"]
_OLD_WEIGHTS = ["pytorch_model.bin", "pytorch_model-*.bin"]
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_BERTS = ("bert", "align_text_model")
"""What transformers calls models that are a BERT."""


def find_folder(path: str | None, name: str) -> Path:
    """The folder of a model with its tokenizer; downloaded if the hub has it.

    Args:
        path: a local folder, or None for the hub.
        name: what the hub calls the model.

    Raises:
        UserError: when it is not there, or lacks a file.
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
    """A folder's files of weights, safetensors rather than pickles; none where it holds none."""
    for patterns in (_WEIGHTS, _OLD_WEIGHTS):
        files = [path for pattern in patterns for path in folder.glob(pattern)]
        if files:
            return files
    return []


def configured(folder: Path, key: str) -> int | None:
    """A whole number in a folder's config.json; None where it has none of that name."""
    found = _config(folder).get(key)
    return found if isinstance(found, int) else None


def read_bert(folder: Path) -> PackedBert | None:
    """A BERT, frozen, without transformers; None where the folder holds anything else.

    The files are mapped, so processes share their pages.
    """
    config = _config(folder)
    shape = _shape(config) if config.get("model_type") == "bert" else None
    if shape is None:
        return None
    try:
        tensors = _tensors(folder)
        found = PackedBert({name: tensors[name] for name in bert_names(shape.layers)}, shape)
        return found if _fits(found, config) else None
    except Exception:  # transformers reads it, or says what is wrong with it
        return None


def packed(model: Any) -> PackedBert | None:
    """A model of transformers as a `PackedBert`; None where it is another kind."""
    config = model.config.to_dict()
    shape = _shape(config) if config.get("model_type") in _BERTS else None
    return None if shape is None else PackedBert(model.state_dict(), shape)


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _shape(config: Mapping[str, Any]) -> BertShape | None:
    """The shape that a configuration gives; None where `PackedBert` does not compute it."""
    usual = config.get("position_embedding_type", "absolute") == "absolute"
    decodes = config.get("is_decoder", False) or config.get("add_cross_attention", False)
    if not usual or decodes or config.get("hidden_act") not in ACTIVATIONS:
        return None
    try:
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        eps = float(config.get("layer_norm_eps", 1e-12))
    except (KeyError, TypeError, ValueError):
        return None
    return BertShape(layers, heads, eps, config["hidden_act"]) if layers else None


def _fits(model: PackedBert, config: Mapping[str, Any]) -> bool:
    """Whether the weights are as large as the configuration says."""
    w, inner = config["hidden_size"], config["intermediate_size"]
    tables = {"words": "vocab_size", "positions": "max_position_embeddings"}
    tables["types"] = "type_vocab_size"
    sizes: dict[str, tuple[int, ...]] = {name: (config[key], w) for name, key in tables.items()}
    linear = dict.fromkeys(("query", "key", "value", "mixed"), (w, w))
    for name, size in {**linear, "inner": (inner, w), "outer": (w, inner)}.items():
        sizes[f"{name}_weight"] = size
        sizes[f"{name}_bias"] = size[:1]
    found = ((name.split(".")[-1], tensor) for name, tensor in model.named_parameters())
    return all(tuple(tensor.shape) == sizes.get(name, (w,)) for name, tensor in found)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder in float32, by today's names without the "bert." of whole models."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            found |= {_today(name): file.get_tensor(name).to(torch.float32) for name in names}
    return found


def _today(name: str) -> str:
    """A weight's name as transformers has it now."""
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name.removeprefix("bert.")


def load_model(
    folder: Path, kind: str = "AutoModel", unread: tuple[str, ...] = ("pooler.",)
) -> Any:
    """A model of transformers, frozen.

    Args:
        folder: configuration and weights.
        kind: the class of transformers that reads the weights.
        unread: prefixes of the parameters that nothing needs; the files may lack them.

    Raises:
        UserError: when the package is not there, or the files are broken or of another kind.
    """
    with _loading(folder):
        import transformers

        with _quiet():
            model, info = getattr(transformers, kind).from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(unread))
    if missing or info.get("mismatched_keys"):
        raise UserError(
            f"text.encoder: the weights in {folder} lack {len(missing)} parameters of "
            f"{type(model).__name__} ({', '.join(missing[:2])}, ...); give weights of the model "
            "that config.json describes"
        )
    if model.config.is_encoder_decoder:
        raise _no_encoder(type(model).__name__, folder)
    if hasattr(model, "pooler"):
        model.pooler = None
    freeze(model)
    return model


def load_tokenizer(folder: Path) -> Any:
    """A tokenizer of transformers.

    Raises:
        UserError: when the package is not there, or the files are broken or of another kind.
    """
    with _loading(folder):
        from transformers import AutoTokenizer

        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.pad_token is None:
        raise _no_encoder("the model", folder)
    return tokenizer


def most_tokens(positions: int | None, tokenizer: Any, folder: Path) -> int:
    """The most tokens a text may have, where the model has that many positions."""
    limit = int(tokenizer.model_max_length)
    if positions is not None:
        limit = min(limit, positions)
    sentence = folder / "sentence_bert_config.json"
    if sentence.is_file():
        most = json.loads(sentence.read_text(encoding="utf-8")).get("max_seq_length")
        limit = min(limit, int(most or limit))
    return limit


def _no_encoder(what: str, folder: Path) -> UserError:
    return UserError(
        f"text.encoder: {what} in {folder} is no encoder with padding, as BERT is; give another "
        "text.encoder.path or model"
    )


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """Say what is wrong when transformers cannot be imported, or cannot load a folder."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] != "transformers":
            raise _unloaded(folder, error) from None
        raise UserError(
            "text.encoder needs transformers, which cannot be imported: pip install transformers"
        ) from None
    except Exception as error:  # broken files raise anything
        raise _unloaded(folder, error) from None


def _unloaded(folder: Path, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(
        f"text.encoder: {folder} cannot be loaded by transformers ({reason}); give the folder "
        "of an encoder like BERT, with its tokenizer"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers; what matters is checked and raised."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
