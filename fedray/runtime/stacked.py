"""Steps of stacked clients (`stacked: N`, see `core.stacked`).

Each client begins and finishes its step alone; in between, several clients are trained together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from fedray import core
from fedray.core.payload import structure_of
from fedray.core.stacked import train_stacked
from fedray.counts import Tallied, Tally
from fedray.errors import UserError, one_line
from fedray.runtime.contexts import Given, Member, StepContexts, Stepped
from fedray.runtime.isolation import generators
from fedray.runtime.printing import of_clients
from fedray.runtime.shares import STACKED_STEP


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


def _form(local: core.LocalContext) -> object:
    """Return a key that is equal for clients that can be trained together."""
    trainable = None if local.trainable is None else frozenset(local.trainable)
    sent = () if local.down is None else (local.down.form(), local.down.numbers())
    parts = map(structure_of, (local.state.memory, local.extra))
    return local.client.architecture, trainable, sent, *parts


def stacked_steps(
    runtime: StepContexts, round_: int, members: Sequence[Member], tally: Tally
) -> Iterator[Stepped]:
    """Begin the clients' steps one by one, train all together, and finish one by one."""
    method, clients = runtime.assembly.algorithm, [member.client for member in members]
    assert isinstance(method, core.LocalTraining)
    start, streams = time.perf_counter(), runtime.assembly.streams
    _ = runtime.training_samples  # build data and models now, which may draw random numbers
    for client in clients:
        runtime.template(runtime.assembly.models.architectures[client])
    runtime.isolation.seed(streams.entropy("layers/stacked", round_=round_, client=clients[0]))
    with of_clients(*clients), _refuse_draws(runtime):
        begun, alike = dict[object, Begun](), dict[object, list[Begun]]()
        for member in members:
            try:
                one = _begin(runtime, round_, member, begun, tally)
            except (Exception, SystemExit) as error:
                raise runtime.blame(error, STACKED_STEP, round_, member.client) from None
            alike.setdefault(one.form, []).append(one)
        trained: dict[int, tuple[Begun, core.Trained | Exception, Tallied]] = {}
        for group in alike.values():
            group.sort(key=lambda one: -len(one.local.client.train))
            trained |= _train_together(runtime, group)
        seconds = (time.perf_counter() - start) / len(members)
        for client in clients:
            try:
                yield _finish(runtime, *trained[client], tally, seconds)
            except (Exception, SystemExit) as error:
                raise runtime.blame(error, STACKED_STEP, round_, client) from None


def _begin(
    runtime: StepContexts, round_: int, member: Member, begun: dict[object, Begun], tally: Tally
) -> Begun:
    """Begin a client's step, and take its weights from the model.

    Args:
        runtime: what steps get.
        round_: the round.
        member: the client.
        begun: the first step of each kind of clients without a state, which is extended. If
            the download alone determines the model (`one_model`), the next of this kind begins
            with the same weights.
        tally: counts the work.
    """
    (client, state, down), method = member, runtime.assembly.algorithm
    context = runtime.client(client, round_)
    given = runtime.given(context, state, down)
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
    one = Begun(call, given, local, weights, work, _form(local))
    is_plain = local.client is context and local.state is given.state and not local.extra
    if is_plain and given.is_empty:
        begun[kind] = one
    return one


def _train_together(
    runtime: StepContexts, begun: Sequence[Begun]
) -> dict[int, tuple[Begun, core.Trained | Exception, Tallied]]:
    """Train clients of one form together; return what each begun step has trained."""
    method, context = runtime.assembly.algorithm, begun[0].call.client
    assert isinstance(method, core.LocalTraining)
    vectors = zip(*(one.weights.vectors for one in begun), strict=True)
    rows = core.Flat(begun[0].weights.layout, [*map(torch.stack, vectors)])
    locals_ = [one.local for one in begun]
    try:
        trained, images, parameters = train_stacked(
            method, runtime.template(context.architecture), rows, locals_
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
    runtime: StepContexts,
    begun: Begun,
    trained: core.Trained | Exception,
    work: Tallied,
    tally: Tally,
    seconds: float,
) -> Stepped:
    """Finish a client's step on its architecture's model, which gets its trained weights."""
    method, context = runtime.assembly.algorithm, begun.call.client
    assert isinstance(method, core.LocalTraining)
    if isinstance(trained, Exception):
        raise trained
    context.skeleton.overwrite(trained.tensors)
    with of_clients(context.id):
        upload, state = method.finish(begun.local, trained)
    work = work.then(tally.take())
    return runtime.stepped(begun.call, upload, state, begun.given, work, seconds)


@contextmanager
def _refuse_draws(runtime: StepContexts) -> Iterator[None]:
    """Refuse draws from the global generators, which the clients of a stack would share."""
    before = generators(runtime.device)
    yield
    if generators(runtime.device) != before:
        raise UserError(
            f"{runtime.assembly.algorithm.name} draws from the global random generators, so its "
            "clients cannot be stacked; set stacked=1"
        )
