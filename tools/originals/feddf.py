"""FedDF's server (https://github.com/epfml/federated-learning-public-code).

The original's program needs MPI, so that clients' training and the mean of their models are written
down here; the ensemble and the training of the student are the original's.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.originals.federation import BATCH, EPOCHS, LR, ROUNDS, Method, Run, State, Tensors
from tools.originals.flcore import Split, load, split, tensors

REPOSITORY = "epfml/federated-learning-public-code"
MARKS = ("codes/FedDF-code/pcode/aggregation/noise_knowledge_transfer.py",)
SERVER_EPOCHS, SERVER_LR, TEMPERATURE = 2, 0.001, 2.0


def prepare(checkout: Path) -> None:
    """Make the server's modules importable, without data sets, MPI and tests of models."""
    sys.path.insert(0, str(checkout / "codes" / "FedDF-code"))
    tests = ModuleType("pcode.master_utils")
    tests.validate = lambda **_: {"top1": 1.0}  # type: ignore[attr-defined]
    sys.modules["pcode.master_utils"] = tests


class Model(Split):
    """A model with the attribute that the original reads beside logits."""

    activations = None


class PublicBatches:
    """Batches of the public images in fedray's order, for any number of epochs."""

    def __init__(self, run: Run) -> None:
        public = run.assembly.data.public
        assert public is not None
        self.images = run.images(public.index)[0]
        self.random = run.random("server batches")

    def __iter__(self) -> Iterator[tuple[Tensor, None]]:
        for chunk in torch.randperm(len(self.images), generator=self.random).split(BATCH):
            yield self.images[chunk], None


def distilled(run: Run, models: Sequence[Model], mean: Model) -> Model:
    """Return the mean after the original's distillation from the clients' models."""
    solver = import_module("pcode.aggregation.noise_knowledge_transfer").NoiseKTSolver
    batches = PublicBatches(run)
    steps = SERVER_EPOCHS * len(batches.images) // BATCH
    conf = SimpleNamespace(graph=SimpleNamespace(on_cuda=False), fl_aggregate={})
    this = solver(
        conf, list(models), mean, None, None, BATCH,
        total_n_server_pseudo_batches=steps, val_data_loader=(),
        distillation_data_loader=batches, student_learning_rate=SERVER_LR,
        KL_temperature=TEMPERATURE, log_fn=lambda _: None, eval_batches_freq=steps,
        update_student_scheme="avg_logits",
    )  # fmt: skip
    this.distillation()
    student: Model = this.server_student
    return student


def drive(run: Run, initial: Sequence[Tensors]) -> list[State]:
    """Run FedAvg with the original's distillation; return a state per round."""
    shared = split(run, 0)
    shared.__class__ = Model
    load([shared], initial[0])
    states = [_state(run, shared, initial)]
    for run.round in range(1, ROUNDS + 1):
        models = [_trained(run, client, shared) for client in run.participants[run.round]]
        mean = copy.deepcopy(shared)
        values = zip(*(tensors([model]) for model in models), strict=True)
        load([mean], {str(n): torch.stack(each).mean(0) for n, each in enumerate(values)})
        shared = distilled(run, models, mean)
        states.append(_state(run, shared, initial))
    return states


def _trained(run: Run, client: int, shared: Model) -> Model:
    model, random = copy.deepcopy(shared), run.random("batches", client)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    images, labels = run.images(run.assembly.data.train[client])
    sgd = torch.optim.SGD(model.parameters(), LR)
    for _ in range(EPOCHS):
        for index in run.orders(client, random):
            sgd.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            sgd.step()
    return model


@torch.no_grad()
def _state(run: Run, model: Model, initial: Sequence[Any]) -> State:
    accuracies = []
    for part in run.assembly.data.test:
        images, labels = run.images(part)
        accuracies.append(float((model.eval()(images).argmax(1) == labels).float().mean()))
    values = [tensor.detach().clone() for tensor in tensors([model])]
    return State([dict(zip(names, values, strict=True)) for names in initial], accuracies)


METHODS = {
    "feddf": Method(
        drive,
        ("algorithm.weights=uniform", "data.public.labelled=false", "data.public=share"),
        (
            f"algorithm.server_epochs={SERVER_EPOCHS}", f"algorithm.server_lr={SERVER_LR}",
            f"algorithm.temperature={TEMPERATURE}", f"algorithm.server_batch_size={BATCH}",
        ),
        ("clients and the mean of their models without MPI", "no early stop"),
    ),
}  # fmt: skip
