"""Text towers of CLIP models, through open_clip; the image tower is never built."""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from fedray.errors import UserError, nearest
from fedray.language.encoders.base import TextEncoder, Tokens, freeze, pick, same_bits, warn_cut
from fedray.language.encoders.spec import EncoderSpec
from fedray.language.encoders.weights import digest, unreachable

MODEL_DEFAULT = "ViT-B-32-quickgelu"
TAG_DEFAULT = "openai"

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
# A stand-in, since open_clip builds towers in pairs.
_SMALLEST_VISION = {"layers": 1, "width": 64, "head_width": 64, "patch_size": 16, "image_size": 16}


@dataclass(frozen=True)
class Source:
    """Where a text tower comes from.

    Attributes:
        model: open_clip's name of the architecture, with prefix local-dir: or hf-hub: for a folder.
        weights: the file of weights; None for random ones.
        seed: what random weights are drawn from.
    """

    model: str
    weights: Path | None
    seed: int = 0

    @property
    def identity(self) -> str:
        """Names architecture and content of the weights."""
        version = importlib.metadata.version("open_clip_torch")
        if self.weights is None:
            return f"openclip:{self.model}:{version}:random:{self.seed}"
        folder = self.weights.parent
        described = [folder / _CONFIG] if self.model.startswith(("local-dir:", "hf-hub:")) else []
        name = self.model if not described else "folder"
        files = [self.weights, *(path for path in described if path.is_file())]
        return f"openclip:{name}:{version}:{digest(files)}"


def locate(spec: EncoderSpec) -> Source:
    """Find, or download, what `spec` asks for.

    Raises:
        UserError: when architecture, tag or file do not exist, or do not belong together.
    """
    if spec.path is not None:
        return _local(spec, Path(spec.path).expanduser().resolve())
    import open_clip

    if spec.model is not None and spec.model.startswith("hf-hub:"):
        if spec.pretrained is not None:
            raise UserError(
                f"text.encoder.model={spec.model} brings its own weights; "
                "remove text.encoder.pretrained"
            )
        return Source(spec.model, _from_hub(spec.model.removeprefix("hf-hub:")))
    model = spec.model or MODEL_DEFAULT
    _check_architecture(model)
    if spec.pretrained == "random":
        return Source(model, None, spec.seed)
    tag = spec.pretrained or (TAG_DEFAULT if spec.model is None else None)
    known = open_clip.list_pretrained_tags_by_model(model)
    if tag is None or tag not in known:
        found = f"pretrained={tag} is no tag of" if tag else "pretrained is not set for"
        tags = f"one of {', '.join(known)}" if known else "random, there are no tags of this one"
        raise UserError(
            f"text.encoder.{found} {model}; set text.encoder.pretrained to {tags}, "
            "or pass a file as text.encoder.path"
        )
    about = open_clip.get_pretrained_cfg(model, tag)
    _check_activation(model, bool(about.get("quick_gelu", False)), f"the weights '{tag}'")
    try:
        return Source(model, Path(open_clip.download_pretrained(about)))
    except Exception as error:  # whatever the network, the hub or its cache may raise
        instead = "pass a local file of weights as text.encoder.path"
        what = f"text.encoder '{model}' with the weights '{tag}'"
        raise unreachable(what, error, instead) from None


