"""The interface of a federated learning method, whose steps are pure functions.

    downlink (server) -> client_update (client) -> server_update (server)

A method is one file of `fedray.algorithms`: its hyper-parameters and one class. Most methods extend
`LocalTraining`, which implements the client step, and add a loss and payloads. A method with
several exchanges per round overrides `round`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar, final

from pydantic import ConfigDict, model_validator
from torch import Tensor

from fedray.base.trees import ClientState, ServerState
from fedray.config import Entry, Experiment, NoEffect, Tree
from fedray.config.registry import Registry
from fedray.core.client import Client, Setting
from fedray.core.payload import Declared, Fields, Payload
from fedray.core.server import Downlinks, Exchange, Server, Uplinks
from fedray.core.sums import Total, combined_rows, mean_of, total_of
from fedray.models import Classifier, ClassifierOutput, WithAuxiliary

if TYPE_CHECKING:
    from fedray.models.clip import FrozenClip
    from fedray.models.prompted import PromptedClip

M = TypeVar("M", bound="Algorithm")
StepResult: TypeAlias = tuple[Any, ClientState]
"""The result of a client step: its upload by field, or None, and the client's next state."""


@dataclass(frozen=True)
class Requires:
    """The requirements of a method; the experiment provides only what a method requires.

    Attributes:
        text: whether the server has a text tower with the texts of the classes.
        head: whether models end in a classifier; else they end in their features.
        prompts: whether models are prompts around a frozen CLIP, made by `sized_model`.
        validation: whether clients have validation images.
        public: whether server and clients have public images (`data.public`).
        sgd: whether an update must be the sum of a round's gradients times the learning rate. The
            optimiser is then SGD, its momentum starts at zero every round, and gradients are not
            clipped.
    """

    text: bool = False
    head: bool = True
    prompts: bool = False
    validation: bool = False
    public: bool = False
    sgd: bool = False


