"""What a client's step gets, and what becomes of its answer: data, models, states, downloads."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedray import core
from fedray.base.counts import Tallied, counted
from fedray.base.errors import ClientError, Failure, NotFinite, UserError
from fedray.base.flat import map_blocks, tensor_blocks
from fedray.base.trees import aligned, make_contiguous, moved_to, storage_of
from fedray.core.client import CPU, Together
from fedray.data import FederatedData
from fedray.models import Classifier
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import free_memory, is_out_of_memory, out_of_memory
from fedray.runtime.isolation import Isolation, ReadOnly
from fedray.runtime.models import SampleMaker
from fedray.storage.files import is_full

Sent: TypeAlias = tuple[core.Payload | None, Sequence[ReadOnly]]
"""A download on the device, and its guard."""


class Member(NamedTuple):
    """A client that takes part in an exchange.

    Attributes:
        client: its id.
        state: its state; None before its first step.
        down: its download.
    """

    client: int
    state: core.ClientState | None
    down: core.Payload | None


@dataclass
class Stepped:
    """What a client's step returned; the upload has not passed the gate.

    Attributes:
        call: the call.
        upload: the upload.
        state: the next state; None if the client has none and needs none.
        work: its work.
        seconds: its wall time.
    """

    call: core.Call
    upload: core.Payload | None
    state: core.ClientState | None
    work: Tallied
    seconds: float


@dataclass
class Given:
    """What a step reads: its client's state and its download, on the device.

    Attributes:
        before: the client's state; None before its first step.
        state: this state, or the first one, on the device.
        down: the download on the device.
        guards: notice a step that writes into them.
        is_empty: True if the state has no tensor.
    """

    before: core.ClientState | None
    state: core.ClientState
    down: core.Payload | None
    guards: Sequence[ReadOnly]
    is_empty: bool

    def check(self) -> None:
        """Raise a TypeError if the step has written into what it may only read."""
        for guard in self.guards:
            guard.check()


def _kept(
    given: Given, after: core.ClientState, apart: Callable[[Tensor], Tensor]
) -> core.ClientState | None:
    """Return the next state outside the memory that the next client overwrites.

    Args:
        given: what the step has read.
        after: the state that the step returned.
        apart: returns a tensor that the next client does not overwrite.

    Returns:
        The state; the client's own one if the step returned it; None if a client without state
        still needs none.
    """
    if after is given.state and given.before is not None:
        return given.before
    if given.before is None and given.is_empty and not (after.model or after.memory):
        return None
    tree = make_contiguous(vars(after))
    return core.ClientState(**map_blocks(lambda block: apart(block.detach()), tree))


def on_cpu(states: Sequence[core.ClientState | None]) -> list[core.ClientState | None]:
    """Return states on the CPU; what lies on an accelerator is copied at once."""
    ours = {id(one): vars(one) for one in states if one is not None}
    blocks = {key: tensor_blocks(tree) for key, tree in ours.items()}
    away = {key: of for key, of in blocks.items() if False in [block.is_cpu for block in of]}
    moved = iter(moved_to([block for of in away.values() for block in of], CPU))
    here = {k: core.ClientState(**map_blocks(lambda _: next(moved), ours[k])) for k in away}
    return [here.get(id(one), one) for one in states]


def apart(memory: Sequence[int], tensor: Tensor) -> Tensor:
    """Return a tensor outside the memory that the next client overwrites."""
    is_shared = not tensor.is_cpu or storage_of(tensor) in memory
    return tensor.clone() if is_shared else tensor


REMEDY = "lower batch_size or workers, or choose a smaller model.group or model.clip"


class StepContexts:
    """What the client steps of one experiment get, and what becomes of their answers.

    Holds the data and an empty model per architecture, but no client's state.

    Attributes:
        assembly: the parts of the experiment.
        device: the device of the steps.
        isolation: seeds the steps, and restores flags and generators after a group.
    """

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        self.assembly = assembly
        self.device = device
        self._skeletons: dict[str, core.Skeleton] = {}
        self._templates: dict[str, Classifier] = {}
        self.isolation = Isolation(device)
        self._empty: dict[int, core.ClientState] = {}  # first states without tensors
        self._current: tuple[int, Any] = (-1, None)
        self._arrived: dict[int, Sequence[Tensor]] = {}  # blocks of a group's states, downloads
        self._sent: tuple[Callable[[], object], Sent]
        self._forget()

    def given(
        self, context: core.Client, state: core.ClientState | None, down: core.Payload | None
    ) -> Given:
        """Return what a step reads, on the device."""
        read, known = state, self._empty
        if read is None:
            read = known[context.id] if context.id in known else self._first(context)
        if down is not None and self._sent[0]() is not down:
            self._send(down)
        placed, guards = (None, ()) if down is None else self._sent[1]
        is_empty = not (read.model or read.memory)
        if not is_empty:
            if self.device.type != "cpu":
                blocks = self._arrived.get(id(state)) or moved_to(
                    tensor_blocks(vars(read)), self.device
                )
                arrived = iter(blocks)
                read = core.ClientState(**map_blocks(lambda _: next(arrived), vars(read)))
            guards = *guards, ReadOnly("the client's state", vars(read))
        return Given(state, read, placed or down, guards, is_empty)

    @contextmanager
    def together(self, round_: int, members: Sequence[Member]) -> Iterator[Together]:
        """Make a group's clients; copy their states and downloads to an accelerator at once."""
        shared = Together(self.device)
        shared.clients |= {m.client: self.client(m.client, round_, shared) for m in members}
        if self.device.type == "cpu":
            yield shared
            return
        blocks = {id(m.state): tensor_blocks(vars(m.state)) for m in members if m.state}
        new = [m.down for m in members if m.down is not None and m.down is not self._sent[0]()]
        blocks |= {id(down): down.blocks() for down in new}
        moved = iter(moved_to([block for of in blocks.values() for block in of], self.device))
        self._arrived = {key: [next(moved) for _ in of] for key, of in blocks.items()}
        try:
            yield shared
        finally:
            self._arrived = {}

    def stepped(
        self,
        call: core.Call,
        upload: Any,
        next_state: Any,
        given: Given,
        work: Tallied,
        seconds: float,
    ) -> Stepped:
        """Check what a step returned, except its upload's values, and take it out of the model."""
        context = call.client
        given.check()
        if not isinstance(next_state, core.ClientState):
            kind = type(next_state).__name__
            raise TypeError(f"the next state is a {kind}, expected a ClientState")
        check_numbers(context)
        own = partial(apart, context.skeleton.memory)
        algorithm, is_update = self.assembly.algorithm, call.step == "client_update"
        fields = algorithm.up if is_update else algorithm.sent_by(call.step)
        if isinstance(upload, dict) and upload.keys() == fields.keys():
            upload = core.Payload(fields, {name: upload[name] for name in fields})
        is_nothing = upload is None and not (is_update and fields)
        if getattr(upload, "fields", None) is not fields and not is_nothing:
            named = vars(upload) if isinstance(upload, core.Payload) else upload
            found = ", ".join(named) if isinstance(named, dict) else type(upload).__name__
            expected = ", ".join(fields) or "nothing"
            raise core.BadPayload(f"{call.step} uploads {found}, expected {expected}")
        if upload is not None:
            upload = upload.copied(own)
        return Stepped(call, upload, _kept(given, next_state, own), work, seconds)

    def method_step(self, name: str) -> Callable[..., Any]:
        """Return the method's step `name`: `(client, state, down) -> (upload or None, state)`."""
        step: Callable[..., Any] = getattr(self.assembly.algorithm, name.partition("/")[0])
        return step

    def seed(self, name: str, client: int, round_: int = 0) -> int:
        """Return the seed of a client's step or test.

        Tests leave the round out: a client with the same state and download has the same score in
        every round (`Federation.tested`).
        """
        return self.assembly.streams.entropy(f"layers/{name}", round_=round_, client=client)

    @contextmanager
    def blamed(self, step: str, round_: int, client: int) -> Iterator[None]:
        """Raise a failure within the block as one of this client."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise self.blame(error, step, round_, client) from None

    def blame(self, error: BaseException, step: str, round_: int, client: int) -> BaseException:
        """Return a failure as one of this client, unless it is the user's or the machine's."""
        self._skeletons.clear()  # the step may have changed the models
        self._templates.clear()
        self._forget()  # and written into the download
        if isinstance(error, UserError | ClientError) or is_full(error):
            return error
        where = f"client {client}, round {round_}, step {step}"
        if is_out_of_memory(error):
            free_memory(self.device)
            return out_of_memory(self.device, where, REMEDY)
        return ClientError(client, round_, step, Failure.of(error))

    def _send(self, down: core.Payload) -> None:
        """Copy a download to the device once for all who are sent it, and guard it."""
        placed = None  # on the CPU, the download itself, which must not be kept alive
        if self.device.type != "cpu":
            there = iter(self._arrived.get(id(down)) or moved_to(down.blocks(), self.device))
            placed = down.copied(lambda _: next(there))
        guard = ReadOnly("its download", vars(placed or down))
        self._sent = weakref.ref(down, self._forget), (placed, (guard,))

    def _forget(self, _: object = None) -> None:
        """Forget the last download."""
        self._sent = (lambda: None, (None, ()))

    def _first(self, context: core.Client) -> core.ClientState:
        """Return the state of a client before its first step."""
        with counted():  # building the first state is no work of a step
            state = self.assembly.algorithm.init_client(context)
        if not (state.model or state.memory):
            self._empty[context.id] = state
        return core.ClientState(**map_blocks(aligned, vars(state)))

    def client(self, client: int, round_: int, together: Together | None = None) -> core.Client:
        """Return the client as a step sees it, without its test images.

        Args:
            client: its id.
            round_: the round.
            together: what it shares with its group.
        """
        (setting, data), models = self._round(round_), self.assembly.models
        architecture = models.architectures[client]
        validation = data.validation if self.assembly.algorithm.requires.validation else None
        return core.Client(
            id=client,
            round=round_,
            setting=setting,
            train=self.training_samples(data.train[client]),
            architecture=architecture,
            skeleton=self._skeleton(architecture),
            initial=partial(self._initial, architecture, client),
            device=self.device,
            validation=None if validation is None else self.samples(validation[client]),
            public=self._public,
            together=together,
        )

    def _initial(self, architecture: str, client: int) -> core.Tensors:
        weights = self.assembly.models.initial(architecture, client)
        return dict(zip(weights, moved_to([*weights.values()], self.device), strict=True))

    def _round(self, round_: int) -> tuple[core.Setting, FederatedData]:
        """Return the setting with the round's learning rate, and the round's data."""
        if self._current[0] != round_:
            setting, lr = self.assembly.setting, self.assembly.lr(round_)
            if lr != setting.training.lr:
                setting = replace(setting, training=replace(setting.training, lr=lr))
            self._current = round_, (setting, self.assembly.data.at(round_))
        found: tuple[core.Setting, FederatedData] = self._current[1]
        return found

    @cached_property
    def samples(self) -> SampleMaker:
        """Returns images by their indices, for tests."""
        return self.assembly.models.samples(self.device)

    @cached_property
    def _public(self) -> Any:
        """Return the public images if the method requires them."""
        if not self.assembly.algorithm.requires.public:
            return None
        return self.assembly.models.public_samples(self.device)

    @cached_property
    def training_samples(self) -> SampleMaker:
        """Returns images by their indices, for training; they may be augmented."""
        if self.assembly.setting.training.augment.is_identity:
            return self.samples
        return self.assembly.models.samples(self.device, training=True)

    def _skeleton(self, architecture: str) -> core.Skeleton:
        if architecture not in self._skeletons:
            empty = self.assembly.models.empty(architecture, self.device)
            self._skeletons[architecture] = core.Skeleton(empty)
        return self._skeletons[architecture]

    def template(self, architecture: str) -> Classifier:
        """Return a model for stacked training, whose tensors are replaced.

        It is not that of tests, whose features of texts come from other kernels.
        """
        if architecture not in self._templates:
            self._templates[architecture] = self.assembly.models.empty(architecture, self.device)
        return self._templates[architecture]


def check_numbers(client: core.Client) -> None:
    """Raise an error if a report or a training loss of a client is not a finite number."""
    numbers: list[tuple[str, object]] = [("client.train_losses", x) for x in client.train_losses]
    numbers += [(f"client.reports[{name!r}]", x) for name, x in client.reports.items()]
    for what, value in numbers:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value)):  # type: ignore[arg-type]
            kind = NotFinite if isinstance(value, float) else ValueError
            raise kind(f"{what} is {value!r}, expected a finite number")
