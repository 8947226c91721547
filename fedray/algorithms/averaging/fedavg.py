"""FedAvg: clients train the global model, and the server averages their models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv:1602.05629.

    Algorithm 1, server line -> combined_rows, mean_of (core/sums.py)

Most methods with a global model extend this class. They override which tensors are shared, which
parameters are trainable, the loss, or how the server updates the model.

Deviations:
    - Running statistics are averaged like weights. PFLlib averages parameters only, and tests every
      client with its own running statistics. With batch normalisation, accuracies differ by up to
      44 points.

Buffers: running statistics are averaged like weights; integer counters take the maximum. Both
travel as statistics, which are never quantised, clipped or noised, so that a variance stays
positive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor

from fedray import core
from fedray.algorithms.mean import SAMPLES, Weights
from fedray.errors import nearest
from fedray.models import Classifier, tensor_names


@core.method("fedavg", "FedAvg", "McMahan et al., AISTATS 2017, arXiv:1602.05629")
class FedAvg(core.LocalTraining):
    """Averaging of whole models; clients keep no state."""

    dense = True
    down: ClassVar[Any] = {
        "model": core.sent(
            "weights",
            "the mean of the participants' models; of two participants, each knows the other's",
        )
    }
    up: ClassVar[Any] = {
        "model": core.sent(
            "weights",
            "the client's update (membership; after few steps on few images, images)",
            combine="mean",
        ),
        "samples": SAMPLES,
    }
    one_model = True

    weights: Weights = "samples"
    """Client weights in the mean: samples, n_k/n (paper), or uniform, 1/K."""

    def shared(self, model: Classifier) -> Collection[str]:
        """Return the names of the tensors that are communicated and averaged."""
        return tensor_names(model)

    def personal(self, model: Classifier) -> Collection[str]:
        """Return the names of the tensors that stay with the client: all except the shared ones."""
        return tensor_names(model) - frozenset(self.shared(model))

    def has_global_model(self, state: core.ServerState) -> bool:
        """Return True if all clients predict with one model (`evaluation.protocols`).

        Override it in a method whose `downlink` sends clients different models.
        """
        return self.one_model

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the shared part of the initial weights; all clients have one architecture.

        Raises:
            ValueError: if `shared` names a tensor that the model does not have.
        """
        model, initial = server.model, server.initial(server.architecture)
        shared, names = self.shared(model), tensor_names(model)
        unknown = sorted(set(shared) - names)
        if unknown:
            raise ValueError(
                f"{type(self).__name__}.shared names '{unknown[0]}', which the model does not "
                f"have.{nearest(unknown[0], names)}"
            )
        return {"model": select(core.Flat.of(initial), shared)}

    def mean_of_groups(
        self,
        models: Mapping[str, core.Tensors],
        uploads: core.Uplinks,
        group_of: Callable[[int], str],
        server: core.Server,
    ) -> dict[str, core.Tensors]:
        """Return each group's `model` after `server_step` on the uploads of its members.

        Args:
            models: the models before, by group; one without uploads stays.
            uploads: the uploads by client.
            group_of: returns the group of a client.
            server: the server.
        """
        members: dict[str, dict[int, Any]] = {}
        for client, upload in uploads.items():
            members.setdefault(group_of(client), {})[client] = upload
        means = {
            group: core.Algorithm.server_update(self, {"model": models[group]}, of, server)["model"]
            for group, of in members.items()
        }
        return {**models, **means}

    def init_client(self, client: core.Client) -> core.ClientState:
        personal = self.personal(client.skeleton.model)
        return core.ClientState(select(client.initial(), personal) if personal else {})

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the global model and the client's personal tensors."""
        model = client.load({**state.model, **down.model} if state.model else down.model)
        return core.LocalContext(client, model, state, down)

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        """Upload the shared tensors; keep the personal ones and the unchanged memory."""
        client, (shared, personal) = local.client, self._names_in(local.model)
        tensors = select(client.weights(local.model), personal) if personal else {}
        upload = {"model": select(trained.tensors, shared), "samples": len(client.train)}
        return upload, core.ClientState(tensors, local.state.memory)

    def uploads_of(
        self, contexts: Sequence[core.LocalContext], trained: Sequence[core.Flat]
    ) -> Sequence[core.Payload] | None:
        """Return the uploads of stacked clients without state; None if `finish` does more.

        Args:
            contexts: the clients.
            trained: the trained weights of each, on the CPU.
        """
        shared, personal = self._names_in(contexts[0].model)
        if type(self).finish is not FedAvg.finish or personal or trained[0].keys() != shared:
            return None
        sizes = [context.client.train.index.size for context in contexts]
        pairs = zip(trained, sizes, strict=True)
        return [self.up(weights, size) for weights, size in pairs]

    def _names_in(self, model: Classifier) -> tuple[Collection[str], Collection[str]]:
        """Return the names of the shared and of the personal tensors of a model."""
        if model not in self._names:
            self._names[model] = self.shared(model), self.personal(model)
        return self._names[model]

    @cached_property
    def _names(self) -> WeakKeyDictionary[Classifier, tuple[Collection[str], Collection[str]]]:
        """The names of the shared and of the personal tensors of models."""
        return WeakKeyDictionary()


def select(tensors: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
    """Return the tensors whose names are in `names`, in the order of `tensors`."""
    if isinstance(tensors, core.Flat) and tensors.keys() == names:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if name in names}
