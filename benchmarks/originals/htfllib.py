"""HtFLlib's methods, for clients of unlike models (https://github.com/TsingZ0/HtFLlib)."""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.originals.federation import BATCH, LR, Method, Run
from benchmarks.originals.flcore import Drive, Original, Split, drive, load, split, stand_ins
from fedray.algorithms.distillation.fedgen import draw_labels

REPOSITORY = "TsingZ0/HtFLlib"
MARKS = ("system/flcore/servers/servertgp.py", "system/flcore/clients/clientmrl.py")
STORE: dict[tuple[str, str], Any] = {}
"""What servers and clients save, by role and name; in memory instead of in files."""


def save_item(item: Any, role: str, name: str, folder: str | None = None) -> None:
    """Keep a copy of an item."""
    STORE[role, name] = copy.deepcopy(item)


def load_item(role: str, name: str, folder: str | None = None) -> Any:
    """Return a copy of an item; None if there is none."""
    return copy.deepcopy(STORE.get((role, name)))


def prepare(checkout: Path) -> None:
    """Make the checkout's modules importable; items stay in memory."""
    stand_ins(checkout)
    sys.modules["flcore.trainmodel.models"].BaseHeadSplit = None  # type: ignore[attr-defined]
    base = import_module("flcore.clients.clientbase")
    base.save_item, base.load_item = save_item, load_item


def models(this: Drive, arguments: Any) -> None:
    """Give every client its initial model, and the server of FML, FedKD and FedMRL the small one."""
    STORE.clear()
    empty = this.run.assembly.models.empty

    def make(
        arguments: Any, cid: int = 0, feature_dim: int | None = None, is_global: bool = False
    ) -> nn.Module:
        if not is_global:
            model: nn.Module = split(this.run, cid)
            names = [n for n in this.initial[cid] if n.startswith(("extractor.", "head."))]
            return filled(model, this, cid, names)
        whole = empty(this.run.assembly.models.architectures[0])
        width = whole.auxiliary.head.in_features
        names = [name for name in this.initial[0] if name.startswith("auxiliary.")]
        return filled(Split(whole.auxiliary, width), this, 0, names)

    arguments.global_model = ""
    base = import_module("flcore.clients.clientbase")
    for module in [base, *(m for n, m in sys.modules.items() if n.startswith("flcore.servers."))]:
        if hasattr(module, "BaseHeadSplit"):
            module.BaseHeadSplit = make


def filled(model: nn.Module, this: Drive, client: int, names: Sequence[str]) -> nn.Module:
    """Load a client's initial tensors of these names, in order, into a model."""
    load([model], {name: this.initial[client][name] for name in names})
    return model


def own_model(this: Drive, client: Any) -> list[nn.Module]:
    """Return the client's model."""
    return [load_item(client.role, "model")]


def with_small(joint: str, this: Drive, client: Any) -> list[nn.Module]:
    """Return the client's model, the server's small one and, if any, what joins them."""
    role = client.role if (client.role, "compressed_param") in STORE else "Server"
    layer = load_item(client.role, joint)
    small = load_item(role if joint == "W_h" else "Server", "global_model")
    if joint == "W_h":
        small = load_item(client.role, "global_model")
    return [load_item(client.role, "model"), small, *([layer] if joint else [])]


def joined(name: str, this: Drive) -> None:
    """Start the layer between both models as in fedray."""
    for client in this.server.clients:
        layer = load_item(client.role, name)
        names = [n for n in this.initial[client.id] if n.startswith("joint.")]
        save_item(filled(layer, this, client.id, names), client.role, name)


def whole_updates(this: Drive, arguments: Any) -> None:
    """Send FedKD's small model whole."""
    models(this, arguments)
    for name in ("flcore.clients.clientkd", "flcore.servers.serverkd"):
        import_module(name).decomposition = lambda parameters, energy: {
            name: torch.as_tensor(value).detach().numpy().copy() for name, value in parameters
        }


class Instead:
    """A module with some of its attributes replaced."""

    def __init__(self, module: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def drawn(this: Drive, arguments: Any) -> None:
    """Let FedGen's clients draw fedray's labels and noise."""
    models(this, arguments)
    client, server = import_module("flcore.clients.clientgen"), import_module("flcore.servers.servergen")
    counts = torch.from_numpy(this.run.assembly.data.train_histogram().sum(0))
    streams: dict[tuple[int, int], torch.Generator] = {}
    training: list[int] = []

    def random() -> torch.Generator:
        key = this.run.round, training[-1]
        return streams.setdefault(key, this.run.random("fedgen", training[-1]))

    def train(client: Any, train: Any) -> None:
        training.append(client.id)
        train(client)

    def choice(values: Any, size: int) -> Any:
        return draw_labels(counts, size, random()).numpy()

    def rand(shape: tuple[int, int], device: str) -> Tensor:
        return torch.empty(shape).uniform_(generator=random())

    original = getattr(client.clientGen, "fedray_train", client.clientGen.train)
    client.clientGen.fedray_train = original
    client.clientGen.train = lambda self: train(self, original)
    client.np = server.np = Instead(client.np, random=SimpleNamespace(choice=choice))
    server.torch = Instead(torch, rand=rand)


def generator(this: Drive) -> None:
    """Start FedGen's generator as in fedray."""
    weights = this.run.assembly.algorithm.init_server(this.run.assembly.server(torch.device("cpu")))
    model = load_item("Server", "generative_model")
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights["generator"].values(), strict=True):
            parameter.copy_(value)
    save_item(model, "Server", "generative_model")