@dataclass(frozen=True)
class LocalContext:
    """The model, state and download of a client during its training or test.

    All tensors are on the client's device.

    Attributes:
        client: the client, with its images, setting and random streams.
        model: the client's model, a `Classifier`; it has the initial weights in the first call of
            `loss`, and the trained weights in `finish`.
        state: the client's state before the step.
        down: the download.
        extra: further parameters, by name, that are trained together with the model's.
        trainable: names of the model's parameters that are trained; None for all.
        notes: what the training notes for the upload.
    """

    client: Client
    model: Any
    state: ClientState
    down: Any
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    trainable: Collection[str] | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class Algorithm(Entry):
    """Base class of all methods, whose annotated attributes are their hyper-parameters.

    The docstring of each states the paper's symbol, the range and the source of the default.

    What `prepare`, `give` and `round` return is merged into the server's state before, so that an
    entry that they do not name stays. A step empties an entry by naming it with {}.
    """

    model_config = ConfigDict(
        alias_generator=lambda name: name.rstrip("_"),  # lambda_
        ignored_types=(cached_property,),
    )
    title: ClassVar[str]
    """The name in the paper."""
    requires: ClassVar[Requires] = Requires()
    down: ClassVar[Any] = Fields("Algorithm.down", {})
    up: ClassVar[Any] = Fields("Algorithm.up", {})
    """What `client_update` receives and uploads: `sent(...)` by name, beside what bases declare, of
    which None takes a field away. They become `Fields`, which make payloads. Other client steps are
    declared by `@step`."""
    uploads: ClassVar[Sequence[Fields]] = ()
    downloads: ClassVar[Sequence[Fields]] = ()
    """The fields of all steps, which follow from the declarations."""
    gifts: ClassVar[Sequence[str]] = ()
    """The names of the steps that are gifts (`declared.gift`), which follow from these."""
    dense: ClassVar[bool] = False
    """Whether the method supports dense prediction, where every pixel is a sample."""
    one_model: ClassVar[bool] = False
    """Whether a client's download, together with gifts that are the same for all clients,
    determines the predictions of its model: clients are then tested in one pass. A class that
    overrides a step on which predictions depend (`PREDICTING`) must claim it again."""
    stacks: ClassVar[bool] = False
    """Whether clients trained together (`core.stacked`) get the same numbers as clients trained
    separately, which `fedray check` compares; False for a loss that depends on values."""

    evaluation_only: ClassVar[tuple[str, ...]] = ()
    """Names, as in the experiment's keys, of hyper-parameters that training never reads. A finished
    run can be tested again with other values (`fedray analyse retest`)."""

    _setting: Setting | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make fields of payloads of the declarations."""
        super().__init_subclass__(**kwargs)
        _declare(cls)
        if any(step in vars(cls) for step in PREDICTING):
            cls.one_model = vars(cls).get("one_model", False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a claim with a type, which would be a hyper-parameter and claim nothing."""
        for name in cls.model_fields.keys() & vars(Algorithm).keys():
            raise TypeError(f"{cls.__name__}.{name}: write it without a type; no hyper-parameter")

    def check(self) -> None:
        """Raise a ValueError if hyper-parameters, which alone it reads, do not fit together."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        for base in type(self).__mro__:
            if "check" in vars(base):
                vars(base)["check"](self)
        return self

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        """Return named sets of dotted overrides, chosen by `algorithm.preset`."""
        return {}

    @final
    def with_setting(self, setting: Setting) -> Self:
        """Return the method in a federation, whose facts server and clients share."""
        placed = self.model_copy(deep=True)
        placed._setting = setting
        return placed

    @cached_property
    def setting(self) -> Setting:
        """Return the facts of the federation, after `with_setting`."""
        assert self._setting is not None, "a method without a federation"
        return self._setting

    @final
    @classmethod
    def unread(cls, experiment: Experiment) -> Mapping[str, NoEffect]:
        """Return the experiment's keys or sections that this method never reads, and why."""
        needs, public = cls.requires, experiment.data.public.name
        texts = "writes prompts around the names of the data's classes"
        fixed = (
            (needs.prompts, MODEL_KEYS, "trains prompts around the CLIP of model.clip"),
            (not needs.prompts, ("model.clip",), "uses no CLIP"),
            (not needs.text, ("text",), texts if needs.prompts else "reads no texts"),
            (not needs.public, PUBLIC_KEYS.get(public, ()), "reads no public images"),
            (not cls.uploads, ("wire.up_bits",), "uploads nothing"),
        )
        keys = {key: NoEffect(reason) for holds, of, reason in fixed if holds for key in of}
        if cls.client_update is Algorithm.client_update:
            keys |= dict.fromkeys(TRAINING_KEYS, NoEffect("trains nothing", is_refused=False))
        return keys

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """Return the initial server state."""
        return {}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Run once before the first round, and return the server's next state."""
        return state

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Send gifts, payloads that clients keep, by `exchange.give`; return the next state.

        Called after `prepare`, before every round, and before clients are tested, so that clients
        that were absent or joined later receive their gifts. By default, the declared gifts whose
        fields are entries of the state. With `one_model`, clients that join later are tested
        before, and receive the gifts from the start; else in the last round, if all fine-tune then.
        """
        for step in self.gifts:
            down = getattr(self, step).down
            if down.keys() <= state.keys():
                gifts = dict.fromkeys(self._receivers(exchange), payload_of(down, state))
                state = exchange.give(state, step, gifts)
        return state

    def _receivers(self, exchange: Exchange) -> Sequence[int]:
        is_last = exchange.server.round == self.setting.rounds
        to_all = self.one_model or (is_last and self.setting.finetune_epochs > 0)
        return range(self.setting.clients) if to_all else exchange.everyone

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Run downlink, client step and server step of a round; return the server's next state."""
        down = self.downlink(state, exchange.participants, exchange.server)
        if type(self).server_update is not Algorithm.server_update:
            uplinks = exchange.call("client_update", down)
            after = self.server_update(state, uplinks, exchange.server) if uplinks else {}
            return {**state, **after}
        total = exchange.total("client_update", down)
        return {**state, **self.server_step(state, total, exchange.server)} if total else state

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Return the download of each client; by default, the state's entries of the same names.

        Clients that share an object share one transfer.
        """
        return dict.fromkeys(clients, payload_of(self.down, state))

    @final
    def weight(self, upload: Any) -> float:
        """Return the weight of an upload with `samples` in every mean: n_k, or 1 if uniform."""
        return 1.0 if getattr(self, "weights", "") == "uniform" else float(upload.samples)

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Return the server's next state from what `up` combines of at least one upload.

        By default, the means of what was uploaded, under the names of their fields.
        """
        means = [name for name, field in self.up.items() if field.combine == "mean"]
        means = [name for name in means if name in total.sums]
        return {name: mean_of(total[name], total["weight"], state[name]) for name in means}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Return the server's next state from at least one upload; they are sorted by client id.

        By default the workers add up the uploads of their clients, as `up` declares, and the server
        takes `server_step`. A class that overrides this method receives all uploads.
        """
        return self.server_step(state, total_of(uplinks, partial(combined_rows, self)), server)

    @final
    def sent_by(self, step: str) -> Fields:
        """Return the fields that a client step uploads, by default `up`."""
        named = getattr(self, step.partition("/")[0], None)
        fields: Fields = getattr(named, "up", None) or self.up
        return fields

    # --- client ----------------------------------------------------------------------------------

    def init_client(self, client: Client) -> ClientState:
        """Return a client's state before its first step; by default, the initial weights."""
        return ClientState(client.initial())

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Load the initial weights of a client's round or test; by default, its own weights."""
        return LocalContext(client, client.load(state.model), state, down)

    def client_update(self, client: Client, state: ClientState, down: Any) -> StepResult:
        """Return the upload and the next state; by default, no upload and the same state."""
        return None, state

    def predict(self, output: ClassifierOutput, local: LocalContext) -> Tensor:
        """Return the logits for evaluations, [B, C], or [B·H·W, C] in dense prediction.

        Args:
            output: the output of the client's model in evaluation mode.
            local: the client, its model, its state and its download.
        """
        return output.logits