class OpenClipEncoder(TextEncoder):
    """The text tower of a CLIP model, taken apart so that prompts can go in.

    Token embeddings, then positions, the transformer, the final layer norm, one position,
    the projection: equal to `encode_text` when nothing is replaced. Where the tower is causal and
    reads the end token, texts are cut behind the last end token of all texts, which is exact.

    Args:
        spec: openclip.

    Raises:
        UserError: when the weights are not there, or the tower is not open_clip's own kind.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        import open_clip

        source = locate(spec)
        self.identity = source.identity
        self._tower = _build(source)
        try:
            self._tokenizer = open_clip.get_tokenizer(source.model)
        except Exception as error:  # some towers keep their tokenizer on the hub
            instead = "use an architecture with CLIP's own tokenizer"
            raise unreachable(f"the tokenizer of {source.model}", error, instead) from None
        freeze(self._tower)
        projection = self._tower.text_projection
        if projection is None:
            self.dim = int(self._tower.width)
        elif isinstance(projection, torch.nn.Linear):
            self.dim = int(projection.out_features)
        else:
            self.dim = int(projection.shape[1])
        self._cuts = self._tower.attn_mask is not None and self._tower.pool_type in (
            "argmax",
            "eos",
        )

    @property
    def token_width(self) -> int:
        """d', the width of a token embedding."""
        return int(self._tower.token_embedding.embedding_dim)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, cut behind the last end token where that is exact."""
        limit = int(self._tower.context_length)
        self._warn_cut(texts, limit)
        ids: Tensor = self._tokenizer(list(texts), context_length=limit)
        read = self._read(ids)
        if self._cuts:
            ids = ids[:, : int(read.max()) + 1]
            mask = torch.arange(ids.shape[1]) <= read.unsqueeze(1)
        else:
            mask = torch.ones_like(ids, dtype=torch.bool)
        device = self._tower.positional_embedding.device
        return Tokens(ids.to(device), mask.to(device), read.to(device))

    def embed(self, tokens: Tokens) -> Tensor:
        """Token embeddings [T, n, d'], without positions."""
        embedded: Tensor = self._tower.token_embedding(tokens.ids)
        return embedded

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Outputs [T, d], differentiable in `embeddings` [T, n, d'].

        The position that is read is that of the original text's end token, also where a prompt
        took its place.
        """
        tower, n = self._tower, embeddings.shape[1]
        mask = None if tower.attn_mask is None else tower.attn_mask[:n, :n]
        with same_bits(embeddings.device):
            hidden = tower.transformer(embeddings + tower.positional_embedding[:n], attn_mask=mask)
        output = pick(tower.ln_final(hidden), tokens.read)
        if isinstance(tower.text_projection, torch.nn.Linear):
            output = tower.text_projection(output)
        elif tower.text_projection is not None:
            output = output @ tower.text_projection
        return output

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._tower.to(device)
        return self

    def _read(self, ids: Tensor) -> Tensor:
        kind = self._tower.pool_type
        if kind == "argmax":
            return ids.argmax(1)  # the end token has the largest id
        if kind == "eos":
            is_end: Tensor = ids == self._tower.eos_id
            return is_end.int().argmax(1)
        return torch.full((len(ids),), ids.shape[1] - 1 if kind == "last" else 0)

    def _warn_cut(self, texts: Sequence[str], limit: int) -> None:
        import open_clip

        if isinstance(self._tokenizer, open_clip.SimpleTokenizer):  # others do not tell
            warn_cut(texts, [len(self._tokenizer.encode(text)) + 2 for text in texts], limit)


def _local(spec: EncoderSpec, path: Path) -> Source:
    if path.is_dir():
        weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
        if not (path / _CONFIG).is_file() or weights is None:
            raise UserError(
                f"text.encoder.path: the folder {path} lacks {_CONFIG} or {_WEIGHTS[0]}; give a "
                "folder with both, or a file of weights together with text.encoder.model"
            )
        if spec.model is not None:
            raise UserError(
                f"text.encoder.path: {path / _CONFIG} describes the model; "
                "remove text.encoder.model"
            )
        return Source(f"local-dir:{path}", weights)
    if not path.is_file():
        raise UserError(f"text.encoder.path: the file {path} does not exist")
    if spec.model is None:
        raise UserError(
            "text.encoder.path names a file of weights but text.encoder.model is not set; "
            f"set it to their architecture, for example {MODEL_DEFAULT}"
        )
    _check_architecture(spec.model)
    if _is_torchscript(path):
        _check_activation(spec.model, True, f"OpenAI's archive {path.name}")
    return Source(spec.model, path)


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    failed: Exception | None = None
    for file in _WEIGHTS:
        try:
            return Path(hf_hub_download(name, file))
        except Exception as error:  # whatever the network, the hub or its cache may raise
            failed = failed or error
    assert failed is not None
    instead = "pass a local folder or file as text.encoder.path"
    raise unreachable(f"text.encoder 'hf-hub:{name}'", failed, instead) from None


def _check_architecture(model: str) -> None:
    import open_clip

    if model not in open_clip.list_models():
        raise UserError(
            f"text.encoder.model: open_clip has no architecture '{model}'."
            f"{nearest(model, open_clip.list_models())}"
        )


def _check_activation(model: str, quick: bool, weights: str) -> None:
    """Refuse what open_clip warns about: the wrong activation shifts every feature."""
    import open_clip

    if bool(open_clip.get_model_config(model).get("quick_gelu", False)) == quick:
        return
    other = f"{model}-quickgelu" if quick else model.removesuffix("-quickgelu")
    has, needs = ("plain GELU", "QuickGELU") if quick else ("QuickGELU", "plain GELU")
    raise UserError(
        f"text.encoder.model={model} has {has}, {weights} were trained with {needs}; "
        f"set text.encoder.model={other}"
    )


def _build(source: Source) -> Any:
    """An `open_clip` TextTransformer with the weights of `source`, in float32."""
    import open_clip

    try:
        config: dict[str, Any] = open_clip.get_model_config(source.model)
        text = config["text_cfg"]
    except Exception as error:
        raise UserError(
            f"text.encoder: the configuration of {source.model} cannot be read "
            f"({type(error).__name__}: {error}); give another model"
        ) from None
    if text.get("hf_model_name") or text.get("embed_cls") or "multimodal_cfg" in config:
        kind = "a transformers text tower" if text.get("hf_model_name") else "a CoCa text tower"
        raise UserError(
            f"text.encoder.model={source.model} has {kind}, which prompts cannot enter here; give "
            "an architecture with open_clip's own, for example ViT-B-32-quickgelu"
        )
    if text.get("pool_type", "argmax") == "none":
        raise UserError(f"text.encoder.model={source.model} reads no position; give another model")
    with torch.device("meta"):  # neither memory nor random numbers
        tower: Any = open_clip.CustomTextCLIP(
            config["embed_dim"],
            vision_cfg=_SMALLEST_VISION,
            text_cfg=text,
            quick_gelu=config.get("quick_gelu", False),
        ).text
    if source.weights is None:
        _draw(tower, source.seed)
    else:
        _fill(tower, source.weights)
    if tower.attn_mask is not None:
        tower.attn_mask = tower.build_causal_mask()
    return tower


def _draw(tower: Any, seed: int) -> None:
    """Random weights from an own generator: ones and zeros for norms and biases, else Gaussian."""
    tower.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    deviations = {"token_embedding.weight": 0.02, "positional_embedding": 0.01}
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            if parameter.ndim > 1:
                std = deviations.get(name, float(tower.width) ** -0.5)
                parameter.normal_(0.0, std, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def _fill(tower: Any, path: Path) -> None:
    """Load the text tower's part of a file; safetensors are mapped and shared between processes."""
    try:
        # .float() of a mapped float32 tensor is that tensor
        found = {name: tensor.float() for name, tensor in _tensors(path).items()}
    except Exception as error:  # broken archives raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"text.encoder: {path} is no file of weights ({reason}); give a .safetensors file or a "
            "state_dict saved by torch"
        ) from None
    expected = {name: parameter.shape for name, parameter in tower.named_parameters()}
    wrong = sorted(
        name for name, shape in expected.items() if name not in found or found[name].shape != shape
    )
    if wrong:
        shape = tuple(found[wrong[0]].shape) if wrong[0] in found else "nothing"
        raise UserError(
            f"text.encoder: {len(wrong)} of {len(expected)} parameters of the text tower are not "
            f"in {path} as expected, first '{wrong[0]}': found {shape}, expected "
            f"{tuple(expected[wrong[0]])}; set text.encoder.model to the weights' architecture"
        )
    tower.load_state_dict({name: found[name] for name in expected}, strict=False, assign=True)


def _tensors(path: Path) -> dict[str, Tensor]:
    """The text tower's tensors in a file, named as in the tower."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            return {own: file.get_tensor(name) for own, name in _text_part(file.keys())}
    if _is_torchscript(path):
        program = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        state = program.state_dict()
    else:
        mapped = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    state = state.get("state_dict", state)
    return {own: state[name] for own, name in _text_part(state)}


def _text_part(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Of a whole CLIP model's parameters those of the text tower: (name in the tower, name)."""
    names = list(names)
    bare = {name: name.removeprefix("module.") for name in names}
    below = any(own.startswith("text.") for own in bare.values())
    for name, own in bare.items():
        if below and own.startswith("text."):
            yield own.removeprefix("text."), name
        elif not below and own.startswith(_TOP):
            yield own, name


def _is_torchscript(path: Path) -> bool:
    """OpenAI's own files are programs, not state dicts."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())
