"""Base classes of methods with personal extractors and a shared head."""

from typing import Any

from fedray import core
from fedray.algorithms.mean import SAMPLES
from fedray.models import head_tensors


class HeadSharing(core.LocalTraining):
    """Local training of personal extractors, of any architecture, with the server's head."""

    down = {"head": core.sent("weights", "the mean of the participants' heads")}

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the first client's initial head, by tensor names without the prefix "head."."""
        architecture = server.architectures[0]
        initial, names = server.initial(architecture), head_tensors(server.empty(architecture))
        return {"head": {n.removeprefix("head."): t for n, t in initial.items() if n in names}}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the client's personal extractor and the shared head."""
        head = {f"head.{name}": value for name, value in down.head.items()}
        return core.LocalContext(client, client.load({**state.model, **head}), state, down)


class HeadAveraging(HeadSharing):
    """A `HeadSharing` method whose shared head is the mean of the participants' heads."""

    up = {
        "head": core.sent(
            "weights", "which classes it holds (rows of its head that changed)", combine="mean"
        ),
        "samples": SAMPLES,
    }

    def finish(self, local: core.LocalContext, trained: core.Trained) -> core.StepResult:
        _, state = super().finish(local, trained)
        head = local.client.weights(local.model.head)
        return {"head": head, "samples": len(local.client.train)}, state
