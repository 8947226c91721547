"""The typed experiment: every key with its unit, bounds and default.

An experiment is plain data. Components get values, never this object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictBool, field_validator, model_validator

from fedray.config.effects import is_below, keys_without_effect, without_unread
from fedray.config.input_files import NamesFile, content_of, files_of
from fedray.config.plugins import Plugin, use
from fedray.config.registry import registry
from fedray.config.schema import (
    Chosen,
    Component,
    Epochs,
    FileName,
    Frozen,
    LearningRate,
    PathText,
    Role,
    Seed,
    Tree,
    default_entry,
)
from fedray.config.versions import raised_versions

LABEL = Role("label")
"""Only labels a run."""
RESOURCES = Role("resources")
"""What a run takes from the cluster; changes no number."""
EXECUTION = Role("execution")
"""Where and how fast a run executes; changes no number."""
PROTOCOL = Role("protocol")
"""How long and how often a method trains, and on which images it is tested."""
METHOD = Role("method")
"""The method, its texts and its tuning."""
DATA = Role("data")
"""The data set, its preparation and its partition."""
IMAGES = Role("images")
"""The same, and it determines the decoded images."""

Precision: TypeAlias = Literal["float32", "bfloat16"]
PRETRAINED_VERSION = 2
"""The version of the code that loads pre-trained weights; 2 scales images by ImageNet's mean."""
YOUNGER: Mapping[str, object] = {
    "stacked": 1,
    "data.public": {"name": "none"},
}
"""Keys that earlier runs do not have, with the values that change no number."""
MOST_ROUNDS = 100_000
MOST_CLIENTS = 100_000
MOST_IMAGES = 1_000_000_000

WEIGHT_FILES = (".pth", ".pt", ".safetensors")
"""Suffixes of weight files; a text without one is a name of weights."""


