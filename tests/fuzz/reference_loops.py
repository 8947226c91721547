"""Methods written down a second time, as plain loops from the papers.

This file shares no code with `fedray.core` and `fedray.algorithms`. It takes from a run what the
documentation publishes: the images and their partition, the initial weights, and the seed of each
random stream. Everything else is computed here: batches, losses, optimiser steps, clipping, noise,
quantisation, means, bytes and metrics.

Every loop runs in single and in double precision. The difference of both is the scale on which a
number of the platform may differ, see `oracles.compare`.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import log_ndtr
from torch import Tensor, nn

Named = dict[str, Tensor]
Upload = dict[str, tuple[str, Any]]
"""What travels: the kind and the tensor (or number) of each place."""


@dataclass
class Split:
    """The positions of each client's images in one phase, and the sets that all models share."""

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    validation: Sequence[np.ndarray] | None
    shared: Mapping[str, np.ndarray]
    shared_validation: Mapping[str, np.ndarray]


@dataclass
class Given:
    """The inputs of a run.

    Attributes:
        keys: the resolved experiment as plain data.
        images: uint8 [n, channels, H, W].
        labels: int64 [n].
        classes: C.
        width: d, the width of features.
        phases: the first round and the split of each phase.
        domains: the name of each image's domain, if there are domains.
        public: images, labels and positions of the public images, if there are any.
        architectures: the network of each client.
        bodies: makes the body of a network from channels and side.
        initial: returns a client's initial weights, by client.
        text: the classes' text embeddings of unit length [C, d], for methods with texts.
        encode: returns embeddings [c, d] of classes under prompts [C, m, w], or without prompts.
        token_width: w, the width of a prompt.
        inputs: what a prompted CLIP reads of each image, and the module that reads it, if the
            method trains one; such a network computes in single precision alone.
    """

    keys: Mapping[str, Any]
    images: np.ndarray
    labels: np.ndarray
    classes: int
    width: int
    phases: Sequence[tuple[int, Split]]
    domains: Sequence[str] | None
    public: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    architectures: Sequence[str]
    bodies: Mapping[str, Callable[[int, int], nn.Module]]
    initial: Callable[[int], Named]
    text: Tensor | None = None
    encode: Callable[[Tensor | None, bool, Tensor | None], Tensor] | None = None
    token_width: int = 0
    inputs: tuple[Tensor, Callable[[str], nn.Module]] | None = None


@dataclass
class Record:
    """The numbers of one round; `near` counts images whose two best classes are nearly equal."""

    metrics: dict[str, float] = field(default_factory=dict)
    per_client: dict[int, float] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    participants: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    steps: int = 0
    logits: list[Tensor] = field(default_factory=list)


class Draws:
    """The random streams of a run: the seed of a stream is a hash of what it is for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, purpose: str, round_: int = 0, client: int = 0) -> int:
        text = f"{self.seed}/{purpose}/{round_}/{client}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def torch(self, purpose: str, round_: int = 0, client: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.number(purpose, round_, client))

    def numpy(self, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        return np.random.default_rng(self.number(purpose, round_, client))


# --- augmentation --------------------------------------------------------------------------------


def flip_crop(x: Tensor, keys: Mapping[str, Any], random: torch.Generator) -> Tensor:
    """Cut each image out of one with black edges, and mirror one of two on average."""
    p, (height, width) = keys["padding"], x.shape[2:]
    rows, columns = (torch.randint(-p, p + 1, (2, len(x), 1), generator=random) + p).tolist()
    mirrored = (torch.rand(len(x), 1, generator=random) < 0.5).tolist()
    views = []
    for image, (row,), (column,), (flip,) in zip(x, rows, columns, mirrored, strict=True):
        view = F.pad(image, (p, p, p, p))[:, row : row + height, column : column + width]
        views.append(view.flip(2) if flip else view)
    return torch.stack(views)


AUGMENTATIONS = {"flip_crop": flip_crop}

# --- networks ------------------------------------------------------------------------------------


def mlp(channels: int, side: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 128), nn.ReLU())


def cnn2(channels: int, side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 128), nn.ReLU(),
    )  # fmt: skip


BODIES: dict[str, Callable[[int, int], nn.Module]] = {"mlp": mlp, "cnn2": cnn2}


class Net(nn.Module):
    """Body, mean over neighbouring features or projector, and head; tensors as the run names them.

    Args:
        body: from images to a vector.
        raw: the width of that vector.
        width: d.
        classes: C; 0 for no head.
        hidden: the hidden width of the projector, if there is one.
    """

    def __init__(
        self, body: nn.Module, raw: int, width: int, classes: int, hidden: int | None
    ) -> None:
        super().__init__()
        parts: OrderedDict[str, nn.Module] = OrderedDict(backbone=body)
        if hidden is not None:
            parts["projector"] = nn.Sequential(
                nn.Linear(raw, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                nn.Linear(hidden, width), nn.BatchNorm1d(width), nn.ReLU(),
            )  # fmt: skip
        elif raw != width:
            parts["adapter"] = nn.AdaptiveAvgPool1d(width)
        self.extractor = nn.Sequential(parts)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.extractor(x)
        return features, self.head(features)


def tensors(module: nn.Module) -> Named:
    """Return copies of all parameters and buffers."""
    every = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in every}


@torch.no_grad()
def load(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Copy values into the tensors of their names."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in values.items():
        own[name].copy_(value)
    return module


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm)


def norm_names(module: nn.Module) -> set[str]:
    """Return the names of the tensors of normalisation layers."""
    return {
        f"{prefix}.{name}"
        for prefix, layer in module.named_modules()
        if is_norm(layer)
        for name in (*dict(layer.named_parameters()), *dict(layer.named_buffers()))
    }


def matching(values: Mapping[str, Tensor], test: Callable[[str], bool]) -> Named:
    return {name: value for name, value in values.items() if test(name)}


def mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean; the maximum of counters."""
    if not values[0].is_floating_point():
        return torch.stack(list(values)).amax(0)
    total = sum(w * v.double() for w, v in zip(weights, values, strict=True))
    return (total / sum(weights)).to(values[0].dtype)


# --- metrics -------------------------------------------------------------------------------------


class Confusion:
    """What a model says of some images: hits, images and answers of each class."""

    def __init__(self, logits: Tensor, labels: Tensor, classes: int, k: int | None) -> None:
        answers = logits.argmax(1)
        self.hits, self.images, self.answers = np.zeros((3, classes), int)
        for answer, label in zip(answers.tolist(), labels.tolist(), strict=True):
            self.hits[label] += answer == label
            self.images[label] += 1
            self.answers[answer] += 1
        self.total = len(labels)
        self.right = int(self.hits.sum())
        self.top = 0
        if k is not None:
            order = logits.argsort(dim=1, descending=True, stable=True)[:, :k]
            self.top = int((order == labels.unsqueeze(1)).sum())

    @property
    def accuracy(self) -> float:
        return self.right / self.total

    @property
    def f1(self) -> float:
        held = self.images > 0
        return float(np.mean(2 * self.hits[held] / (self.images + self.answers)[held]))


@dataclass
class Tested:
    """One client's answers on its own images, and on the images that all share."""

    own: Confusion
    shared: Mapping[str, Confusion]


def metrics_of(loop: Loop, round_: int, tested: Mapping[int, Tested]) -> dict[str, float]:
    """Return all metrics of the clients' own models on one kind of images."""
    keys, values = loop.keys, {}
    joined = [i for i in loop.joined(round_) if i in tested]
    scores = {i: tested[i].own for i in joined if tested[i].own.total}
    if scores:
        each = np.array([s.accuracy for s in scores.values()])
        pooled = sum(s.right for s in scores.values()) / sum(s.total for s in scores.values())
        few, line = max(1, round(len(each) / 10)), sorted(each)
        squares = len(each) * sum(each**2)
        values = {
            "local_accuracy": each.mean(),
            "local_accuracy_weighted": pooled,
            "local_accuracy_std": np.sqrt(np.mean((each - each.mean()) ** 2)),
            "local_accuracy_worst10": np.mean(line[:few]),
            "local_accuracy_best10": np.mean(line[-few:]),
            "local_accuracy_jain": sum(each) ** 2 / squares if squares else 1.0,
            "local_macro_f1": np.mean([s.f1 for s in scores.values()]),
        }
        if loop.one_model:
            values["global_accuracy"] = pooled
        k = keys["evaluation"]["top_k"]
        if k is not None:
            values[f"local_accuracy_top{k}"] = np.mean([s.top / s.total for s in scores.values()])
        values |= _by_size(loop, round_, scores) | _by_domain(loop, round_, scores)
    late = [i for i in range(loop.clients) if i not in loop.joined(0)]
    new = [tested[i].own for i in late if i in tested and tested[i].own.total]
    if new:
        values["new_accuracy"] = np.mean([s.accuracy for s in new])
    early = [s for i, s in scores.items() if i not in late]
    if early and any(i in tested for i in late):
        values["earlier_accuracy"] = np.mean([s.accuracy for s in early])
    return values | _shared(loop, [tested[i] for i in joined])


def _by_size(loop: Loop, round_: int, scores: Mapping[int, Confusion]) -> dict[str, float]:
    """Accuracy on classes with more, and with at most, the client's mean number of images."""
    sums = {"majority": [0, 0], "minority": [0, 0]}
    for i, score in scores.items():
        counts = np.bincount(loop.given.labels[loop.split(round_).train[i]], minlength=loop.C)
        for c in range(loop.C):
            part = sums["majority" if counts[c] > counts.mean() else "minority"]
            part[0] += score.hits[c]
            part[1] += score.images[c]
    return {f"accuracy_{name}": hits / n for name, (hits, n) in sums.items() if n}


