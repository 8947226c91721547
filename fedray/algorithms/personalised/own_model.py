"""Base class of methods that average models, and test a client with its own (pFedMe, pFedMoAP)."""

from collections.abc import Collection
from typing import Any

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.models import tensor_names


class OwnModel(FedAvg):
    """FedAvg where a round begins with the mean, but tests use a client's own trained model."""

    dense = False

    def personal(self, model: core.Classifier) -> Collection[str]:
        """Return all names: a client keeps its trained shared tensors, too."""
        return tensor_names(model)

    def init_client(self, client: core.Client) -> core.ClientState:
        """Return the initial tensors that are not shared; a client has others once it trained."""
        names = super().personal(client.skeleton.model)
        return core.ClientState(select(client.initial(), names) if names else {})

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the client's own model; before it has one, the mean."""
        model = client.load({**down.model, **state.model})
        return core.LocalContext(client, model, state, down)

    def train(self, local: core.LocalContext) -> core.Trained:
        """Train from the mean."""
        local.client.load({**local.client.save(local.model), **local.down.model})
        return super().train(local)
