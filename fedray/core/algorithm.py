"""The interface of a method: pure functions of what goes in, and nothing else.

    downlink (server) -> client_update (client) -> server_update (server)

A method is one file of `fedray.algorithms`: its hyper-parameters and one class. Most are built on
`LocalTraining`, which has the client's step, and give a loss and what travels. A method whose
round has more exchanges overrides `round`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedray.config import Frozen, Tree
from fedray.core.client import Client, Setting
from fedray.core.payload import Payload, PayloadTypes
from fedray.core.server import Downlinks, Exchange, Server, Uplinks
from fedray.core.state import ClientState, ServerState, StateTree
from fedray.core.sums import Total, total_of
from fedray.models import Classifier, ClassifierOutput, WithAuxiliary
from fedray.registry import Registry

if TYPE_CHECKING:
    from fedray.models.clip import FrozenClip
    from fedray.models.prompted import PromptedClip


@dataclass(frozen=True)
class Requires:
    """What a method needs of an experiment; what is not given to it, it cannot use.

    Attributes:
        text: the server has a text tower with the classes' texts.
        head: models end in a classifier; False: in their features.
        prompts: models are prompts around a frozen CLIP, made by `prompted_model`.
        validation: clients have validation images.
        sgd: what clients upload is a sum of the gradients of a round, times lr: steps are SGD's,
            with or without momentum, which begins anew every round, and nothing is clipped.
    """

    text: bool = False
    head: bool = True
    prompts: bool = False
    validation: bool = False
    sgd: bool = False


class HyperParameters(Frozen):
    """Base of a method's hyper-parameters: each with the paper's symbol, range and source."""

    evaluation_only: ClassVar[tuple[str, ...]] = ()
    """Those that training never sees, as the experiment calls them: a finished run can be tested
    again under others (`python -m fedray.report.evaluate`)."""

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        """Named sets of dotted overrides, chosen by `algorithm.preset`."""
        return {}

    def local_steps(self, epochs: int) -> int:
        """How many steps a client's optimisers take in a round for each batch of its images.

        A method that does not take one in every epoch says so: a table's page says of its rows
        what differs.

        Args:
            epochs: the experiment's `local_epochs`.
        """
        return epochs


@dataclass(frozen=True)
class LocalContext:
    """What one client's training or test works on.

    Attributes:
        client: the client.
        model: its architecture's model with the weights that it starts from, on the device.
        state: what the client kept.
        down: what it was sent.
        extra: parameters besides the model's, trained with them, by name, on the device.
        trainable: names of the model's parameters that are trained; None for all.
    """

    client: Client
    model: Classifier
    state: ClientState
    down: Any
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    trainable: Collection[str] | None = None


class Algorithm:
    """Base of every method.

    Args:
        hparams: the method's hyper-parameters, of its own type.
        setting: what both sides know.
    """

    name: ClassVar[str]
    """What `algorithm` calls it."""
    title: ClassVar[str]
    """What the paper calls it."""
    paper: ClassVar[str]
    """Authors, venue and arXiv number; "-" where there is none."""
    travels: ClassVar[str]
    """One phrase: what is sent."""
    requires: ClassVar[Requires] = Requires()
    uploads: ClassVar[PayloadTypes] = ()
    downloads: ClassVar[PayloadTypes] = ()
    """All types of payloads that travel, client to server and server to client."""
    dense: ClassVar[bool] = False
    """Whether the method supports dense prediction, where every pixel is a sample. Each class must
    state it again (`CLAIMS`), since what it adds may need one feature per image."""

    class HParams(HyperParameters):
        """Hyper-parameters; a method without any has these."""

    hp: HyperParameters
    """The hyper-parameters; a subclass declares them again with its own type."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the declarations of payloads, and reset claims that the class must repeat.

        Raises:
            TypeError: if a payload has a field that cannot travel.
        """
        super().__init_subclass__(**kwargs)
        for payload in (*cls.uploads, *cls.downloads):
            payload.declared()
        for claim, steps in CLAIMS.items():
            for base in cls.__mro__:
                if claim in vars(base):
                    break
                if not steps or any(step in vars(base) for step in steps):
                    setattr(cls, claim, vars(Algorithm)[claim])
                    break

    @classmethod
    def means_equally(cls, hparams: HyperParameters) -> bool:
        """Return True if the server's step uses uploads only through their equally weighted mean.

        Central privacy adds its noise to that mean. A class that changes the server's step must
        define this method again (`CLAIMS`).
        """
        return False

    def __init__(self, hparams: HyperParameters, setting: Setting) -> None:
        self.hp = hparams
        self.setting = setting

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The server's state before anything has happened."""
        return {}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Whatever happens once before the first round."""
        return state

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """One round: downlink, client step, server step."""
        down = self.downlink(state, exchange.participants, exchange.server)
        uplinks = exchange.call("client_update", down)
        return self.server_update(state, uplinks, exchange.server)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """What each of `clients` is sent; one object for many is sent as one."""
        return dict.fromkeys(clients)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The server's step, from uplinks sorted by client id."""
        return state

    # --- client ----------------------------------------------------------------------------------

    def init_client(self, client: Client) -> ClientState:
        """A client's state before its first step: the initial weights."""
        return ClientState(client.initial())

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """The client with the weights it starts a round from, and is tested with: its own."""
        return LocalContext(client, client.load(state.model), state, down)

    def client_update(
        self, client: Client, state: ClientState, down: Any
    ) -> tuple[Payload | None, ClientState]:
        """The client's step: what is uploaded, and its next state; as it stands, nothing."""
        return None, state

    def predict(self, output: ClassifierOutput, local: LocalContext) -> Tensor:
        """Logits [B, C], or of all pixels [B·H·W, C]; every evaluation uses this.

        Args:
            output: what the client's model gives, in evaluation mode.
            local: the client, its model, its state and what it was sent.
        """
        return output.logits


