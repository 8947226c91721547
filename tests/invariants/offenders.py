"""Methods that break one law each; a plug-in for the tests of `fedray check`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import PrivateAttr
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import Fields, method, sent

SEEN: list[int] = []


class Record:
    """An object of the method's own."""

    steps = 0


@method("number_on_self", "NumberOnSelf", "-")
class NumberOnSelf(FedAvg):
    """Counts its steps in an attribute."""

    _steps: int = 0

    def loss(self, output, batch, local):
        self._steps += 1
        return super().loss(output, batch, local) * (1 + 0.01 * self._steps)


@method("array_on_self", "ArrayOnSelf", "-")
class ArrayOnSelf(FedAvg):
    """Writes into an array of 80 kB."""

    _losses: Any = PrivateAttr(default_factory=lambda: np.zeros(10_000))

    def loss(self, output, batch, local):
        loss = super().loss(output, batch, local)
        self._losses[local.client.id] = loss.item()
        return loss


@method("object_on_self", "ObjectOnSelf", "-")
class ObjectOnSelf(FedAvg):
    """Changes an object of its own."""

    _record: Any = PrivateAttr(default_factory=Record)

    def finish(self, local, trained):
        self._record.steps += trained.steps
        return super().finish(local, trained)


@method("data_on_self", "DataOnSelf", "-")
class DataOnSelf(FedAvg):
    """Changes a tensor through `.data` on the server."""

    _rounds: Any = PrivateAttr(default_factory=lambda: torch.zeros(3))

    def server_step(self, state, total, server):
        self._rounds.data[0] += 1
        return super().server_step(state, total, server)


@method("unseeded_draw", "UnseededDraw", "-")
class UnseededDraw(FedAvg):
    """Draws from the system's entropy in a client's step."""

    def loss(self, output, batch, local):
        return super().loss(output, batch, local) * (1 + np.random.default_rng().random())


@method("global_draw", "GlobalDraw", "-")
class GlobalDraw(FedAvg):
    """Draws from torch's global generator on the server."""

    def init_server(self, server):
        model = super().init_server(server)["model"]
        weight = model["head.weight"]
        return {"model": {**model, "head.weight": weight + torch.randn(weight.shape)}}


@method("edited_download", "EditedDownload", "-")
class EditedDownload(FedAvg):
    """Scales what it was sent in place."""

    def begin(self, client, state, down):
        down.model["head.bias"].mul_(0.9)
        return super().begin(client, state, down)


@method("data_of_download", "DataOfDownload", "-")
class DataOfDownload(FedAvg):
    """Scales what it was sent through `.data`, which no guard notices."""

    def begin(self, client, state, down):
        local = super().begin(client, state, down)
        down.model["head.bias"].data.mul_(0.9)
        return local


class Replacing(FedAvg):
    """Changes the structure of its model."""

    def begin(self, client, state, down):
        local = super().begin(client, state, down)
        self.change(local.model)
        return local


@method("replaced_data", "ReplacedData", "-")
class ReplacedData(Replacing):
    """Gives a parameter other memory."""

    def change(self, model):
        model.head.bias.data = model.head.bias.data + 1


@method("replaced_parameter", "ReplacedParameter", "-")
class ReplacedParameter(Replacing):
    """Replaces a parameter."""

    def change(self, model):
        model.head.bias = nn.Parameter(torch.zeros_like(model.head.bias))


@method("replaced_buffer", "ReplacedBuffer", "-")
class ReplacedBuffer(Replacing):
    """Replaces a running mean."""

    def change(self, model):
        layer = next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))
        layer.running_mean = torch.ones_like(layer.running_mean)


@method("added_buffer", "AddedBuffer", "-")
class AddedBuffer(Replacing):
    """Adds a buffer."""

    def change(self, model):
        model.register_buffer("seen", torch.ones(1))


@method("edited_state", "EditedState", "-")
class EditedState(FedAvg):
    """Scales the server's model in place."""

    def server_step(self, state, total, server):
        after = super().server_step(state, total, server)
        for tensor in state["model"].values():
            tensor.zero_()
        return after


@method("order_of_clients", "OrderOfClients", "-")
class OrderOfClients(FedAvg):
    """Doubles the weights of every other client that this process sees."""

    def finish(self, local, trained):
        SEEN.append(local.client.id)
        with torch.no_grad():
            for parameter in local.model.parameters():
                parameter.mul_(1 + len(SEEN) % 2)
        return super().finish(local, trained)


@method("own_process", "OwnProcess", "-")
class OwnProcess(FedAvg):
    """Computes with the number of its process."""

    def loss(self, output, batch, local):
        return super().loss(output, batch, local) * (1 + os.getpid() % 1000)


@method("test_images", "TestImages", "-")
class TestImages(FedAvg):
    """Trains on the client's test images."""

    def train(self, local):
        return super().train(replace(local, client=replace(local.client, train=local.client.test)))


Secret = Fields(
    "Secret",
    {
        "mean": sent("statistics", "everything", axes="n"),
    },
)


@method("undeclared_payload", "UndeclaredPayload", "-")
class UndeclaredPayload(FedAvg):
    """Uploads a payload that no step declares."""

    def prepare(self, state, exchange):
        exchange.call("report", dict.fromkeys(exchange.everyone))
        return state

    def report(self, client, state, down):
        return Secret(torch.zeros(1)), state


@method("module_memory", "ModuleMemory", "-")
class ModuleMemory(FedAvg):
    """Keeps each client's last loss in a variable of the module."""

    losses: ClassVar[dict[int, float]] = {}

    def loss(self, output, batch, local):
        before = self.losses.get(local.client.id, 1.0)
        loss = super().loss(output, batch, local)
        self.losses[local.client.id] = loss.item()
        return loss * before


@method("own_answers", "OwnAnswers", "-")
class OwnAnswers(FedAvg):
    """Predicts each client's commonest class, and claims that clients have one model."""

    one_model = True

    def predict(self, output, local):
        return super().predict(output, local) + 9.0 * local.client.class_counts


@method("drawn_answers", "DrawnAnswers", "-")
class DrawnAnswers(FedAvg):
    """Predicts with random noise, which clients of one pass share."""

    one_model = True

    def predict(self, output, local):
        logits = super().predict(output, local)
        return logits + 9.0 * torch.rand_like(logits)
