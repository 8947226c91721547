"""Run the client steps and tests of one experiment in this process; all executors use it."""

from __future__ import annotations

import math
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedray import core
from fedray.core.payload import form_of, map_blocks
from fedray.core.stacked import train_stacked
from fedray.counts import Tallied, Tally, counted
from fedray.data import FederatedData
from fedray.errors import (
    ClientError,
    Failure,
    NoScalar,
    NotFinite,
    UserError,
    definition_line,
    one_line,
    plugin_line,
)
from fedray.evaluation.splits import splits_of
from fedray.evaluation.testing import TESTS
from fedray.federation import NO_TRAFFIC, Counted, Reply
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    check_speed,
    check_threads,
    free_memory,
    is_out_of_memory,
    out_of_memory,
)
from fedray.runtime.isolation import Isolation, ReadOnly, generators
from fedray.runtime.memory import peak_device_memory
from fedray.runtime.models import SampleMaker
from fedray.runtime.printing import of_clients
from fedray.runtime.shares import STACKED_STEP, is_stacked
from fedray.storage.files import is_full
from fedray.storage.run import Traffic
from fedray.trees import aligned, make_contiguous, map_together, moved_to

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


class Stepped(NamedTuple):
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


class Begun(NamedTuple):
    """A stacked client's step between its begin and its end.

    Attributes:
        call: the call.
        given: what the step reads.
        local: the client after the step has begun.
        weights: the weights with which its training begins.
        work: its work so far.
        form: equal for clients that can be trained together.
    """

    call: core.Call
    given: Given
    local: core.LocalContext
    weights: core.Flat
    work: Tallied
    form: object


def form_of_begun(local: core.LocalContext) -> object:
    """Return a key that is equal for clients that can be trained together."""
    trainable = None if local.trainable is None else frozenset(local.trainable)
    sent = () if local.down is None else (local.down.form(), local.down.numbers())
    parts = map(form_of, (local.state.memory, local.extra))
    return local.client.architecture, trainable, sent, *parts


