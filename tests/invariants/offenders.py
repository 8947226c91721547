"""Methods that break one law each; a plug-in for the tests of `fedray check`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import Payload, algorithms, sent

SEEN: list[int] = []


class Record:
    """An object of the method's own."""

    steps = 0


@algorithms.add
class NumberOnSelf(FedAvg):
    """Counts its steps in an attribute."""

    name = "number_on_self"
    steps = 0

    def loss(self, output, batch, local):
        self.steps += 1
        return super().loss(output, batch, local) * (1 + 0.01 * self.steps)


@algorithms.add
class ArrayOnSelf(FedAvg):
    """Writes into an array of 80 kB."""

    name = "array_on_self"

    def __init__(self, hparams, setting):
        super().__init__(hparams, setting)
        self.losses = np.zeros(10_000)

    def loss(self, output, batch, local):
        loss = super().loss(output, batch, local)
        self.losses[local.client.id] = loss.item()
        return loss


@algorithms.add
class ObjectOnSelf(FedAvg):
    """Changes an object of its own."""

    name = "object_on_self"

    def __init__(self, hparams, setting):
        super().__init__(hparams, setting)
        self.record = Record()

    def finish(self, local, trained):
        self.record.steps += trained.steps
        return super().finish(local, trained)


@algorithms.add
class DataOnSelf(FedAvg):
    """Changes a tensor through `.data` on the server."""

    name = "data_on_self"

    def __init__(self, hparams, setting):
        super().__init__(hparams, setting)
        self.rounds = torch.zeros(3)

    def server_step(self, state, total, server):
        self.rounds.data[0] += 1
        return super().server_step(state, total, server)


@algorithms.add
class UnseededDraw(FedAvg):
    """Draws from the system's entropy in a client's step."""

    name = "unseeded_draw"

    def loss(self, output, batch, local):
        return super().loss(output, batch, local) * (1 + np.random.default_rng().random())


@algorithms.add
class GlobalDraw(FedAvg):
    """Draws from torch's global generator on the server."""

    name = "global_draw"

    def init_server(self, server):
        model = super().init_server(server)["model"]
        weight = model["head.weight"]
        return {"model": {**model, "head.weight": weight + torch.randn(weight.shape)}}


@algorithms.add
class EditedDownload(FedAvg):
    """Scales what it was sent in place."""

    name = "edited_download"

    def begin(self, client, state, down):
        down.weights["head.bias"].mul_(0.9)
        return super().begin(client, state, down)


@algorithms.add
class DataOfDownload(FedAvg):
    """Scales what it was sent through `.data`, which no guard notices."""

    name = "data_of_download"

    def begin(self, client, state, down):
        local = super().begin(client, state, down)
        down.weights["head.bias"].data.mul_(0.9)
        return local


class Replacing(FedAvg):
    """Changes the structure of its model."""

    def begin(self, client, state, down):
        local = super().begin(client, state, down)
        self.change(local.model)
        return local


@algorithms.add
class ReplacedData(Replacing):
    """Gives a parameter other memory."""

    name = "replaced_data"

    def change(self, model):
        model.head.bias.data = model.head.bias.data + 1


@algorithms.add
class ReplacedParameter(Replacing):
    """Replaces a parameter."""

    name = "replaced_parameter"

    def change(self, model):
        model.head.bias = nn.Parameter(torch.zeros_like(model.head.bias))


@algorithms.add
class ReplacedBuffer(Replacing):
    """Replaces a running mean."""

    name = "replaced_buffer"

    def change(self, model):
        layer = next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))
        layer.running_mean = torch.ones_like(layer.running_mean)


@algorithms.add
class AddedBuffer(Replacing):
    """Adds a buffer."""

    name = "added_buffer"

    def change(self, model):
        model.register_buffer("seen", torch.ones(1))


@algorithms.add
class FrozenParameter(Replacing):
    """Leaves a parameter frozen."""

    name = "frozen_parameter"

    def change(self, model):
        model.head.bias.requires_grad_(False)


@algorithms.add
class EditedState(FedAvg):
    """Scales the server's model in place."""

    name = "edited_state"

    def server_step(self, state, total, server):
        after = super().server_step(state, total, server)
        for tensor in state["model"].values():
            tensor.zero_()
        return after


@algorithms.add
class OrderOfClients(FedAvg):
    """Doubles the weights of every other client that this process sees."""

    name = "order_of_clients"

    def finish(self, local, trained):
        SEEN.append(local.client.id)
        with torch.no_grad():
            for parameter in local.model.parameters():
                parameter.mul_(1 + len(SEEN) % 2)
        return super().finish(local, trained)


@algorithms.add
class OwnProcess(FedAvg):
    """Computes with the number of its process."""

    name = "own_process"

    def loss(self, output, batch, local):
        return super().loss(output, batch, local) * (1 + os.getpid() % 1000)


@algorithms.add
class TestImages(FedAvg):
    """Trains on the client's test images."""

    name = "test_images"

    def train(self, local):
        return super().train(replace(local, client=replace(local.client, train=local.client.test)))


class Losses(Payload):
    """Losses, with the number of images in an attribute that is no field."""

    last = sent("statistics", "its losses", axes="n")

    def __post_init__(self):
        object.__setattr__(self, "images", 3)


@algorithms.add
class UndeclaredField(FedAvg):
    """Uploads something that its payload does not declare."""

    name = "undeclared_field"
    uploads = (*FedAvg.uploads, Losses)

    def prepare(self, state, exchange):
        exchange.call("report", dict.fromkeys(exchange.everyone))
        return state

    def report(self, client, state, down):
        return Losses(torch.zeros(1)), state


class Secret(Payload):
    """What no list of the method names."""

    mean = sent("statistics", "everything", axes="n")


@algorithms.add
class UndeclaredPayload(FedAvg):
    """Uploads a payload that `uploads` lacks."""

    name = "undeclared_payload"

    def prepare(self, state, exchange):
        exchange.call("report", dict.fromkeys(exchange.everyone))
        return state

    def report(self, client, state, down):
        return Secret(torch.zeros(1)), state


@algorithms.add
class ModuleMemory(FedAvg):
    """Keeps each client's last loss in a variable of the module."""

    name = "module_memory"
    losses: ClassVar[dict[int, float]] = {}

    def loss(self, output, batch, local):
        before = self.losses.get(local.client.id, 1.0)
        loss = super().loss(output, batch, local)
        self.losses[local.client.id] = loss.item()
        return loss * before
