"""PFLlib's methods (https://github.com/TsingZ0/PFLlib)."""

from __future__ import annotations

import copy
import sys
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tools.originals.federation import CLASSES, LR, Method
from tools.originals.flcore import (
    Drive,
    Original,
    Split,
    collect_after_training,
    drive,
    load,
    split,
    stand_ins,
)

REPOSITORY = "TsingZ0/PFLlib"
MARKS = ("system/flcore/servers/serverala.py", "system/flcore/clients/clientpac.py")


def prepare(checkout: Path) -> None:
    """Make the checkout's modules importable."""
    stand_ins(checkout)
    sys.modules["cvxpy"].__dict__.update(
        Variable=lambda count: Weights(), quad_form=lambda variable, matrix: (variable, matrix),
        Minimize=lambda objective: objective, sum=lambda variable: 0, Problem=Quadratic,
    )  # fmt: skip


class Weights:
    """Weights of heads, which Quadratic sets; they are never negative."""

    value: Any = None

    def __ge__(self, other: object) -> bool:
        return True


class Quadratic:
    """min a^T Q a over the simplex, in place of cvxpy: exact, by trying every set of a_i > 0."""

    def __init__(self, objective: Any, constraints: Any) -> None:
        self.variable, self.matrix = objective

    def solve(self) -> None:
        """Set the variable's value."""
        q = np.asarray(self.matrix, dtype=np.float64)
        best = np.inf
        for size in range(1, len(q) + 1):
            for some in map(list, combinations(range(len(q)), size)):
                a = np.zeros(len(q))
                a[some] = np.linalg.lstsq(q[np.ix_(some, some)], np.ones(size))[0]
                a /= a.sum()
                if (a >= 0).all() and a @ q @ a < best:
                    best, self.variable.value = a @ q @ a, a


def same_model(this: Drive, arguments: Any) -> None:
    """Give server and clients the first client's initial weights."""
    arguments.model = split(this.run, 0)
    load([arguments.model], this.initial[0])


def without_head(this: Drive, arguments: Any) -> None:
    """Give server and clients a model that ends in its features."""
    same_model(this, arguments)
    arguments.model = arguments.model.base


class NamedBN(Split):
    """A model whose normalisation layers have "bn" in their names, by which FedBN finds them."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Yield names and parameters."""
        layers = (m for m in self.modules() if isinstance(m, nn.BatchNorm2d))
        norms = {parameter for layer in layers for parameter in layer.parameters()}
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield f"bn.{name}" if parameter in norms else name, parameter


def bn_names(this: Drive, arguments: Any) -> None:
    """Let the names of normalisation layers contain "bn"."""
    same_model(this, arguments)
    arguments.model.__class__ = NamedBN


def own_counts(this: Drive) -> None:
    """Calibrate each client's logits by its own class counts."""
    for client in this.server.clients:
        client.calibration = client.sample_per_class.clamp_min(1e-8) ** (-1 / 4)


def copied_heads(this: Drive) -> None:
    """Mix the heads as they were uploaded, not those that clients before have already received."""
    server, receive = this.server, this.server.receive_models

    def receive_models() -> None:
        receive()
        server.uploaded_heads = copy.deepcopy(server.uploaded_heads)

    server.receive_models = receive_models


def collected_after(this: Drive) -> None:
    """Make prototypes of the trained model, by the client's own function for that."""
    collect_after_training(this, lambda client: client.collect_protos())


def sorted_sets(this: Drive) -> None:
    """Send prototypes in the order of classes, padded anew; train from round 2 on."""
    server, own = this.server, {}

    def pad() -> None:
        own.update({k: dict(server.clients[k].protos) for k in server.uploaded_ids})
        server.global_protos = {c: server.global_protos[c] for c in range(CLASSES)}
        server.client_protos_set = [
            {c: own.get(k, {}).get(c, server.global_protos[c]) for c in range(CLASSES)}
            for k in range(len(server.clients))
        ]
        for client in server.clients:
            client.protos = {} if client.protos is None else client.protos

    server.prototype_padding = pad


def _method(original: Original, *switches: str, **more: tuple[str, ...]) -> Method:
    return Method(partial(drive, original), switches, **more)


def _plain(module: str, server: str, **more: Any) -> Original:
    return Original(module, server, **{"before": same_model, **more})


METHODS = {
    "local": _method(_plain("local", "Local", selects=2)),
    "fedavg": _method(_plain("avg", "FedAvg")),
    "fedprox": _method(
        _plain("prox", "FedProx", arguments={"mu": 0.1}), values=("algorithm.mu=0.1",)
    ),
    "scaffold": _method(_plain("scaffold", "SCAFFOLD", arguments={"server_learning_rate": 1.0})),
    "moon": _method(
        _plain("moon", "MOON", arguments={"mu": 1.0, "tau": 0.5}), "algorithm.first=initial"
    ),
    "fedbn": _method(_plain("bn", "FedBN", before=bn_names), values=("model.group=smooth_bn",)),
    "fedbabu": _method(_plain("babu", "FedBABU")),
    "lg_fedavg": _method(_plain("lg", "LG_FedAvg")),
    "pfedme": _method(
        _plain(
            "pFedMe", "pFedMe",
            arguments={"lamda": 2.0, "K": 3, "p_learning_rate": LR, "beta": 0.7,
                       "local_learning_rate": 0.2},
        ),
        "optimizer.weight_decay=0.001", "algorithm.weights=samples", "algorithm.test=global",
        values=("algorithm.lambda=2", "algorithm.eta=0.2", "algorithm.inner_steps=3",
                "algorithm.beta=0.7"),
    ),
    "fedpac": _method(
        _plain("pac", "FedPAC", arguments={"lamda": 1.0}, change=copied_heads, repeats=1),
        "algorithm.proto_agg=uniform",
        values=(f"algorithm.head_lr={LR}",),
        changes=("heads are mixed as uploaded, not after others received theirs",
                 "the quadratic programme is solved exactly, without cvxpy"),
    ),
    "fedlc": _method(
        _plain("lc", "FedLC", arguments={"tau": 1.0}, change=own_counts),
        changes=("each client's own class counts",),
    ),
    "fedproto": _method(
        _plain("proto", "FedProto", arguments={"lamda": 1.0}, change=collected_after),
        "algorithm.proto_agg=uniform",
        changes=("prototypes of the trained model", "the head predicts"),
    ),
    "fedpcl": _method(
        Original("pcl", "FedPCL", {"tau": 0.07}, sorted_sets, without_head, own_test=True),
        "clip_grad_norm=10",
        values=("model.group=smooth_bn",),
        changes=("prototypes in the order of classes", "absent ones padded anew in each round",
                 "every client trains from round 2 on"),
    ),
}  # fmt: skip