# --- declarations --------------------------------------------------------------------------------


def step(*, down: Any = None, up: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """Declare what a client step other than `client_update` receives and uploads.

    Args:
        down: the fields of its download, by name (`sent`), or those of another step.
        up: the fields of its upload.
    """

    def declared(function: Callable[..., Any]) -> Any:
        vars(function).update(down=down, up=up)
        return function

    return declared


def gift(**fields: Declared) -> Any:
    """Return a client step that receives these fields and keeps them in the client's memory."""

    @step(down=fields)
    def keep(_: Any, __: Any, state: ClientState, down: Payload) -> StepResult:
        return None, state.with_memory(**vars(down))

    vars(keep).update(is_gift=True)
    return keep


def _declare(cls: type[Algorithm]) -> None:
    """Make fields of payloads of what a method and its bases declare."""
    for way in ("down", "up"):
        setattr(cls, f"own_{way}", vars(cls).get(way, {}))
        fields: dict[str, Declared | None] = {}
        for base in reversed(cls.__mro__):
            fields |= vars(base).get(f"own_{way}", {})
        declared = {name: field for name, field in fields.items() if field is not None}
        if way in vars(cls) or declared != getattr(cls, way):
            setattr(cls, way, Fields(f"{cls.__qualname__}.{way}", declared))
        for name, function in vars(cls).items():
            if type(own := getattr(function, way, None)) is dict:
                setattr(function, way, Fields(f"{cls.__qualname__}.{name}.{way}", own))
    members = {name: vars(base)[name] for base in reversed(cls.__mro__) for name in vars(base)}
    for way, every in (("down", "downloads"), ("up", "uploads")):
        parts = [getattr(cls, way), *(getattr(member, way, None) for member in members.values())]
        setattr(cls, every, tuple({of.place: of for of in filter(None, parts)}.values()))
    cls.gifts = tuple(name for name, one in members.items() if getattr(one, "is_gift", False))


# --- facts that follow ---------------------------------------------------------------------------


def payload_of(fields: Fields, state: ServerState) -> Payload | None:
    """Return the payload of the state's entries of these names; None without fields."""
    return fields(*[state[name] for name in fields]) if fields else None


def takes_equal_mean(method: Algorithm) -> bool:
    """Return True if the server uses uploads only through means with equal weights, and sums."""
    kind, is_uniform = type(method), getattr(method, "weights", "") == "uniform"
    is_default = kind.round is Algorithm.round and [*kind.uploads] == [kind.up]
    is_default = is_default and kind.server_update is Algorithm.server_update
    return is_default and is_uniform and not any(callable(f.combine) for f in kind.up.values())


def is_tested_together(method: Algorithm) -> bool:
    """Return True if clients of a method that have the same download are tested in one pass.

    A method with gifts tests each client separately, because a client that lacks a gift cannot be
    tested.
    """
    return method.one_model and not method.gifts and type(method).give is Algorithm.give


PREDICTING = ("downlink", "shared", "personal", "init_client", "begin", "predict")
"""Steps on which the predictions of a client's model depend."""
TRAINING_KEYS = (
    "local_epochs",
    "lr",
    "lr_schedule",
    "optimizer",
    "clip_grad_norm",
    "shuffle",
    "drop_last",
    "data.augment",
)
"""Keys that only clients that train read."""
MODEL_KEYS = ("model.group", "model.feature_dim", "model.projector", "model.pretrained")
"""Keys of networks that are not around a CLIP."""
PUBLIC_KEYS = {"source": ("data.public",), "share": ("data.public.labelled",)}
"""Keys of public images; with `share`, these are taken from the clients."""


class PromptMethod(Algorithm):
    """A method whose models are prompts around a frozen CLIP."""

    requires = Requires(prompts=True, head=False)
    dense = False
    clip_model: ClassVar[type[PromptedClip]]
    """The class of the clients' models, which read the method's hyper-parameters by name."""

    def size(self, client: int) -> int:
        """Return the size of a client's model (its rank, length, ...); 0 if all are of one size."""
        return 0

    def sized_model(self, clip: FrozenClip, class_names: Sequence[str], size: int) -> PromptedClip:
        """Return the model of the clients of one `size`, with weights that are not initialised.

        Shared tensors must have one shape, because the server adds them.
        """
        return self.clip_model(clip, class_names, self)


class AuxiliaryMethod(Algorithm):
    """A method whose clients share a small model in addition to their own models.

    The architecture of the small model is the first of `model.group`. A client's model is one
    module that contains both models, so that tensor names distinguish them.
    """

    def auxiliary_dim(self) -> int:
        """Return the width of the small model's features; by default `model.feature_dim`.

        Raises:
            UserError: if the hyper-parameters do not fit `model.feature_dim`.
        """
        return self.setting.feature_dim

    def with_auxiliary(self, own: Classifier, auxiliary: Classifier) -> WithAuxiliary:
        """Return a module of both models; create layers between them with `undrawn_linear`."""
        return WithAuxiliary(own, auxiliary)


algorithms = Registry[type[Algorithm]]("algorithm", "fedray.algorithms")


def method(name: str, title: str, paper: str) -> Callable[[type[M]], type[M]]:
    """Register a method.

    Args:
        name: the value of the key `algorithm`.
        title: the name in the paper.
        paper: authors, venue and arXiv number; "-" if there is no paper.
    """

    def named(cls: type[M]) -> type[M]:
        cls.name, cls.title, cls.paper = name, title, paper
        algorithms.add(cls)
        return cls

    return named
