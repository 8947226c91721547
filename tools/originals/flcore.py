"""What PFLlib and HtFLlib have in common: the package `flcore`, driven with fedray's draws.

Data, models, participants and the order of batches are fedray's; classes of server and client, with
their losses, optimisers and averages, are the original's.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fedray.models import Classifier
from tools.originals.federation import (
    BATCH,
    CLASSES,
    EPOCHS,
    LR,
    ROUNDS,
    TEST,
    TRAIN,
    Run,
    State,
    Tensors,
)

ARGUMENTS: Mapping[str, Any] = {
    "device": "cpu", "dataset": "digits", "algorithm": "", "goal": "", "num_classes": CLASSES,
    "global_rounds": ROUNDS, "local_epochs": EPOCHS, "batch_size": BATCH, "local_learning_rate": LR,
    "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0, "num_clients": len(TRAIN),
    "random_join_ratio": False, "few_shot": 0, "time_select": False, "time_threthold": 1e9,
    "save_folder_name": "temp", "models_folder_name": "", "top_cnt": 1, "auto_break": False,
    "eval_gap": 1, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0,
    "dlg_eval": False, "dlg_gap": 1, "batch_num_per_client": 1, "num_new_clients": 0,
    "fine_tuning_epoch_new": 0, "fine_tuning_epochs": 0, "feature_dim": 16, "models": ("",),
}  # fmt: skip
"""The arguments of both programs; a method adds its own."""


class Over(Exception):
    """The last round is over."""


@dataclass
class Drive:
    """One run of an original server.

    Attributes:
        run: fedray's run, whose draws are repeated.
        initial: each client's initial weights.
        server: the original's; None while it is built.
        states: a state per evaluation.
    """

    run: Run
    initial: Sequence[Tensors]
    server: Any = None
    states: list[State] = field(default_factory=list)


@dataclass(frozen=True)
class Original:
    """How a method's classes are found and driven.

    Attributes:
        module: "avg" for `flcore.servers.serveravg`.
        server: the class.
        arguments: of the program, besides `ARGUMENTS`.
        change: changes the built server, before its first round.
        before: changes modules, before the server is built.
        modules: returns the modules of a client's tested model, in the order of fedray's tensors.
        own_test: whether the client's own test is asked; False: that of the base class, the head's.
        selects: how often a round selects its clients.
        repeats: epochs after which a client's order of batches begins anew, once.
    """

    module: str
    server: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Drive], None] = lambda drive: None
    before: Callable[[Drive, Any], None] = lambda drive, arguments: None
    modules: Callable[[Drive, Any], Sequence[nn.Module]] | None = None
    own_test: bool = False
    selects: int = 1
    repeats: int = 0


class Split(nn.Module):
    """fedray's backbone and head in the originals' form, without what fedray adds for speed."""

    def __init__(self, model: Classifier, width: int) -> None:
        super().__init__()
        backbone = model.get_submodule("extractor.backbone")
        self.base = nn.Sequential(backbone, nn.AdaptiveAvgPool1d(width))
        self.head = model.head

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, C]."""
        return self.head(self.base(x))


class Batches:
    """A client's batches of one round, in fedray's order, for any number of epochs."""

    def __init__(self, run: Run, client: int, repeats: int = 0) -> None:
        self.run, self.client, self.repeats = run, client, repeats
        self.random, self.epochs = run.random("batches", client), 0
        self.images, self.labels = run.images(run.assembly.data.train[client])

    def __len__(self) -> int:
        return len(self.labels) // BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.repeats and self.epochs == self.repeats:
            self.random = self.run.random("batches", self.client)
        self.epochs += 1
        for index in self.run.orders(self.client, self.random):
            yield self.images[index], self.labels[index]


class Instead:
    """A module with some of its attributes replaced."""

    def __init__(self, module: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def load(modules: Sequence[nn.Module], weights: Tensors) -> None:
    """Copy fedray's tensors, in order, into the parameters and buffers of modules."""
    with torch.no_grad():
        for tensor, value in zip(tensors(modules), weights.values(), strict=True):
            tensor.copy_(value)


def tensors(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Return the parameters of modules, then their buffers."""
    parameters = [p for module in modules for p in module.parameters()]
    return [*parameters, *(b for module in modules for b in module.buffers())]


def stand_ins(checkout: Path, **more: ModuleType) -> None:
    """Make `flcore` importable, without its data sets, models and packages that it barely uses."""
    names = ("h5py", "cvxpy", "utils", "utils.data_utils", "utils.dlg", "flcore.trainmodel.models")
    for name in names:
        sys.modules[name] = ModuleType(name)
    counts = {True: TRAIN, False: (TEST,) * len(TRAIN)}
    sys.modules["utils.data_utils"].read_client_data = (  # type: ignore[attr-defined]
        lambda dataset, client, is_train=True, few_shot=0: range(counts[is_train][client])
    )
    sys.modules["utils.dlg"].DLG = None  # type: ignore[attr-defined]
    sys.path.insert(0, str(checkout / "system"))


def drive(original: Original, run: Run, initial: Sequence[Tensors]) -> list[State]:
    """Run the original's own `train` on fedray's draws; return a state per evaluation."""
    this = Drive(run, initial)
    calls = iter(range(1, 1000))
    base = import_module("flcore.clients.clientbase").Client

    def select() -> list[Any]:
        run.round = (next(calls) - 1) // original.selects + 1
        return [this.server.clients[k] for k in run.participants[min(run.round, ROUNDS)]]

    def evaluate(*_: Any) -> None:
        models = []
        for client, names in zip(this.server.clients, initial, strict=True):
            modules = original.modules(this, client) if original.modules else [client.model]
            values = (tensor.detach().clone() for tensor in tensors(modules))
            models.append(dict(zip(names, values, strict=True)))
        test = (lambda client: client.test_metrics()) if original.own_test else base.test_metrics
        tests = map(test, this.server.clients)
        this.states.append(State(models, [right / max(total, 1) for right, total, _ in tests]))
        if len(this.states) > ROUNDS:
            raise Over

    def train_batches(client: Any, *_: Any) -> Batches:
        return Batches(run, client.id, original.repeats)

    def test_batches(client: Any, *_: Any) -> list[tuple[Tensor, Tensor]]:
        return [run.images(run.assembly.data.test[client.id])]

    module = import_module(f"flcore.servers.server{original.module}")
    ratio = len(run.participants[1]) / len(TRAIN)
    arguments = SimpleNamespace(**{**ARGUMENTS, "join_ratio": ratio, **original.arguments})
    with (
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
        patch.object(base, "load_train_data", train_batches),
        patch.object(base, "load_test_data", test_batches),
        patch("random.sample", lambda population, count: list(population)),
    ):
        original.before(this, arguments)
        this.server = getattr(module, original.server)(arguments, 0)
        original.change(this)
        for name in ("evaluate", "evaluate_personalized"):
            setattr(this.server, name, evaluate)
        this.server.select_clients = select
        with contextlib.suppress(Over):
            this.server.train()
    return this.states


def collect_after_training(this: Drive, collect: Callable[[Any], None]) -> None:
    """Let every client make its prototypes of the trained model, by a function of the original."""

    def both(client: Any, train: Callable[[], None]) -> None:
        train()
        collect(client)

    for client in this.server.clients:
        client.train = partial(both, client, client.train)


def split(run: Run, client: int) -> Split:
    """Return an empty model of a client's architecture."""
    models = run.assembly.models
    return Split(models.empty(models.architectures[client]), run.assembly.setting.feature_dim)
