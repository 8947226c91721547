"""The typed experiment: every key with its unit, bounds and default.

An experiment is data. Components receive values, never this object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from fedray.config.input_files import NamesFile, content_of, files_of
from fedray.config.schema import (
    Component,
    Epochs,
    FileName,
    Frozen,
    LearningRate,
    PathText,
    Seed,
    Tree,
    named,
)
from fedray.plugins import Plugin, use

RESOURCE_KEYS = ("workers", "cpus", "gpus", "server_cpus", "server_gpus")
"""Keys of the resources that a run takes from the cluster."""

EXECUTION_KEYS = (
    *RESOURCE_KEYS,
    "checkpoint_every",
    "keep.models",
    "keep.max_gb",
    "keep.log",
    "data.root",
    "data.download",
    "data.sha256",
    "faults.max_failures",
    "faults.start_timeout_s",
)
"""Keys that determine where and how fast a run executes, but not its numbers."""

LABELS = ("name", "scale")
"""Names, which change no number."""

MOST_ROUNDS = 100_000
MOST_CLIENTS = 100_000
MOST_IMAGES = 1_000_000_000

WEIGHT_FILES = (".pth", ".pt", ".safetensors")
"""Suffixes of files of weights; other texts are names of weights."""


class DataConfig(Frozen):
    """Where the images come from and who owns which."""

    source: Annotated[Component, named("digits")] = Component(name="digits")
    """A data source: digits, parquet, image_folder, coop, ...; `fedray ls sources` has all."""
    root: PathText | None = None
    """Folder of the data; a relative path is looked up below $FEDRAY_DATA, then here."""
    download: StrictBool = False
    """Whether a source that can download may do so."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """The content hash that images and labels must have, as in result.json; None takes any."""
    image_size: int | None = Field(None, ge=4, le=1024)
    """Pixels per side; None keeps the source's own size."""
    resize: Literal["bilinear", "bicubic"] | None = None
    """How images are scaled to `image_size`: by this filter, sides and margins rounded as in
    torchvision's Resize and CenterCrop (bicubic: CLIP's own preprocessing, to the bit). None leaves
    both to the source: bilinear, for CoOp's sets bicubic."""
    channels: Literal[1, 3] | None = None
    """1 grey, 3 RGB; None keeps the source's own."""
    classes: tuple[str, ...] | None = Field(None, min_length=2)
    """The classes to take, by their names in the data and in the order of their labels (DomainNet's
    ten of FedBN and FedGLCL); None takes all. Folders of other classes are not read."""
    augment: Component = Component(name="none")
    """A random change of training images, drawn for every batch: none, or an augmentation and its
    parameters (flip_crop, flip_rotate, crop_flip_rotate, resized_crop)."""
    samples: int | None = Field(None, ge=1, le=MOST_IMAGES)
    """Use a random subset of this many images; None uses all."""
    imbalance: float = Field(1.0, ge=1, le=1e6)
    """rho, how many times rarer the last class is than the first among the images that are
    partitioned; the classes between are spaced geometrically. 1 removes no image."""
    shots: int | None = Field(None, ge=1, le=MOST_IMAGES)
    """The largest number of images of each class that are partitioned; None keeps all."""
    novel: StrictBool = False
    """Train on the first half of the classes; test everybody on the official test images of
    these and of the others, with their names alone. For prompt methods, with test=official."""
    every_domain: StrictBool = False
    """Whether every client's model is tested on the official test images of every domain too
    (FedMGP, Tables 11 and 12); N times the whole test. With test=official."""
    clients: int = Field(20, ge=1, le=MOST_CLIENTS)
    """N, the number of clients."""
    test: Literal["local", "official"] = "local"
    """local: clients keep some of their images for testing; official: they train on all they own,
    and the official test images are partitioned by the classes (and domains) that they own."""
    test_fraction: float = Field(0.25, gt=0, lt=1)
    """Share of each client's images that it keeps for its own test (FedTSP: 25 %), if local."""
    split: PathText | None = None
    """A JSON file below data.root with lists of paths, `train` and `test`, by domain or not, that
    replaces the official split (parquet, image_folder, domain_folder, coop)."""
    test_samples: int | None = Field(None, ge=1, le=MOST_IMAGES)
    """Use a random subset of this many official test images; None uses all."""
    validation_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of each client's training images that is held out for validation, stratified by class
    (a class keeps at least one image to train on); what is chosen is chosen on them. None: only
    what a few-shot partition gives."""
    partition: Annotated[Component, named("fedtsp_dirichlet")] = Component(name="fedtsp_dirichlet")
    """How images are partitioned among clients: name and parameters (`data.partition.alpha`)."""
    evolution: Annotated[Component, named("repartition")] = Component(name="none")
    """How the clients' data changes while they learn: none, or repartition with phases, each from
    a round on (`data.evolution.phases=[{round: 101, partition: {alpha: 0.5}}]`)."""

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
                f"resize={self.resize} says how images become data.image_size pixels wide, which "
                "is not set; set data.image_size, for example 224, or leave data.resize out"
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
    """A model group: client i gets the (i mod X)-th of its X architectures."""
    feature_dim: int | None = Field(None, ge=2, le=8192)
    """d, the width of features and prototypes; None: the text encoder's width for methods that
    align features with texts, else the models' own, which must be one."""
    projector: int | None = Field(None, ge=1, le=65_536)
    """Hidden width of a projector of two layers (FC, batch norm, ReLU) that gives the features;
    None: the backbone's output, averaged or repeated to d where its own width is another, which a
    line in the log says."""
    clip: Annotated[Component, named("openclip")] = Component(name="small")
    """The frozen CLIP of prompt methods, which have no other model: small, or openclip with model,
    pretrained or path (`model.clip.model=ViT-B-16-quickgelu`)."""
    init: Literal["shared", "independent"] = "shared"
    """shared: equal architectures start equal (the official code); independent: each its own."""
    pretrained: Annotated[PathText, NamesFile(*WEIGHT_FILES)] | None = None
    """Weights the models start from: a name of torchvision's (ResNet18_Weights.IMAGENET1K_V1,
    downloaded) or a file of a state dict (.pth, .pt, .safetensors), in every layer that they fit:
    the backbone, and AlexNet's hidden layers where the projector has their widths."""


