"""The typed experiment: every knob with its unit, bounds and default; YAML and dotted overrides.

An experiment is data. Components receive values, never this object; what is looked up by name
(`algorithm`, `data.partition`, `text.encoder`) is validated by the part that owns the name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedray.errors import UserError, nearest

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

WEIGHT_FILES = (".pth", ".pt", ".safetensors")
"""Suffixes that tell a file of weights from a name of weights."""
EXPERIMENTS = Path(__file__).parent / "experiments"


class Frozen(BaseModel):
    """Base of everything typed: immutable; unknown keys, infinities and `yes` for 1 are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise ValueError(f"expected a number, found {str(value).lower()}")
        return value


class Component(BaseModel):
    """Something chosen by name, with parameters of its own.

    `partition: iid` and `partition: {name: dirichlet, alpha: 0.1}` are both valid.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def params(self) -> Tree:
        """The component's own parameters, without its name."""
        return dict(self.model_extra or {})


def _named(value: Any, default: str) -> Any:
    """Parameters without a name are the default component's."""
    return {"name": default, **value} if isinstance(value, Mapping) else value


class DataConfig(Frozen):
    """Where the images come from and who owns which."""

    source: str = "digits"
    """A data source: digits, parquet, image_folder, coop, torchvision_cifar10, shapes, ..."""
    root: str | None = None
    """Folder of the data; a relative path is looked up below $FEDRAY_DATA, then here."""
    download: StrictBool = False
    """Whether a source that can download may do so."""
    image_size: int | None = Field(None, ge=4, le=1024)
    """Pixels per side; None keeps the source's own size."""
    channels: Literal[1, 3] | None = None
    """1 grey, 3 RGB; None keeps the source's own."""
    augment: Literal["none", "flip_crop", "flip_rotate"] = "none"
    """What training images go through, anew in every batch. flip_crop: padded by 4 pixels, cropped
    and flipped (CIFAR); flip_rotate: flipped, turned by up to 30 degrees (FedGLCL's Office)."""
    samples: int | None = Field(None, ge=1)
    """Use a random subset of this many images; None uses all."""
    imbalance: float = Field(1.0, ge=1)
    """rho, how many times rarer the last class is than the first among the images that are dealt;
    the classes between are spaced geometrically. 1 leaves the images as they are."""
    shots: int | None = Field(None, ge=1)
    """Keep at most so many images of each class among those that are dealt; None keeps all."""
    novel: StrictBool = False
    """Train on the first half of the classes; examine everybody on the official test images of
    these and of the others, with their names alone. For prompt methods, with test=official."""
    clients: int = Field(20, ge=1, le=100_000)
    """N, the number of clients."""
    test: Literal["local", "official"] = "local"
    """local: clients keep some of their images for testing; official: they train on all they own,
    and the official test images are dealt to them by the classes (and domains) that they own."""
    test_fraction: float = Field(0.25, gt=0, lt=1)
    """Share of each client's images that it keeps for its own test (FedTSP: 25 %), if local."""
    split: str | None = Field(None, min_length=1)
    """A JSON file below data.root with lists of paths, `train` and `test`, by domain or not, that
    replaces the official split (parquet, image_folder, coop, torchvision's sets of files)."""
    test_samples: int | None = Field(None, ge=1)
    """Use a random subset of this many official test images; None uses all."""
    validation_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of each client's training images that is held out for validation, for methods that need
    such images; None: only what a few-shot partition gives."""
    partition: Component = Component(name="fedtsp_dirichlet")
    """How images are dealt to clients: name and parameters (`data.partition.alpha`)."""

    @field_validator("partition", mode="before")
    @classmethod
    def _default_partition(cls, value: Any) -> Any:
        return _named(value, "fedtsp_dirichlet")

    @model_validator(mode="after")
    def _novel_is_official(self) -> DataConfig:
        if self.novel and self.test == "local":
            raise ValueError(
                "novel=true examines on official test images, but test=local; set "
                "data.test=official"
            )
        return self

    @model_validator(mode="after")
    def _split_is_read(self) -> DataConfig:
        if self.split is not None and self.test == "local":
            raise ValueError(
                f"split={self.split} names test images, but test=local deals all images and lets "
                "clients choose; set data.test=official or leave data.split out"
            )
        return self


class ModelConfig(Frozen):
    """The clients' image models."""

    group: str = "digits"
    """A model group: client i gets the (i mod X)-th of its X architectures."""
    feature_dim: int = Field(384, ge=2, le=8192)
    """d, the width of features and prototypes; FedTSP needs the text encoder's width."""
    projector: int | None = Field(None, ge=1)
    """Hidden width of a projector of two layers (FC, batch norm, ReLU) that gives the features;
    None: the backbone's output, averaged or repeated to d."""
    clip: Component = Component(name="small")
    """The frozen CLIP of prompt methods, which have no other model: small, or openclip with model,
    pretrained or path (`model.clip.model=ViT-B-16-quickgelu`)."""
    init: Literal["shared", "independent"] = "shared"
    """shared: equal architectures start equal (the official code); independent: each its own."""
    pretrained: str | None = Field(None, min_length=1)
    """Weights the backbones start from: a name of torchvision's (ResNet18_Weights.IMAGENET1K_V1,
    downloaded) or a file of a state dict (.pth, .pt, .safetensors); see models/pretrained.py."""

    @field_validator("clip", mode="before")
    @classmethod
    def _default_clip(cls, value: Any) -> Any:
        return _named(value, "openclip")


