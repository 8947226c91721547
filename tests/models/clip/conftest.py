"""Frozen CLIPs together with the open_clip models that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from clips import CONFIG, Pair, frozen, save_clip
from torch import Tensor

from fedray.models.clip import FrozenClip


def save_with_bert(folder: Path, bert: Path) -> Any:
    """A CLIP whose text tower is a tiny BERT of transformers."""
    import open_clip
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    text = {
        "hf_model_name": str(bert),
        "hf_tokenizer_name": str(bert),
        "hf_model_pretrained": False,
        "hf_pooler_type": "mean_pooler",
        "hf_proj_type": "mlp",
        "context_length": 24,
    }
    config = {**CONFIG, "text_cfg": text, "custom_text": True}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = open_clip.CustomTextCLIP(
            CONFIG["embed_dim"], vision_cfg=CONFIG["vision_cfg"], text_cfg=text
        ).eval()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    return model


@pytest.fixture(scope="session", params=["CLIP", "CustomTextCLIP", "transformers"])
def pair(request, tmp_path_factory, tiny_bert) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    if request.param == "transformers":
        official = save_with_bert(folder, tiny_bert)
    else:
        official = save_clip(folder, custom=request.param == "CustomTextCLIP")
    return Pair(frozen(folder), official)


@pytest.fixture(scope="session")
def native(tmp_path_factory) -> Pair:
    folder = tmp_path_factory.mktemp("native")
    return Pair(frozen_after(folder), None)


def frozen_after(folder: Path) -> FrozenClip:
    save_clip(folder)
    return frozen(folder)


@pytest.fixture(scope="session")
def clip(native) -> FrozenClip:
    return native.clip


@pytest.fixture
def images() -> Tensor:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(3)) * 2 - 1
