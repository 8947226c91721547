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

import numpy as np
import torch
from torch import Tensor, nn

from fedray.algorithms.distillation.fedgen import draw_labels
from tools.originals.federation import BATCH, CPU, LR, Method
from tools.originals.flcore import (
    Drive,
    Instead,
    Original,
    Split,
    collect_after_training,
    drive,
    load,
    split,
    stand_ins,
)

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
    """Give every client its initial model, and servers with a small model that one."""
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
    """Return the client's model, the server's small one and the layer that joins them, if any.

    In FedKD each client has the server's small model after each round.
    """
    role = client.role if (client.role, "global_model") in STORE and joint == "W_h" else "Server"
    joints = [load_item(client.role, joint)] if joint else []
    return [load_item(client.role, "model"), load_item(role, "global_model"), *joints]


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


def drawn(this: Drive, arguments: Any) -> None:
    """Let FedGen's clients draw fedray's labels and noise; each round they train once, in turn."""
    models(this, arguments)
    client = import_module("flcore.clients.clientgen")
    server = import_module("flcore.servers.servergen")
    counts = torch.from_numpy(this.run.assembly.data.train_histogram().sum(0))
    streams: list[torch.Generator] = []

    def begin(self: Any) -> Any:
        streams.append(this.run.random("fedgen", self.id))
        return Client.load_train_data(self)

    def choice(values: Any, size: int) -> Any:
        return draw_labels(counts, size, streams[-1]).numpy()

    def rand(shape: tuple[int, int], device: str) -> Tensor:
        return torch.empty(shape).uniform_(generator=streams[-1])

    Client = import_module("flcore.clients.clientbase").Client
    client.clientGen.load_train_data = begin
    client.np = server.np = Instead(np, random=SimpleNamespace(choice=choice))
    server.torch = Instead(torch, rand=rand)


def same_generator(item: str, this: Drive) -> None:
    """Start the server's generator of features, or of prototypes, as in fedray."""
    assembly = this.run.assembly
    state, model = assembly.algorithm.init_server(assembly.server(CPU)), load_item("Server", item)
    load([nn.ParameterList(model.parameters())], state["generator"])
    save_item(model, "Server", item)


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
    tgp = import_module("flcore.clients.clienttgp").clientTGP
    collect_after_training(this, tgp.collect_protos)


def soft_targets(this: Drive) -> None:
    """Take the softmax of mean logits for the teachers' outputs."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        soft = targets.softmax(1) if targets.is_floating_point() else targets
        return nn.functional.cross_entropy(logits, soft)

    for client in this.server.clients:
        client.loss = loss


def _method(
    original: Original,
    *switches: str,
    values: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
) -> Method:
    return Method(partial(drive, original), switches, ("model.group=smooth", *values), changes)


def _hetero(module: str, server: str, **more: Any) -> Original:
    return Original(module, server, **{"before": models, "modules": own_model, **more})


_MUTUAL = ("algorithm.kl=entries", "algorithm.teacher_gradients=true", "algorithm.clip_norm=10")

METHODS = {
    "local": _method(_hetero("local", "Local")),
    "lg_fedavg": _method(_hetero("lg", "LG_FedAvg")),
    "fedgen": _method(
        _hetero("gen", "FedGen", before=drawn, change=partial(same_generator, "generative_model"),
                arguments={"noise_dim": 8, "hidden_dim": 16, "server_epochs": 1,
                           "generator_learning_rate": 0.1}),
        "algorithm.untrained=true",
        values=("algorithm.noise_dim=8", "algorithm.hidden_dim=16"),
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
        _hetero("tgp", "FedTGP", before=partial(ordered, "tgp"),
                change=partial(same_generator, "TGP"),
                arguments={"lamda": 1.0, "server_epochs": 5, "margin_threthold": 100.0}),
        "algorithm.stale=true",
        values=("algorithm.server_epochs=5", f"algorithm.server_lr={LR}"),
        changes=("the head predicts",),
    ),
    "fedgh": _method(
        _hetero("gh", "FedGH", before=partial(ordered, "gh"),
                arguments={"server_learning_rate": 0.1, "server_epochs": 5}),
        values=("algorithm.server_epochs=5", "algorithm.server_lr=0.1"),
    ),
}  # fmt: skip