class TextConfig(Frozen):
    """What the server's language model reads."""

    encoder: Component = Component(name="minilm")
    """The text encoder: minilm, bert, openclip, vectors, random, orthogonal; its parameters."""
    descriptions: str | None = None
    """A shipped set of class descriptions, or a JSON file."""
    style: Literal["fine", "short", "long", "handcrafted", "plain", "ensemble", "name"] = "fine"
    """fine: three descriptions a class; short, long: one; handcrafted: 'A photo of a {label}.';
    plain: 'a photo of a {label}' (FedGLCL); ensemble: forty templates; name: the class name."""
    names: tuple[str, ...] | None = None
    """Other names for the classes, in the order of their labels (FedGLCL's proxy texts)."""
    template: str = "A photo of a {label}: {description}"
    """Eq. (3) of FedTSP, with the article of the official code."""

    @field_validator("encoder", mode="before")
    @classmethod
    def _default_encoder(cls, value: Any) -> Any:
        return _named(value, "minilm")


class FaultConfig(Frozen):
    """What goes wrong, by scenario and for real."""

    drop: float = Field(0.0, ge=0, le=1)
    """Probability that a participant does not reply; it then counts as absent."""
    late: float = Field(0.0, ge=0, le=1)
    """Probability that a participant's reply arrives `late_rounds` later."""
    late_rounds: int = Field(1, ge=1)
    """How many rounds a late reply is late."""
    reply_timeout_s: float | None = Field(None, gt=0)
    """Seconds the server really waits for a reply; later ones are dropped. None waits for all."""
    on_client_error: Literal["stop", "drop"] = "stop"
    """stop: an error in a client's step ends the run; drop: the client counts as absent."""
    max_failures: int = Field(3, ge=0)
    """How many deaths of a worker's call or of the server a run survives."""


class JoinConfig(Frozen):
    """Clients that come later."""

    clients: int = Field(0, ge=0)
    """So many of data.clients, the last ones, take no part before `round`."""
    round: int = Field(2, ge=1)
    """The first round that they take part in; after the last one: they are only tested on."""


class WireConfig(Frozen):
    """What happens to payloads on their way."""

    up_bits: int = Field(32, ge=2, le=32)
    """Bits per number of uploads; 32 sends them as they are (FedTSP supplementary G)."""
    down_bits: int = Field(32, ge=2, le=32)
    """Bits per number of downloads; 32 sends them as they are."""
    clip_norm: float | None = Field(None, gt=0)
    """S: each uploaded vector is clipped to this L2 norm (ours, not in the papers)."""
    noise_multiplier: float = Field(0.0, ge=0)
    """sigma: Gaussian noise of deviation sigma * S is added to each upload; needs clip_norm."""

    @model_validator(mode="after")
    def _noise_needs_clip(self) -> WireConfig:
        if self.noise_multiplier > 0 and self.clip_norm is None:
            raise ValueError("noise_multiplier > 0 needs wire.clip_norm, the sensitivity it scales")
        return self


