"""Find and read the files of a BERT: configuration, weights and tokenizer.

Weights are read without transformers, because importing its models takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedray.errors import UserError, one_line
from fedray.language.encoders.bert_blocks import (
    ACTIVATIONS,
    PROJECTION,
    Bert,
    TowerShape,
    bert_sizes,
)
from fedray.language.encoders.weights import (
    check_texts,
    check_vocabulary,
    hub_folder,
    read_weights,
    unreachable,
)
from fedray.storage.json_files import read_typed

Pooling = Literal["cls", "mean"]

TEXT_FILES = ["*.json", "*.txt", "*.model"]
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "*.model")
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
        folder = Path(path).expanduser().absolute()
        key = f"text.encoder.path={path}"
    else:
        folder = _from_hub(name)
        key = f"text.encoder.model={name}"
    if not folder.is_dir():
        raise UserError(f"{key} is not a folder; give one with config.json, tokenizer and weights")
    if not has_model(folder):
        if (inner := folder / "0_Transformer").is_dir() or (inner := folder / "0_BERT").is_dir():
            raise UserError(
                f"{key}: {folder} is a sentence encoder of an old layout; give {inner} as "
                "text.encoder.path, with the text.encoder.pooling that 1_Pooling/config.json names"
            )
        raise UserError(
            f"{key}: {folder} lacks config.json or model.safetensors; give a folder written by "
            "save_pretrained of a transformers model and of its tokenizer"
        )
    return folder


def _from_hub(name: str) -> Path:
    try:
        download = partial(hub_folder, name, is_complete=_is_complete, is_usable=has_model)
        folder = download([*TEXT_FILES, *_WEIGHTS])
        return folder if weight_files(folder) else download([*TEXT_FILES, *_OLD_WEIGHTS])
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


def read_bert_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a folder.

    Raises:
        UserError: if the file is unreadable.
    """
    expected = "give a folder written by save_pretrained of a transformers model"
    config: dict[str, Any] = read_typed(
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
    whole = read_bert_config(folder)
    kind, wanted = _kind(folder, whole), "align" if align else "bert"
    if kind != wanted:
        instead = f"set text.encoder.name={kind}, or " if kind in ("align", "bert") else ""
        if kind == "clip":
            instead = "set text.encoder.name=openclip, or "
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


def _kind(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the model type; files of 2019 have none, and a BERT's then has a vocab.txt."""
    is_old_bert = "type_vocab_size" in config and (folder / "vocab.txt").is_file()
    return config.get("model_type") or ("bert" if is_old_bert else None)


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
    stored: dict[str, Tensor] = {}
    for path in weight_files(folder):
        stored |= read_weights(path, "text.encoder")
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
    surplus = [name for name in tensors if name.startswith("encoder.layer.") and name not in sizes]
    if surplus:
        raise UserError(
            f"text.encoder: {len(surplus)} weights in {folder} are not part of the model that its "
            f"config.json describes, first {surplus[0]}; give the config.json of these weights"
        )


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer of transformers.

    Raises:
        UserError: if the files are damaged or missing, the tokenizer cannot pad, or would put the
            texts of a cased vocabulary in lower case.
    """
    from transformers import AutoTokenizer, BertTokenizer

    check_texts([path for pattern in TEXT_FILES for path in folder.glob(pattern)], "text.encoder")
    loader = AutoTokenizer if read_bert_config(folder).get("model_type") else BertTokenizer
    try:
        tokenizer = loader.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # damaged files raise many types
        raise _unreadable(folder, error) from None
    check_vocabulary(tokenizer, f"text.encoder: {folder}")
    if tokenizer.pad_token is None:
        raise UserError(
            f"text.encoder: the tokenizer in {folder} cannot pad, unlike BERT's; give another "
            "text.encoder.path or model"
        )
    if not (folder / "tokenizer.json").is_file():
        _check_case(tokenizer, folder)
    return tokenizer


def _check_case(tokenizer: Any, folder: Path) -> None:
    """Raise a UserError if words have capitals that no text keeps, unless the folder wants that."""
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        expected = "give a file that save_pretrained of the tokenizer wrote"
        content = read_typed(settings, dict[str, Any], "text.encoder: the file", expected)
        if "do_lower_case" in content:
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
    place, expected = "text.encoder: the file", "give a file that sentence-transformers wrote"
    modules = read_typed(folder / "modules.json", list[dict[str, Any]], place, expected)
    kinds = {str(m.get("type")).rpartition(".")[2]: str(m.get("path", "")) for m in modules}
    if unknown := kinds.keys() - {"Transformer", "Pooling", "Normalize"}:
        raise UserError(
            f"text.encoder: the sentence encoder {folder} has a layer {min(unknown)}, which is not "
            "supported; give one with a transformer and a pooling alone"
        )
    optional = {"config_sentence_transformers.json": "default_prompt_name"}
    optional |= {"sentence_bert_config.json": "do_lower_case"}
    for name, key in optional.items():
        path = folder / name
        if path.is_file() and (value := read_typed(path, dict[str, Any], place, expected).get(key)):
            raise UserError(
                f"text.encoder: {path} has {key}={value}, which changes texts and is not "
                "supported; give another sentence encoder"
            )
    file = folder / kinds.get("Pooling", "1_Pooling") / "config.json"
    settings = read_typed(file, dict[str, Any], place, expected)
    prescribed = _prescribed(settings)
    if prescribed not in ("cls", "mean"):
        raise UserError(
            f"text.encoder: {file} prescribes the pooling {prescribed}; give a sentence encoder "
            "with cls or mean"
        )
    if prescribed != pooling:
        raise UserError(
            f"text.encoder: {folder} is a sentence encoder with the pooling {prescribed}, but "
            f"text.encoder.pooling={pooling}; set text.encoder.pooling={prescribed}"
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
        expected = "expected an object with max_seq_length"
        settings = read_typed(sentence, dict[str, Any], "text.encoder: the file", expected)
        limit = min(limit, int(settings.get("max_seq_length") or limit))
    return limit


def _unreadable(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"text.encoder: {folder} cannot be read ({one_line(error)}); give the folder of a BERT "
        "with its tokenizer"
    )
