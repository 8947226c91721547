"""Find, download and read the weights of open_clip's CLIP models."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from torch import nn

from fedray.base.errors import UserError, nearest
from fedray.config import Frozen, InputFile, PathText, Seed
from fedray.config.input_files import WEIGHT_CONFIG as _CONFIG
from fedray.language.encoders.clip_layouts import (
    CLIP_CONFIG,
    converted_config,
    converted_preprocessing,
    described_files,
    from_transformers,
    is_of_transformers,
    kind_of,
    with_text_prefix,
)
from fedray.language.encoders.weights import (
    check_texts,
    check_vocabulary,
    digest,
    hub_file,
    hub_folder,
    is_torchscript,
    read_weights,
    unreachable,
)
from fedray.storage.files import read_typed

_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "pytorch_model.bin",
)
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model")
_TOKENIZER_FILES = (
    *_TOKENIZERS,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Numbers that OpenAI's files store among the weights.
_NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
# Tensors that some files have, and that do not change features.
_WITHOUT_EFFECT = ("logit_bias", "attn_mask", "text.attn_mask")


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
        model: open_clip's name of the architecture, with prefix local-dir: or hf-hub: for a folder.
        weights: the weight file; None for random weights.
        tag: open_clip's name of the weights, or None.
        seed: the seed of random weights.
        folder: the folder whose configuration describes the model, or None.
    """

    key: str
    model: str
    weights: Path | None
    tag: str | None = None
    seed: int = 0
    folder: Path | None = None

    def config(self) -> dict[str, Any]:
        """Return open_clip's configuration of the architecture.

        Raises:
            UserError: if the configuration is unreadable.
        """
        import open_clip

        if self._of_transformers:
            assert self.folder is not None
            return converted_config(self.folder, self.key)
        try:
            config: dict[str, Any] = open_clip.get_model_config(self._described)
            if not isinstance(config["text_cfg"], dict):
                raise TypeError("text_cfg is not a mapping")
        except Exception as error:
            raise UserError(
                f"{self.key}: the configuration of {self.model} cannot be read "
                f"({type(error).__name__}: {error}); give another model"
            ) from None
        return config

    def preprocessing(self) -> dict[str, Any]:
        """Return the known settings of image preprocessing (mean, std, ...)."""
        import open_clip

        if self.tag is not None:
            return dict(open_clip.get_pretrained_cfg(self.model, self.tag))
        if self._of_transformers:
            assert self.folder is not None
            return converted_preprocessing(self.folder, self.key)
        if self.folder is None:
            return {}
        expected = "give the configuration that open_clip wrote"
        file = self.folder / _CONFIG
        content = read_typed(file, dict[str, Any], f"{self.key}: the file", expected)
        return dict(content.get("preprocess_cfg", {}))

    def tokenizer(self) -> Any:
        """Return open_clip's tokenizer of this model.

        Raises:
            UserError: if the tokenizer is missing, damaged, or cannot be downloaded from the hub.
        """
        import open_clip
        from open_clip.tokenizer import HFTokenizer

        text = self.config()["text_cfg"]
        folder = self._tokenizer_folder(text)
        place = f"{self.key}: {folder or self.model}"
        try:
            if folder is None:
                return open_clip.get_tokenizer(self._described)
            check_texts(_tokenizer_files(folder), self.key)
            options = text.get("tokenizer_kwargs") or {}
            tokenizer = HFTokenizer(
                str(folder),
                context_length=text.get("context_length", 77),
                tokenizer_mode=text.get("tokenizer_mode"),
                **options,
            )
        except UserError:
            raise
        except Exception as error:  # damaged files raise many types
            raise UserError(
                f"{place} has no readable tokenizer ({type(error).__name__}: {error}); give the "
                "tokenizer files of this model"
            ) from None
        check_vocabulary(tokenizer.tokenizer, place)
        return tokenizer

    def _tokenizer_folder(self, text: Mapping[str, Any]) -> Path | None:
        """Return the folder of the tokenizer's files; None for a tokenizer that is open_clip's own.

        Args:
            text: the configuration of the text tower.

        Raises:
            UserError: if the files are missing.
        """
        name = text.get("hf_tokenizer_name")
        if not name or (self.folder is not None and _has_tokenizer(self.folder)):
            return self.folder if name else None
        if self.model.startswith("local-dir:"):
            raise UserError(
                f"{self.key}: {self.folder} has no tokenizer, so that all words would read the "
                "same; add the tokenizer.json that a tokenizer of transformers writes"
            )
        repository = self.model.removeprefix("hf-hub:") if self._of_transformers else name
        try:
            return hub_folder(repository, _TOKENIZER_FILES, _has_tokenizer)
        except Exception as error:  # the network, the hub and its cache raise many types
            instead = "use an architecture with CLIP's own tokenizer"
            what = f"{self.key}: the tokenizer of {self.model}"
            raise unreachable(what, error, instead, self.key) from None

    @property
    def identity(self) -> str:
        """The architecture and a hash of the weights, as a text."""
        version = importlib.metadata.version("open_clip_torch")
        if self.weights is None:
            return f"openclip:{self.model}:{version}:random:{self.seed}"
        name = self.model if self.folder is None else "folder"
        return f"openclip:{name}:{version}:{self.content}"

    @property
    def content(self) -> str:
        """The hash of weights, configuration and tokenizer; "" for random weights."""
        if self.weights is None:
            return ""
        files = [self.weights]
        if self._of_transformers:
            assert self.folder is not None
            files += described_files(self.folder)
        elif self.folder is not None:
            files.append(self.folder / _CONFIG)
        tokenizer = self._tokenizer_folder(self.config()["text_cfg"])
        if tokenizer is not None:
            files += _tokenizer_files(tokenizer)
        return digest(files)

    @property
    def _described(self) -> str:
        """open_clip's name of the model; a folder of the hub is in the local cache by now."""
        return self.model if self.folder is None else f"local-dir:{self.folder}"

    @property
    def _of_transformers(self) -> bool:
        return self.folder is not None and not (self.folder / _CONFIG).is_file()