class TextConfig(Frozen):
    """What the server's language model reads."""

    encoder: Annotated[Component, named("minilm")] = Component(name="minilm")
    """The text encoder: minilm, bert, align, openclip, vectors, random, orthogonal; its
    parameters."""
    descriptions: Annotated[PathText, NamesFile(".json")] | None = None
    """A shipped set of class descriptions, or a JSON file of any source; a relative path is looked
    up below $FEDRAY_DATA, then here."""
    style: Annotated[Component, named("fine")] = Component(name="fine")
    """How the texts of a class are made: fine, short or long descriptions, or templates around its
    name (handcrafted, plain, ensemble, name)."""
    names: tuple[str, ...] | Annotated[PathText, NamesFile(".json")] | None = None
    """Other names for the classes, in the order of their labels (FedGLCL's proxy texts): a list,
    the name of a shipped one (imagenet100, domainnet10, office_caltech10), or a JSON file."""
    template: str = Field("A photo of a {label}: {description}", max_length=1000)
    """Eq. (3) of FedTSP, with the article of the official code."""


class FaultConfig(Frozen):
    """What goes wrong, by scenario and for real."""

    drop: float = Field(0.0, ge=0, le=1)
    """Probability that a participant does not reply; it then counts as absent."""
    late: float = Field(0.0, ge=0, le=1)
    """Probability that a participant's reply arrives `late_rounds` later."""
    late_rounds: int = Field(1, ge=1, le=MOST_ROUNDS)
    """How many rounds a late reply is late."""
    on_client_error: Literal["stop", "drop"] = "stop"
    """stop: an error in a client's step ends the run; drop: the client counts as absent."""
    max_failures: int = Field(3, ge=0, le=1_000_000)
    """How often in a row a process may die, or be lost with its node: a worker during one client's
    step, a server or a trial without a new round."""
    start_timeout_s: float = Field(300.0, gt=0, le=1e7)
    """Seconds to wait for a worker that has no room, or cannot be reached, before the run ends.
    With another worker the run continues; at its start, it waits at most 30 seconds for more."""


class JoinConfig(Frozen):
    """Clients that come later."""

    clients: int = Field(0, ge=0, le=MOST_CLIENTS)
    """How many of data.clients, the last ones, take no part before `round`."""
    round: int = Field(2, ge=1, le=MOST_ROUNDS + 1)
    """The first round that they take part in; after the last one: they are only tested on."""