class ClientRuntime:
    """Runs the client steps of one experiment as pure functions of (state, download).

    Holds the data and an empty model per architecture, but no client's state.
    """

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        self.assembly = assembly
        self.device = device
        self._skeletons: dict[str, core.Skeleton] = {}
        self._isolation = Isolation(device)
        self._empty: dict[int, core.ClientState] = {}  # first states without tensors
        self._current: tuple[int, Any] = (-1, None)
        self._sent: tuple[Callable[[], object], Sent] = (lambda: None, (None, ()))
        experiment = assembly.experiment
        check_speed("precision", experiment.precision, device)
        if assembly.algorithm.requires.prompts:
            check_speed("model.clip_precision", experiment.model.clip_precision, device)

    def run_group(
        self,
        name: str,
        round_: int,
        members: Sequence[Member],
        sums: core.Sums | None = None,
    ) -> list[tuple[Reply, core.ClientState | None]]:
        """Run the method's step `name` for a group of clients.

        Args:
            name: a method of the algorithm, `(client, state, down) -> (upload, next state)`; after
                a slash, a number that changes its random streams.
            round_: the round.
            members: the clients; with `sums`, those of a whole subtree of the additions.
            sums: adds up the uploads, and the replies have none; None: the replies have them.

        Returns:
            Each client's reply and next state; None if it has none and needs none.

        Raises:
            ClientError: if a client's step fails, or its upload does not pass the gate.
            UserError: if the user can correct the cause, for example if memory runs out.
            OSError: if the disk is full.
        """
        stepped: list[Stepped] = []
        together = is_stacked(self.assembly, name)
        with self._isolation.group(), counted() as tally:
            try:
                for step in (self._stacked if together else self._steps)(
                    name, round_, members, tally
                ):
                    stepped.append(step)
            except Exception:
                self._passed(stepped)  # an earlier client's upload may be wrong, too
                raise
        passed, used = self._passed(stepped), peak_device_memory(self.device)
        if sums is not None:
            self._add(sums, [m.client for m in members], [upload for upload, _ in passed])
            passed = [(None, traffic) for _, traffic in passed]
        results = []
        for (call, _, state, work, seconds), (upload, traffic) in zip(stepped, passed, strict=True):
            losses, reports = call.client.train_losses, call.client.reports
            reply = Reply(
                upload,
                traffic,
                train_loss=losses[-1] if losses else None,
                reports=reports,
                seconds=seconds,
                work=work,
                device_bytes=used,
            )
            results.append((reply, state))
        return results

    def _steps(
        self, name: str, round_: int, members: Sequence[Member], tally: Tally
    ) -> Iterator[Stepped]:
        """Run the clients' steps one after the other, in a group's isolation."""
        method_step = self.method_step(name)
        for client, state, down in members:
            try:
                context, start = self.client(client, round_), time.perf_counter()
                self._isolation.seed(self._seed(name, client, round_))
                call = core.Call(self.assembly.algorithm, name, context, down)
                with of_clients(client):
                    given = self._given(context, state, down)
                    upload, next_state = method_step(context, given.state, given.down)
                    work, seconds = tally.take(), time.perf_counter() - start
                    yield self._stepped(call, upload, next_state, given, work, seconds)
            except (Exception, SystemExit) as error:
                raise self._blame(error, name, round_, client) from None

    def _stacked(
        self, name: str, round_: int, members: Sequence[Member], tally: Tally
    ) -> Iterator[Stepped]:
        """Begin the clients' steps one by one, train all together, and finish one by one."""
        method, clients = self.assembly.algorithm, [member.client for member in members]
        assert isinstance(method, core.LocalTraining)
        start, streams = time.perf_counter(), self.assembly.streams
        _ = self._training_samples  # build it now: building data or models may draw random numbers
        self._isolation.seed(streams.entropy("layers/stacked", round_=round_, client=clients[0]))
        with of_clients(*clients), self._refuse_draws():
            begun, alike = dict[object, Begun](), dict[object, list[Begun]]()
            for member in members:
                try:
                    one = self._begin(round_, member, begun, tally)
                except (Exception, SystemExit) as error:
                    raise self._blame(error, name, round_, member.client) from None
                alike.setdefault(one.form, []).append(one)
            trained: dict[int, tuple[Begun, core.Trained | Exception, Tallied]] = {}
            for group in alike.values():
                group.sort(key=lambda one: -len(one.local.client.train))
                trained |= self._train_together(group)
            seconds = (time.perf_counter() - start) / len(members)
            for client in clients:
                try:
                    yield self._finish(*trained[client], tally, seconds)
                except (Exception, SystemExit) as error:
                    raise self._blame(error, name, round_, client) from None

    def _begin(
        self, round_: int, member: Member, begun: dict[object, Begun], tally: Tally
    ) -> Begun:
        """Begin a client's step, and take its weights from the model.

        Args:
            round_: the round.
            member: the client.
            begun: the first step of each kind of clients without a state, which is extended. If
                the download alone determines the model (`one_model`), the next of this kind begins
                with the same weights.
            tally: counts the work.
        """
        (client, state, down), method = member, self.assembly.algorithm
        context = self.client(client, round_)
        given = self._given(context, state, down)
        call = core.Call(method, STACKED_STEP, context, down)
        kind = context.architecture, id(down)
        like = begun.get(kind) if method.one_model and given.is_empty else None
        if like is not None:
            _, _, local, weights, work, form = like
            model, trainable = local.model, local.trainable
            local = core.LocalContext(context, model, given.state, given.down, {}, trainable)
            return Begun(call, given, local, weights, work, form)
        with of_clients(client):
            local = method.begin(context, given.state, given.down)
        given.check()  # the download is that of the next client, too
        weights, work = context.skeleton.tensors.clone(), tally.take()
        one = Begun(call, given, local, weights, work, form_of_begun(local))
        is_plain = local.client is context and local.state is given.state and not local.extra
        if is_plain and given.is_empty:
            begun[kind] = one
        return one

    def _train_together(
        self, begun: Sequence[Begun]
    ) -> dict[int, tuple[Begun, core.Trained | Exception, Tallied]]:
        """Train clients of one form together; return what each begun step has trained."""
        method, context = self.assembly.algorithm, begun[0].call.client
        assert isinstance(method, core.LocalTraining)
        vectors = zip(*(one.weights.vectors for one in begun), strict=True)
        rows = core.Flat(begun[0].weights.layout, [*map(torch.stack, vectors)])
        locals_ = [one.local for one in begun]
        try:
            trained, images, parameters = train_stacked(
                method, context.skeleton.model, rows, locals_
            )
        except UserError:
            raise
        except Exception as error:  # shared by all clients, whose operations are the same
            if "vmap" in str(error) or "atching rule" in str(error):
                raise UserError(
                    f"{method.name} with {context.architecture} cannot be stacked: "
                    f"{one_line(error)}; set stacked=1"
                ) from error
            return {one.call.client.id: (one, error, one.work) for one in begun}
        return {
            one.call.client.id: (
                one,
                result,
                one.work.then(Tallied(result.steps, count, parameters))
                if isinstance(result, core.Trained)
                else one.work,
            )
            for one, result, count in zip(begun, trained, images, strict=True)
        }

    def _finish(
        self,
        begun: Begun,
        trained: core.Trained | Exception,
        work: Tallied,
        tally: Tally,
        seconds: float,
    ) -> Stepped:
        """Finish a client's step on its architecture's model, which gets its trained weights."""
        method, context = self.assembly.algorithm, begun.call.client
        assert isinstance(method, core.LocalTraining)
        if isinstance(trained, Exception):
            raise trained
        context.skeleton.overwrite(trained.tensors)
        with of_clients(context.id):
            upload, state = method.finish(begun.local, trained)
        work = work.then(tally.take())
        return self._stepped(begun.call, upload, state, begun.given, work, seconds)

    @contextmanager
    def _refuse_draws(self) -> Iterator[None]:
        """Refuse draws from the global generators, which the clients of a stack would share."""
        before = generators(self.device)
        yield
        if generators(self.device) != before:
            raise UserError(
                f"{self.assembly.algorithm.name} draws from the global random generators, so its "
                "clients cannot be stacked; set stacked=1"
            )

    def _given(
        self, context: core.Client, state: core.ClientState | None, down: core.Payload | None
    ) -> Given:
        """Return what a step reads, on the device."""
        first = self._state_or_first(context, state)
        return Given(state, first, self.device, self._download(down))

    def _stepped(
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
        if upload is None and call.step == "client_update" and self.assembly.algorithm.uploads:
            expected = " or ".join(payload.__name__ for payload in self.assembly.algorithm.uploads)
            raise core.BadPayload(f"{call.step} uploads nothing, expected {expected}")
        if not isinstance(next_state, core.ClientState):
            kind = type(next_state).__name__
            raise TypeError(f"the next state is a {kind}, expected a ClientState")
        check_numbers(context.reports, context.train_losses)
        apart = partial(_apart, context.skeleton.memory)
        if isinstance(upload, core.Payload):
            upload.check_names()
            upload = upload.copied(apart)
        return Stepped(call, upload, given.kept(next_state, apart), work, seconds)

    def _passed(self, stepped: Sequence[Stepped]) -> list[tuple[core.Payload | None, Traffic]]:
        """Pass the uploads of a group through the gate, together if all are right."""
        gate = self.assembly.gate
        uploads = [step.upload for step in stepped if step.upload is not None]
        calls = [step.call for step in stepped if step.upload is not None]
        passed: list[tuple[core.Payload, Traffic]] = []
        try:
            passed = gate.up_together(uploads, calls)
        except Exception:  # find out whose it is
            for upload, call in zip(uploads, calls, strict=True):
                with self._blamed(call.step, call.client.round, call.client.id):
                    passed.append(gate.up(upload, call))
        remaining = iter(passed)
        return [(None, NO_TRAFFIC) if s.upload is None else next(remaining) for s in stepped]

    def method_step(self, name: str) -> Callable[..., Any]:
        """Return the method's step `name`: `(client, state, down) -> (upload or None, state)`."""
        step: Callable[..., Any] = getattr(self.assembly.algorithm, name.partition("/")[0])
        return step

    def _seed(self, name: str, client: int, round_: int = 0) -> int:
        """Return the seed of a client's step or test.

        Tests leave the round out: a client with the same state and download has the same score in
        every round (`Federation.tested`).
        """
        return self.assembly.streams.entropy(f"layers/{name}", round_=round_, client=client)

    def _add(
        self,
        sums: core.Sums,
        clients: Sequence[int],
        uploads: Sequence[core.Payload | None],
    ) -> None:
        """Add a group's uploads to sums."""
        algorithm, gate = self.assembly.algorithm, self.assembly.gate
        assert isinstance(algorithm, core.SummingMethod)
        if len(clients) > 1 and all(upload is not None for upload in uploads):
            sums.add_rows(clients, gate.summands(algorithm.summands)(uploads))
            return
        summand = gate.summand(algorithm.summand)
        for client, upload in zip(clients, uploads, strict=True):
            total = core.Total()
            if upload is not None:
                total = core.Total((client,), core.check_terms(summand(upload), upload))
            sums.add(total)

    def test(
        self,
        name: str,
        round_: int,
        groups: Iterable[Sequence[int]],
        firsts: Iterable[Member],
    ) -> Counted:
        """Run a test of `evaluation.testing` for groups of clients (`shares.groups_of_test`).

        Groups that share a model are tested one after the other with the model of the first one.

        Args:
            name: the test.
            round_: the round.
            groups: the clients; those of a group share model and download.
            firsts: the first client of each group, with its state and download.

        Raises:
            ClientError: if the test of a client fails.
            UserError: if the user can correct the cause, for example if memory runs out.
        """
        architectures = self.assembly.models.architectures
        is_together = core.is_tested_together(self.assembly.algorithm) and name == "evaluate"

        def model(of_group: tuple[Sequence[int], Member]) -> Any:
            _, (client, _, down) = of_group
            return (architectures[client], id(down)) if is_together else client

        parts = []
        for _, same in groupby(zip(groups, firsts, strict=True), model):
            sharing, members = zip(*same, strict=True)
            parts += self._test(name, round_, sharing, members[0])
        return Counted.joined(parts)

    def _test(
        self, name: str, round_: int, groups: Sequence[Sequence[int]], first: Member
    ) -> list[Counted]:
        """Test a model that groups of clients share.

        If a test fails, or draws from the global generators, which each client seeds differently,
        each client is tested alone.
        """
        clients = [*chain.from_iterable(groups)]
        is_shared = len(clients) > 1
        try:
            context = self.client(first.client, round_)
            splits = splits_of(self.assembly.data.at(round_), groups, self._samples)
            with of_clients(*clients), self._isolation.step(self._seed(name, first.client)):
                before = generators(self.device) if is_shared else None
                given = self._given(context, first.state, first.down)
                arguments = context, given.state, given.down, splits
                counts = TESTS[name](self.assembly.algorithm, *arguments)
                given.check()
                if before is None or generators(self.device) == before:
                    return [Counted(clients, counts, peak_device_memory(self.device))]
        except (Exception, SystemExit) as error:
            if not is_shared:
                raise self._blame(error, name, round_, first.client) from None
        alone = [first._replace(client=client) for client in clients]
        return [part for one in alone for part in self._test(name, round_, [[one.client]], one)]

    @contextmanager
    def _blamed(self, step: str, round_: int, client: int) -> Iterator[None]:
        """Raise a failure within the block as one of this client."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise self._blame(error, step, round_, client) from None

    def _blame(self, error: BaseException, step: str, round_: int, client: int) -> BaseException:
        """Return a failure as one of this client, unless it is the user's or the machine's."""
        self._skeletons.clear()  # the step may have changed the models
        self._sent = (lambda: None, (None, ()))  # and written into the download
        if isinstance(error, UserError | ClientError) or is_full(error):
            return error
        where = f"client {client}, round {round_}, step {step}"
        if is_out_of_memory(error):
            free_memory(self.device)
            return out_of_memory(self.assembly.experiment, self.device, where)
        return ClientError(client, round_, step, self._failure(error))

    def _failure(self, error: BaseException) -> Failure:
        try:
            failure = Failure.of(error)
            if type(error) not in (FloatingPointError, NoScalar) or plugin_line(error):
                return failure
            loss = getattr(type(self.assembly.algorithm), "loss", None)
            return replace(failure, cause=f"{failure.cause}{definition_line(loss)}")
        except Exception:  # the error's own text raises
            return Failure(type(error).__name__)

    def _download(self, down: core.Payload | None) -> Sent:
        """Return a download on the device, to which it is sent once for all, and its guard."""
        if down is None:
            return None, ()
        if self._sent[0]() is not down:
            placed = down
            if self.device.type != "cpu":
                placed = down.copied(lambda tensor: tensor.to(self.device))
            guard = ReadOnly("its download", vars(placed))
            self._sent = weakref.ref(down), (placed, (guard,))
        return self._sent[1]

    def _state_or_first(
        self, context: core.Client, state: core.ClientState | None
    ) -> core.ClientState:
        if state is not None:
            return state
        if context.id not in self._empty:
            with counted():  # building the first state is no work of a step
                state = self.assembly.algorithm.init_client(context)
            if state.model or state.memory:
                return state
            self._empty[context.id] = state
        return self._empty[context.id]

    def client(
        self, client: int, round_: int, skeleton: core.Skeleton | None = None
    ) -> core.Client:
        """Return the client as a step sees it, without its test images.

        Args:
            client: its id.
            round_: the round.
            skeleton: its empty model; by default the one that clients of its architecture share.
        """
        (setting, data), models = self._round(round_), self.assembly.models
        architecture = models.architectures[client]
        validation = data.validation if self.assembly.algorithm.requires.validation else None
        return core.Client(
            id=client,
            round=round_,
            setting=setting,
            train=self._training_samples(data.train[client]),
            architecture=architecture,
            skeleton=skeleton or self._skeleton(architecture),
            initial=partial(self._initial, architecture, client),
            device=self.device,
            validation=None if validation is None else self._samples(validation[client]),
            method=self.assembly.algorithm.name,
            published=self._public,
        )

    def _initial(self, architecture: str, client: int) -> core.Tensors:
        weights = self.assembly.models.initial(architecture, client)
        return map_together(partial(moved_to, device=self.device), weights)

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
    def _samples(self) -> SampleMaker:
        return self.assembly.models.samples(self.device)

    @cached_property
    def _public(self) -> core.Samples | None:
        """Return the public images if the method requires them."""
        if not self.assembly.algorithm.requires.public:
            return None
        return self.assembly.models.public_samples(self.device)

    @cached_property
    def _training_samples(self) -> SampleMaker:
        if self.assembly.setting.training.augment.is_identity:
            return self._samples
        return self.assembly.models.samples(self.device, training=True)

    def _skeleton(self, architecture: str) -> core.Skeleton:
        if architecture not in self._skeletons:
            empty = self.assembly.models.empty(architecture, self.device)
            if not self.assembly.algorithm.requires.prompts:  # prompts are small anyway
                size = sum(parameter.numel() for parameter in empty.parameters())
                check_threads(self.assembly.experiment.threads, size, self.device)
            self._skeletons[architecture] = core.Skeleton(empty)
        return self._skeletons[architecture]


class Given:
    """What a step reads: its client's state and its download, on the device.

    Args:
        before: the client's state; None before its first step.
        state: this state, or the first one.
        device: the device.
        down: the download on the device, and its guard.
    """

    def __init__(
        self,
        before: core.ClientState | None,
        state: core.ClientState,
        device: torch.device,
        down: Sent,
    ) -> None:
        self._before, self.is_empty = before, not (state.model or state.memory)
        self.state, (self.down, self._guards) = state, down
        self._placed: dict[int, Tensor] = {}
        if self.is_empty:
            return
        if device.type != "cpu":
            parts = map_together(partial(self._place, device), _parts(state))
            self.state = core.ClientState(**parts)
        self._guards = *self._guards, ReadOnly("the client's state", _parts(self.state))

    def _place(self, device: torch.device, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        for tensor, placed in zip(tensors, moved_to(tensors, device), strict=True):
            self._placed[id(placed)] = tensor
            yield placed

    def check(self) -> None:
        """Raise a TypeError if the step has written into what it may only read."""
        for guard in self._guards:
            guard.check()

    def kept(
        self, state: core.ClientState, apart: Callable[[Tensor], Tensor]
    ) -> core.ClientState | None:
        """Return the next state on the CPU, outside the memory that the next client overwrites.

        Args:
            state: what the step returned.
            apart: returns a tensor that the next client does not overwrite.

        Returns:
            The state; the client's own one if the step returned it; None if a client without state
            still needs none.
        """
        is_first = self._before is None
        if (state is self.state and not is_first) or (
            is_first and self.is_empty and not (state.model or state.memory)
        ):
            return self._before

        def kept(tensor: Tensor) -> Tensor:
            if tensor.dtype in UNSUPPORTED:
                raise TypeError(
                    f"the state holds {tensor.dtype}, which cannot be stored; use float32"
                )
            if id(tensor) in self._placed:
                return self._placed[id(tensor)]
            own = apart(tensor.detach()).cpu()
            is_part = own.untyped_storage().nbytes() > 2 * own.nbytes  # of which the rest is waste
            return own.clone() if is_part else aligned(own)

        return core.ClientState(**map_blocks(kept, make_contiguous(_parts(state))))


def _parts(state: core.ClientState) -> dict[str, core.StateTree]:
    return {"model": state.model, "memory": state.memory}


def _apart(memory: Sequence[int], tensor: Tensor) -> Tensor:
    """Return a tensor outside the memory that the next client overwrites."""
    if tensor.layout != torch.strided:
        return tensor  # the gate refuses it
    return tensor.clone() if tensor.untyped_storage().data_ptr() in memory else tensor


UNSUPPORTED = (torch.bfloat16, torch.complex32)
"""Types that states cannot have: states travel as NumPy arrays, and NumPy lacks these."""
REPORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}")
"""Report names that trackers accept."""


def check_numbers(reports: Mapping[str, float], train_losses: Sequence[float]) -> None:
    """Raise an error if a report or a training loss is not a finite number."""
    for loss in train_losses:
        if type(loss) is not float or not math.isfinite(loss):
            _check_number("client.train_losses holds", loss)
    for name, value in reports.items():
        if not isinstance(name, str) or not REPORT.fullmatch(name):
            raise ValueError(f"client.reports has the name {name!r}, expected letters and digits")
        _check_number(f"client.reports[{name!r}] is", value)


def _check_number(subject: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value)):  # type: ignore[arg-type]
        kind = NotFinite if isinstance(value, float) else ValueError
        raise kind(f"{subject} {value!r}, expected a finite number")