def locate(spec: OpenClipParams, key: str, default: str) -> WeightSource:
    """Find the model of `spec`, or download it.

    Args:
        spec: the parameters.
        key: the experiment's key, for messages.
        default: the default architecture, used with OpenAI's weights.

    Raises:
        UserError: if architecture, tag or file do not exist, or do not match.
    """
    if spec.path is not None:
        # Links are not followed: files of the hub's cache are links to files without a suffix.
        return _local(spec, key, Path(spec.path).expanduser().absolute())
    if spec.model is not None and spec.model.startswith("hf-hub:"):
        if spec.pretrained is not None:
            raise UserError(
                f"{key}.model={spec.model} brings its own weights; remove {key}.pretrained"
            )
        weights = _from_hub(spec.model.removeprefix("hf-hub:"), key)
        _check_folder(weights.parent, weights, key)
        return WeightSource(key, spec.model, weights, folder=weights.parent)
    model = spec.model or default
    _check_architecture(model, key)
    if spec.pretrained == "random":
        return WeightSource(key, model, None, seed=spec.seed)
    return _tagged(model, spec.pretrained or ("openai" if spec.model is None else None), key)


def _tagged(model: str, tag: str | None, key: str) -> WeightSource:
    """Return the weights of an architecture and a tag; download them if they are missing."""
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(model)
    if tag is None or tag not in tags:
        valid = f"one of {', '.join(tags)}" if tags else "random, since this one has no tags"
        raise UserError(
            f"{key}.pretrained={tag or 'null'} is no tag of {model}; set {key}.pretrained to "
            f"{valid}, or pass a file as {key}.path"
        )
    config = open_clip.get_pretrained_cfg(model, tag)
    _check_activation(model, bool(config.get("quick_gelu", False)), f"the weights '{tag}'", key)
    try:
        return WeightSource(key, model, Path(open_clip.download_pretrained(dict(config))), tag)
    except Exception as error:  # the network, the hub and its cache raise many types
        instead = f"pass a local file of weights as {key}.path"
        what = f"{key} '{model}' with the weights '{tag}'"
        raise unreachable(what, error, instead, key, f"{model} {tag}") from None


def _local(spec: OpenClipParams, key: str, path: Path) -> WeightSource:
    """Return the weights of a folder, or of a file together with `model`."""
    if path.is_dir():
        weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
        _check_folder(path, weights, key)
        if spec.model is not None:
            raise UserError(
                f"{key}.path: the folder {path} describes the model; remove {key}.model"
            )
        return WeightSource(key, f"local-dir:{path}", weights, folder=path)
    if not path.is_file():
        raise UserError(f"{key}.path: the file {path} does not exist")
    if spec.model is None or (path.parent / _CONFIG).is_file():
        raise UserError(
            f"{key}.path={path} is a weight file: give its folder instead if that holds the "
            f"configuration, else set {key}.model to the architecture"
        )
    _check_architecture(spec.model, key)
    if is_torchscript(path):
        _check_activation(spec.model, True, f"OpenAI's archive {path.name}", key)
    return WeightSource(key, spec.model, path)


