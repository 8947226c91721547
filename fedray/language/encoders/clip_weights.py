"""The weights of CLIP models: open_clip's names and tags, files and folders, and transformers'.

`locate` finds them, `WeightSource` reads what describes them, `build_clip` loads the model.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from torch import Tensor, nn

from fedray.base.errors import UserError, nearest
from fedray.config import Frozen, InputFile, PathText, Seed
from fedray.config.input_files import WEIGHT_CONFIG as _CONFIG
from fedray.language.encoders.weights import (
    TOKENIZERS,
    check_vocabulary,
    digest,
    find_folder,
    hub_folder,
    load_pretrained,
    matches,
    reading,
    weight_files,
)
from fedray.storage.files import read_typed

_TOKENIZER_FILES = (
    *TOKENIZERS,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_PREPROCESSING = "preprocessor_config.json"
_NAMES = {
    "text_model.": "text.",
    "vision_model.": "visual.",
    "text_projection.weight": "text.text_projection",
    "visual_projection.weight": "visual.proj",
    "embeddings.token_embedding.": "token_embedding.",
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding.": "conv1.",
    "final_layer_norm.": "ln_final.",
    "pre_layrnorm.": "ln_pre.",
    "post_layernorm.": "ln_post.",
    "encoder.layers.": "transformer.resblocks.",
    ".self_attn.q_proj.": ".attn.in_proj_",
    ".self_attn.out_proj.": ".attn.out_proj.",
    ".layer_norm1.": ".ln_1.",
    ".layer_norm2.": ".ln_2.",
    ".mlp.fc1.": ".mlp.c_fc.",
    ".mlp.fc2.": ".mlp.c_proj.",
}
"""Parts of names in a `CLIPModel` of transformers, and in `CustomTextCLIP`."""


class OpenClipParams(Frozen):
    """The architecture and weights of a CLIP of open_clip."""

    model: PathText | None = None
    """Architecture of open_clip, or hf-hub:ORGANISATION/NAME; default: ViT-B-32-quickgelu for
    text.encoder, ViT-B-16-quickgelu for model.clip."""
    path: InputFile | None = None
    """Weight file (also OpenAI's), or folder with open_clip_config.json, instead of the hub."""
    pretrained: PathText | None = None
    """Tag of open_clip (openai, laion2b_s34b_b79k, ...), or random for untrained weights drawn from
    `seed`."""
    seed: Seed = 0
    """Seed of the weights with pretrained=random."""

    @model_validator(mode="after")
    def _possible(self) -> OpenClipParams:
        if self.path and self.pretrained:
            raise ValueError(
                "has both pretrained and path; keep path for a local file, or pretrained for a tag"
            )
        if self.seed and self.pretrained != "random":
            raise ValueError("seed is for pretrained=random; pretrained weights have no seed")
        return self


@dataclass(frozen=True)
class WeightSource:
    """The source of a CLIP model's architecture and weights.

    Attributes:
        key: the experiment's key of the model, for messages.
        model: open_clip's name of the architecture, with prefix local-dir: for a folder.
        weights: the weight files, several for parts of one; empty for random weights.
        preprocess: known settings of image preprocessing (mean, std, ...), in open_clip's words.
        seed: the seed of random weights.
        folder: the folder whose configuration describes the model, or None.
    """

    key: str
    model: str
    weights: tuple[Path, ...] = ()
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    folder: Path | None = None

    @property
    def is_of_transformers(self) -> bool:
        """True for the folder of a `CLIPModel` of transformers."""
        return self.folder is not None and not (self.folder / _CONFIG).is_file()

    def config(self) -> dict[str, Any]:
        """Return the arguments of `open_clip.CustomTextCLIP`.

        Raises:
            UserError: if the configuration is unreadable, or describes no CLIP.
        """
        import open_clip

        with reading(f"{self.key}: the configuration of {self.model}"):
            if self.folder is not None and self.is_of_transformers:
                return _converted_config(self.folder)
            config = open_clip.get_model_config(self.model)
            towers = {name: dict(config[name]) for name in ("vision_cfg", "text_cfg")}
            quick = config.get("quick_gelu", False)
            return {"embed_dim": config["embed_dim"], "quick_gelu": quick, **towers}

    def tokenizer(self) -> Any:
        """Return open_clip's tokenizer of this model.

        Raises:
            UserError: if the tokenizer is missing, damaged, or cannot be downloaded from the hub.
        """
        import open_clip
        from open_clip.tokenizer import HFTokenizer

        text, folder = self.config()["text_cfg"], self._tokenizer_folder()
        with reading(f"{self.key}: the tokenizer of {self.model}"):
            if folder is None:
                return open_clip.get_tokenizer(self.model)
            tokenizer = HFTokenizer(
                str(folder),
                context_length=text.get("context_length", 77),
                tokenizer_mode=text.get("tokenizer_mode"),
                **text.get("tokenizer_kwargs", {}),
            )
            check_vocabulary(tokenizer.tokenizer)
        return tokenizer

    def _tokenizer_folder(self) -> Path | None:
        """Return the folder of the tokenizer's files; None for a tokenizer of open_clip's own."""
        name = self.config()["text_cfg"].get("hf_tokenizer_name")
        if not name:
            return None
        if self.folder is not None and matches(self.folder, TOKENIZERS):
            return self.folder
        return hub_folder(self.key, name, model=False, words=True)

    @property
    def identity(self) -> str:
        """The architecture and a hash of weights, configuration and tokenizer, as a text."""
        version = importlib.metadata.version("open_clip_torch")
        if not self.weights:
            return f"openclip:{self.model}:{version}:random:{self.seed}"
        files = {*self.weights}
        if self.folder is not None:
            described = ("config.json", _PREPROCESSING) if self.is_of_transformers else (_CONFIG,)
            files |= {*matches(self.folder, described)}
        if (tokenizer := self._tokenizer_folder()) is not None:
            files |= {*matches(tokenizer, _TOKENIZER_FILES)}
        name = self.model if self.folder is None else "folder"
        return f"openclip:{name}:{version}:{digest(files)}"


def locate(spec: OpenClipParams, key: str, default: str) -> WeightSource:
    """Find the model of `spec`, or download it; by default `default` with OpenAI's weights.

    Raises:
        UserError: with `key`, if architecture, tag or file do not exist, or do not match.
    """
    import open_clip

    model, path = spec.model or default, spec.path
    is_folder = path is not None and (spec.model is None or Path(path).expanduser().is_dir())
    if is_folder or model.startswith("hf-hub:"):
        if surplus := spec.model if is_folder else path or spec.pretrained:
            where = path if is_folder else model
            raise UserError(f"{key}: {where} describes its model itself; remove {surplus}")
        folder = find_folder(key, path, model.removeprefix("hf-hub:"))
        weights, preprocess = tuple(weight_files(folder)), _preprocessing(folder, key)
        return WeightSource(key, f"local-dir:{folder}", weights, preprocess, folder=folder)
    if model not in (known := open_clip.list_models()):
        raise UserError(
            f"{key}.model: open_clip has no architecture '{model}'.{nearest(model, known)}"
        )
    if path is not None:
        file = Path(path).expanduser().absolute()
        if (file.parent / _CONFIG).is_file():
            raise UserError(
                f"{key}.path: {file} is described by {_CONFIG}; give its folder instead"
            )
        return WeightSource(key, model, (file,))
    if spec.pretrained == "random":
        return WeightSource(key, model, seed=spec.seed)
    tag = spec.pretrained or ("openai" if spec.model is None else "")
    config = open_clip.get_pretrained_cfg(model, tag)
    if not config:
        tags = ", ".join(["random", *open_clip.list_pretrained_tags_by_model(model)])
        raise UserError(
            f"{key}.pretrained={tag or 'null'} is no tag of {model}; set it to {tags}, or pass a "
            f"file as {key}.path"
        )
    architecture = open_clip.get_model_config(model)
    if config.get("quick_gelu", False) != architecture.get("quick_gelu", False):
        raise UserError(
            f"{key}.model={model}: either it or the weights '{tag}' have QuickGELU; set the "
            "architecture whose name has -quickgelu at its end, or the one without"
        )
    with reading(f"{key}: {model} with the weights '{tag}'"):
        return WeightSource(key, model, (Path(open_clip.download_pretrained(config)),), config)


def build_clip(source: WeightSource, *, text_only: bool = False) -> Any:
    """Build an `open_clip.CustomTextCLIP` with the source's float32 weights.

    With `text_only`, return its text tower, whose random weights are drawn alone.

    Raises:
        UserError: if the weights are unreadable, or the text tower does not support prompts.
    """
    import open_clip

    config = source.config()
    text = config["text_cfg"]
    if {"hf_model_name", "embed_cls"} & text.keys() or text.get("pool_type") == "none":
        raise other_tower(source, "text")
    with torch.device("meta"):  # without random numbers; every tensor is filled below
        model = open_clip.CustomTextCLIP(**config)
    if not has_standard_blocks(model.text):
        raise other_tower(source, "text")
    model.to_empty(device="cpu")
    if model.text.attn_mask is not None:
        model.text.attn_mask = model.text.build_causal_mask()
    part: nn.Module = model.text if text_only else model
    if source.weights:
        _load(model, source)
    else:
        _draw(part, source.seed)
    return part


def has_standard_blocks(tower: Any) -> bool:
    """Return True for a transformer of open_clip's usual blocks, which can run in parts."""
    from open_clip.transformer import ResidualAttentionBlock

    blocks = getattr(getattr(tower, "transformer", None), "resblocks", [None])
    return all(isinstance(block, ResidualAttentionBlock) for block in blocks)


def other_tower(source: WeightSource, kind: str) -> UserError:
    """Return the error for a text or vision tower that does not support prompts."""
    return UserError(
        f"{source.key}.model={source.model} has another {kind} tower than open_clip's own "
        "transformer, so that prompts are not supported; give another one, for example "
        "ViT-B-32-quickgelu"
    )


def _load(model: Any, source: WeightSource) -> None:
    """Load the source's weights into an `open_clip.CustomTextCLIP`.

    Raises:
        UserError: if the weights are unreadable, or are those of another architecture.
    """
    import open_clip
    from open_clip.model import convert_to_custom_text_state_dict
    from transformers import CLIPModel

    file = source.weights[0]
    with reading(
        f"{source.key}: {file} holds no weights of {source.model} (of a CLIPModel of transformers, "
        "give the folder)"
    ):
        if source.is_of_transformers:
            theirs = load_pretrained(CLIPModel, file.parent, source.key)
            model.load_state_dict(_converted(theirs.state_dict()))
        elif _is_openai_archive(file):
            if not source.config()["quick_gelu"]:
                raise ValueError("they need QuickGELU, the architecture that ends in -quickgelu")
            theirs = open_clip.load_openai_model(str(file), "fp32", "cpu")
            model.load_state_dict(convert_to_custom_text_state_dict(theirs.state_dict()))
        else:
            open_clip.load_checkpoint(model, str(file))
        if wrong := [name for name, tensor in model.named_parameters() if tensor.isnan().any()]:
            raise ValueError(f"{wrong[0]} has values that are no numbers")


def _is_openai_archive(file: Path) -> bool:
    """Return True for a TorchScript program, as OpenAI's files are, instead of a state dict."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _draw(module: nn.Module, seed: int) -> None:
    """Draw random weights: Gaussian for matrices; norms and biases are ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    deviations = {"token_embedding.weight": 0.02, "positional_embedding": 0.01}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                bare = name.removeprefix("text.")
                std = deviations.get(bare, float(parameter[0].numel()) ** -0.5)
                parameter.normal_(0.0, std, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


# --- a CLIPModel of transformers ------------------------------------------------------------------


def _converted(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a `CLIPModel`; concatenate its queries, keys and values."""
    converted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("_projection.weight"):
            tensor = tensor.T
        elif ".q_proj." in name:
            tensor = torch.cat([state[name.replace(".q_", f".{part}_")] for part in "qkv"])
        elif ".k_proj." in name or ".v_proj." in name:
            continue
        for old, new in _NAMES.items():
            name = name.replace(old, new, 1)
        converted[name] = tensor
    return converted


def _converted_config(folder: Path) -> dict[str, Any]:
    """Return open_clip's configuration of the `CLIPModel` in a folder.

    Raises:
        ValueError: if it is another model, or open_clip has no such activation.
    """
    from transformers import CLIPConfig

    content = CLIPConfig.get_config_dict(folder, local_files_only=True)[0]
    config = CLIPConfig.from_dict(content)
    text, vision = config.text_config, config.vision_config
    activations = {text.hidden_act, vision.hidden_act}
    if content.get("model_type") != "clip" or activations not in ({"gelu"}, {"quick_gelu"}):
        raise ValueError(
            f"a {content.get('model_type')} with {' and '.join(activations)}; expected a clip"
        )
    quick = activations == {"quick_gelu"}
    common = {"text_cfg": _tower(text), "vision_cfg": _tower(vision)}
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
    return {"embed_dim": config.projection_dim, "quick_gelu": quick, **common}


def _tower(tower: Any) -> dict[str, Any]:
    """Return the keys of open_clip's configuration that both towers have."""
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "mlp_ratio": tower.intermediate_size / tower.hidden_size,
        "norm_kwargs": {"eps": tower.layer_norm_eps},
    }


def _preprocessing(folder: Path, key: str) -> dict[str, Any]:
    """Return the settings of image preprocessing in a folder, in open_clip's words."""
    if (folder / _CONFIG).is_file():
        return dict(_read(folder / _CONFIG, key).get("preprocess_cfg", {}))
    file = folder / _PREPROCESSING  # of transformers
    content = _read(file, key) if file.is_file() else {}
    found = {k: content[f"image_{k}"] for k in ("mean", "std") if f"image_{k}" in content}
    if (resample := content.get("resample")) is not None:  # Pillow's number of a filter
        found["interpolation"] = {2: "bilinear", 3: "bicubic"}.get(resample, f"filter {resample}")
    if isinstance(size := content.get("size"), dict) and "shortest_edge" not in size:
        found["resize_mode"] = "squash"
    return found


def _read(file: Path, key: str) -> dict[str, Any]:
    content: dict[str, Any] = read_typed(file, dict[str, Any], f"{key}: the file", "see open_clip")
    return content
