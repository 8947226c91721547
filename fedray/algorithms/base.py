"""The interface of a method: pure functions of what goes in, and nothing else.

A method is one file in this package: its hyper-parameters and one class. Most methods give only
`loss` and what travels; everything else has a default that is plain local training.

    downlink (server) -> client_update (client) -> server_update (server)

A method whose round has more exchanges overrides `round`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedray.client import Batch, Client, ClientState, Exam, Setting, Tensors
from fedray.comm import Payload
from fedray.config import Frozen, Tree
from fedray.errors import UserError
from fedray.evaluation import Score, overlap
from fedray.models import Classifier, head_tensors
from fedray.streams import Streams

if TYPE_CHECKING:
    from fedray.language.tower import TextTower
    from fedray.models.clip import FrozenClip, PromptedClip

ServerState = Mapping[str, Tensor]
Downlinks = Mapping[int, Payload | None]
Uplinks = Mapping[int, Any]


@dataclass(frozen=True)
class Server:
    """What a server step sees.

    Attributes:
        round: the round, from 1; 0 is before the first.
        setting: what both sides know.
        text: the text encoder with the classes' texts, for methods with `needs_text`.
        device: where the server computes.
        initial: the initial weights of an architecture.
        architectures: each client's architecture.
        empty: an empty model of an architecture, to ask about its structure.
        joined: ids of the clients that are part of the federation by this round, sorted.
    """

    round: int
    setting: Setting
    text: TextTower | None
    device: torch.device
    initial: Callable[[str], Tensors]
    architectures: tuple[str, ...]
    empty: Callable[[str], Classifier] | None = None
    joined: Sequence[int] = ()

    @property
    def streams(self) -> Streams:
        """The experiment's random streams."""
        return self.setting.streams

    @property
    def newcomers(self) -> Sequence[int]:
        """Ids of the clients that are not part of the federation yet."""
        return range(len(self.joined), self.setting.clients)

    @property
    def tower(self) -> TextTower:
        """The text tower of a method that declared `needs_text`."""
        if self.text is None:
            raise RuntimeError("this method did not declare needs_text, so it has no text tower")
        return self.text

    def check_width(self, vectors: Tensor) -> None:
        """Check that text vectors [C, V] are as wide as the features that align with them.

        Raises:
            UserError: with the key to set.
        """
        if vectors.shape[1] != self.setting.feature_dim:
            raise UserError(
                f"text.encoder={self.tower.spec.name} gives prototypes of width "
                f"{vectors.shape[1]}, but model.feature_dim={self.setting.feature_dim}; "
                f"set model.feature_dim={vectors.shape[1]}"
            )

    @property
    def architecture(self) -> str:
        """The architecture of a method whose clients all have the same.

        Raises:
            UserError: when they have several.
        """
        distinct = sorted(set(self.architectures))
        if len(distinct) > 1:
            raise UserError(
                "this method shares whole models, but model.group gives the clients "
                f"{len(distinct)} architectures ({', '.join(distinct)}); set model.group to one "
                "architecture, for example cnn4"
            )
        return distinct[0]

    @property
    def model(self) -> Classifier:
        """An empty model of the one architecture.

        Raises:
            UserError: when there are several.
        """
        if self.empty is None:
            raise RuntimeError("this server was made without empty models")
        return self.empty(self.architecture)


@runtime_checkable
class Askable(Protocol):
    """A model that can be asked among classes other than those it trained on."""

    def among(self, classes: Sequence[int] | None) -> AbstractContextManager[None]:
        """Predict among these classes."""


class Exchange(Protocol):
    """One round as a method sees it: who takes part, and a way to call their steps."""

    @property
    def server(self) -> Server:
        """The server's side of this round."""

    @property
    def participants(self) -> Sequence[int]:
        """Ids of the clients that take part in this round, sorted."""

    @property
    def everyone(self) -> Sequence[int]:
        """Ids of all clients that have joined, sorted."""

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send each client its payload, run the method's client step, return the replies.

        Args:
            step: name of a method `(client, state, down) -> (uplink, new state)`.
            down: what each client gets; its keys are the clients that are called.

        Returns:
            Uplinks sorted by client id; a client that did not reply is not in it.
        """


@dataclass(frozen=True)
class Analysis:
    """What a method can say about its server state, for the tracker.

    Attributes:
        metrics: numbers by name.
        matrices: square [C, C] arrays by name, drawn as heat maps.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)