class DataConfig(Frozen):
    """The images: their source, preprocessing and partition among clients."""

    source: Annotated[Component, Chosen("data source", "digits"), IMAGES] = default_entry("digits")
    """Data source: digits, parquet, image_folder, coop, ...; `fedray ls sources` lists all."""
    root: Annotated[PathText | None, EXECUTION] = None
    """Folder of the data; a relative path is tried below $FEDRAY_DATA, then below the working
    directory."""
    download: Annotated[StrictBool, EXECUTION] = False
    """Whether the source may download missing data."""
    image_size: Annotated[int | None, IMAGES] = Field(None, ge=4, le=1024)
    """Pixels per side; None keeps the source's size."""
    resize: Annotated[Literal["bilinear", "bicubic", "squash", "squash_bicubic"] | None, IMAGES] = (
        None
    )
    """Filter for scaling images to `image_size`, with sides and margins rounded as by torchvision's
    Resize and CenterCrop; squash: both sides are scaled, without a crop, as by Resize((S, S)),
    bilinearly or bicubically. None: as the preprocessing of `model.clip` for prompt
    methods; else the source decides, bicubic for CoOp's data sets, else bilinear."""
    channels: Annotated[Literal[1, 3] | None, IMAGES] = None
    """Colour channels: 1 for grey, 3 for RGB; None keeps the source's."""
    classes: Annotated[tuple[str, ...] | None, IMAGES] = Field(None, min_length=2)
    """Classes to use, by their names in the data and in the order of their labels (such as the ten
    DomainNet classes of FedBN and FedGLCL); None uses all. Folders of other classes are not
    read."""
    augment: Annotated[Component, Chosen("augmentation"), PROTOCOL] = default_entry("none")
    """Random augmentation of training images, drawn for every batch: none, flip_crop, flip_rotate,
    crop_flip_rotate, resized_crop, with parameters."""
    samples: int | None = Field(None, ge=1, le=MOST_IMAGES)
    """Size of a random subset of the images to use; None uses all."""
    imbalance: float = Field(1.0, ge=1, le=1e6)
    """rho, the ratio of images of the first class to images of the last class before partitioning;
    class sizes in between are spaced geometrically. 1 removes no image."""
    shots: int | None = Field(None, ge=1, le=MOST_IMAGES)
    """Maximal number of images per class before partitioning; None keeps all."""
    novel: StrictBool = False
    """Train on the first half of the classes, and test on the official test images of both halves,
    given only the class names of the second. For prompt methods, with test=official."""
    every_domain: StrictBool = False
    """Also test every client's model on the official test images of every domain (FedMGP, Tables 11
    and 12), at N times the cost of a whole test. With test=official."""
    clients: Annotated[int, PROTOCOL] = Field(20, ge=1, le=MOST_CLIENTS)
    """N, the number of clients."""
    test: Annotated[Literal["local", "official"], PROTOCOL] = "local"
    """local: each client holds out some of its images for testing; official: clients train on all
    their images, and get official test images of their own classes (and domains)."""
    test_fraction: float = Field(0.25, gt=0, lt=1)
    """Share of each client's images that is held out for its test if test=local (FedTSP: 25 %)."""
    split: Annotated[PathText | None, IMAGES] = None
    """JSON file below data.root that replaces the official split: lists of paths `train` and
    `test`, optionally by domain (parquet, image_folder, domain_folder, coop); lists: the set's own
    lists in data.root, `<domain>_train.pkl` (FedBN) or `.txt` (DomainNet), and `_test`."""
    test_samples: int | None = Field(None, ge=1, le=MOST_IMAGES)
    """Size of a random subset of the official test images to use; None uses all."""
    validation_fraction: Annotated[float | None, PROTOCOL] = Field(None, gt=0, lt=1)
    """Share of each client's training images that is held out for validation and used for
    selection, stratified by class; a class keeps at least one training image. None: only the
    validation images of a few-shot partition, if any."""
    partition: Annotated[Component, Chosen("partition", "fedtsp_dirichlet")] = default_entry(
        "fedtsp_dirichlet"
    )
    """Partition of the images among clients: name and parameters (`data.partition.alpha`)."""
    evolution: Annotated[Component, Chosen("data evolution", "repartition"), PROTOCOL] = (
        default_entry("none")
    )
    """Change of the clients' data during a run: none, or repartition with phases that begin at
    given rounds (`data.evolution.phases=[{round: 101, partition: {alpha: 0.5}}]`)."""
    public: Annotated[Component, Chosen("public data", "share")] = default_entry("none")
    """Images that belong to no client and that the server and all clients can read: none, share (of
    the training images), or source (another one); with labels or without."""

    def switched_off(self) -> Mapping[str, str]:
        """Return the key of the tests that `test` does not choose."""
        if self.test == "official":
            return {"test_fraction": "data.test=official tests on the official test images"}
        return {"test_samples": "data.test=local tests on images that clients hold out"}

    @field_validator("classes")
    @classmethod
    def _classes_differ(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"names '{twice}' twice; name every class once")
        return names

    @model_validator(mode="after")
    def _keys_agree(self) -> DataConfig:
        if self.resize is not None and self.image_size is None:
            raise ValueError(
                f"resize={self.resize} scales images to data.image_size, which is not set; set "
                "data.image_size, for example 224, or leave data.resize out"
            )
        for key in ("novel", "every_domain", "split"):
            value = getattr(self, key)
            if value and self.test == "local":
                raise ValueError(
                    f"{key}={str(value).lower() if value is True else value} tests on official "
                    f"test images, but test=local; set data.test=official or leave data.{key} out"
                )
        return self


class ModelConfig(Frozen):
    """The clients' image models."""

    group: str = "digits"
    """Model group or architecture: client i gets architecture number i mod X of the group's X."""
    feature_dim: int | None = Field(None, ge=2, le=8192)
    """d, the width of features and prototypes; None: the text encoder's width for methods that
    align features with texts, else the width of the backbones, which must all have the same one."""
    projector: int | None = Field(None, ge=1, le=65_536)
    """Hidden width of a two-layer projector (FC, batch norm, ReLU) that computes the features.
    None: features are the backbone's output, averaged or repeated to width d if necessary."""
    clip: Annotated[Component, Chosen("CLIP", "openclip")] = default_entry("small")
    """The frozen CLIP of prompt methods, which use no other model: small, or openclip with model,
    pretrained or path (`model.clip.model=ViT-B-16-quickgelu`)."""
    init: Literal["shared", "independent"] = "shared"
    """Initial weights: shared by all clients of one architecture (the official code), or
    independent."""
    pretrained: Annotated[PathText, NamesFile(*WEIGHT_FILES)] | None = None
    """Initial weights: a name of torchvision's (ResNet18_Weights.IMAGENET1K_V1, downloaded) or a
    state-dict file (.pth, .pt, .safetensors). They are loaded into every layer that fits: the
    backbone, and AlexNet's hidden layers if the projector has the same widths. Images are then
    scaled by ImageNet's mean and standard deviation."""


