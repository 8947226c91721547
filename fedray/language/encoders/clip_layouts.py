"""Layouts in which CLIPs are published, converted to that of `open_clip.CustomTextCLIP`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.base.errors import UserError, one_line
from fedray.storage.files import read_typed

CLIP_CONFIG = "config.json"
"""The configuration of a model of transformers."""
_PREPROCESSING = "preprocessor_config.json"
_RESAMPLING = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of filters."""
_MARK = "text_model.embeddings.token_embedding.weight"
_TOWERS = {"text_model.": "text.", "vision_model.": "visual."}
_NAMES = {
    "embeddings.token_embedding.": "token_embedding.",
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding.": "conv1.",
    "final_layer_norm.": "ln_final.",
    "pre_layrnorm.": "ln_pre.",
    "post_layernorm.": "ln_post.",
    "encoder.layers.": "transformer.resblocks.",
    ".self_attn.out_proj.": ".attn.out_proj.",
    ".layer_norm1.": ".ln_1.",
    ".layer_norm2.": ".ln_2.",
    ".mlp.fc1.": ".mlp.c_fc.",
    ".mlp.fc2.": ".mlp.c_proj.",
}
_PROJECTIONS = {
    "text_projection.weight": "text.text_projection",
    "visual_projection.weight": "visual.proj",
}
# Prefixes of the text tower's parameters in `open_clip.CLIP`.
_TOP = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")


def with_text_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the text tower of an `open_clip.CLIP`, unless it has the prefix "text." already."""
    if any(name.startswith("text.") for name in state):
        return dict(state)
    return {f"text.{n}" if n.startswith(_TOP) else n: tensor for n, tensor in state.items()}


def is_of_transformers(state: Mapping[str, Any]) -> bool:
    """Return True for the names of a `CLIPModel` of transformers."""
    return _MARK in state


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a `CLIPModel`; concatenate its queries, keys and values."""
    converted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in _PROJECTIONS:
            converted[_PROJECTIONS[name]] = tensor.T
        elif ".q_proj." in name:
            parts = [state[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            joined = name.replace(".self_attn.q_proj.", ".attn.in_proj_")
            converted[_renamed(joined)] = torch.cat(parts)
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".position_ids")):
            converted[_renamed(name)] = tensor
    return converted


def _renamed(name: str) -> str:
    for old, new in {**_TOWERS, **_NAMES}.items():
        name = name.replace(old, new, 1)
    return name


def converted_config(folder: Path, key: str) -> dict[str, Any]:
    """Return open_clip's configuration of a `CLIPModel` of transformers.

    Args:
        folder: the model's folder.
        key: the experiment's key, for messages.

    Raises:
        UserError: if the configuration is unreadable, or open_clip has no such architecture.
    """
    from transformers import CLIPConfig

    content = _read(folder / CLIP_CONFIG, key)
    try:
        config = CLIPConfig.from_dict(content)
        text, vision = config.text_config, config.vision_config
        towers = {"text_cfg": text, "vision_cfg": vision}
        common = {name: _tower(tower) for name, tower in towers.items()}
    except Exception as error:  # wrong values raise many types
        raise UserError(
            f"{key}: {folder / CLIP_CONFIG} describes no CLIP ({one_line(error)}); give the folder "
            "of a CLIPModel of transformers"
        ) from None
    activation = text.hidden_act
    if activation not in ("gelu", "quick_gelu") or vision.hidden_act != activation:
        raise UserError(
            f"{key}: {folder / CLIP_CONFIG} has the activations {text.hidden_act} and "
            f"{vision.hidden_act}; give a CLIP with quick_gelu or gelu in both towers"
        )
    common["vision_cfg"] |= {
        "head_width": vision.hidden_size // vision.num_attention_heads,
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
    }
    common["text_cfg"] |= {
        "heads": text.num_attention_heads,
        "context_length": text.max_position_embeddings,
        "vocab_size": text.vocab_size,
        "hf_tokenizer_name": str(folder),
    }
    if text.eos_token_id != 2:  # with this wrong number transformers reads the largest id instead
        common["text_cfg"] |= {"pool_type": "eos", "eos_id": text.eos_token_id}
    quick = activation == "quick_gelu"
    return {"embed_dim": config.projection_dim, "quick_gelu": quick, **common}


def _tower(tower: Any) -> dict[str, Any]:
    """Return the keys of open_clip's configuration that both towers have."""
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "mlp_ratio": tower.intermediate_size / tower.hidden_size,
        "norm_kwargs": {"eps": tower.layer_norm_eps},
    }


def converted_preprocessing(folder: Path, key: str) -> dict[str, Any]:
    """Return the settings in preprocessor_config.json, if there is one, in open_clip's words."""
    file = folder / _PREPROCESSING
    content = _read(file, key) if file.is_file() else {}
    found = {k: content[f"image_{k}"] for k in ("mean", "std") if f"image_{k}" in content}
    if (resample := content.get("resample")) is not None:
        found["interpolation"] = _RESAMPLING.get(resample, f"Pillow's filter {resample}")
    if isinstance(size := content.get("size"), dict) and "shortest_edge" not in size:
        found["resize_mode"] = "squash"
    return found


def described_files(folder: Path) -> list[Path]:
    """Return the files of a folder of transformers that describe the model, except tokenizers."""
    return [path for name in (CLIP_CONFIG, _PREPROCESSING) if (path := folder / name).is_file()]


def kind_of(folder: Path, key: str) -> str | None:
    """Return the model type in a folder of transformers; None without config.json or type."""
    file = folder / CLIP_CONFIG
    return _read(file, key).get("model_type") if file.is_file() else None


def _read(file: Path, key: str) -> dict[str, Any]:
    expected = "give a file that save_pretrained of a transformers model wrote"
    content: dict[str, Any] = read_typed(file, dict[str, Any], f"{key}: the file", expected)
    return content