CLAIMS: Mapping[str, tuple[str, ...]] = {
    "dense": (),
    "means_equally": ("round", "server_update", "summand", "server_step"),
}
"""What a class states about itself, and the steps about which it states this. A subclass that
changes one of these steps must state it again; with no steps listed, every subclass must."""


class SummingMethod(Algorithm):
    """A method whose server step sees uploads only through sums over them.

    They are added up where the clients run (`core.sums`), so that the server gets a few sums and
    not every upload. A class with a `server_update` of its own gets the uploads, as does a call
    under privacy or with late replies; what they add up to is the same by `total_of`.
    """

    def summand(self, upload: Any) -> StateTree:
        """What one upload adds to each sum; see `weighed`."""
        raise NotImplementedError(f"{self.name} sums uploads, but does not say what of them")

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """The server's step, from what at least one upload adds up to."""
        raise NotImplementedError(f"{self.name} sums uploads, but makes nothing of the sum")

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """One round: downlink, client step, server step."""
        if getattr(self.server_update, "__func__", None) is not SummingMethod.server_update:
            return super().round(state, exchange)
        down = self.downlink(state, exchange.participants, exchange.server)
        total = exchange.total("client_update", down)
        return self.server_step(state, total, exchange.server) if total else state

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The server's step from uploads; without any, everything stays."""
        if not uplinks:
            return state
        return self.server_step(state, total_of(self.summand, uplinks), server)


class PromptMethod(Algorithm):
    """A method whose model is prompts around a frozen CLIP."""

    requires = Requires(prompts=True, head=False)

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """The clients' model, an empty one."""
        raise NotImplementedError(f"{self.name} requires prompts, but does not say which")


class AuxiliaryMethod(Algorithm):
    """A method whose clients have, beside their own model, a small one that all of them share.

    Its architecture is the first of `model.group`. The client's model is both in one module, so
    that training, states and weights on the wire know them by their names.
    """

    def auxiliary_dim(self) -> int:
        """Width of the small model's features; that of all others by default.

        Raises:
            UserError: when the hyper-parameters ask for what `model.feature_dim` cannot give.
        """
        return self.setting.feature_dim

    def with_auxiliary(self, own: Classifier, auxiliary: Classifier) -> WithAuxiliary:
        """The clients' model of both; layers between them are `undrawn_linear`."""
        return WithAuxiliary(own, auxiliary)


algorithms = Registry[type[Algorithm]]("algorithm", "fedray.algorithms")