def _by_domain(loop: Loop, round_: int, scores: Mapping[int, Confusion]) -> dict[str, float]:
    if loop.given.domains is None:
        return {}
    owners: dict[str, list[Confusion]] = {}
    for i, train in enumerate(loop.split(round_).train):
        names = {loop.given.domains[n] for n in train}
        if len(names) > 1:
            return {}
        if i in scores:
            owners.setdefault(names.pop(), []).append(scores[i])
    pooled = {n: sum(s.right for s in g) / sum(s.total for s in g) for n, g in owners.items()}
    means = {n: np.mean([s.accuracy for s in group]) for n, group in owners.items()}
    spread = {n: np.std([s.accuracy for s in group]) for n, group in owners.items()}
    return {
        **{f"accuracy_{n}": v for n, v in pooled.items()},
        "accuracy_domains": np.mean(list(pooled.values())),
        **{f"client_accuracy_{n}": v for n, v in means.items()},
        "client_accuracy_domains": np.mean(list(means.values())),
        **{f"client_accuracy_{n}_std": v for n, v in spread.items()},
    }


def _shared(loop: Loop, tested: Sequence[Tested]) -> dict[str, float]:
    values, by_domain, k = {}, {}, loop.keys["evaluation"]["top_k"]
    for name in tested[0].shared if tested else ():
        scores = [t.shared[name] for t in tested]
        each = np.array([s.accuracy for s in scores])
        if name == "everybody":
            values["global_test_accuracy"] = each.mean()
            values["global_test_accuracy_std"] = each.std()
            if k is not None:
                share = np.mean([s.top / s.total for s in scores])
                values[f"global_test_accuracy_top{k}"] = share
        else:
            domain = name.removeprefix("domain:")
            by_domain[domain] = each.mean()
            values[f"everyone_accuracy_{domain}"] = each.mean()
            values[f"everyone_accuracy_{domain}_std"] = each.std()
    if by_domain:
        values["everyone_accuracy_domains"] = np.mean(list(by_domain.values()))
    return values


# --- one run -------------------------------------------------------------------------------------