class Algorithm:
    """Base of every method; as it stands, it is local training without communication.

    Args:
        hparams: the method's own hyper-parameters.
        setting: what both sides know.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    shares: ClassVar[str]
    """One phrase for the README's table: what travels."""
    needs_text: ClassVar[bool] = False
    has_head: ClassVar[bool] = True
    """Whether its models end in a classifier; False: in their features."""
    prompted: ClassVar[bool] = False
    """Whether its models are prompts around a frozen CLIP, see `prompts`; they have no head."""
    needs_validation: ClassVar[bool] = False
    """Whether its clients need validation images."""
    one_model: ClassVar[bool] = False
    """Whether all clients predict with one global model, whose accuracy is then measured too."""
    dense: ClassVar[bool] = False
    """Whether it is defined for dense prediction, where every pixel is a sample. Each method says
    so for itself: what it inherits may be, and its own part want one feature an image."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.dense = vars(cls).get("dense", False)

    class HParams(Frozen):
        """Hyper-parameters: the paper's symbol, range, and where it says so."""

    def __init__(self, hparams: Any, setting: Setting) -> None:
        self.hp = hparams
        self.setting = setting

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, dict[str, Any]]:
        """Named sets of dotted overrides, chosen by `algorithm.preset`."""
        return {}

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """The model of a method with `prompted`."""
        raise NotImplementedError(f"{self.name} says that it is prompted, but not how")

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The server's state before anything has happened."""
        return {}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Whatever happens once before the first round."""
        return state

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """What each of `clients` is sent; one object for many is sent as one."""
        return dict.fromkeys(clients)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The server's step, from uplinks sorted by client id."""
        return state

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """One round: downlink, client step, server step."""
        down = self.downlink(state, exchange.participants, exchange.server)
        uplinks = exchange.call("client_update", down)
        return self.server_update(state, uplinks, exchange.server)

    def has_one_model(self, state: ServerState) -> bool:
        """Whether all clients predict with one model now; a method may come to it late."""
        return self.one_model

    def visits(self, state: ServerState, server: Server) -> Mapping[str, Sequence[Downlinks]]:
        """Further models to be tested, by the name of a metric, `<name>_accuracy`.

        Each is what some clients are sent instead of their own download, to test it on their test
        splits; the metric is the mean over the models of the accuracy on all these images.
        """
        return {}

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        """What the server can measure about its own state, without any data."""
        return Analysis()

    # --- client ----------------------------------------------------------------------------------

    def init_client(self, client: Client) -> ClientState:
        """A client's state before its first step: the initial weights."""
        return ClientState(client.initial())

    def client_update(
        self, client: Client, state: ClientState, down: Any
    ) -> tuple[Payload | None, ClientState]:
        """Train from `state` and return what is uploaded and the new state."""
        model = client.load(self.start(client, state, down))
        client.fit(
            model,
            lambda model, batch: self.local_loss(model, batch, down, state),
            only=self.learns(model),
        )
        return self.uplink(client, model, down), self.keep(client, model, state)

    def learns(self, model: Classifier) -> Collection[str] | None:
        """The parameters that local training changes; None for all."""
        return None

    def keep(self, client: Client, model: Classifier, state: ClientState) -> ClientState:
        """The state after training: the model, and the memory as it was."""
        return ClientState(client.save(model), state.memory)

    def start(self, client: Client, state: ClientState, down: Any) -> Mapping[str, Tensor]:
        """The weights that a client starts from: its own, or with what was sent laid over them."""
        return state.model

    def local_loss(self, model: Classifier, batch: Batch, down: Any, state: ClientState) -> Tensor:
        """The local loss for methods whose clients remember something; else `loss`."""
        return self.loss(model, batch, down)

    def loss(self, model: Classifier, batch: Batch, down: Any) -> Tensor:
        """The local loss on one batch, a scalar; no side effects."""
        return torch.nn.functional.cross_entropy(model(batch.images).logits, batch.labels)

    def uplink(self, client: Client, model: Classifier, down: Any) -> Payload | None:
        """What a client uploads after training."""
        return None

    def finetune(self, client: Client, state: ClientState, down: Any) -> tuple[None, ClientState]:
        """Fine-tune after the last round and measure; nothing of it is kept.

        The accuracy on the client's own test split goes into its metrics: "finetuned_accuracy"
        after the last epoch, and "finetuned_accuracy_best", the highest, which looks at the test.

        Paper: FedTSP supplementary C.4, the -FT rows.
        """
        model = client.load(self.start(client, state, down))
        found = [self.score(client, model, state)]
        for tuned in self.finetuning(client, model, state, down):
            found.append(self.score(client, model, tuned))
        client.metrics.pop("train_loss", None)
        if found[0].total:
            client.metrics["finetuned_accuracy"] = found[-1].accuracy
            client.metrics["finetuned_accuracy_best"] = max(score.accuracy for score in found)
        return None, state

    def finetuning(
        self, client: Client, model: Classifier, state: ClientState, down: Any
    ) -> Iterator[ClientState]:
        """Train the head alone, `finetune_epochs` times an epoch.

        Yields:
            After each epoch, the state to predict with.
        """
        head = head_tensors(model)
        for epoch in range(self.setting.finetune_epochs):
            again = client.again(1 + epoch, epochs=1)
            again.fit(model, lambda m, batch: self.local_loss(m, batch, down, state), only=head)
            yield state

    def evaluate(self, client: Client, state: ClientState, down: Any) -> Score:
        """Test a client's model, as it starts its next round, on its own test split."""
        return self.score(client, client.load(self.start(client, state, down)), state)

    @torch.no_grad()
    def score(self, client: Client, model: Classifier, state: ClientState) -> Score:
        """Test a model on the client's own test split, in evaluation mode.

        With exams for all clients, on these too.
        """
        own = Exam(client.test, range(self.setting.num_classes))
        exams: dict[str, Score] = {}
        for name, exam in client.exams.items():
            assert isinstance(model, Askable)
            with model.among(exam.classes):
                exams[name] = self._examine(client, model, state, exam)
        return replace(self._examine(client, model, state, own), exams=exams)

    def _examine(self, client: Client, model: Classifier, state: ClientState, exam: Exam) -> Score:
        model.eval()
        columns = len(exam.classes)
        counts = torch.zeros(3, columns, dtype=torch.int64, device=client.device)
        for batch in client.batches(exam.samples):
            guesses = self.predict(model, batch.images, state).argmax(dim=1)
            counts += overlap(guesses, batch.labels - exam.classes.start, columns)
        return Score.by_class(*counts.tolist())

    def predict(self, model: Classifier, images: Tensor, state: ClientState) -> Tensor:
        """Logits [B, C], or of all pixels [B·H·W, C], for images [B, channels, H, W].

        Every evaluation uses this.
        """
        logits: Tensor = model(images).logits
        return logits