class TextConfig(Frozen):
    """The text encoder and the texts of the classes."""

    encoder: Annotated[Component, Chosen("text encoder", "minilm")] = default_entry("minilm")
    """Text encoder and its parameters: minilm, bert, align, openclip, vectors, random,
    orthogonal."""
    descriptions: Annotated[PathText, NamesFile(".json")] | None = None
    """Class descriptions: the name of a shipped set, or a JSON file; a relative path is tried below
    $FEDRAY_DATA, then below the working directory."""
    style: Annotated[Component, Chosen("text style", "fine")] = default_entry("fine")
    """Texts of a class: its fine, short or long descriptions, or templates around its name
    (handcrafted, plain, ensemble, name)."""
    names: tuple[str, ...] | Mapping[str, str] | Annotated[PathText, NamesFile(".json")] | None = (
        None
    )
    """Other class names for the texts (FedGLCL's proxy texts): a mapping from the data's names
    (`{"1": dog, "2": cat}`), a list in the order of the labels, a JSON file of either, or the name
    of a shipped list (imagenet100) or of shipped descriptions (domainnet10)."""
    template: str = Field("A photo of a {label}: {description}", max_length=1000)
    """Text made of a class name and a description: Eq. (3) of FedTSP, with the official code's
    article."""

    def switched_off(self) -> Mapping[str, str]:
        """Return the keys of descriptions if the style reads none."""
        if registry("text style").get(self.style.name).field:
            return {}
        reason = f"text.style={self.style.name} makes texts of the classes' names alone"
        return dict.fromkeys(("descriptions", "template"), reason)


class FaultConfig(Frozen):
    """Simulated faults, and limits for real ones."""

    drop: float = Field(0.0, ge=0, le=1)
    """Probability that a participant does not reply and counts as absent."""
    max_failures: Annotated[int, EXECUTION] = Field(3, ge=0, le=1_000_000)
    """Times that Ray restarts the server or a worker before the run ends; for a trial of a study,
    times in a row without a new round. A lost node counts as a death of its processes."""
    start_timeout_s: Annotated[float, EXECUTION] = Field(300.0, gt=0, le=1e7)
    """Seconds in which the server, and then all workers, must have started."""


class JoinConfig(Frozen):
    """Clients that join during the run."""

    clients: int = Field(0, ge=0, le=MOST_CLIENTS)
    """Number of clients that join later: the last ones of data.clients."""
    round: int = Field(2, ge=1, le=MOST_ROUNDS + 1)
    """First round of the clients that join; if after the last round, they are tested only."""

    def switched_off(self) -> Mapping[str, str]:
        """Return the round if no client joins."""
        return {} if self.clients else {"round": "join.clients=0 lets no client join"}


class WireConfig(Frozen):
    """Quantisation of uploads."""

    up_bits: int = Field(32, ge=2, le=32)
    """Bits per number of uploads (FedTSP supplementary G); 32 sends float32."""


class PrivacyConfig(Frozen):
    """Differential privacy of uploads (docs/privacy.md)."""

    mode: Literal["none", "central", "local"] = "none"
    """central: clients clip their updates, and the trusted server adds noise to the mean; local:
    every client clips its update and adds noise to the upload."""
    clip_norm: float | None = Field(None, gt=0)
    """S, the maximal L2 norm of a client's whole update (upload minus download)."""
    noise_multiplier: float = Field(0.0, ge=0)
    """sigma: Gaussian noise has standard deviation sigma * S, on the sum of the updates (central)
    or on each upload (local). 0 clips only, which gives no privacy."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """The delta for which epsilon is reported; choose it far below 1 / data.clients."""

    def switched_off(self) -> Mapping[str, str]:
        """Return the key of epsilon if there is no noise."""
        if self.mode != "none" and self.noise_multiplier > 0:
            return {}
        reason = "privacy adds no noise" if self.mode != "none" else "privacy.mode=none"
        return {"delta": reason}

    @model_validator(mode="after")
    def _mode_has_a_norm(self) -> PrivacyConfig:
        if self.mode != "none" and self.clip_norm is None:
            raise ValueError(
                f"mode={self.mode} needs privacy.clip_norm, the norm that the noise is scaled by"
            )
        if self.mode == "none" and (self.clip_norm is not None or self.noise_multiplier > 0):
            raise ValueError(
                "clip_norm and noise_multiplier do nothing with mode=none; set privacy.mode to "
                "central or local, or leave them out"
            )
        return self


class EvaluationConfig(Frozen):
    """Additional measurements; none of them changes training."""

    global_test: StrictBool = False
    """Also test every client's model on the test images of all clients (FedTSP Fig. 3), at N times
    the cost of an evaluation."""
    top_k: int | None = Field(None, ge=2, le=1000)
    """k of an additional top-k accuracy (FedTSP Fig. 4: 5), less than the number of classes; None:
    not measured."""


class ReportConfig(Frozen):
    """Selection of the best round of a run."""

    select: Literal["validation", "test"] = "validation"
    """Images on which rounds and configurations are selected: validation images or, as in the
    papers, test images; then every selected number is marked. Round 0 is never selected."""


class KeepConfig(Frozen):
    """Models that are saved in the run's folder (docs/api.md)."""

    models: Literal["best", "last", "none"] | None = None
    """Models to save: best (of the best round, see `report.select`, and of the last round), last,
    or none. None: best for a single run, none in sweeps and tables."""