class Experiment(Frozen):
    """One federated experiment, complete."""

    name: str = "experiment"
    """What the experiment is called in results and in the tracker."""
    scale: Literal["laptop", "paper"] = "laptop"
    """laptop: minutes on two cores; paper: the paper's setting, for GPUs."""
    algorithm: Component = Component(name="fedtsp")
    """The method: a name, or a mapping with `name` and its hyper-parameters."""
    seed: int = Field(0, ge=0)
    """Seed of every random stream: partition, weights, batches, participation."""
    rounds: int = Field(20, ge=1)
    """T, communication rounds."""
    participation: float = Field(1.0, gt=0, le=1)
    """Share of clients that take part in a round, drawn uniformly without replacement."""
    local_epochs: int = Field(5, ge=1)
    """E_c, passes over a client's training images per round."""
    batch_size: int = Field(100, ge=1)
    """Images per local step."""
    lr: float = Field(0.01, gt=0)
    """Clients' SGD learning rate."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Clients' SGD momentum; the optimiser is made anew every round."""
    weight_decay: float = Field(0.0, ge=0)
    """Clients' SGD weight decay."""
    shuffle: StrictBool = True
    """Whether batches are drawn in a new order every epoch (the official code: false)."""
    drop_last: StrictBool = False
    """Whether an incomplete last batch is left out (the official code: true)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of local training; bfloat16 is autocast with float32 weights."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    text: TextConfig = TextConfig()
    join: JoinConfig = JoinConfig()
    faults: FaultConfig = FaultConfig()
    wire: WireConfig = WireConfig()
    eval_every: int = Field(1, ge=0)
    """Evaluate every so many rounds, and at the start and the end; 0: only at the end."""
    finetune_epochs: int = Field(0, ge=0)
    """After the last round every client trains its head alone for so many epochs, to see how well
    the model becomes personal (FedTSP supplementary C.4: 20); 0: not measured."""
    checkpoint_every: int = Field(1, ge=0)
    """Write a checkpoint every so many rounds; 0: never."""
    workers: int = Field(2, ge=1)
    """Ray actors that run the clients' steps; as many as clients is one actor per client."""
    cpus: float | None = Field(None, gt=0)
    """CPUs that the workers of one run share; None: one per worker."""
    gpus: float = Field(0.0, ge=0)
    """GPUs that one run uses in all; the workers share what the server leaves."""
    server_cpus: float = Field(0.0, ge=0)
    """CPUs reserved for the server actor; it mostly waits, so none by default."""
    server_gpus: float = Field(0.0, ge=0)
    """GPU share reserved for the server actor, which runs the text encoder."""
    threads: int = Field(1, ge=1)
    """Threads of one client step; part of what makes results identical."""

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm_is_named(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "name" not in value:
            raise ValueError("has no name; write algorithm: {name: fedtsp, ...}")
        return value

    @model_validator(mode="after")
    def _someone_begins(self) -> Experiment:
        if self.join.clients >= self.data.clients:
            raise ValueError(
                f"join.clients={self.join.clients} of data.clients={self.data.clients} leaves "
                "nobody to begin; lower join.clients or raise data.clients"
            )
        return self

    @model_validator(mode="after")
    def _gpu_shares(self) -> Experiment:
        if self.server_gpus > 0 and self.server_gpus >= self.gpus:
            raise ValueError(
                f"server_gpus={self.server_gpus:g} leaves nothing of gpus={self.gpus:g} "
                "to the workers; raise gpus or lower server_gpus"
            )
        return self

    def tree(self) -> Tree:
        """The experiment as plain data, as it is written to config.yaml."""
        return self.model_dump(mode="json")

    def essence(self) -> Tree:
        """All that determines the numbers, not where and how fast they are made."""
        tree = self.tree()
        for key in (*_EXECUTION_KEYS, "name"):
            tree.pop(key)
        tree["data"].pop("root")
        tree["data"].pop("download")
        for key in ("max_failures", "reply_timeout_s"):
            tree["faults"].pop(key)
        return tree

    def identity(self) -> str:
        """A hash of the essence."""
        return hashlib.sha256(json.dumps(self.essence(), sort_keys=True).encode()).hexdigest()


_EXECUTION_KEYS = ("workers", "cpus", "gpus", "server_cpus", "server_gpus", "checkpoint_every")


# --- from text to tree ---------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everybody expects, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"key '{key}' stands twice in the mapping at line {line}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text; `where` names it in errors.

    Raises:
        UserError: when the text is not valid YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where} is not valid YAML: {reason}") from None


def find_yaml(name: str, folders: Iterable[Path], kind: str) -> Path:
    """Find `name` as a file, or as NAME.yaml in one of `folders`.

    Raises:
        UserError: when there is none; it names the nearest one.
    """
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{kind} file {path} does not exist")
        return path
    folders = [folder for folder in folders if folder.is_dir()]
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    raise UserError(f"there is no {kind} '{name}'.{nearest(name, names)}")


def read_mapping(path: Path) -> Tree:
    """Read one YAML file that must hold a mapping.

    Raises:
        UserError: when it cannot be read or holds something else.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds {type(tree).__name__}, expected a mapping of keys")
    return tree


def merge(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Lay `over` on `base`; a component with another name replaces the one below it whole."""
    result = deepcopy(base)
    for key, value in over.items():
        below = result.get(key)
        if key in _COMPONENT_KEYS:
            below = {"name": below} if isinstance(below, str) else below
            value = {"name": value} if isinstance(value, str) else value
        if (
            isinstance(below, dict)
            and isinstance(value, Mapping)
            and value.get("name", below.get("name")) == below.get("name")
        ):
            result[key] = merge(below, value)
        else:
            result[key] = deepcopy(value)
    return result


_COMPONENT_KEYS = ("algorithm", "partition", "encoder", "clip")


