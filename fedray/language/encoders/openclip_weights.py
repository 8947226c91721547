"""CLIP models of open_clip: the places of their weights, and how they are read."""

from __future__ import annotations

import importlib.metadata
import json
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
# In CLIP's own layout the text tower's parameters stand at the top; else below "text.".
_TOP = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
# OpenAI's archives keep these numbers among the weights.
_NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")


class OpenClipParams(Frozen):
    """Which of open_clip's models, with which weights."""

    model: PathText | None = None
    """An architecture of open_clip, default ViT-B-32-quickgelu for text.encoder and
    ViT-B-16-quickgelu for model.clip, or hf-hub:ORGANISATION/NAME."""
    path: InputFile | None = None
    """A file of weights (OpenAI's too), or a folder with open_clip_config.json, instead of the
    hub."""
    pretrained: PathText | None = None
    """A tag of open_clip (openai, laion2b_s34b_b79k, ...), or random for weights drawn from
    `seed`, which know no language."""
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
    """The place of a CLIP model's architecture and weights.

    Attributes:
        key: the experiment's key that chose it, for messages.
        model: open_clip's name of the architecture, with prefix local-dir: or hf-hub: for a folder.
        weights: the file of weights; None for random ones.
        tag: open_clip's name of the weights, where they have one.
        seed: seed of random weights.
    """

    key: str
    model: str
    weights: Path | None
    tag: str | None = None
    seed: int = 0

    def config(self) -> dict[str, Any]:
        """Return the architecture as open_clip describes it.

        Raises:
            UserError: if it cannot be read.
        """
        import open_clip

        try:
            config: dict[str, Any] = open_clip.get_model_config(self.model)
            if not isinstance(config["text_cfg"], dict):
                raise TypeError("text_cfg is no mapping")
        except Exception as error:
            raise UserError(
                f"{self.key}: the configuration of {self.model} cannot be read "
                f"({type(error).__name__}: {error}); give another model"
            ) from None
        return config

    def preprocessing(self) -> dict[str, Any]:
        """Return the preprocessing of images (mean, std, ...), as far as the source has it."""
        import open_clip

        if self.tag is not None:
            return dict(open_clip.get_pretrained_cfg(self.model, self.tag))
        if self.model.startswith("local-dir:"):
            described = Path(self.model.removeprefix("local-dir:")) / _CONFIG
        elif self.weights is not None:
            described = self.weights.parent / _CONFIG
        else:
            return {}
        if not described.is_file():
            return {}
        found: dict[str, Any] = json.loads(described.read_text(encoding="utf-8"))
        return dict(found.get("preprocess_cfg", {}))

    def tokenizer(self) -> Any:
        """Return open_clip's tokenizer of this model.

        Raises:
            UserError: if it is on the hub, out of reach.
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
        """Names architecture and content of the weights."""
        version = importlib.metadata.version("open_clip_torch")
        if self.weights is None:
            return f"openclip:{self.model}:{version}:random:{self.seed}"
        name = "folder" if self._is_folder else self.model
        return f"openclip:{name}:{version}:{self.content}"

    @property
    def content(self) -> str:
        """Names the content of weights and configuration alone; "" for random ones."""
        if self.weights is None:
            return ""
        described = self.weights.parent / _CONFIG
        is_read = self._is_folder and described.is_file()
        return digest([self.weights, described] if is_read else [self.weights])

    @property
    def _is_folder(self) -> bool:
        return self.model.startswith(("local-dir:", "hf-hub:"))


def locate(spec: OpenClipParams, key: str, default: str) -> WeightSource:
    """Find, or download, the model of `spec`.

    Args:
        spec: the parameters.
        key: the experiment's key, for messages.
        default: the architecture when none is named, with OpenAI's weights.

    Raises:
        UserError: if architecture, tag or file do not exist, or do not belong together.
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
    """Return the weights of an architecture and a tag; download them if missing."""
    import open_clip

    known = open_clip.list_pretrained_tags_by_model(model)
    if tag is None or tag not in known:
        found = f"pretrained={tag} is no tag of" if tag else "pretrained is not set for"
        tags = f"one of {', '.join(known)}" if known else "random, there are no tags of this one"
        raise UserError(
            f"{key}.{found} {model}; set {key}.pretrained to {tags}, or pass a file as {key}.path"
        )
    described = open_clip.get_pretrained_cfg(model, tag)
    _check_activation(model, bool(described.get("quick_gelu", False)), f"the weights '{tag}'", key)
    try:
        return WeightSource(key, model, Path(open_clip.download_pretrained(described)), tag)
    except Exception as error:  # whatever the network, the hub or its cache may raise
        instead = f"pass a local file of weights as {key}.path"
        what = f"{key} '{model}' with the weights '{tag}'"
        raise unreachable(what, error, instead, key) from None


