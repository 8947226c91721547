"""The interface of a method: pure functions of what goes in, and nothing else.

    downlink (server) -> client_update (client) -> server_update (server)

A method is one file of `fedray.algorithms`: its hyper-parameters and one class. Most are built on
`LocalTraining`, which has the client's step, and give a loss and what travels. A method whose
round has more exchanges overrides `round`.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

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
        dense: not a need but a leave: the method is defined for dense prediction too, where every
            pixel is a sample. Never inherited: what a method adds may want one feature an image.
        sgd: what clients upload is a sum of the gradients of a round, times lr: steps are SGD's,
            with or without momentum, which begins anew every round, and nothing is clipped.
    """

    text: bool = False
    head: bool = True
    prompts: bool = False
    validation: bool = False
    dense: bool = False
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
    """Every payload that travels, client to server and server to client."""

    class HParams(HyperParameters):
        """Hyper-parameters; a method without any has these."""

    hp: HyperParameters
    """The hyper-parameters; a subclass declares them again with its own type."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "requires" not in vars(cls):
            cls.requires = replace(cls.requires, dense=False)

    @classmethod
    def means_equally(cls, hparams: HyperParameters) -> bool:
        """Whether the server's step sees uploads only through their mean with equal weights.

        Central privacy adds its noise to that mean. A class with a server step of its own has to
        say it again, see `takes_a_mean`.
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


def takes_a_mean(method: type[Algorithm], hparams: HyperParameters) -> bool:
    """Whether central privacy can be stated of a method: `means_equally`, said of its own step."""
    steps = min(_height(method, name) for name in _SERVER_STEPS if hasattr(method, name))
    return _height(method, "means_equally") <= steps and method.means_equally(hparams)


_SERVER_STEPS = ("round", "server_update", "summand", "server_step")
"""What the server's step is made of, and what `SummingMethod` makes it of."""


def _height(method: type[Algorithm], name: str) -> int:
    """How far up a method's bases an attribute was defined."""
    return next(height for height, base in enumerate(method.__mro__) if name in vars(base))


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


def declared_upload(step: Any) -> tuple[type, ...] | None:
    """What a client's step uploads by its return annotation, `tuple[LocalPrototypes, ClientState]`.

    Returns:
        Types of payload, and NoneType where it may upload nothing; None when it does not say.

    Raises:
        TypeError: when it says that it uploads anything else, or a payload that is no dataclass.
    """
    if "ClientState" not in str(getattr(step, "__annotations__", {}).get("return")):
        return None
    said = SimpleNamespace(__annotations__={"return": step.__annotations__["return"]})
    try:
        hint = get_type_hints(said, step.__globals__)["return"]
    except NameError:  # imported for type checkers alone
        return None
    if get_origin(hint) is not tuple or len(get_args(hint)) != 2 or get_args(hint)[0] is Any:
        return None
    upload = get_args(hint)[0]
    types = get_args(upload) if get_origin(upload) in (Union, UnionType) else (upload,)
    types = tuple(type(None) if each is None else each for each in types)
    for each in types:
        if isinstance(each, type) and issubclass(each, Payload):
            each.declared()
        elif each is not type(None):
            raise TypeError(
                f"{step.__qualname__} uploads {each} by its return annotation; what travels is a "
                "Payload or None"
            )
    return types


class Methods(Registry[type[Algorithm]]):
    """The registry of methods; one that uploads what cannot travel is refused."""

    def add(self, entry: type[Algorithm]) -> type[Algorithm]:
        """Register a method; also a class decorator.

        Raises:
            TypeError: when one of its steps uploads what cannot travel.
            ValueError: when it has no name, or another method already has it.
        """
        for name in dir(entry):
            declared_upload(inspect.getattr_static(entry, name))
        return super().add(entry)


algorithms = Methods("algorithm", "fedray.algorithms")