def override(tree: Tree, key: str, value: Any) -> Tree:
    """Set one dotted key (`data.partition.alpha`) in a tree; returns a new tree."""
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return merge(tree, nested)


def parse_assignments(assignments: Iterable[str]) -> list[tuple[str, Any]]:
    """Turn ["algorithm.lambda=7", ...] into [("algorithm.lambda", 7), ...], shorter keys first.

    So `algorithm.lambda=7 algorithm=fedproto` keeps the 7, as in the other order.

    Raises:
        UserError: for an argument without "=" or with an empty key.
    """
    pairs = []
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not all(key.split(".")):
            raise UserError(f"'{text}' is not key=value, for example rounds=5")
        pairs.append((key, parse_yaml(value, f"the value of {key}")))
    return sorted(pairs, key=lambda pair: pair[0].count("."))


def read_experiment(name: str) -> Tree:
    """Read a shipped experiment or a file, with what it `extends`, as a tree.

    Raises:
        UserError: when it does not exist, is not a mapping, or extends itself.
    """
    return _read_extending(name, ())


def _read_extending(name: str, seen: tuple[Path, ...]) -> Tree:
    path = find_yaml(name, [EXPERIMENTS], "experiment").resolve()
    if path in seen:
        raise UserError(f"{path} extends itself")
    tree = read_mapping(path)
    base = tree.pop("extends", None)
    tree.setdefault("name", path.stem)
    if base is None:
        return tree
    sibling = path.parent / f"{base}.yaml"
    below = _read_extending(str(sibling) if sibling.is_file() else str(base), (*seen, path))
    return merge(below, tree)


def validate(model: type[M], tree: Any, prefix: str = "") -> M:
    """Validate `tree` as `model`.

    Args:
        model: the typed model.
        tree: plain data.
        prefix: the dotted place of the tree in the experiment, for messages.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise UserError(_sentence(model, error, prefix)) from None


def _sentence(model: type[BaseModel], error: ValidationError, prefix: str) -> str:
    first = error.errors()[0]
    places = [str(part) for part in first["loc"]]
    key = ".".join([prefix, *places] if prefix else places)
    if first["type"] == "extra_forbidden":
        owner: type[BaseModel] = model
        for part in places[:-1]:
            inner = owner.model_fields[part].annotation if part in owner.model_fields else None
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                owner = inner
        valid = [field.alias or name for name, field in owner.model_fields.items()]
        where = ".".join(key.split(".")[:-1]) or "the experiment"
        return f"unknown key '{places[-1]}' in {where}.{nearest(places[-1], valid)}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if first["type"] == "value_error":
        return f"{key}: {message}" if key else message
    found = first["input"]
    found = f" (got {found!r})" if isinstance(found, (int, float, str, bool)) else ""
    return f"{key}: {message}{found}"


def load_experiment(tree: Tree) -> Experiment:
    """Validate a tree as an experiment and make its paths absolute: actors run elsewhere.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    experiment = validate(Experiment, tree)
    data, model, text = experiment.data, experiment.model, experiment.text
    if data.root is not None:
        data = data.model_copy(update={"root": str(resolve_root(data.root))})
    if model.pretrained is not None and Path(model.pretrained).suffix in WEIGHT_FILES:
        model = model.model_copy(update={"pretrained": _absolute(model.pretrained)})
    if text.descriptions is not None and text.descriptions.endswith(".json"):
        text = text.model_copy(update={"descriptions": _absolute(text.descriptions)})
    text = text.model_copy(update={"encoder": _with_absolute_path(text.encoder)})
    model = model.model_copy(update={"clip": _with_absolute_path(model.clip)})
    return experiment.model_copy(update={"data": data, "model": model, "text": text})


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _with_absolute_path(component: Component) -> Component:
    if component.params.get("path") is None:
        return component
    path = _absolute(component.params["path"])
    return Component(name=component.name, **{**component.params, "path": path})


class MissingRoot(UserError):
    """`data.root` is not there; who knows the source may add where its data comes from."""


def resolve_root(root: str) -> Path:
    """Make `data.root` absolute: below $FEDRAY_DATA if it is there, else below this folder.

    Raises:
        MissingRoot: when the folder is in neither place.
    """
    path = Path(root).expanduser()
    base = os.environ.get("FEDRAY_DATA")
    candidates = [path] if path.is_absolute() else [Path(base) / path] if base else []
    candidates += [] if path.is_absolute() else [Path.cwd() / path]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate.resolve()
    tried = " and ".join(str(candidate) for candidate in candidates)
    hint = "" if base else "set FEDRAY_DATA to the folder that holds it, or "
    raise MissingRoot(
        f"data.root={root} is not a folder (looked at {tried}); {hint}pass data.root=/its/path"
    )


def dump_yaml(tree: Any) -> str:
    """Plain data as YAML, keys in their order."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
