"""Find, download and read the weights of open_clip's CLIP models."""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from torch import Tensor, nn

from fedray.config import Frozen, InputFile, PathText, Seed
from fedray.errors import UserError, nearest
from fedray.files import read_json
from fedray.language.encoders.weights import digest, unreachable
from fedray.node_cache import Arrays, kept_arrays

_CONFIG = "open_clip_config.json"
_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "pytorch_model.bin",
)
# Prefixes of the text tower's parameters in CLIP's layout; other layouts have the prefix "text.".
_TOP = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
# Numbers that OpenAI's archives store among the weights.
_NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")


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
    """

    key: str
    model: str
    weights: Path | None
    tag: str | None = None
    seed: int = 0

    def config(self) -> dict[str, Any]:
        """Return open_clip's configuration of the architecture.

        Raises:
            UserError: if the configuration is unreadable.
        """
        import open_clip

        try:
            config: dict[str, Any] = open_clip.get_model_config(self.model)
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
        if self.model.startswith("local-dir:"):
            config = Path(self.model.removeprefix("local-dir:")) / _CONFIG
        elif self.weights is not None:
            config = self.weights.parent / _CONFIG
        else:
            return {}
        if not config.is_file():
            return {}
        expected = "give the configuration that open_clip wrote"
        content = read_json(config, dict[str, Any], f"{self.key}: the file", expected)
        return dict(content.get("preprocess_cfg", {}))

    def tokenizer(self) -> Any:
        """Return open_clip's tokenizer of this model.

        Raises:
            UserError: if the tokenizer cannot be downloaded from the hub.
        """
        import open_clip

        try:
            return open_clip.get_tokenizer(self.model)
        except Exception as error:  # some towers keep their tokenizer on the hub
            instead = "use an architecture with CLIP's own tokenizer"
            what = f"{self.key}: the tokenizer of {self.model}"
            raise unreachable(what, error, instead, self.key) from None

    @property
    def identity(self) -> str:
        """The architecture and a hash of the weights, as a text."""
        version = importlib.metadata.version("open_clip_torch")
        if self.weights is None:
            return f"openclip:{self.model}:{version}:random:{self.seed}"
        name = "folder" if self._is_folder else self.model
        return f"openclip:{name}:{version}:{self.content}"

    @property
    def content(self) -> str:
        """The hash of weights and configuration; "" for random weights."""
        if self.weights is None:
            return ""
        config = self.weights.parent / _CONFIG
        is_read = self._is_folder and config.is_file()
        return digest([self.weights, config] if is_read else [self.weights])

    @property
    def _is_folder(self) -> bool:
        return self.model.startswith(("local-dir:", "hf-hub:"))


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
        return _local(spec, key, default, Path(spec.path).expanduser().resolve())
    if spec.model is not None and spec.model.startswith("hf-hub:"):
        if spec.pretrained is not None:
            raise UserError(
                f"{key}.model={spec.model} brings its own weights; remove {key}.pretrained"
            )
        return WeightSource(key, spec.model, _from_hub(spec.model.removeprefix("hf-hub:"), key))
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
        problem = f"pretrained={tag} is no tag of" if tag else "pretrained is not set for"
        valid = f"one of {', '.join(tags)}" if tags else "random, since this one has no tags"
        raise UserError(
            f"{key}.{problem} {model}; set {key}.pretrained to {valid}, or pass a file as "
            f"{key}.path"
        )
    config = open_clip.get_pretrained_cfg(model, tag)
    _check_activation(model, bool(config.get("quick_gelu", False)), f"the weights '{tag}'", key)
    try:
        return WeightSource(key, model, Path(open_clip.download_pretrained(config)), tag)
    except Exception as error:  # the network, the hub and its cache raise many types
        instead = f"pass a local file of weights as {key}.path"
        what = f"{key} '{model}' with the weights '{tag}'"
        raise unreachable(what, error, instead, key) from None


def _local(spec: OpenClipParams, key: str, default: str, path: Path) -> WeightSource:
    if path.is_dir():
        weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
        if not (path / _CONFIG).is_file() or weights is None:
            raise UserError(
                f"{key}.path: the folder {path} lacks {_CONFIG} or {_WEIGHTS[0]}; give a "
                f"folder with both, or a weight file together with {key}.model"
            )
        if spec.model is not None:
            raise UserError(f"{key}.path: {path / _CONFIG} describes the model; remove {key}.model")
        return WeightSource(key, f"local-dir:{path}", weights)
    if not path.is_file():
        raise UserError(f"{key}.path: the file {path} does not exist")
    if spec.model is None:
        raise UserError(
            f"{key}.path names a weight file, but {key}.model is not set; "
            f"set it to the architecture of the weights, for example {default}"
        )
    _check_architecture(spec.model, key)
    if _is_torchscript(path):
        _check_activation(spec.model, True, f"OpenAI's archive {path.name}", key)
    return WeightSource(key, spec.model, path)


def _from_hub(name: str, key: str) -> Path:
    from huggingface_hub import hf_hub_download

    first: Exception | None = None
    for file in _WEIGHTS:
        try:
            return Path(hf_hub_download(name, file))
        except Exception as error:  # the network, the hub and its cache raise many types
            first = first or error
    assert first is not None
    instead = f"pass a local folder or file as {key}.path"
    raise unreachable(f"{key} 'hf-hub:{name}'", first, instead, key) from None


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
    """Load a model, or one part of it, from the source's file.

    Float32 safetensors are mapped, so that processes of a node share their memory. Other large
    files are converted to such a file once per node.

    Args:
        module: an `open_clip.CustomTextCLIP`, or its part called `part`.
        source: the source of the weights.
        part: "text." for the text tower alone.

    Raises:
        UserError: if the file is no weight file, or has weights of another architecture.
    """
    assert source.weights is not None
    try:
        weights = {
            name.removeprefix(part): tensor.float()  # does not copy a float32 tensor
            for name, tensor in _tensors(_mappable(source.weights), part).items()
        }
    except Exception as error:  # damaged archives raise many types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{source.key}: {source.weights} is not a weight file ({reason}); give a .safetensors "
            "file or a state_dict saved by torch"
        ) from None
    expected = {name: parameter.shape for name, parameter in module.named_parameters()}
    _check_shapes(weights, expected, source, "the text tower" if part else "the model")
    module.load_state_dict({name: weights[name] for name in expected}, strict=False, assign=True)


def _check_shapes(
    weights: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    source: WeightSource,
    what: str,
) -> None:
    """Raise a UserError if weights do not have the expected shapes of `what`."""
    wrong = sorted(
        name
        for name, shape in expected.items()
        if name not in weights or weights[name].shape != shape
    )
    if wrong:
        shape = tuple(weights[wrong[0]].shape) if wrong[0] in weights else "nothing"
        raise UserError(
            f"{source.key}: {len(wrong)} of {len(expected)} parameters of {what} are not "
            f"in {source.weights} as expected, first '{wrong[0]}': found {shape}, expected "
            f"{tuple(expected[wrong[0]])}; set {source.key}.model to the weights' architecture"
        )


_SMALL_BYTES = 32 * 2**20
_COPY = "weights.safetensors"


def _mappable(path: Path) -> Path:
    """Return the file if small or safetensors, else the node's copy as float32 safetensors."""
    if path.suffix == ".safetensors" or path.stat().st_size < _SMALL_BYTES:
        return path
    from safetensors.torch import save_file

    def write(arrays: Arrays) -> None:
        tensors = _tensors(path, "")
        whole = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
        save_file(whole, arrays.folder / _COPY)

    return kept_arrays("weights", digest([path]), "converted weights", write).folder / _COPY


def _tensors(path: Path, part: str) -> dict[str, Tensor]:
    """Read the tensors whose names in `open_clip.CustomTextCLIP` begin with `part`."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return _named(file.keys(), file.get_tensor, part)
    if _is_torchscript(path):
        program = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        state = program.state_dict()
    else:
        mapped = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    state = state.get("state_dict", state)
    return _named(state, state.__getitem__, part)


def _named(names: Iterable[str], read: Callable[[str], Tensor], part: str) -> dict[str, Tensor]:
    stored = {name: name.removeprefix("module.") for name in names}
    has_text_prefix = any(bare.startswith("text.") for bare in stored.values())
    tensors: dict[str, Tensor] = {}
    for name, bare in stored.items():
        in_text_tower = not has_text_prefix and bare.startswith(_TOP)
        target = f"text.{bare}" if in_text_tower else bare
        if target.startswith(part) and target not in _NO_WEIGHTS:
            tensors[target] = read(name)
    return tensors


def _is_torchscript(path: Path) -> bool:
    """Return True for a TorchScript program, such as OpenAI's files, instead of a state dict."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())
