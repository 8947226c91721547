"""Tensors that are learnt beside the model and averaged with it: a scale, a projection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedray.algorithms.base import Server, ServerState
from fedray.algorithms.fedavg import FedAvg, GlobalModel, TrainedModel
from fedray.client import Client, ClientState, LocalTraining
from fedray.evaluation import Score
from fedray.models import Classifier, tensor_names


class LearnsBeside(FedAvg):
    """FedAvg of models and of tensors beside them, which losses find in the client's memory."""

    def beside(self) -> dict[str, Tensor]:
        """The tensors before the first round, by names that no model has."""
        return {}

    def init_server(self, server: Server) -> ServerState:
        """The initial weights, and what is beside them."""
        return {**super().init_server(server), **self.beside()}

    def start(self, client: Client, state: ClientState, down: GlobalModel) -> Mapping[str, Tensor]:
        """The global model without what is beside it."""
        own = tensor_names(client.skeleton.model)
        weights = super().start(client, state, down)
        return {name: tensor for name, tensor in weights.items() if name in own}

    def client_update(
        self, client: Client, state: ClientState, down: GlobalModel
    ) -> tuple[TrainedModel, ClientState]:
        """Train the model and, by the same SGD, what is beside it."""
        model = client.load(self.start(client, state, down))
        live = self.train(client, model, state, down)
        sent = self.uplink(client, model, down)
        learnt = {name: live.memory[name].detach() for name in self.beside()}
        sent = replace(sent, weights={**sent.weights, **learnt})
        return sent, self.keep(client, model, state)

    def train(
        self, client: Client, model: Classifier, state: ClientState, down: GlobalModel
    ) -> ClientState:
        """The local epochs.

        Returns:
            The state with what was learnt beside the model.
        """
        live = self.received(client, state, down)
        for name in self.beside():
            learn_beside(live.memory[name], self.setting.training)
        client.fit(model, lambda m, batch: self.local_loss(m, batch, down, live))
        return live

    def received(self, client: Client, state: ClientState, down: GlobalModel) -> ClientState:
        """The state with copies, on the device, of what was sent beside the model."""
        sent = {name: down.weights[name].to(client.device, copy=True) for name in self.beside()}
        return ClientState(state.model, {**state.memory, **sent})

    def evaluate(self, client: Client, state: ClientState, down: GlobalModel) -> Score:
        """Test the global model with what was sent beside it."""
        return super().evaluate(client, self.received(client, state, down), down)


def learn_beside(tensor: Tensor, knobs: LocalTraining) -> None:
    """Make a tensor learn by the model's SGD: it steps as soon as a backward pass reaches it."""
    tensor.requires_grad_()
    sgd = torch.optim.SGD(
        [tensor], knobs.lr, momentum=knobs.momentum, weight_decay=knobs.weight_decay
    )

    def step(_: Tensor) -> None:
        sgd.step()
        sgd.zero_grad()

    tensor.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