def _check_folder(folder: Path, weights: Path | None, key: str) -> None:
    """Raise a UserError if a folder does not hold a CLIP with its configuration."""
    if weights is None or not ((folder / _CONFIG).is_file() or kind_of(folder, key) == "clip"):
        raise UserError(
            f"{key}: {folder} lacks {_CONFIG} or {_WEIGHTS[0]}; give a folder with both, a "
            f"CLIPModel of transformers, or a weight file together with {key}.model"
        )


def _from_hub(name: str, key: str) -> Path:
    """Return the weight file of a repository, with its configuration beside it."""
    configs = (_CONFIG, CLIP_CONFIG)
    try:
        config, weights = hub_file(name, configs), hub_file(name, _WEIGHTS)
        if config.parent != weights.parent:  # the repository has changed in between
            hub_file(name, configs)
    except Exception as error:  # the network, the hub and its cache raise many types
        instead = f"pass a local folder or file as {key}.path"
        raise unreachable(f"{key} 'hf-hub:{name}'", error, instead, key) from None
    return weights


def _check_architecture(model: str, key: str) -> None:
    import open_clip

    if model not in open_clip.list_models():
        raise UserError(
            f"{key}.model: open_clip has no architecture '{model}'."
            f"{nearest(model, open_clip.list_models())}"
        )


def _check_activation(model: str, quick: bool, weights: str, key: str) -> None:
    """Raise a UserError if the architecture's activation is not that of the weights."""
    import open_clip

    if bool(open_clip.get_model_config(model).get("quick_gelu", False)) == quick:
        return
    other = f"{model}-quickgelu" if quick else model.removesuffix("-quickgelu")
    has, needs = ("plain GELU", "QuickGELU") if quick else ("QuickGELU", "plain GELU")
    raise UserError(
        f"{key}.model={model} has {has}, but {weights} were trained with {needs}; "
        f"set {key}.model={other}"
    )


def draw(module: nn.Module, seed: int) -> None:
    """Draw random weights: Gaussian for matrices; norms and biases are ones and zeros.

    Args:
        module: a module on the meta device, which gets memory on the CPU.
        seed: seed of the numbers.
    """
    module.to_empty(device="cpu")
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


def fill(module: nn.Module, source: WeightSource, part: str = "") -> None:
    """Load a model, or one part of it, from the source's file; safetensors are mapped.

    Args:
        module: an `open_clip.CustomTextCLIP`, or its part called `part`.
        source: the source of the weights.
        part: "text." for the text tower alone.

    Raises:
        UserError: if the file is no weight file, or has weights of another architecture.
    """
    assert source.weights is not None
    state = read_weights(source.weights, source.key, "give a file of weights, or download it again")
    if _NO_WEIGHTS[0] in state and not source.config().get("quick_gelu", False):
        raise UserError(
            f"{source.key}: {source.weights} holds OpenAI's weights, which were trained with "
            "QuickGELU; set the model's name that ends in -quickgelu, or write "
            '"quick_gelu": true into its configuration'
        )
    if is_of_transformers(state):
        if source.folder is None:
            raise UserError(
                f"{source.key}: {source.weights} holds a CLIPModel of transformers; set "
                f"{source.key}.path to its folder and remove {source.key}.model"
            )
        state = from_transformers(state)
    expected = {name: parameter.shape for name, parameter in module.named_parameters()}
    weights = {
        name.removeprefix(part): tensor.float()  # does not copy a float32 tensor
        for name, tensor in with_text_prefix(state).items()
        if name.startswith(part) and name not in (*_NO_WEIGHTS, *_WITHOUT_EFFECT)
    }
    for name in weights.keys() & expected.keys():
        if weights[name].numel() == 1 == expected[name].numel():  # [] or [1]
            weights[name] = weights[name].reshape(expected[name])
    wrong = sorted(
        name
        for name in weights.keys() | expected.keys()
        if name not in weights or weights[name].shape != expected.get(name)
    )
    if wrong:
        raise UserError(
            f"{source.key}: {source.weights} does not fit {source.model}: {len(wrong)} tensors are "
            f"missing, left over or of another size, first '{wrong[0]}'; give the model's name or "
            "the configuration of these weights"
        )
    module.load_state_dict(weights, strict=False, assign=True)


def _tokenizer_files(folder: Path) -> set[Path]:
    return {path for name in _TOKENIZER_FILES for path in folder.glob(name)}


def _has_tokenizer(folder: Path) -> bool:
    return any(any(folder.glob(name)) for name in _TOKENIZERS)
