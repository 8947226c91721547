"""What a client's step gets: its data, its model, and its state and download on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray import core
from fedray.base.counts import counted
from fedray.base.errors import ClientError, Failure, NotFinite, UserError, one_line
from fedray.base.flat import map_blocks, moved_trees
from fedray.base.trees import StateTree, aligned, make_contiguous, moved_to, storage_of
from fedray.core.client import Together
from fedray.data import FederatedData
from fedray.federation import Reply
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import out_of_memory
from fedray.runtime.isolation import Isolation, ReadOnly
from fedray.runtime.models import SampleMaker
from fedray.storage.files import is_full


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
class Step(core.Call):
    """A client's step: what it reads, on the device, and what it has returned.

    Attributes:
        before: the client's state; None before its first step.
        state: this state, or the first one, on the device.
        received: the download on the device.
        guards: notice a step that writes into state or download.
        reply: its result, whose upload has not passed the gate yet.
        after: the next state; None if the client has none and needs none.
    """

    before: core.ClientState | None
    state: core.ClientState
    received: core.Payload | None
    guards: Sequence[ReadOnly]
    reply: Reply
    after: core.ClientState | None = None

    def check(self) -> None:
        """Raise a TypeError if the step has written into what it may only read."""
        for guard in self.guards:
            guard.check()

    def keep(self, fields: core.Fields, upload: Any, after: Any) -> None:
        """Keep what the step returned, outside the memory that the next client overwrites.

        Args:
            fields: what the step declares to upload.
            upload: a payload, or the values of the fields by name.
            after: the next state, which must be a `ClientState`.
        """
        self.check()
        if not isinstance(after, core.ClientState):
            raise TypeError(f"the next state is a {type(after).__name__}, expected a ClientState")
        check_numbers(self.client)
        own = partial(apart, self.client.skeleton.memory)
        upload = fields.uploaded(upload, self.step)
        self.reply.uplink = upload and upload.copied(own)
        if after is self.state and self.before is not None:
            self.after = self.before
        elif not (self.before is None and self.state.is_empty and after.is_empty):
            tree = make_contiguous(vars(after))
            self.after = core.ClientState(**map_blocks(lambda block: own(block.detach()), tree))


def apart(memory: Sequence[int], tensor: Tensor) -> Tensor:
    """Return a tensor outside the memory that the next client overwrites."""
    is_shared = not tensor.is_cpu or storage_of(tensor) in memory
    return tensor.clone() if is_shared else tensor


def check_numbers(client: core.Client) -> None:
    """Raise an error if a report or a training loss of a client is not a finite number."""
    losses = [("client.train_losses", loss) for loss in client.train_losses]
    reports = [(f"client.reports[{name!r}]", value) for name, value in client.reports.items()]
    for what, value in losses + reports:
        if not (isinstance(value, int | float) and math.isfinite(value)):
            kind = NotFinite if isinstance(value, float) else ValueError
            raise kind(f"{what} is {value!r}, expected a finite number")


SINGLE = "Expected more than 1 value per channel"  # PyTorch, of a batch under batch normalisation
NOTHING: tuple[Any, Any, Sequence[ReadOnly]] = (None, None, ())
"""No download, instead of the last one, what of it is on the device, and its guard."""


class StepContexts:
    """Makes what the client steps of one experiment get.

    Holds the data and an empty model per architecture, but no client's state.

    Attributes:
        assembly: the parts of the experiment.
        device: the device of the steps.
        isolation: seeds the steps, and restores flags and generators after a group.
    """

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        self.assembly = assembly
        self.device = device
        self.isolation = Isolation(device)
        self._skeletons: dict[tuple[str, bool], core.Skeleton] = {}
        self._empty: dict[int, core.ClientState] = {}  # first states without tensors
        self._current: tuple[int, Any] = (-1, None)
        self._arrived: dict[int, StateTree] = {}  # a group's states and downloads
        self._sent = NOTHING

    # --- states and downloads --------------------------------------------------------------------

    @contextmanager
    def together(self, round_: int, members: Sequence[Member]) -> Iterator[Together]:
        """Make a group's clients; copy their states and downloads to an accelerator at once."""
        shared = Together(self.device)
        shared.clients |= {m.client: self.client(m.client, round_, shared) for m in members}
        if self.device.type != "cpu":
            read = [part for m in members for part in (m.state, m.down) if part is not None]
            trees = {id(part): vars(part) for part in read if part is not self._sent[0]}
            moved = moved_trees([*trees.values()], self.device)
            self._arrived = dict(zip(trees, moved, strict=True))
        try:
            yield shared
        finally:
            self._arrived = {}

    def step(self, name: str, context: core.Client, member: Member) -> Step:
        """Return a client's step, with state and download on the device."""
        _, before, down = member
        if down is not None and down is not self._sent[0]:  # many clients are sent the same
            there = core.Payload(down.fields, dict(self._there(down)))
            self._sent = down, there, (ReadOnly("its download", vars(there)),)
        _, received, guards = NOTHING if down is None else self._sent
        state = before
        if state is None:
            known = self._empty
            state = known[context.id] if context.id in known else self._first(context)
        if state.model or state.memory:
            if self.device.type != "cpu":
                state = core.ClientState(**self._there(state))
            guards = (*guards, ReadOnly("the client's state", vars(state)))
        reply = Reply(reports=context.reports)
        return Step(name, context, down, before, state, received, guards, reply)

    def _there(self, part: core.ClientState | core.Payload) -> StateTree:
        """Return a state or the values of a download on the accelerator."""
        found = self._arrived.get(id(part))
        return found or moved_trees([vars(part)], self.device)[0]

    def forget_download(self) -> None:
        """Free the last download."""
        self._sent = NOTHING

    def _first(self, context: core.Client) -> core.ClientState:
        """Return the state of a client before its first step."""
        with counted():  # building the first state is no work of a step
            state = self.assembly.algorithm.init_client(context)
        if state.is_empty:
            self._empty[context.id] = state
        return core.ClientState(**map_blocks(aligned, vars(state)))

    # --- failures --------------------------------------------------------------------------------

    def blame(self, error: BaseException, step: str, round_: int, client: int) -> BaseException:
        """Return a failure as one of this client, unless it is the user's or the machine's."""
        self._skeletons.clear()  # the step may have changed the models
        self.forget_download()  # and written into it
        if isinstance(error, UserError | ClientError) or is_full(error):
            return error
        where = f"client {client}, round {round_}, step {step}"
        if memory := out_of_memory(error, self.device, where):
            return memory
        if SINGLE in str(error):
            return UserError(f"{where}: {one_line(error)}; set batch_size=2 or lower data.clients")
        return ClientError(client, round_, step, Failure.of(error))

    # --- clients ---------------------------------------------------------------------------------

    def seed(self, name: str, client: int, round_: int = 0) -> int:
        """Return the seed of a client's step or test.

        Tests leave the round out: a client with the same state and download has the same score in
        every round (`Federation.tested`).
        """
        return self.assembly.streams.entropy(f"layers/{name}", round_=round_, client=client)

    def client(self, client: int, round_: int, together: Together | None = None) -> core.Client:
        """Return a client as a step sees it, without its test images.

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
            skeleton=self.skeleton(architecture),
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
    def training_samples(self) -> SampleMaker:
        """Returns images by their indices, for training; they may be augmented."""
        if self.assembly.setting.training.augment.is_identity:
            return self.samples
        return self.assembly.models.samples(self.device, augmented=True)

    @cached_property
    def _public(self) -> Any:
        """The public images, if the method requires them."""
        is_needed = self.assembly.algorithm.requires.public
        return self.assembly.models.public_samples(self.device) if is_needed else None

    def skeleton(self, architecture: str, *, stacked: bool = False) -> core.Skeleton:
        """Return the empty model of an architecture, or that of stacked training.

        The latter is one of its own, because features of texts in tests come from other kernels.
        """
        key = architecture, stacked
        if key not in self._skeletons:
            self._skeletons[key] = core.Skeleton(
                self.assembly.models.empty(architecture, self.device)
            )
        return self._skeletons[key]