class Loop:
    """Local training without communication, and the loop of rounds of all methods.

    Args:
        given: the inputs of the run.
        dtype: single or double precision.
        nudge: not 0 for initial weights of which about the last digit is another.
    """

    one_model: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str] = "weights"

    def __init__(self, given: Given, dtype: torch.dtype = torch.float32, nudge: int = 0) -> None:
        self.given, self.keys, self.nudge = given, given.keys, nudge
        self.dtype = dtype if given.inputs is None else torch.float32
        self.C, self.d, self.clients = given.classes, given.width, given.keys["data"]["clients"]
        self.hp = {k: v for k, v in given.keys["algorithm"].items() if k != "name"}
        self.draws = Draws(given.keys["seed"])
        self.x = self.pixels(given.images) if given.inputs is None else given.inputs[0]
        self.y = torch.from_numpy(np.array(given.labels))
        self.nets: dict[str, Any] = {}
        self.records: list[Record] = []
        self.losses: list[float] = []
        self.own: dict[int, Named] = {}
        self.memory: dict[int, dict[str, Any]] = {i: {} for i in range(self.clients)}

    # --- inputs ----------------------------------------------------------------------------------

    def pixels(self, images: np.ndarray) -> Tensor:
        return (torch.from_numpy(np.array(images)).float() * (2 / 255) - 1).to(self.dtype)

    def real(self, values: Mapping[str, Tensor]) -> Named:
        """Return values in the loop's precision; counters stay."""
        single = torch.float32
        return {
            n: (v.to(self.dtype) if v.dtype == single else v).clone() for n, v in values.items()
        }

    def initial(self, client: int) -> Named:
        values, random = self.real(self.given.initial(client)), Draws(self.nudge).torch("nudge")
        for value in values.values() if self.nudge else ():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=random, dtype=value.dtype)
                value.mul_(1 + 3e-7 * noise)
        return values

    def body(self, architecture: str) -> nn.Module:
        _, channels, side, _ = self.given.images.shape
        return self.given.bodies[architecture](channels, side)

    def plain_net(self, architecture: str, width: int | None = None) -> Net:
        _, channels, side, _ = self.given.images.shape
        body = self.body(architecture)
        with torch.no_grad():
            raw = copy.deepcopy(body).eval()(torch.zeros(2, channels, side, side)).shape[1]
        classes = 0 if "no head" in self.requires else self.C
        return Net(body, raw, width or self.d, classes, self.keys["model"]["projector"])

    def build(self, architecture: str) -> nn.Module:
        inputs = self.given.inputs
        return self.plain_net(architecture) if inputs is None else inputs[1](architecture)

    def net(self, client: int) -> Any:
        """Return the network of a client's architecture, which clients share, in training mode."""
        architecture = self.given.architectures[client]
        if architecture not in self.nets:
            with torch.random.fork_rng(devices=[]):
                net = self.build(architecture)
            single = [p for p in (*net.parameters(), *net.buffers()) if p.dtype == torch.float32]
            for tensor in single:
                tensor.data = tensor.data.to(self.dtype)
            self.nets[architecture] = net
        return self.nets[architecture].train()

    def split(self, round_: int) -> Split:
        return [split for first, split in self.given.phases if first <= round_][-1]

    def count(self, client: int, round_: int) -> int:
        return len(self.split(round_).train[client])

    def joined(self, round_: int) -> range:
        join = self.keys["join"]
        return range(self.clients - (join["clients"] if round_ < join["round"] else 0))

    def lr(self, round_: int) -> float:
        """Return the clients' learning rate in a round."""
        lr, total, p = self.keys["lr"], self.keys["rounds"], self.keys["lr_schedule"]
        done, warm = max(round_, 1) - 1, p["warmup_rounds"]
        if done < warm:
            start = p["warmup_lr"]
            return start + (lr - start) * done / warm
        if p["name"] == "constant":
            return lr
        if p["name"] == "steps":
            return lr * p["factor"] ** sum(m <= done for m in p["milestones"])
        share = (done - warm) / (total - warm)
        return p["final_lr"] + (lr - p["final_lr"]) * (1 + math.cos(math.pi * share)) / 2

    def participants(self, round_: int) -> list[int]:
        joined = len(self.joined(round_))
        count = max(1, round(self.keys["participation"] * joined))
        if count == joined:
            return list(range(joined))
        random = self.draws.numpy("participation", round_)
        return sorted(random.choice(joined, size=count, replace=False).tolist())

    def drops(self, round_: int, client: int) -> bool:
        share = self.keys["faults"]["drop"]
        return share > 0 and self.draws.numpy("fault_drop", round_, client).random() < share

    # --- training --------------------------------------------------------------------------------

    def seed(self, step: str, client: int, round_: int = 0) -> None:
        """Seed what dropout draws from, at the beginning of a step or test."""
        torch.manual_seed(self.draws.number(f"layers/{step}", round_, client))

    def batches(
        self, n: int, random: torch.Generator, size: int, *, shuffle: bool, drop_last: bool
    ) -> list[Tensor]:
        """Return the positions of an epoch's batches; one last image joins the others."""
        order = torch.randperm(n, generator=random) if shuffle else torch.arange(n)
        parts = list(order.split(size))
        if drop_last and len(parts[-1]) < size:
            return parts[:-1]
        if len(parts) > 1 and len(parts[-1]) == 1 < size:
            parts[-2:] = [torch.cat(parts[-2:])]
        return parts

    def seen_as(self, index: Tensor, random: torch.Generator) -> Tensor:
        """Return the training images at some positions, augmented if the run augments them."""
        choice = self.keys["data"]["augment"]
        if choice["name"] == "none":
            return self.x[index]
        images = torch.from_numpy(np.array(self.given.images))[index]
        return self.pixels(AUGMENTATIONS[choice["name"]](images, choice, random).numpy())

    def optimizer(self, learn: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        p = self.keys["optimizer"]
        if p["name"] == "sgd":
            momentum, nesterov = p["momentum"], p["nesterov"]
            decay = p["weight_decay"]
            return torch.optim.SGD(learn, lr, momentum, weight_decay=decay, nesterov=nesterov)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[p["name"]]
        return kind(learn, lr, tuple(p["betas"]), p["eps"], p["weight_decay"])

    def fit(
        self,
        net: Any,
        client: int,
        round_: int,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        *,
        learn: Callable[[str], bool] | None = None,
        extra: Sequence[Tensor] = (),
        repeat: int = 1,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        order: str = "batches",
        images: tuple[Tensor, Tensor] | None = None,
        decay: Callable[[float], float] | None = None,
        optimizer: Callable[[Sequence[Tensor], float], torch.optim.Optimizer] | None = None,
        **changes: Any,
    ) -> int:
        """Train on a client's images; return the number of batches, and note the last loss.

        Args:
            net: the network, which begins with its present weights.
            client: the client.
            round_: the round, which orders the images.
            loss: from images, labels and their positions.
            learn: which parameters learn, by name; None for all that the network does not freeze.
            extra: further tensors that learn.
            repeat: steps on each batch.
            before: called before each step.
            after: called after each batch.
            order: the stream that orders the images.
            images: other images than the client's, and their labels.
            decay: the factor of the learning rate after a share of the batches.
            optimizer: another optimiser than the experiment's.
            changes: epochs, lr, size, shuffle, drop_last or clip, where they are not the keys'.
        """
        keys = self.keys
        train = torch.from_numpy(self.split(round_).train[client])
        x, y = (self.x[train], self.y[train]) if images is None else images
        views = self.draws.torch("augment", round_, client) if images is None else None
        lr = changes["lr"] if "lr" in changes else self.lr(round_)
        size = changes.get("size", keys["batch_size"])
        clip = changes.get("clip", keys["clip_grad_norm"])
        random = self.draws.torch(order, round_, client)
        shuffle = changes.get("shuffle", keys["shuffle"])
        drop = changes.get("drop_last", keys["drop_last"] and images is None)
        epochs = [
            self.batches(len(y), random, size, shuffle=shuffle, drop_last=drop)
            for _ in range(changes.get("epochs", keys["local_epochs"]))
        ]
        frozen = {n: p.requires_grad for n, p in net.named_parameters()}
        net.train()
        if learn is not None:
            for name, parameter in net.named_parameters():
                parameter.requires_grad_(frozen[name] and learn(name))
        for module in filter(is_norm, net.modules()):
            learns = [p.requires_grad for p in module.parameters()]
            if not any(learns) and (learns or learn is not None):
                module.eval()
        for tensor in extra:
            tensor.requires_grad_()
        learning = [p for p in net.parameters() if p.requires_grad] + list(extra)
        make = optimizer or self.optimizer
        steps, total, done = make(learning, lr), sum(map(len, epochs)), 0
        for parts in epochs:
            loss_sum = 0.0
            for part in parts:
                if decay is not None:
                    steps.param_groups[0]["lr"] = lr * decay(done / total)
                batch = self.seen_as(train[part], views) if views is not None else x[part]
                for _ in range(repeat):
                    steps.zero_grad()
                    value = loss(batch, y[part], part)
                    value.backward()
                    before()
                    if clip is not None:
                        nn.utils.clip_grad_norm_(learning, clip)
                    steps.step()
                    self.records[-1].steps += 1
                after()
                done += 1
                loss_sum += float(value.detach()) * len(part)
            last = loss_sum / sum(map(len, parts))
        self.last_loss = last
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(frozen[name])
            parameter.grad = None
        for tensor in extra:
            tensor.requires_grad_(False)
        return total

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        """Return the loss of a batch, with which heads are fine-tuned, too."""
        features, logits = net(x)
        return self.task(features, logits, y)

    def task(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """Return the part of the loss that learns the labels."""
        return F.cross_entropy(logits, y)

    def train(self, net: Any, client: int, round_: int, **options: Any) -> int:
        return self.fit(
            net, client, round_, lambda x, y, _: self.loss(net, x, y, client), **options
        )

    @torch.no_grad()
    def outputs(self, net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits in evaluation mode."""
        net.eval()
        parts = [net(part)[:2] for part in x.split(500)]
        net.train()
        features, logits = zip(*parts, strict=True)
        return torch.cat(features), torch.cat(logits)

    # --- what travels ----------------------------------------------------------------------------

    @staticmethod
    def named(kind: str, place: str, values: Mapping[str, Tensor]) -> Upload:
        return {f"{place}.{name}": (kind, value) for name, value in values.items()}

    def model_fields(self, values: Mapping[str, Tensor], net: nn.Module) -> Upload:
        buffers = {name for name, _ in net.named_buffers()}
        weights = matching(values, lambda n: n not in buffers)
        statistics = matching(values, lambda n: n in buffers)
        return {
            **self.named(self.kind, "weights", weights),
            **self.named("statistics", "buffers", statistics),
        }

    @staticmethod
    def covered(kind: str, value: Any) -> bool:
        """Return whether a value is clipped, noised and quantised."""
        is_real = isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0
        return is_real and kind not in ("statistics", "images")

    def note(self, target: dict[str, int], sent: Upload, bits: int = 32) -> None:
        """Add the bytes of what was sent, by kind: a number has four."""
        for kind, value in sent.values():
            size = 4
            if isinstance(value, Tensor):
                single = value.dtype in (torch.float32, self.dtype)
                size = value.numel() * (4 if single else value.element_size())
                if bits < 32 and self.covered(kind, value):
                    rows = len(value) if value.dim() == 2 else 1
                    size = math.ceil(value.numel() * bits / 8) + 4 * rows
            target[kind] = target.get(kind, 0) + size

    def download(self, sent: Upload) -> Upload:
        self.note(self.records[-1].down, sent)
        return sent

    def upload(self, sent: Upload, down: Upload, client: int, step: str) -> Upload:
        """Clip, noise, quantise and count one upload."""
        p, bits, round_ = self.keys["privacy"], self.keys["wire"]["up_bits"], len(self.records) - 1
        values = {n: v for n, (kind, v) in sent.items() if self.covered(kind, v)}
        if p["mode"] != "none":
            start = {
                n: down[n][1] if n in down and down[n][0] == sent[n][0] else torch.zeros_like(v)
                for n, v in values.items()
            }
            squares = sum(float((v - start[n]).double().square().sum()) for n, v in values.items())
            factor = p["clip_norm"] / math.sqrt(squares) if squares else 1.0
            if factor < 1:
                values = {n: start[n] + (v - start[n]) * factor for n, v in values.items()}
            if p["mode"] == "local":
                values = self.noisy(values, f"local/{step}", round_, client, 1)
        if bits < 32:
            values = {n: quantised(v, bits) for n, v in values.items()}
        sent = {n: (kind, values.get(n, v)) for n, (kind, v) in sent.items()}
        self.note(self.records[-1].up, sent, bits)
        return sent

    def noisy(self, values: Named, purpose: str, round_: int, client: int, count: int) -> Named:
        p = self.keys["privacy"]
        deviation = p["noise_multiplier"] * p["clip_norm"] / count
        if deviation == 0:
            return values
        random = self.draws.numpy(f"privacy/{purpose}", round_, client)
        return {
            n: v + torch.from_numpy(np.asarray(random.normal(0, deviation, tuple(v.shape)))).to(v)
            for n, v in values.items()
        }

    def released(self, uploads: dict[int, Upload], step: str) -> dict[int, Upload]:
        """Return what the server may see: under central privacy, the noisy mean alone."""
        if self.keys["privacy"]["mode"] != "central" or not uploads:
            return uploads
        first, count = next(iter(uploads.values())), len(uploads)
        whole: Upload = {}
        for n, (kind, value) in first.items():
            each = [upload[n][1] for upload in uploads.values()]
            if isinstance(value, Tensor):
                whole[n] = kind, mean(each, [1.0] * count)
            else:
                average = sum(each) / count
                whole[n] = kind, round(average) if isinstance(value, int) else average
        values = {n: v for n, (kind, v) in whole.items() if self.covered(kind, v)}
        values = self.noisy(values, f"central/{step}", len(self.records) - 1, 0, count)
        noisy = {n: (kind, values.get(n, v)) for n, (kind, v) in whole.items()}
        return dict.fromkeys(uploads, noisy)

    def call(
        self,
        downs: Mapping[int, Upload],
        work: Callable[[int, Upload], Upload],
        step: str = "client_update",
    ) -> dict[int, Upload]:
        """Send downloads, run a step of the clients that answer, and return their uploads."""
        record, round_ = self.records[-1], len(self.records) - 1
        uploads = {}
        for i, down in sorted(downs.items()):
            self.download(down)
            if round_ and self.drops(round_, i):
                if i not in record.dropped:
                    record.dropped.append(i)
                continue
            self.seed(step, i, round_)
            self.last_loss = None
            sent = work(i, down)
            if sent:
                uploads[i] = self.upload(sent, down, i, step)
            if self.last_loss is not None:
                self.losses.append(self.last_loss)
        return self.released(uploads, step)

    # --- the method ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Set the states of server and clients before the first round, and give gifts."""
        self.own = {i: self.initial(i) for i in range(self.clients)}

    def round(self, round_: int, who: Sequence[int]) -> None:
        """Run one round of the method."""

        def work(i: int, down: Upload) -> Upload:
            net = load(self.net(i), self.own[i])
            self.train(net, i, round_)
            self.own[i] = tensors(net)
            return {}

        self.call({i: {} for i in who}, work)

    def tested(self, client: int) -> Any:
        """Return the network that a client is tested with."""
        return load(self.net(client), self.own[client])

    def predict(self, net: Any, x: Tensor, client: int) -> Tensor:
        return net(x)[1]

    def final(self) -> dict[str, Named]:
        """Return the weights at the end, by owner."""
        return {f"client {i}": self.own[i] for i in range(self.clients) if i in self.own}

    # --- the loop of rounds ----------------------------------------------------------------------

    def run(self) -> list[Record]:
        """Run all rounds; return their numbers."""
        for r in range(self.keys["rounds"] + 1):
            self.records.append(Record())
            self.losses = []
            if r == 0:
                self.begin()
            else:
                self.records[r].participants = self.participants(r)
                self.round(r, self.records[r].participants)
            self.measure(r)
        return self.records

    def measure(self, r: int) -> None:
        record, every = self.records[r], self.keys["eval_every"]
        last = r == self.keys["rounds"]
        if last or (every and r % every == 0):
            models = [self.answers(i, self.tested(i), i, r) for i in range(self.clients)]
            record.metrics |= self.of_images(r, {i: [m] for i, m in enumerate(models)})
            self.seen = models
            record.per_client = {
                i: m["test"].own.accuracy
                for i, m in enumerate(models)
                if m["test"].own.total and (i in self.joined(r) or self.keys["join"]["clients"])
            }
            if last and self.keys["finetune_epochs"]:
                record.metrics |= self.fine_tuned(r)
        if self.losses:
            record.metrics["train_loss"] = sum(self.losses) / len(self.losses)
        schedule = self.keys["lr_schedule"]
        if r and (schedule["name"] != "constant" or schedule["warmup_rounds"]):
            record.metrics["learning_rate"] = self.lr(r)

    def of_images(self, r: int, models: Mapping[int, list[dict[str, Tested]]]) -> dict[str, float]:
        tested = {i: m[0]["test"] for i, m in models.items()}
        values = metrics_of(self, r, tested)
        if self.split(r).validation is not None:
            on_validation = {i: m[0]["validation"] for i, m in models.items()}
            found = metrics_of(self, r, on_validation)
            values |= {f"validation/{name}": value for name, value in found.items()}
        return {name: float(value) for name, value in values.items()}

    @torch.no_grad()
    def answers(self, client: int, net: Any, owner: int, r: int) -> dict[str, Tested]:
        """Test a client's network on its test and validation images, and on the shared sets."""
        split, found = self.split(r), {}
        kinds = {"test": (split.test, split.shared)}
        if split.validation is not None:
            kinds["validation"] = (split.validation, split.shared_validation)
        self.seed("evaluate", client)
        net.eval()
        for name, (own, shared) in kinds.items():
            of_sets = {n: self.confusion(net, index, owner) for n, index in shared.items()}
            found[name] = Tested(self.confusion(net, own[client], owner), of_sets)
        net.train()
        return found

    def confusion(self, net: Any, index: np.ndarray, client: int) -> Confusion:
        batches = self.x[index].split(500) if len(index) else ()
        parts = [self.predict(net, x, client) for x in batches]
        logits = torch.cat(parts) if parts else torch.zeros(0, self.C)
        self.records[-1].logits.append(logits.double())
        return Confusion(logits, self.y[index], self.C, self.keys["evaluation"]["top_k"])

    def fine_tuned(self, r: int) -> dict[str, float]:
        """Train every client's head alone after the last round, and test after each epoch."""
        scores = []
        for i in range(self.clients):
            net = self.tested(i)
            self.seed("finetune", i)
            self.download_for_test(i)
            epochs = [self.answers(i, net, i, r)]
            self.seed("finetune", i)
            steps, phases = self.records[-1].steps, self.given.phases
            self.given.phases = [(0, self.split(r))]
            for _ in self.tune(net, i, r):
                with torch.random.fork_rng(devices=[]):  # dropout goes on where it was
                    epochs.append(self.answers(i, net, i, r))
            self.given.phases = phases
            self.records[-1].steps = steps  # of tests, which are not counted
            if epochs[0]["test"].own.total:
                scores.append(epochs)
        if not scores:
            return {}
        found = {"finetuned_accuracy": np.mean([e[-1]["test"].own.accuracy for e in scores])}
        on_test = self.keys["report"]["select"] == "test"
        validated = [e for e in scores if e[0].get("validation") and e[0]["validation"].own.total]
        if validated or on_test:
            found["finetuned_accuracy_best"] = np.mean(
                [e[self.best_epoch(e, on_test)]["test"].own.accuracy for e in scores]
            )
        if self.split(r).validation is not None and validated:
            each = [[t["validation"].own.accuracy for t in e] for e in validated]
            found["validation/finetuned_accuracy"] = np.mean([e[-1] for e in each])
            found["validation/finetuned_accuracy_best"] = np.mean([max(e) for e in each])
        return {name: float(value) for name, value in found.items()}

    def tune(self, net: Any, client: int, r: int) -> Iterator[None]:
        """Train the head after the last round; pause after each epoch."""
        for epoch in range(self.keys["finetune_epochs"]):
            options = {"epochs": 1, "lr": self.keys["lr"]}
            self.train(net, client, r + 1 + epoch, learn=lambda n: n.startswith("head."), **options)
            yield

    def download_for_test(self, client: int) -> None:
        """Do nothing: what tests are sent is not counted."""

    @staticmethod
    def best_epoch(epochs: Sequence[dict[str, Tested]], on_test: bool) -> int:
        kind = "test" if on_test else "validation"
        if kind not in epochs[0] or not epochs[0][kind].own.total:
            return len(epochs) - 1
        each = [epoch[kind].own.accuracy for epoch in epochs]
        return each.index(max(each))


def quantised(value: Tensor, bits: int) -> Tensor:
    """Round to 2^(b-1) - 1 steps on both sides of 0, of the largest entry of a row."""
    levels, rows = 2 ** (bits - 1) - 1, value.double()
    rows = rows if value.dim() == 2 else rows.reshape(1, -1)
    step = rows.abs().amax(1, keepdim=True) / levels
    codes = torch.round(rows / step.where(step > 0, torch.ones_like(step)))
    return (codes.clamp(-levels, levels) * step).to(value.dtype).reshape(value.shape)


# --- privacy -------------------------------------------------------------------------------------


def epsilon_of(sigma: float, times: int, delta: float) -> float:
    """Return epsilon of some Gaussian mechanisms of which each replaces a client (Balle, Wang)."""
    if not times:
        return 0.0
    mu, low, high = 2 * math.sqrt(times) / sigma, 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        first = log_ndtr(mu / 2 - middle / mu)
        second = middle + log_ndtr(-mu / 2 - middle / mu)
        exceeds = first > second and first + math.log1p(-math.exp(second - first)) > math.log(delta)
        low, high = (middle, high) if exceeds else (low, middle)
    return high


def sampled_epsilon(sigma: float, rounds: Sequence[tuple[float, int]], delta: float) -> float:
    """Return a bound of epsilon when rounds draw a share of the clients (Wang et al., Theorem 9).

    Args:
        sigma: the noise multiplier.
        rounds: the share, and the number of noisy sums, of each round.
        delta: delta.
    """
    best = math.inf
    for a in range(2, 129):
        total = 0.0
        for share, k in rounds:
            of = [2 * k * j / sigma**2 for j in range(a + 1)]
            if share == 1:
                total += of[a]
                continue
            terms = [0.0]
            for j in range(2, a + 1):
                choose = math.lgamma(a + 1) - math.lgamma(j + 1) - math.lgamma(a - j + 1)
                most = math.log(2) + (j - 1) * of[j]
                if j == 2 and of[2] < 0.6:
                    most = math.log(4 * math.expm1(of[2]))
                terms.append(j * math.log(share) + choose + most)
            total += min(of[a], float(np.logaddexp.reduce(terms)) / (a - 1))
        best = min(best, total + math.log1p(-1 / a) - math.log(delta * a) / (a - 1))
    return max(best, 0.0)


# --- one model for all ---------------------------------------------------------------------------


class FedAvg(Loop):
    """Clients train the shared part of the model, and the server takes its mean."""

    one_model = True

    def shares(self, name: str) -> bool:
        return True

    def keeps(self, name: str) -> bool:
        return not self.shares(name)

    def begin(self) -> None:
        self.model = matching(self.initial(0), self.shares)
        self.own = {i: matching(self.initial(i), self.keeps) for i in range(self.clients)}

    def down(self, client: int) -> Upload:
        return self.model_fields(self.model, self.net(client))

    def start(self, client: int) -> Any:
        """Return the network with which a round or test begins."""
        return load(self.net(client), {**self.own[client], **self.model})

    def work(self, client: int, round_: int) -> Upload:
        """Train, and return the upload."""
        net = self.start(client)
        self.train(net, client, round_)
        return self.finish(net, client, round_)

    def finish(self, net: Any, client: int, round_: int) -> Upload:
        after = tensors(net)
        self.own[client] = matching(after, self.keeps)
        return self.update(matching(after, self.shares), net, client, round_)

    def update(self, values: Named, net: Any, client: int, round_: int) -> Upload:
        samples = {"samples": ("statistics", self.count(client, round_))}
        return {**self.model_fields(values, net), **samples}

    def weight(self, upload: Upload) -> float:
        return upload["samples"][1] if self.hp["weights"] == "samples" else 1.0

    def round(self, round_: int, who: Sequence[int]) -> None:
        downs = {i: self.down(i) for i in who}
        uploads = self.call(downs, lambda i, _: self.work(i, round_))
        if uploads:
            self.server(uploads)

    def means(self, uploads: Mapping[int, Upload], names: Sequence[str]) -> Named:
        """Return the weighted means of the uploaded parts of the model."""
        weights = [self.weight(u) for u in uploads.values()]

        def of(name: str, upload: Upload) -> Tensor:
            place = f"weights.{name}" if f"weights.{name}" in upload else f"buffers.{name}"
            return upload[place][1]

        return {n: mean([of(n, u) for u in uploads.values()], weights) for n in names}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        self.model = self.means(uploads, list(self.model))

    def tested(self, client: int) -> Any:
        return self.start(client)

    def final(self) -> dict[str, Named]:
        return {"server": self.model, **super().final()}


class FedProx(FedAvg):
    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        value = super().loss(net, x, y, client)
        return value + proximal(net, self.model, self.hp["mu"])


def proximal(net: nn.Module, start: Mapping[str, Tensor], mu: float) -> Tensor:
    """mu/2 ||w - w_t||^2 over the parameters that the server sent."""
    distances = [(w - start[n]).square().sum() for n, w in net.named_parameters() if n in start]
    return mu / 2 * torch.stack(distances).sum()


class FedLC(FedAvg):
    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        held = self.y[self.split(len(self.records) - 1).train[client]]
        counts = torch.bincount(held, minlength=self.C).to(self.dtype).clamp_min(1e-8)
        return F.cross_entropy(net(x)[1] - self.hp["tau"] * counts ** (-0.25), y)


class FedBN(FedAvg):
    one_model = False

    def begin(self) -> None:
        self.norms = norm_names(self.net(0))
        super().begin()

    def shares(self, name: str) -> bool:
        return name not in self.norms


class FedBABU(FedAvg):
    """The head keeps its first values, which clients are sent once."""

    def shares(self, name: str) -> bool:
        return not name.startswith("head.")

    def begin(self) -> None:
        super().begin()
        head = matching(self.initial(0), self.keeps)
        for i in range(self.clients):
            self.download(self.named("weights", "head", head))
            self.own[i] = head

    def train(self, net: Any, client: int, round_: int, **options: Any) -> int:
        options.setdefault("learn", self.shares)
        return super().train(net, client, round_, **options)

    def final(self) -> dict[str, Named]:
        return {"server": self.model}


def effective_steps(steps: int, p: Mapping[str, Any]) -> float:
    """The weight of all gradients in K steps of SGD, summed step by step."""
    rho, total, velocity = p["momentum"], 0.0, 0.0
    for _ in range(steps):
        velocity = rho * velocity + 1
        total += 1 + rho * velocity if p["nesterov"] else velocity
    return total


class FedNova(FedAvg):
    """x - (sum_i p_i a_i) sum_i p_i (x - y_i) / a_i."""

    def work(self, client: int, round_: int) -> Upload:
        net = self.start(client)
        steps = self.train(net, client, round_)
        a = effective_steps(steps, self.keys["optimizer"])
        return {**self.finish(net, client, round_), "steps": ("statistics", a)}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        weights = np.array([float(self.weight(u)) for u in uploads.values()])
        p = weights / weights.sum()
        a = [u["steps"][1] for u in uploads.values()]
        tau = sum(p * a)
        buffers = {n for n, _ in self.net(0).named_buffers()}
        after = self.means(uploads, [n for n in self.model if n in buffers])
        for n, x in self.model.items():
            if n not in buffers:
                each = [u[f"weights.{n}"][1].double() for u in uploads.values()]
                moved = sum(q * (x.double() - y) / b for q, y, b in zip(p, each, a, strict=True))
                after[n] = (x - tau * moved).to(x.dtype)
        self.model = {n: after[n] for n in self.model}


class Scaffold(FedAvg):
    """Steps w - eta (g - c_i + c); a client's variate follows from its path (option II)."""

    def begin(self) -> None:
        super().begin()
        self.c = {n: torch.zeros_like(p) for n, p in self.net(0).named_parameters()}

    def down(self, client: int) -> Upload:
        return {**super().down(client), **self.named("weights", "control", self.c)}

    def work(self, client: int, round_: int) -> Upload:
        net, memory = self.start(client), self.memory[client]
        c_i = memory.get("control", {n: torch.zeros_like(c) for n, c in self.c.items()})

        def correct() -> None:
            for n, p in net.named_parameters():
                if p.grad is not None:
                    p.grad += self.c[n] - c_i[n]

        steps = self.train(net, client, round_, before=correct)
        length = self.lr(round_) * effective_steps(steps, self.keys["optimizer"])
        y = tensors(net)
        new = {n: c_i[n] - c + (self.model[n] - y[n]) / length for n, c in self.c.items()}
        change = {n: new[n] - c_i[n] for n in new}
        memory["control"] = new
        return {**self.finish(net, client, round_), **self.named("weights", "change", change)}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        x = self.model
        super().server(uploads)
        for n, c in self.c.items():
            self.model[n] = x[n] + self.hp["lr_server"] * (self.model[n] - x[n])
            total = sum(u[f"change.{n}"][1].double() for u in uploads.values())
            self.c[n] = c + (total / self.clients).to(c.dtype)


class Moon(FedAvg):
    """Features near the global model's, and far from those of the client's last model."""

    def start(self, client: int) -> Any:
        net = super().start(client)
        late = len(self.records) - 1 > 1 and "previous" not in self.memory[client]
        if late and self.hp["first"] == "initial" and self.hp["mu"]:
            self.first = {client: self.initial(client)}
        return net

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        z, logits = net(x)
        value = self.task(z, logits, y)
        previous = self.memory[client].get("previous", getattr(self, "first", {}).get(client))
        if previous is None or self.hp["mu"] == 0:
            return value
        with torch.no_grad():
            near = self.frozen(net, {**previous, **self.model})(x)[0]
            far = self.frozen(net, previous)(x)[0]
        s, r = (F.cosine_similarity(z, other, dim=1) / self.hp["tau_moon"] for other in (near, far))
        return value + self.hp["mu"] * -(s - torch.logaddexp(s, r)).mean()

    @staticmethod
    def frozen(net: Any, weights: Named) -> Any:
        return load(copy.deepcopy(net), weights).eval()

    def finish(self, net: Any, client: int, round_: int) -> Upload:
        if self.hp["mu"]:
            self.memory[client]["previous"] = tensors(net)
        return super().finish(net, client, round_)


class PFedMe(FedAvg):
    """K steps towards theta near w on each batch, then w moves to theta."""

    one_model = False

    def begin(self) -> None:
        super().begin()
        self.own = {}

    def round(self, round_: int, who: Sequence[int]) -> None:
        before = self.model
        super().round(round_, who)
        if self.model is not before:
            buffers, beta = {n for n, _ in self.net(0).named_buffers()}, self.hp["beta"]
            for n in self.model:
                if n not in buffers:
                    self.model[n] = (1 - beta) * before[n] + beta * self.model[n]

    def work(self, client: int, round_: int) -> Upload:
        net, p = load(self.net(client), self.model), self.hp
        w = {n: t.detach().clone() for n, t in net.named_parameters()}

        def loss(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
            return self.loss(net, x, y, client) + proximal(net, w, p["lambda"])

        @torch.no_grad()
        def move() -> None:
            for n, theta in net.named_parameters():
                w[n] -= p["eta"] * p["lambda"] * (w[n] - theta)

        self.fit(net, client, round_, loss, repeat=p["inner_steps"], after=move)
        self.own[client] = tensors(net)
        return self.update({**tensors(net), **w}, net, client, round_)

    def tested(self, client: int) -> Any:
        own = self.own.get(client, {}) if self.hp["test"] == "personal" else {}
        return load(self.net(client), {**self.model, **own})


class FedETF(FedAvg):
    """Cosines with the corners of a fixed simplex, times a learned scale."""

    def begin(self) -> None:
        super().begin()
        draw = torch.randn(self.C, self.C, generator=self.draws.torch("fedetf"), dtype=torch.double)
        basis = torch.linalg.qr(draw).Q
        centred = torch.eye(self.C, dtype=torch.double) - 1 / self.C
        m = math.sqrt(self.C / (self.C - 1)) * (basis @ centred)
        self.simplex = m.T.float().to(self.dtype)
        self.scale = torch.tensor(float(self.hp["scale"]), dtype=self.dtype)
        for _ in range(self.clients):
            self.download({"simplex": ("prototypes", self.simplex)})

    def down(self, client: int) -> Upload:
        return {**super().down(client), "extra.scale": ("weights", self.scale)}

    def logits(self, net: Any, x: Tensor, scale: Tensor) -> Tensor:
        return F.normalize(net(x)[1], dim=1, eps=1e-8) @ self.simplex.T * scale

    def learn_balanced(self, net: Any, s: Tensor, client: int, round_: int, **options: Any) -> None:
        held = self.y[self.split(round_).train[client]]
        prior = torch.bincount(held, minlength=self.C).clamp_min(1).to(self.dtype).log()

        def loss(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(net, x, s) + prior, y)

        self.fit(net, client, round_, loss, extra=[s], **options)

    def tune(self, net: Any, client: int, r: int) -> Iterator[None]:
        """Train all for a round, then copies of the simplex and the head in turn."""
        simplex, scale, p = self.simplex, self.scale, self.hp
        self.scale = scale.clone()
        self.learn_balanced(net, self.scale, client, r + 1, lr=self.keys["lr"])

        def loss(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(net, x, self.scale), y)

        for turn in range(self.keys["finetune_epochs"]):
            self.simplex = self.simplex.clone()
            later, epochs = r + 2 + 2 * turn, p["per_epochs"]
            self.fit(
                net, client, later, loss, learn=lambda _: False, extra=[self.simplex],
                optimizer=torch.optim.SGD, epochs=epochs, lr=p["per_simplex_lr"],
            )  # fmt: skip
            self.fit(
                net, client, later + 1, loss, learn=lambda n: n.startswith("head."),
                epochs=epochs, lr=p["per_head_lr"],
            )  # fmt: skip
            yield
        self.simplex, self.scale = simplex, scale

    def work(self, client: int, round_: int) -> Upload:
        net, s = self.start(client), self.scale.clone()
        self.learn_balanced(net, s, client, round_)
        return {**self.finish(net, client, round_), "extra.scale": ("weights", s.detach())}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        super().server(uploads)
        weights = [self.weight(u) for u in uploads.values()]
        self.scale = mean([u["extra.scale"][1] for u in uploads.values()], weights)

    def predict(self, net: Any, x: Tensor, client: int) -> Tensor:
        return self.logits(net, x, self.scale)


# --- texts ---------------------------------------------------------------------------------------


class FedGLCL(FedAvg):
    """Cosines of features and the classes' texts, which clients are sent once."""

    requires = ("text", "no head")

    def begin(self) -> None:
        super().begin()
        assert self.given.text is not None
        self.text = self.given.text.to(self.dtype)
        for _ in range(self.clients):
            self.download({"text": ("text_embeddings", self.text)})

    def cosines(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1, eps=1e-8) @ F.normalize(self.text, dim=1, eps=1e-8).T

    def predict(self, net: Any, x: Tensor, client: int) -> Tensor:
        return self.cosines(net(x)[0])

    def task(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        logits = self.cosines(features) / self.hp["tau"]
        own = logits[torch.arange(len(y)), y]
        if self.hp["denominator"] == "negatives":
            logits = logits.masked_fill(F.one_hot(y, self.C).bool(), -math.inf)
        return (torch.logsumexp(logits, 1) - own).mean()


class FedGLCLProx(FedProx, FedGLCL):
    """Both terms: the next class of FedProx is FedGLCL."""


class FedGLCLMoon(Moon, FedGLCL):
    """Both terms: the next class of Moon is FedGLCL."""


# --- prototypes and heads ------------------------------------------------------------------------


class Prototypes(Loop):
    """Personal models; the mean features of each class travel."""

    def begin(self) -> None:
        super().begin()
        self.vectors = torch.zeros(self.C, self.d, dtype=self.dtype)
        self.present = torch.zeros(self.C, dtype=torch.bool)

    def class_means(self, net: Any, client: int, round_: int) -> Upload:
        train = self.split(round_).train[client]
        features, y = self.outputs(net, self.x[train])[0], self.y[train]
        classes = y.unique()
        counts = torch.stack([(y == c).sum() for c in classes])
        vectors = torch.stack([features[y == c].mean(0) for c in classes])
        return {
            "classes": ("statistics", classes),
            "vectors": ("prototypes", vectors),
            "counts": ("statistics", counts),
        }

    def prototypes(self) -> Upload:
        return {
            "all vectors": ("prototypes", self.vectors),
            "present": ("statistics", self.present),
        }

    def gap(self, features: Tensor, y: Tensor) -> Tensor:
        """The mean squared distance to the prototypes of the classes that have one."""
        held = self.present[y].unsqueeze(1)
        return ((features - self.vectors[y]).square() * held).mean()

    def collect(self, uploads: Mapping[int, Upload], how: str) -> None:
        """Set each uploaded class's prototype to the clients' mean; others stay."""
        self.vectors, self.present = self.vectors.clone(), self.present.clone()
        for c in range(self.C):
            rows, weights = [], []
            for upload in uploads.values():
                for n, held in enumerate(upload["classes"][1].tolist()):
                    if held == c:
                        rows.append(upload["vectors"][1][n])
                        weights.append(float(upload["counts"][1][n]) if how == "weighted" else 1.0)
            if rows:
                self.vectors[c], self.present[c] = mean(rows, weights), True

    def work(self, client: int, round_: int) -> Upload:
        net = load(self.net(client), self.own[client])
        self.train(net, client, round_)
        self.own[client] = tensors(net)
        return self.class_means(net, client, round_)

    def round(self, round_: int, who: Sequence[int]) -> None:
        down = self.prototypes()
        uploads = self.call(dict.fromkeys(who, down), lambda i, _: self.work(i, round_))
        if uploads:
            self.server(uploads)

    def server(self, uploads: Mapping[int, Upload]) -> None:
        self.collect(uploads, self.hp["proto_agg"])


class FedProto(Prototypes):
    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        features, logits = net(x)
        return F.cross_entropy(logits, y) + self.hp["lambda"] * self.gap(features, y)

    def final(self) -> dict[str, Named]:
        return {"server": {"vectors": self.vectors}, **super().final()}


class FedTGP(FedProto):
    """The server trains a network that makes the prototypes, with a margin between classes."""

    def begin(self) -> None:
        super().begin()
        random, d = self.draws.torch("fedtgp"), self.d
        made = [torch.randn(self.C, d, generator=random)]
        for shape in ((d, d), (d,), (d, d), (d,)):
            made.append(torch.empty(shape).uniform_(-(d**-0.5), d**-0.5, generator=random))
        self.generator = [t.to(self.dtype) for t in made]

    def generated(self) -> Tensor:
        e, w1, b1, w2, b2 = self.generator
        return (e @ w1.T + b1).relu() @ w2.T + b2

    def work(self, client: int, round_: int) -> Upload:
        net = load(self.net(client), self.own[client])
        before = self.class_means(net, client, round_) if self.hp["stale"] else {}
        self.train(net, client, round_)
        self.own[client] = tensors(net)
        return before or self.class_means(net, client, round_)

    def server(self, uploads: Mapping[int, Upload]) -> None:
        saved = self.vectors, self.present
        self.present = torch.zeros_like(self.present)
        self.collect(uploads, "uniform")
        means = self.vectors[self.present]
        self.vectors, self.present = saved
        rows = range(len(means))
        gaps = [[float((means[a] - means[b]).norm()) for b in rows if b != a] for a in rows]
        margin = max(map(min, gaps)) if len(means) > 1 else 0.0
        margin = min(margin, self.hp["margin_threshold"])

        def loss(vectors: Tensor, y: Tensor) -> Tensor:
            gaps = vectors.unsqueeze(1) - self.generated().unsqueeze(0)
            distance = torch.linalg.vector_norm(gaps, dim=2)
            return F.cross_entropy(-(distance + margin * F.one_hot(y, self.C)), y)

        train_on_uploads(self, self.generator, loss, uploads, "fedtgp_batches")
        self.vectors, self.present = self.generated(), torch.ones_like(self.present)


def train_on_uploads(
    loop: Loop, learn: Sequence[Tensor], loss: Any, uploads: Mapping[int, Upload], stream: str
) -> None:
    """Train tensors of the server on the class means of all clients."""
    vectors = torch.cat([u["vectors"][1] for u in uploads.values()])
    y = torch.cat([u["classes"][1] for u in uploads.values()])
    size = loop.hp["server_batch_size"] or loop.keys["batch_size"]
    random = loop.draws.torch(stream, len(loop.records) - 1)
    for tensor in learn:
        tensor.requires_grad_()
    sgd = torch.optim.SGD(learn, loop.hp["server_lr"])
    for _ in range(loop.hp["server_epochs"]):
        for part in torch.randperm(len(y), generator=random).split(size):
            sgd.zero_grad()
            loss(vectors[part], y[part]).backward()
            sgd.step()
    for tensor in learn:
        tensor.requires_grad_(False)


class FedProtoGlobal(FedAvg, Prototypes):
    """Means of models and of prototypes."""

    def begin(self) -> None:
        Prototypes.begin(self)
        FedAvg.begin(self)

    def down(self, client: int) -> Upload:
        return {**super().down(client), **self.prototypes()}

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        features, logits = net(x)
        return F.cross_entropy(logits, y) + self.hp["mu"] * self.gap(features, y)

    def finish(self, net: Any, client: int, round_: int) -> Upload:
        update = super().finish(net, client, round_)  # first, in the order of the noise
        return {**update, **self.class_means(net, client, round_)}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        FedAvg.server(self, uploads)
        self.collect(uploads, self.hp["proto_agg"])


class FedPAC(FedProtoGlobal):
    """A shared extractor, and a head for each client that is mixed of all heads."""

    one_model = False

    def shares(self, name: str) -> bool:
        return not name.startswith("head.")

    def work(self, client: int, round_: int) -> Upload:
        net, train = self.start(client), self.split(round_).train[client]
        z, y = self.outputs(net, self.x[train])[0].double(), self.y[train]
        n = len(y)
        h = torch.stack([z[y == c].sum(0) / n for c in range(self.C)])
        variance = max(float((z.square().sum(1).mean() - h.square().sum()) / n), 0.0)
        if self.hp["head_epochs"]:
            options = {"epochs": self.hp["head_epochs"], "lr": self.hp["head_lr"]}
            ce = lambda x, y, _: F.cross_entropy(net(x)[1], y)  # noqa: E731
            self.fit(net, client, round_, ce, learn=self.keeps, **options)
        saved = self.vectors, self.present
        if bool(self.present.any()):  # its own means, of classes that nobody has uploaded
            share = torch.bincount(y, minlength=self.C) / n
            own = (h / share.clamp_min(1e-30).unsqueeze(1)).to(self.dtype)
            self.vectors = torch.where(self.present.unsqueeze(1), self.vectors, own)
            self.present = self.present | (share > 0)
        self.fit(net, client, round_, lambda x, y, _: self.aligned(net, x, y), learn=self.shares)
        self.vectors, self.present = saved
        after = tensors(net)
        update = self.finish(net, client, round_)
        statistics: Upload = {
            **self.named("weights", "head", matching(after, self.keeps)),
            "means": ("prototypes", h.to(self.dtype)),
            "variance": ("statistics", variance),
        }
        return {**update, **statistics}

    def aligned(self, net: Any, x: Tensor, y: Tensor) -> Tensor:
        features, logits = net(x)
        return F.cross_entropy(logits, y) + self.hp["lambda"] * self.gap(features, y)

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        return Loop.loss(self, net, x, y, client)

    def round(self, round_: int, who: Sequence[int]) -> None:
        downs = {i: self.down(i) for i in who}
        uploads = self.call(downs, lambda i, _: self.work(i, round_))
        heads = {i: self.mixed(uploads, i) for i in uploads}

        def receive(i: int, down: Upload) -> Upload:
            head = {n.removeprefix("head."): v for n, (_, v) in down.items()}
            self.own[i] = {**self.own[i], **head}
            return {}

        self.call(heads, receive, "receive_head")
        if uploads:
            self.server(uploads)

    def mixed(self, uploads: Mapping[int, Upload], client: int) -> Upload:
        """Return the client's head: the weights minimise a^T (diag(V) + D) a on the simplex."""
        from scipy.optimize import minimize

        every = list(uploads)
        h = {j: uploads[j]["means"][1].double() for j in every}
        count = len(every)
        q = np.zeros((count, count))
        for a, j in enumerate(every):
            for b, k in enumerate(every):
                q[a, b] = float(((h[client] - h[j]) * (h[client] - h[k])).sum())
            q[a, a] += uploads[j]["variance"][1]
        scale = np.trace(q) or 1.0
        found = minimize(
            lambda a: a @ q @ a / scale,
            np.full(count, 1 / count),
            jac=lambda a: 2 * q @ a / scale,
            bounds=[(0, 1)] * count,
            constraints={
                "type": "eq",
                "fun": lambda a: a.sum() - 1,
                "jac": lambda a: np.ones(count),
            },
            options={"ftol": 1e-15, "maxiter": 1000},
            method="SLSQP",
        )
        weights = np.where(found.x > self.hp["min_weight"], found.x, 0)
        weights = weights / weights.sum() if weights.any() else found.x
        names = [n for n in uploads[client] if n.startswith("head.")]
        return {
            n: ("weights", mean([u[n][1] for u in uploads.values()], list(weights))) for n in names
        }


class LGFedAvg(Loop):
    """Personal extractors; the mean of the heads."""

    def begin(self) -> None:
        super().begin()
        self.head = matching(self.initial(0), lambda n: n.startswith("head."))

    def fields(self, head: Named) -> Upload:
        return {n: ("weights", v) for n, v in head.items()}

    def work(self, client: int, round_: int) -> Upload:
        net = self.tested(client)
        self.train(net, client, round_)
        self.own[client] = tensors(net)
        return self.uploaded(net, client, round_)

    def uploaded(self, net: Any, client: int, round_: int) -> Upload:
        head = matching(tensors(net), lambda n: n.startswith("head."))
        return {**self.fields(head), "samples": ("statistics", self.count(client, round_))}

    def round(self, round_: int, who: Sequence[int]) -> None:
        down = self.fields(self.head)
        uploads = self.call(dict.fromkeys(who, down), lambda i, _: self.work(i, round_))
        if uploads:
            self.server(uploads)

    def server(self, uploads: Mapping[int, Upload]) -> None:
        weights = [float(u["samples"][1]) for u in uploads.values()]
        self.head = {n: mean([u[n][1] for u in uploads.values()], weights) for n in self.head}

    def tested(self, client: int) -> Any:
        return load(self.net(client), {**self.own[client], **self.head})

    def final(self) -> dict[str, Named]:
        return {"server": self.head, **super().final()}


class FedGH(LGFedAvg, Prototypes):
    """The server trains the head on the clients' mean features."""

    def begin(self) -> None:
        LGFedAvg.begin(self)

    def uploaded(self, net: Any, client: int, round_: int) -> Upload:
        means = self.class_means(net, client, round_)
        return {name: means[name] for name in ("classes", "vectors")}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        head = {n: v.clone() for n, v in self.head.items()}

        def loss(vectors: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(vectors @ head["head.weight"].T + head["head.bias"], y)

        train_on_uploads(self, list(head.values()), loss, uploads, "fedgh_batches")
        self.head = head


class FedDistill(Loop):
    """The mean logits of each class teach all clients."""

    def begin(self) -> None:
        super().begin()
        self.outputs_of = torch.zeros(self.C, self.C, dtype=self.dtype)
        self.present = torch.zeros(self.C, dtype=torch.bool)

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        logits = net(x)[1]
        self.noted.append((logits.detach(), y))
        teachers = self.outputs_of.softmax(1)[y]
        term = -(teachers * logits.log_softmax(1)).sum(1) * self.present[y]
        return F.cross_entropy(logits, y) + self.hp["gamma"] * term.mean()

    def work(self, client: int, round_: int) -> Upload:
        net, self.noted = load(self.net(client), self.own[client]), []
        self.train(net, client, round_)
        self.own[client] = tensors(net)
        logits, y = (torch.cat(parts) for parts in zip(*self.noted, strict=True))
        classes = y.unique()
        means = torch.stack([logits[y == c].mean(0) for c in classes])
        return {"classes": ("statistics", classes), "outputs": ("logits", means)}

    def round(self, round_: int, who: Sequence[int]) -> None:
        down: Upload = {
            "all outputs": ("logits", self.outputs_of),
            "present": ("statistics", self.present),
        }
        uploads = self.call(dict.fromkeys(who, down), lambda i, _: self.work(i, round_))
        self.outputs_of, self.present = self.outputs_of.clone(), self.present.clone()
        for c in range(self.C):
            rows = [
                u["outputs"][1][u["classes"][1] == c][0]
                for u in uploads.values()
                if bool((u["classes"][1] == c).any())
            ]
            if rows:
                self.outputs_of[c] = torch.stack(rows).mean(0)
                self.present[c] = True

    noted: list[tuple[Tensor, Tensor]] = []  # noqa: RUF012


# --- a small model beside the client's own -------------------------------------------------------


class Pair(nn.Module):
    """A client's network, the small one, and the layer between them."""

    def __init__(self, own: Net, small: Net, joint: nn.Module, *, fused: bool) -> None:
        super().__init__()
        self.extractor, self.head, self.auxiliary, self.joint = (
            own.extractor,
            own.head,
            small,
            joint,
        )
        self.fused = fused

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self.fused:
            g = self.auxiliary.extractor(x)
            f = self.joint(torch.cat([g, self.extractor(x)], 1))
            g = f[:, : g.shape[1]]
        else:
            f, g = self.extractor(x), self.auxiliary.extractor(x)
        return f, self.head(f), g, self.auxiliary.head(g)


def divergence(teacher: Tensor, logits: Tensor, over: str) -> Tensor:
    """KL(teacher || logits), a mean over images, or over images and classes."""
    p, q = teacher.log_softmax(1), logits.log_softmax(1)
    value = (p.exp() * (p - q)).sum() / len(p)
    return value if over == "images" else value / logits.shape[1]


class Auxiliary(FedAvg):
    """The mean of the small models; each client keeps its own."""

    one_model = False

    def joint(self, small: int) -> nn.Module:
        return nn.Identity()

    def small_width(self) -> int:
        return self.d

    def build(self, architecture: str) -> nn.Module:
        small = self.small_width()
        own, other = (
            self.plain_net(architecture),
            self.plain_net(self.given.architectures[0], small),
        )
        return Pair(own, other, self.joint(small), fused=isinstance(self, FedMRL))

    def shares(self, name: str) -> bool:
        return name.startswith("auxiliary.")

    def train(self, net: Any, client: int, round_: int, **options: Any) -> int:
        if "learn" in options:  # fine-tuning knows the loss alone
            return super().train(net, client, round_, **options)
        bound = self.hp["clip_norm"]
        own = [*net.extractor.parameters(), *net.head.parameters()]
        parts = [own, [*net.auxiliary.parameters()]]
        parts += [] if isinstance(self, FedMRL) else [[*net.joint.parameters()]]

        def clip() -> None:
            for part in parts:
                if bound is not None and part:
                    nn.utils.clip_grad_norm_(part, bound)

        return super().train(net, client, round_, before=clip, **options)

    def teacher(self, value: Tensor) -> Tensor:
        return value if self.hp["teacher_gradients"] else value.detach()


class FML(Auxiliary):
    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        _, z, _, zg = net(x)
        a, b, kl = self.hp["alpha"], self.hp["beta"], self.hp["kl"]
        value = a * F.cross_entropy(z, y) + b * F.cross_entropy(zg, y)
        if a != 1:
            value = value + (1 - a) * divergence(self.teacher(zg), z, kl)
        if b != 1:
            value = value + (1 - b) * divergence(self.teacher(z), zg, kl)
        return value


class FedMRL(Auxiliary):
    def small_width(self) -> int:
        return self.hp["small_dim"] or max(self.d // 4, 1)

    def joint(self, small: int) -> nn.Module:
        return nn.Linear(small + self.d, self.d)

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        _, z, _, zg = net(x)
        return F.cross_entropy(z, y) + F.cross_entropy(zg, y)

    def finish(self, net: Any, client: int, round_: int) -> Upload:
        before = matching(self.own[client], lambda n: n.startswith("joint."))
        update = super().finish(net, client, round_)
        if self.hp["official_bug"]:
            self.own[client] |= before
        return update


class FedKD(Auxiliary):
    """Changes of the small model travel as factors of their singular values."""

    def joint(self, small: int) -> nn.Module:
        return nn.Linear(self.d, self.d, bias=False)

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        f, z, g, zg = net(x)
        ce, ceg, kl, t = F.cross_entropy(z, y), F.cross_entropy(zg, y), self.hp["kl"], self.teacher
        own = divergence(t(zg), z, kl) + (f - net.joint(t(g))).square().mean()
        small = divergence(t(z), zg, kl) + (t(f) - net.joint(g)).square().mean()
        first = ce + own / (ce + F.cross_entropy(t(zg), y)).clamp_min(1e-6)
        return first + ceg + small / (F.cross_entropy(t(z), y) + ceg).clamp_min(1e-6)

    def factors(self, change: Tensor, round_: int) -> Named:
        """Return U, S and V of the least rank with more than the share of the energy, or all."""
        whole = {"whole": change}
        if not self.hp["compress"] or change.dim() < 2 or not bool(change.any()):
            return whole
        start, end = self.hp["energy_start"], self.hp["energy_end"]
        share = start + (end - start) * max(round_ - 1, 0) / self.keys["rounds"]
        u, s, v = torch.linalg.svd(change.reshape(len(change), -1), full_matrices=False)
        energy, rank, held = float(s.double().square().sum()), len(s), 0.0
        for n, value in enumerate(s.double().square().tolist(), 1):
            held += value
            if held > share * energy:
                rank = n
                break
        parts = {"u": u[:, :rank], "s": s[:rank], "v": v[:rank]}
        return whole if sum(p.numel() for p in parts.values()) >= change.numel() else parts

    def update(self, values: Named, net: Any, client: int, round_: int) -> Upload:
        buffers = {n for n, _ in net.named_buffers()}
        sent: Upload = {}
        for n, value in values.items():
            if n not in buffers:
                parts = self.factors(value - self.model[n], round_)
                sent |= {f"update.{n}.{p}": ("weights", part) for p, part in parts.items()}
        statistics = matching(values, lambda n: n in buffers)
        samples = {"samples": ("statistics", self.count(client, round_))}
        return {**sent, **self.named("statistics", "buffers", statistics), **samples}

    def server(self, uploads: Mapping[int, Upload]) -> None:
        weights, after = [self.weight(u) for u in uploads.values()], {}
        for n, old in self.model.items():
            if f"buffers.{n}" in next(iter(uploads.values())):
                after[n] = mean([u[f"buffers.{n}"][1] for u in uploads.values()], weights)
                continue
            changes = []
            for u in uploads.values():
                u_s_v = [u[p][1] for p in (f"update.{n}.{k}" for k in "usv") if p in u]
                change = u_s_v[0] * u_s_v[1] @ u_s_v[2] if u_s_v else u[f"update.{n}.whole"][1]
                changes.append(change.reshape(old.shape))
            after[n] = old + mean(changes, weights)
        self.model = after


# --- public images -------------------------------------------------------------------------------


class Public(Loop):
    requires = ("public",)

    def __init__(self, given: Given, dtype: torch.dtype = torch.float32, nudge: int = 0) -> None:
        super().__init__(given, dtype, nudge)
        assert given.public is not None
        images, labels, index = given.public
        self.public_x, self.public_y = self.pixels(images[index]), torch.tensor(labels[index])


class FedMD(Public):
    """Mean logits of public images, which all clients approach."""

    def begin(self) -> None:
        super().begin()
        self.started: set[int] = set()
        self.transfer(0)

    def transfer(self, round_: int) -> None:
        hp, away = self.hp, self.records[-1].dropped

        def work(i: int, _: Upload) -> Upload:
            net = load(self.net(i), self.own[i])
            if hp["public_epochs"]:
                images, epochs = (self.public_x, self.public_y), hp["public_epochs"]
                self.train(net, i, round_, images=images, order="public", epochs=epochs)
            self.train(net, i, round_, order="private", epochs=hp["private_epochs"])
            self.own[i] = tensors(net)
            self.started.add(i)
            return {}

        new = [i for i in self.joined(round_) if i not in self.started and i not in away]
        self.call({i: {} for i in new}, work, "transfer")

    def round(self, round_: int, who: Sequence[int]) -> None:
        self.transfer(round_)
        random = self.draws.numpy("fedmd", round_)
        chosen = torch.from_numpy(random.permutation(len(self.public_y))[: self.hp["alignment"]])
        x, y = self.public_x[chosen], self.public_y[chosen]
        temperature = {"temperature": ("statistics", self.hp["temperature"])}

        def communicate(i: int, _: Upload) -> Upload:
            logits = self.outputs(load(self.net(i), self.own[i]), x)[1]
            return {"logits": ("logits", logits), **temperature}

        scores = self.call({i: {} for i in who}, communicate, "communicate")
        if not scores:
            return
        target = mean([u["logits"][1] for u in scores.values()], [1.0] * len(scores))

        def digest(i: int, _: Upload) -> Upload:
            net, t = load(self.net(i), self.own[i]), self.hp["temperature"]

            def loss(x: Tensor, _: Tensor, part: Tensor) -> Tensor:
                logits = net(x)[1]
                if self.hp["digest"] == "l1":
                    return (logits - target[part]).abs().mean()
                return t**2 * divergence(target[part] / t, logits / t, "images")

            size = self.hp["digest_batch_size"]
            self.fit(net, i, round_, loss, images=(x, y), order="digest", epochs=1, size=size)
            self.train(net, i, round_)
            self.own[i] = tensors(net)
            return {}

        down = {"logits": ("logits", target), **temperature}
        self.call(dict.fromkeys(who, down), digest, "digest")


class FedDF(FedAvg, Public):
    """A mean model of each architecture, which the server teaches the ensemble's logits."""

    def begin(self) -> None:
        kinds = self.given.architectures
        self.models = {a: self.initial(kinds.index(a)) for a in sorted(set(kinds))}
        self.one_model = len(self.models) == 1  # type: ignore[misc]
        self.own = {i: {} for i in range(self.clients)}

    def down(self, client: int) -> Upload:
        return self.model_fields(self.models[self.given.architectures[client]], self.net(client))

    def start(self, client: int) -> Any:
        return load(self.net(client), self.models[self.given.architectures[client]])

    def server(self, uploads: Mapping[int, Upload]) -> None:
        kinds, logits, after = self.given.architectures, [], dict(self.models)
        for i, upload in uploads.items():
            sent = {n.split(".", 1)[1]: v for n, (_, v) in upload.items() if n != "samples"}
            logits.append(self.outputs(load(self.net(i), sent), self.public_x)[1])
        teacher = sum(logits) / len(logits)
        for kind in self.models:
            of = {i: u for i, u in uploads.items() if kinds[i] == kind}
            if of:
                after[kind] = self.means(of, list(self.models[kind]))
        for kind in after:
            if self.hp["server_epochs"]:
                after[kind] = self.student(kind, after[kind], teacher)
        self.models = after

    def student(self, kind: str, values: Named, teacher: Tensor) -> Named:
        round_, hp = len(self.records) - 1, self.hp
        net = load(self.net(self.given.architectures.index(kind)), values)
        torch.manual_seed(self.draws.number(f"server layers/{kind}", round_))

        def loss(x: Tensor, _: Tensor, part: Tensor) -> Tensor:
            t = hp["temperature"]
            return divergence(teacher[part] / t, net(x)[1] / t, "images")

        steps = self.records[-1].steps
        self.fit(
            net, 0, round_, loss, images=(self.public_x, self.public_y), order="server batches",
            epochs=hp["server_epochs"], size=hp["server_batch_size"], lr=hp["server_lr"],
            clip=hp["clip"], shuffle=True, optimizer=torch.optim.Adam,
            decay=lambda done: (1 + math.cos(math.pi * done)) / 2,
        )  # fmt: skip
        self.records[-1].steps = steps  # of the server
        return tensors(net)

    def final(self) -> dict[str, Named]:
        return {f"server {kind}": values for kind, values in self.models.items()}


# --- texts that the server prompts ---------------------------------------------------------------


class FedTSP(Prototypes):
    """Text prototypes, whose prompts the server trains, and features that approach them."""

    requires = ("text",)

    def begin(self) -> None:
        Prototypes.begin(self)
        m = self.hp["prompt_length"]
        m = 1 if m is None else m
        epochs = self.hp["server_epochs"]
        self.epochs = (1 if epochs is None else epochs) if m else 0
        draw = torch.randn(self.C, m, self.given.token_width, generator=self.draws.torch("prompts"))
        self.prompts = draw * 0.02
        self.log_scale = -torch.tensor(self.hp["tau"]).log()
        self.text = self.encode(self.prompts if m else None)

    def prepare(self) -> None:
        """Train the prompts on the prototypes of models without training."""
        if self.hp["init_order"] == "paper" and self.epochs:
            downs = {i: self.first(i) for i in self.joined(0)}
            work = lambda i, _: self.class_means(self.untrained(i), i, 0)  # noqa: E731
            self.prompt(self.call(downs, work, "untrained_prototypes"))

    def first(self, client: int) -> Upload:
        return {}

    def untrained(self, client: int) -> Any:
        return load(self.net(client), self.own[client])

    def encode(self, prompts: Tensor | None, classes: Tensor | None = None) -> Tensor:
        assert self.given.encode is not None
        return self.given.encode(prompts, self.hp["past_text"], classes).to(self.dtype)

    def texts(self) -> Upload:
        tau = float(torch.exp(-self.log_scale))
        return {"all vectors": ("prototypes", self.text), "tau": ("statistics", tau)}

    def prototypes(self) -> Upload:
        return self.texts()

    def prompt(self, uploads: Mapping[int, Upload]) -> None:
        """Take steps of the prompts towards the clients' means of each class."""
        if not uploads or not self.epochs:
            return
        self.vectors, self.present = torch.zeros_like(self.vectors), self.present & False
        self.collect(uploads, self.hp["proto_agg"])
        rows = self.present.nonzero().squeeze(1)
        image = F.normalize(self.vectors[rows], dim=1, eps=1e-8)
        learn = [self.prompts.clone().requires_grad_()]
        scale = self.log_scale.clone()
        if self.hp["learn_tau"]:
            learn.append(scale.requires_grad_())
        sgd = torch.optim.SGD(learn, self.hp["prompt_lr"])
        for _ in range(self.epochs):
            sgd.zero_grad()
            text = F.normalize(self.encode(learn[0], rows), dim=1, eps=1e-8)
            logits = text @ image.T * scale.exp()
            logits = logits if self.hp["server_dir"] == "t2i" else logits.T
            F.cross_entropy(logits, torch.arange(len(rows))).backward()
            sgd.step()
        self.prompts, self.log_scale = learn[0].detach(), scale.detach()
        self.text = self.text.clone()
        self.text[rows] = self.encode(self.prompts, rows).detach()

    def task(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        unit, text = (F.normalize(v, dim=1, eps=1e-8) for v in (features, self.text))
        if self.hp["align"] == "l2":
            term = (unit - text[y]).square().mean()
        else:
            term = F.cross_entropy(unit @ text.T / float(torch.exp(-self.log_scale)), y)
        return F.cross_entropy(logits, y) + self.hp["lambda"] * term

    def server(self, uploads: Mapping[int, Upload]) -> None:
        self.prompt(uploads)

    def measure(self, r: int) -> None:
        if r == 0:
            self.prepare()
        super().measure(r)

    def final(self) -> dict[str, Named]:
        return {"server": {"vectors": self.text, "prompts": self.prompts}, **super().final()}


class FedTSPGlobal(FedTSP, FedAvg):
    """The same with the mean of the models."""

    one_model = True

    def begin(self) -> None:
        FedTSP.begin(self)
        FedAvg.begin(self)

    def first(self, client: int) -> Upload:
        return FedAvg.down(self, client)

    def untrained(self, client: int) -> Any:
        return self.start(client)

    def down(self, client: int) -> Upload:
        return {**FedAvg.down(self, client), **self.texts()}

    def work(self, client: int, round_: int) -> Upload:
        net = self.start(client)
        self.train(net, client, round_)
        update = self.finish(net, client, round_)  # first, in the order of the noise
        return {**update, **self.class_means(net, client, round_)}

    def round(self, round_: int, who: Sequence[int]) -> None:
        FedAvg.round(self, round_, who)

    def server(self, uploads: Mapping[int, Upload]) -> None:
        self.prompt(uploads)
        FedAvg.server(self, uploads)

    def tested(self, client: int) -> Any:
        return self.start(client)

    def final(self) -> dict[str, Named]:
        return {"server": {**self.model, "vectors": self.text, "prompts": self.prompts}}


# --- prompts around a frozen CLIP, which is a network like any other -----------------------------


def prompted(base: type[Loop], shared: str = "", kind: str = "prompts") -> type[Loop]:
    """Return a method whose network is a CLIP with prompts; names beginning so are shared."""
    shares = {"shares": lambda self, name: name.startswith(shared), "one_model": not shared}
    return type(f"Prompted{base.__name__}", (base,), {"kind": kind, **(shares if shared else {})})


class KgCoOp(FedAvg):
    """The texts stay near those without prompts."""

    kind = "prompts"

    def loss(self, net: Any, x: Tensor, y: Tensor, client: int) -> Tensor:
        value = super().loss(net, x, y, client)
        apart = 1 - (net.text * net.model.fixed_texts(self.hp["template"])).sum(-1)
        return value + self.hp["lambda"] * apart.mean()


class FedCLIP(FedAvg):
    """Each image of a batch has its own text; both ways."""

    def task(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        pairs, own = logits[:, y], torch.arange(len(y))
        return (F.cross_entropy(pairs, own) + F.cross_entropy(pairs.T, own)) / 2


METHODS: dict[str, type[Loop]] = {
    "fedtsp": FedTSP,
    "fedtsp_global": FedTSPGlobal,
    "promptfl": prompted(FedAvg),
    "promptfl_fedprox": prompted(FedProx),
    "promptfl_pfedme": prompted(PFedMe),
    "maple_fedavg": prompted(FedAvg),
    "maple_fedprox": prompted(FedProx),
    "maple_pfedme": prompted(PFedMe),
    "local_prompts": Loop,
    "maple_local": Loop,
    "vpt": prompted(FedAvg),
    "ivlp": prompted(FedAvg),
    "promptfolio": prompted(FedAvg, "shared_context"),
    "fedotp": prompted(FedAvg, "shared_context"),
    "lora": FedAvg,
    "pfedmma": prompted(FedAvg, "shared.", "weights"),
    "kgcoop": KgCoOp,
    "fedclip": FedCLIP,
    "local": Loop,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedlc": FedLC,
    "moon": Moon,
    "fedetf": FedETF,
    "fedbn": FedBN,
    "fedbabu": FedBABU,
    "fedpac": FedPAC,
    "pfedme": PFedMe,
    "lg_fedavg": LGFedAvg,
    "fedgh": FedGH,
    "fedproto": FedProto,
    "fedproto_global": FedProtoGlobal,
    "fedtgp": FedTGP,
    "feddistill": FedDistill,
    "fml": FML,
    "fedmrl": FedMRL,
    "fedkd": FedKD,
    "fedmd": FedMD,
    "feddf": FedDF,
    "fedglcl": FedGLCL,
    "fedglcl_fedprox": FedGLCLProx,
    "fedglcl_moon": FedGLCLMoon,
}
"""The loop of each method that is written down again."""