def prototypes(this: Drive) -> None:
    """Start FedTGP's trainable prototypes as in fedray."""
    weights = this.run.assembly.algorithm.init_server(this.run.assembly.server(torch.device("cpu")))
    model = load_item("Server", "TGP")
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights["generator"].values(), strict=True):
            parameter.copy_(value)
    save_item(model, "Server", "TGP")


class Shuffled:
    """The server's loader of uploads, in fedray's order."""

    def __init__(self, random: torch.Generator, uploads: Sequence[Any]) -> None:
        self.random, self.uploads = random, uploads

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        vectors = torch.stack([vector for vector, _ in self.uploads])
        labels = torch.tensor([int(label) for _, label in self.uploads])
        for index in torch.randperm(len(labels), generator=self.random).split(BATCH):
            yield vectors[index], labels[index]


def ordered(method: str, this: Drive, arguments: Any) -> None:
    """Order uploads by client and class, and the server's batches as in fedray."""
    models(this, arguments)
    client = import_module(f"flcore.clients.client{method}")
    server = import_module(f"flcore.servers.server{method}")
    means = getattr(client.agg_func, "original", client.agg_func)

    def sorted_means(features: Any) -> Any:
        return defaultdict(list, sorted(means(features).items()))

    sorted_means.original = means  # type: ignore[attr-defined]
    client.agg_func = sorted_means
    streams: dict[int, torch.Generator] = {}

    def loader(uploads: Sequence[Any], *_: Any, **__: Any) -> Shuffled:
        random = this.run.random(f"fed{method}_batches")
        return Shuffled(streams.setdefault(this.run.round, random), uploads)

    server.DataLoader = loader


def collected_after(this: Drive) -> None:
    """Make FedProto's prototypes of the trained model, by the function of FedTGP's clients."""
    collect = import_module("flcore.clients.clienttgp").clientTGP.collect_protos
    for client in this.server.clients:
        client.train = partial(lambda c, train: (train(), collect(c)), client, client.train)


def soft_targets(this: Drive) -> None:
    """Take the softmax of mean logits for the teachers' outputs."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        soft = targets.softmax(1) if targets.is_floating_point() else targets
        return nn.functional.cross_entropy(logits, soft)

    for client in this.server.clients:
        client.loss = loss


def _method(
    original: Original, *switches: str, changes: tuple[str, ...] = ()
) -> Method:
    return Method(partial(drive, original), ("model.group=smooth", *switches), changes)


def _hetero(module: str, server: str, **more: Any) -> Original:
    return Original(module, server, **{"before": models, "modules": own_model, **more})


_MUTUAL = ("algorithm.kl=entries", "algorithm.teacher_gradients=true", "algorithm.clip_norm=10")

METHODS = {
    "local": _method(_hetero("local", "Local")),
    "lg_fedavg": _method(_hetero("lg", "LG_FedAvg")),
    "fedgen": _method(
        _hetero("gen", "FedGen", before=drawn, change=generator,
                arguments={"noise_dim": 8, "hidden_dim": 16, "server_epochs": 1,
                           "generator_learning_rate": 0.1}),
        "algorithm.untrained=true", "algorithm.noise_dim=8", "algorithm.hidden_dim=16",
    ),
    "fml": _method(
        _hetero("fml", "FML", modules=partial(with_small, ""),
                arguments={"alpha": 0.5, "beta": 0.5}),
        *_MUTUAL,
    ),
    "fedkd": _method(
        _hetero("kd", "FedKD", before=whole_updates, change=partial(joined, "W_h"),
                modules=partial(with_small, "W_h"),
                arguments={"T_start": 0.95, "T_end": 0.95, "mentee_learning_rate": LR}),
        *_MUTUAL, "algorithm.compress=false",
        changes=("the small model travels whole",),
    ),
    "fedmrl": _method(
        _hetero("mrl", "FedMRL", change=partial(joined, "proj"),
                modules=partial(with_small, "proj"), arguments={"sub_feature_dim": 4},
                own_test=True),
        "algorithm.official_bug=true",
    ),
    "feddistill": _method(
        _hetero("fd", "FD", arguments={"lamda": 1.0}, change=soft_targets),
        changes=("the softmax of mean logits teaches, not the logits themselves",),
    ),
    "fedproto": _method(
        _hetero("proto", "FedProto", arguments={"lamda": 1.0}, change=collected_after),
        "algorithm.proto_agg=uniform",
        changes=("prototypes of the trained model", "the head predicts"),
    ),
    "fedtgp": _method(
        _hetero("tgp", "FedTGP", before=partial(ordered, "tgp"), change=prototypes,
                arguments={"lamda": 1.0, "server_epochs": 5, "margin_threthold": 100.0}),
        "algorithm.stale=true", "algorithm.server_epochs=5", f"algorithm.server_lr={LR}",
        changes=("the head predicts",),
    ),
    "fedgh": _method(
        _hetero("gh", "FedGH", before=partial(ordered, "gh"),
                arguments={"server_learning_rate": 0.1, "server_epochs": 5}),
        "algorithm.server_epochs=5", "algorithm.server_lr=0.1",
    ),
}  # fmt: skip