def _local(spec: OpenClipParams, key: str, default: str, path: Path) -> WeightSource:
    if path.is_dir():
        weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
        if not (path / _CONFIG).is_file() or weights is None:
            raise UserError(
                f"{key}.path: the folder {path} lacks {_CONFIG} or {_WEIGHTS[0]}; give a "
                f"folder with both, or a file of weights together with {key}.model"
            )
        if spec.model is not None:
            raise UserError(f"{key}.path: {path / _CONFIG} describes the model; remove {key}.model")
        return WeightSource(key, f"local-dir:{path}", weights)
    if not path.is_file():
        raise UserError(f"{key}.path: the file {path} does not exist")
    if spec.model is None:
        raise UserError(
            f"{key}.path names a file of weights but {key}.model is not set; "
            f"set it to their architecture, for example {default}"
        )
    _check_architecture(spec.model, key)
    if _is_torchscript(path):
        _check_activation(spec.model, True, f"OpenAI's archive {path.name}", key)
    return WeightSource(key, spec.model, path)


def _from_hub(name: str, key: str) -> Path:
    from huggingface_hub import hf_hub_download

    failed: Exception | None = None
    for file in _WEIGHTS:
        try:
            return Path(hf_hub_download(name, file))
        except Exception as error:  # whatever the network, the hub or its cache may raise
            failed = failed or error
    assert failed is not None
    instead = f"pass a local folder or file as {key}.path"
    raise unreachable(f"{key} 'hf-hub:{name}'", failed, instead, key) from None


def _check_architecture(model: str, key: str) -> None:
    import open_clip

    if model not in open_clip.list_models():
        raise UserError(
            f"{key}.model: open_clip has no architecture '{model}'."
            f"{nearest(model, open_clip.list_models())}"
        )


def _check_activation(model: str, quick: bool, weights: str, key: str) -> None:
    """Raise a UserError for the wrong activation, which shifts every feature."""
    import open_clip

    if bool(open_clip.get_model_config(model).get("quick_gelu", False)) == quick:
        return
    other = f"{model}-quickgelu" if quick else model.removesuffix("-quickgelu")
    has, needs = ("plain GELU", "QuickGELU") if quick else ("QuickGELU", "plain GELU")
    raise UserError(
        f"{key}.model={model} has {has}, {weights} were trained with {needs}; "
        f"set {key}.model={other}"
    )


def draw(module: nn.Module, seed: int) -> None:
    """Draw random weights: ones and zeros for norms and biases, else Gaussian.

    Args:
        module: laid out on the meta device; it is given memory on the CPU.
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

    Float32 safetensors are mapped: processes on a node share their memory. Other large files are
    written out so once per node.

    Args:
        module: an `open_clip.CustomTextCLIP`, or its part called `part`.
        source: where the weights are.
        part: "text." for the text tower alone.

    Raises:
        UserError: if the file is no file of weights, or of another architecture.
    """
    assert source.weights is not None
    try:
        found = {
            name.removeprefix(part): tensor.float()  # of a mapped float32 tensor: that tensor
            for name, tensor in _tensors(_mappable(source.weights), part).items()
        }
    except Exception as error:  # broken archives raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{source.key}: {source.weights} is no file of weights ({reason}); give a .safetensors "
            "file or a state_dict saved by torch"
        ) from None
    expected = {name: parameter.shape for name, parameter in module.named_parameters()}
    _check_shapes(found, expected, source, "the text tower" if part else "the model")
    module.load_state_dict({name: found[name] for name in expected}, strict=False, assign=True)


def _check_shapes(
    found: Mapping[str, Tensor], expected: Mapping[str, torch.Size], source: WeightSource, what: str
) -> None:
    """Raise a UserError for weights of another architecture than that of `what`."""
    wrong = sorted(
        name for name, shape in expected.items() if name not in found or found[name].shape != shape
    )
    if wrong:
        shape = tuple(found[wrong[0]].shape) if wrong[0] in found else "nothing"
        raise UserError(
            f"{source.key}: {len(wrong)} of {len(expected)} parameters of {what} are not "
            f"in {source.weights} as expected, first '{wrong[0]}': found {shape}, expected "
            f"{tuple(expected[wrong[0]])}; set {source.key}.model to the weights' architecture"
        )


_SMALL_BYTES = 32 * 2**20
_COPY = "weights.safetensors"


def _mappable(path: Path) -> Path:
    """Return the file, or this node's copy of it as float32 safetensors."""
    if path.suffix == ".safetensors" or path.stat().st_size < _SMALL_BYTES:
        return path
    from safetensors.torch import save_file

    def write(arrays: Arrays) -> None:
        tensors = _tensors(path, "")
        whole = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
        save_file(whole, arrays.folder / _COPY)

    return kept_arrays("weights", digest([path]), "converted weights", write).folder / _COPY


def _tensors(path: Path, part: str) -> dict[str, Tensor]:
    """Read the tensors that begin with `part`, by the names of `open_clip.CustomTextCLIP`."""
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
    found: dict[str, Tensor] = {}
    for name, bare in stored.items():
        in_text_tower = not has_text_prefix and bare.startswith(_TOP)
        target = f"text.{bare}" if in_text_tower else bare
        if target.startswith(part) and target not in _NO_WEIGHTS:
            found[target] = read(name)
    return found


def _is_torchscript(path: Path) -> bool:
    """Return True for a file of OpenAI's, which is a program, not a state dict."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())