class WireConfig(Frozen):
    """Quantisation of payloads."""

    up_bits: int = Field(32, ge=2, le=32)
    """Bits per number of uploads (FedTSP supplementary G); 32 sends float32."""
    down_bits: int = Field(32, ge=2, le=32)
    """Bits per number of downloads; 32 sends float32."""


class PrivacyConfig(Frozen):
    """Differential privacy of what clients upload (docs/privacy.md)."""

    mode: Literal["none", "central", "local"] = "none"
    """central: clients clip their updates and the trusted server adds noise to their mean; local:
    every client clips and adds noise to its own upload."""
    clip_norm: float | None = Field(None, gt=0)
    """S: a client's whole update, the upload minus what it was sent, has at most this L2 norm."""
    noise_multiplier: float = Field(0.0, ge=0)
    """sigma: Gaussian noise of deviation sigma * S, on the sum of the updates (central) or on each
    upload (local); 0 only clips, which protects nobody."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """The delta that epsilon is reported at; it should be far below 1 / data.clients."""
    noise_seed: int | None = Field(None, ge=0)
    """None draws the noise of every run from the operating system. With a seed the noise, and so
    the run, can be repeated; then it protects nobody."""

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
    """What is measured besides; nothing of it changes training."""

    global_test: StrictBool = False
    """Test every client's model on the test images of all clients too (FedTSP Fig. 3); costs an
    evaluation N times as long."""
    top_k: int | None = Field(None, ge=2, le=1000)
    """Also count an answer as right where the true class is among the k likeliest (FedTSP Fig. 4:
    5); fewer than there are classes. None: not measured."""


class ReportConfig(Frozen):
    """How the best round of a run is chosen."""

    select: Literal["validation", "test"] = "validation"
    """The images on which rounds and configurations are chosen: validation images, or, as in the
    papers, test images, which marks every number that was chosen. Round 0 is never chosen."""


class KeepConfig(Frozen):
    """Which models stay in the run's folder, to be loaded and used (docs/api.md)."""

    models: Literal["best", "last", "none"] | None = None
    """best: those of the best round (`report.select` says on which images it is chosen), and of the
    last; last: of the last alone; none. None: best, but none in sweeps and tables."""
    max_gb: float = Field(2.0, gt=0, le=1e6)
    """GB (10^9 bytes) that the models of one round may take; larger ones are not kept, which is
    said."""
    log: StrictBool = False
    """Whether a run's models are logged to MLflow too, as one that mlflow.pyfunc loads; that takes
    some seconds at the end of the run."""


class EarlyStoppingConfig(Frozen):
    """When a run ends before its last round."""

    patience: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """Stop after this number of evaluations in a row without an improvement; None: never."""
    metric: str = Field("local_accuracy", min_length=1, max_length=200)
    """What has to improve: a metric of the test, looked at on the images of `report.select`; or
    one of training, such as train_loss."""