class Experiment(Frozen):
    """One federated experiment, complete."""

    name: Annotated[FileName, LABEL] = "experiment"
    """Name of the experiment in results and in MLflow."""
    scale: Annotated[Literal["laptop", "paper"], LABEL] = "laptop"
    """laptop: minutes on two cores; paper: the paper's setting, for GPUs."""
    algorithm: Annotated[Component, Chosen("algorithm"), METHOD] = default_entry("fedtsp")
    """Method: a name, or a mapping with `name` and its hyper-parameters."""
    seed: Seed = 0
    """Seed of every random stream: partition, weights, batches, participation."""
    rounds: Annotated[int, PROTOCOL] = Field(20, ge=1, le=MOST_ROUNDS)
    """T, the number of communication rounds."""
    participation: Annotated[float, PROTOCOL] = Field(1.0, gt=0, le=1)
    """Share of clients that take part in a round, drawn uniformly without replacement. Their number
    is rounded half to even (0.5 of 5 clients: 2, of 7: 4), and is at least 1."""
    local_epochs: Annotated[Epochs, PROTOCOL] = 5
    """E_c, the number of passes over a client's training images per round."""
    batch_size: Annotated[int, PROTOCOL] = Field(100, ge=1, le=1_000_000)
    """Images per local step."""
    lr: Annotated[LearningRate, METHOD] = 0.01
    """Learning rate of clients; `lr_schedule` changes it over rounds."""
    lr_schedule: Annotated[Component, Chosen("learning rate schedule", "constant"), METHOD] = (
        default_entry("constant")
    )
    """Schedule of `lr` over rounds: constant, steps or cosine, each with an optional warm-up."""
    optimizer: Annotated[Component, Chosen("optimizer", "sgd"), METHOD] = default_entry("sgd")
    """Optimizer of clients, with its parameters: sgd, adam or adamw."""
    clip_grad_norm: Annotated[float | None, METHOD] = Field(None, gt=0, le=1e30)
    """Maximal norm of all gradients of a step as one vector; None: no clipping."""
    shuffle: StrictBool = True
    """Whether images are shuffled in every epoch (the official code: false)."""
    drop_last: Annotated[StrictBool, PROTOCOL] = False
    """Whether an incomplete last batch is dropped (the official code: true)."""
    precision: Annotated[Precision, PROTOCOL] = "float32"
    """Arithmetic of local training; bfloat16 is autocast with float32 weights."""
    stacked: Annotated[int, PROTOCOL] = Field(1, ge=1, le=1024)
    """Number of clients trained together as one batched model, which rounds differently; 1: each by
    itself. Faster for perceptrons, heads and prompts; some methods do not support it."""
    data: Annotated[DataConfig, DATA] = Field(default_factory=DataConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    text: Annotated[TextConfig, METHOD] = Field(default_factory=TextConfig)
    join: Annotated[JoinConfig, PROTOCOL] = JoinConfig()
    faults: FaultConfig = FaultConfig()
    wire: WireConfig = WireConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    report: ReportConfig = ReportConfig()
    eval_every: int = Field(1, ge=0, le=MOST_ROUNDS)
    """Rounds between evaluations, besides one at the start and one at the end; 0: only at the
    end."""
    finetune_epochs: Annotated[int, PROTOCOL] = Field(0, ge=0, le=10_000)
    """Epochs of fine-tuning every client's head after the last round, to measure personalisation
    (FedTSP supplementary C.4: 20); 0: not measured."""
    keep: Annotated[KeepConfig, EXECUTION] = KeepConfig()
    checkpoint_every: Annotated[int, EXECUTION] = Field(1, ge=0, le=MOST_ROUNDS)
    """Rounds between checkpoints; 0: only those that keep models (`keep.models`)."""
    workers: Annotated[int, RESOURCES] = Field(2, ge=1, le=10_000)
    """Number of Ray actors that run client steps; as many as clients: one actor a client."""
    cpus: Annotated[float | None, RESOURCES] = Field(None, gt=0, le=100_000)
    """CPUs that the workers of one run share; None: one per worker."""
    gpus: Annotated[float, RESOURCES] = Field(0.0, ge=0, le=10_000)
    """GPUs of one run; the workers share those that the server does not reserve."""
    server_gpus: Annotated[float, RESOURCES] = Field(0.0, ge=0, le=10_000)
    """GPUs reserved for the server actor, which runs the text encoder."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads of one client step; rounding, and so results, depend on their number."""
    plugins: Annotated[tuple[Plugin, ...], METHOD] = ()
    """Your files (relative to the experiment's file), folders and modules with methods, models and
    sources; their source code is sent to every worker."""

    @model_validator(mode="after")
    def _first_round_has_clients(self) -> Experiment:
        if self.join.clients >= self.data.clients:
            raise ValueError(
                f"join.clients={self.join.clients} of data.clients={self.data.clients} leaves no "
                "client for the first round; lower join.clients or raise data.clients"
            )
        return self

    @model_validator(mode="after")
    def _gpu_shares(self) -> Experiment:
        if self.server_gpus > 0 and self.server_gpus >= self.gpus:
            raise ValueError(
                f"server_gpus={self.server_gpus:g} leaves nothing of gpus={self.gpus:g} "
                "for the workers; raise gpus or lower server_gpus"
            )
        return self

    def tree(self) -> Tree:
        """Return the experiment as plain data, without `plugins` if there are none."""
        return self.model_dump(mode="json", exclude=None if self.plugins else {"plugins"})

    def record(self) -> Tree:
        """Return `tree` for run.json and MLflow, with hashes of plug-ins and raised versions.

        Version 1 and `YOUNGER` keys at their defaults are left out, so that older runs stay
        comparable.
        """
        tree = self.tree()
        for key, default in YOUNGER.items():
            *above, last = key.split(".")
            holder = reduce(_item, above, tree)
            if holder[last] == default:
                del holder[last]
        if self.plugins:
            tree["plugins"] = {plugin.module: plugin.sha256 for plugin in self.plugins}
        use(self.plugins)  # whose entries the keys name
        unread = keys_without_effect(self)
        raised = raised_versions(self, self.model.group, unread)
        if self.model.pretrained is not None and not is_below("model.pretrained", unread):
            raised["initial weights"] = {"pretrained": PRETRAINED_VERSION}
        return {**tree, "versions": raised} if raised else tree

    def reproducibility_key(self) -> Tree:
        """Return all that determines results: keys, versions of entries, and hashes of files.

        Keys that nothing reads have their defaults.
        """
        use(self.plugins)
        read = without_unread(self, keys_without_effect(self))
        tree = read.record()
        for key, path in files_of(read).items():
            *above, last = key.split(".")
            holder: Any = reduce(_item, above, tree)
            holder[int(last) if isinstance(holder, list) else last] = f"sha256:{content_of(path)}"
        for key in keys_of(EXECUTION, RESOURCES, LABEL):
            *above, last = key.split(".")
            reduce(_item, above, tree).pop(last)
        return {key: value for key, value in tree.items() if value != {}}

    def identity(self, data_sha256: str = "") -> str:
        """Return a hash of everything that determines the results of a resolved experiment.

        Args:
            data_sha256: the content hash of images and labels; "" before they are read.
        """
        content = json.dumps([self.reproducibility_key(), data_sha256], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


@cache
def keys_of(*roles: Role) -> tuple[str, ...]:
    """Return the dotted keys of an experiment with one of these roles."""
    return tuple(key for key, role in _roles(Experiment) if role in roles)


def role_of(key: str) -> Role | None:
    """Return the role of a dotted key, a parameter of a component included; None: it has none."""
    roles = dict(_roles(Experiment))
    while key not in roles and "." in key:
        key = key.rpartition(".")[0]
    return roles.get(key)


def _roles(
    model: type[Frozen], role: Role | None = None, section: str = ""
) -> Iterator[tuple[str, Role | None]]:
    """Yield the keys of a model with their roles; a key without one has that of its section."""
    for name, field in model.model_fields.items():
        own = next((mark for mark in field.metadata if isinstance(mark, Role)), role)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen):
            yield from _roles(field.annotation, own, f"{section}{name}.")
        else:
            yield f"{section}{name}", own


def _item(holder: Any, key: str) -> Any:
    """Return an item of a mapping, or of a list by its position."""
    return holder[int(key)] if isinstance(holder, list) else holder[key]


EXECUTION_KEYS = keys_of(RESOURCES, EXECUTION)
"""Keys that determine where and how fast a run executes, but not its numbers."""
