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

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import SAMPLES, Weights
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
        """Return the shared part of the initial weights; all clients have one architecture."""
        initial, names = server.initial(server.architecture), tensor_names(server.model)
        shared = self.shared(server.model)
        if unknown := set(shared) - names:
            raise ValueError(f"{type(self).__name__}.shared: the model has no {min(unknown)}")
        return {"model": select(core.Flat.of(initial), shared)}

    def group_means(
        self,
        models: Mapping[str, Mapping[str, Tensor]],
        uploads: core.Uplinks,
        groups: Mapping[int, str],
        server: core.Server,
    ) -> dict[str, Mapping[str, Tensor]]:
        """Return the model of each group of clients, after `server_step` on their uploads.

        A group without uploads keeps its model.
        """
        means = dict(models)
        for group in sorted({groups[client] for client in uploads}):
            own = {client: one for client, one in uploads.items() if groups[client] == group}
            after = core.Algorithm.server_update(self, {"model": models[group]}, own, server)
            means[group] = after["model"]
        return means

    def init_client(self, client: core.Client) -> core.ClientState:
        personal = self.personal(client.skeleton.model)
        return core.ClientState(select(client.initial(), personal) if personal else {})

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the global model and the client's personal tensors."""
        model = client.load({**state.model, **down.model} if state.model else down.model)
        return core.LocalContext(client, model, state, down)

    def finish(self, local: core.LocalContext, trained: core.Trained) -> core.StepResult:
        """Upload the shared tensors; keep the personal ones and the unchanged memory."""
        client, personal = local.client, self.personal(local.model)
        tensors = select(client.weights(local.model), personal) if personal else {}
        shared = select(trained.tensors, self.shared(local.model))
        upload = {"model": shared, "samples": len(client.train)}
        return upload, core.ClientState(tensors, local.state.memory)

    def uploads_of(
        self, contexts: Sequence[core.LocalContext], trained: Sequence[core.Flat]
    ) -> Sequence[core.Payload] | None:
        """Return the uploads of stacked clients without state; None if `finish` does more.

        `trained` are the trained weights of each client, on the CPU.
        """
        model = contexts[0].model
        is_whole = not self.personal(model) and trained[0].keys() == self.shared(model)
        if type(self).finish is not FedAvg.finish or not is_whole:
            return None
        sizes = [context.client.train.index.size for context in contexts]
        return [*map(self.up, trained, sizes)]


class ExtraParameters(FedAvg):
    """FedAvg that trains and averages extra parameters together with the model's.

    The loss reads the extra parameters from `local.extra`.
    """

    one_model = True
    dense = False
    down = {"extra": core.sent("weights")}
    up = {"extra": core.sent("weights", combine="mean")}

    extra: ClassVar[Mapping[str, Any]] = {}
    """The initial values, numbers or tensors, by name; what numbers became is reported."""

    def extra_parameters(self) -> Mapping[str, Tensor]:
        """Return the initial values by name; no model may have a parameter of the same name."""
        return {n: torch.as_tensor(v, dtype=torch.float32) for n, v in self.extra.items()}

    def init_server(self, server: core.Server) -> core.ServerState:
        return {**super().init_server(server), "extra": self.extra_parameters()}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        return core.with_extra(super().begin(client, state, down), down.extra)

    def finish(self, local: core.LocalContext, trained: core.Trained) -> core.StepResult:
        upload, state = super().finish(local, trained)
        for name in self.extra:
            if trained.tensors[name].ndim == 0:
                local.client.reports[name] = float(trained.tensors[name])
        return {**upload, "extra": select(trained.tensors, local.extra)}, state


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


def select(tensors: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
    """Return the tensors whose names are in `names`, in the order of `tensors`."""
    if isinstance(tensors, core.Flat) and tensors.keys() == names:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if name in names}