class Experiment(Frozen):
    """One federated experiment, complete."""

    name: FileName = "experiment"
    """What the experiment is called in results and in the tracker."""
    scale: Literal["laptop", "paper"] = "laptop"
    """laptop: minutes on two cores; paper: the paper's setting, for GPUs."""
    algorithm: Component = Component(name="fedtsp")
    """The method: a name, or a mapping with `name` and its hyper-parameters."""
    seed: Seed = 0
    """Seed of every random stream: partition, weights, batches, participation."""
    rounds: int = Field(20, ge=1, le=MOST_ROUNDS)
    """T, communication rounds."""
    participation: float = Field(1.0, gt=0, le=1)
    """Share of clients that take part in a round, drawn uniformly without replacement. Their number
    is rounded, a half to the even number (0.5 of 5 clients: 2, of 7: 4), and at least 1."""
    local_epochs: Epochs = 5
    """E_c, passes over a client's training images per round."""
    batch_size: int = Field(100, ge=1, le=1_000_000)
    """Images per local step."""
    lr: LearningRate = 0.01
    """Clients' learning rate; `lr_schedule` says how it changes."""
    lr_schedule: Annotated[Component, named("constant")] = Component(name="constant")
    """How `lr` changes over rounds: constant, steps or cosine, each with a warm-up if asked for."""
    optimizer: Annotated[Component, named("sgd")] = Component(name="sgd")
    """What takes the clients' steps: sgd, adam or adamw, and its parameters."""
    clip_grad_norm: float | None = Field(None, gt=0, le=1e6)
    """Gradients of a step longer than this, as one vector, are shortened to it; None: never."""
    shuffle: StrictBool = True
    """Whether batches are drawn in a new order every epoch (the official code: false)."""
    drop_last: StrictBool = False
    """Whether an incomplete last batch is left out (the official code: true)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of local training; bfloat16 is autocast with float32 weights."""
    stacked: int = Field(1, ge=1, le=1024)
    """Clients that are trained together as one batched model, which rounds differently; 1: each by
    itself. Faster for perceptrons, heads and prompts, and for methods that support it."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    text: TextConfig = TextConfig()
    join: JoinConfig = JoinConfig()
    faults: FaultConfig = FaultConfig()
    wire: WireConfig = WireConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    report: ReportConfig = ReportConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    eval_every: int = Field(1, ge=0, le=MOST_ROUNDS)
    """Rounds between evaluations, with one at the start and one at the end; 0: only at the end."""
    finetune_epochs: int = Field(0, ge=0, le=10_000)
    """Epochs for which every client trains its head alone after the last round, to measure how
    well the model becomes personal (FedTSP supplementary C.4: 20); 0: not measured."""
    keep: KeepConfig = KeepConfig()
    checkpoint_every: int = Field(1, ge=0, le=MOST_ROUNDS)
    """Rounds between checkpoints; 0: never."""
    workers: int = Field(2, ge=1, le=10_000)
    """Ray actors that run the clients' steps; as many as clients is one actor per client."""
    cpus: float | None = Field(None, gt=0, le=100_000)
    """CPUs that the workers of one run share; None: one per worker."""
    gpus: float = Field(0.0, ge=0, le=10_000)
    """GPUs that one run uses in all; the workers share what the server leaves."""
    server_cpus: float = Field(0.0, ge=0, le=10_000)
    """CPUs reserved for the server actor; it mostly waits, so none by default."""
    server_gpus: float = Field(0.0, ge=0, le=10_000)
    """GPU share reserved for the server actor, which runs the text encoder."""
    threads: int = Field(1, ge=1, le=1024)
    """Threads of one client step; part of what makes results identical."""
    plugins: tuple[Plugin, ...] = ()
    """Files (relative to the experiment's file), folders and modules with your own methods, models
    and sources; their source code travels to every worker."""

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
    def _stops_where_it_is_evaluated(self) -> Experiment:
        if self.early_stopping.patience is None:
            return self
        if self.eval_every == 0:
            raise ValueError(
                "early_stopping.patience counts evaluations, and eval_every=0 evaluates the last "
                "round alone; set eval_every, for example 1, or leave early_stopping out"
            )
        if self.finetune_epochs:
            raise ValueError(
                f"finetune_epochs={self.finetune_epochs} is measured after the last round, which "
                "early_stopping.patience may not reach; leave one of them out"
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
        """Return the experiment as plain data; `plugins` is left out if there are none."""
        return self.model_dump(mode="json", exclude=None if self.plugins else {"plugins"})

    def record(self) -> Tree:
        """Return `tree` for result.json and the tracker: plug-ins as hashes by their modules.

        `stacked` is left out where clients are not, so that older runs stay comparable.
        """
        tree = self.tree()
        if self.stacked == 1:
            del tree["stacked"]
        if self.plugins:
            tree["plugins"] = {plugin.module: plugin.sha256 for plugin in self.plugins}
        return tree

    def reproducibility_key(self) -> Tree:
        """Return all that determines the numbers, with the content of files instead of paths."""
        tree = self.record()
        use(self.plugins)  # their types of parameters say which values name files
        for key, path in files_of(self).items():
            *above, last = key.split(".")
            reduce(getitem, above, tree)[last] = f"sha256:{content_of(path)}"
        for key in (*EXECUTION_KEYS, *LABELS):
            *above, last = key.split(".")
            reduce(getitem, above, tree).pop(last)
        return {key: value for key, value in tree.items() if value != {}}

    def identity(self, data_sha256: str = "") -> str:
        """Return a hash of all that determines the numbers of a resolved experiment.

        Args:
            data_sha256: the content hash of images and labels; "" before they are read.
        """
        what = json.dumps([self.reproducibility_key(), data_sha256], sort_keys=True)
        return hashlib.sha256(what.encode()).hexdigest()
