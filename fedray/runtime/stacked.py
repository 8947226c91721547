"""Steps of stacked clients (`stacked: N`, see `core.stacked`).

Clients begin and finish one by one; in between, clients of one form are trained together. A method
may make the uploads of clients that send no more than what was trained (`uploads_of`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from fedray import core
from fedray.base.counts import Tallied, Tally
from fedray.base.errors import UserError, one_line
from fedray.base.flat import structure_of
from fedray.core.client import Together
from fedray.core.stacked import train_stacked
from fedray.runtime.contexts import Given, Member, StepContexts, Stepped
from fedray.runtime.isolation import generators
from fedray.runtime.shares import STACKED_STEP


@dataclass(frozen=True)
class Begun:
    """A stacked client's step between its begin and its end.

    Attributes:
        call: the call.
        given: what the step reads.
        local: the client after the step has begun.
        weights: the weights with which its training begins.
        work: its work so far.
        form: equal for clients that can be trained together.
        is_plain: whether it has no state, and its step has begun with nothing but weights.
    """

    call: core.Call
    given: Given
    local: core.LocalContext
    weights: core.Flat
    work: Tallied
    form: object
    is_plain: bool


Ended: TypeAlias = tuple[Begun, core.Trained | Exception, Tallied, core.Payload | None]
"""A step, what it has trained, its work, and its upload if nothing else is to be done."""


def stacked_steps(
    runtime: StepContexts,
    round_: int,
    members: Sequence[Member],
    tally: Tally,
    together: Together,
) -> Iterator[Stepped]:
    """Begin the clients' steps, train clients of one form together, and finish the steps."""
    clients, architectures = [m.client for m in members], runtime.assembly.models.architectures
    start, streams = time.perf_counter(), runtime.assembly.streams
    _ = runtime.training_samples  # build data and models now, which may draw random numbers
    for architecture in {architectures[client] for client in clients}:
        runtime.template(architecture)
    runtime.isolation.seed(streams.entropy("layers/stacked", round_=round_, client=clients[0]))
    drawn, ended = generators(runtime.device), dict[int, Ended]()
    begun, alike = dict[str, Begun](), defaultdict[object, list[Begun]](list)
    client = clients[0]
    try:
        for member in members:
            client = member.client
            one = _begin(runtime, together.clients[client], member, begun, tally)
            alike[one.form].append(one)
        for group in alike.values():
            client = group[0].call.client.id
            ended |= _train_together(runtime, group)
        seconds = (time.perf_counter() - start) / len(members)
        for client, state, _ in members:
            yield _finish(runtime, ended[client], state, tally, seconds)
    except (Exception, SystemExit) as error:
        raise runtime.blame(error, STACKED_STEP, round_, client) from None
    if generators(runtime.device) != drawn:  # which the clients of a stack would share
        raise UserError(
            f"{runtime.assembly.algorithm.name} draws from the global random generators, so "
            "its clients cannot be stacked; set stacked=1"
        )


def _begin(
    runtime: StepContexts,
    context: core.Client,
    member: Member,
    begun: dict[str, Begun],
    tally: Tally,
) -> Begun:
    """Begin a client's step, and take its weights from the model.

    Args:
        runtime: what steps get.
        context: the client.
        member: its state and download.
        begun: the last plain step of each architecture, which is extended. If the download alone
            determines the model (`one_model`), the next client with this download begins likewise.
        tally: counts the work.
    """
    (_, state, down), method = member, runtime.assembly.algorithm
    given = runtime.given(context, state, down)
    call = core.Call(STACKED_STEP, context, down)
    like = begun.get(context.architecture)
    if method.one_model and given.is_empty and like is not None and like.call.down is down:
        model, trainable = like.local.model, like.local.trainable
        local = core.LocalContext(context, model, given.state, given.down, {}, trainable)
        return Begun(call, given, local, like.weights, like.work, like.form, is_plain=True)
    local = method.begin(context, given.state, given.down)
    given.check()  # the download is that of the next client, too
    is_plain = given.is_empty and local.client is context and local.state is given.state
    is_plain = is_plain and not (local.extra or context.reports)
    weights, work = context.skeleton.tensors.clone(), tally.take()
    one = Begun(call, given, local, weights, work, _form(local), is_plain)
    if is_plain:
        begun[context.architecture] = one
    return one


def _form(local: core.LocalContext) -> object:
    """Return a key that is equal for clients that can be trained together."""
    trainable = None if local.trainable is None else frozenset(local.trainable)
    sent: tuple[object, ...] = ()
    if local.down is not None:
        values = vars(local.down).values()
        sent = local.down.form(), *(v for v in values if isinstance(v, int | float))
    parts = map(structure_of, (local.state.memory, local.extra))
    return local.client.architecture, trainable, sent, *parts


def _train_together(runtime: StepContexts, begun: Sequence[Begun]) -> dict[int, Ended]:
    """Train clients of one form together; return what each has trained."""
    method, architecture = runtime.assembly.algorithm, begun[0].call.client.architecture
    assert isinstance(method, core.LocalTraining)
    begun = sorted(begun, key=lambda one: -one.local.client.train.index.size)
    rows = core.stack_trees([one.weights for one in begun])
    contexts = [one.local for one in begun]
    try:
        results = train_stacked(method, runtime.template(architecture), rows, contexts)
    except Exception as error:
        if isinstance(error, UserError) or not (
            "vmap" in str(error) or "atching rule" in str(error)
        ):
            raise
        raise UserError(
            f"{method.name} with {architecture} cannot be stacked: {one_line(error)}; set stacked=1"
        ) from error
    uploads: Sequence[core.Payload | None] | None = None
    is_trained = [type(trained) is core.Trained for trained, _ in results]
    if False not in [*is_trained, *[one.is_plain for one in begun]]:
        if uploads_of := getattr(method, "uploads_of", None):
            uploads = uploads_of(contexts, rows.map(torch.Tensor.cpu).rows())
        for given in {id(one.call.down): one.given for one in begun}.values():
            given.check()
    return {
        one.call.client.id: (one, trained, one.work.then(work), upload)
        for one, (trained, work), upload in zip(
            begun, results, uploads or [None] * len(begun), strict=True
        )
    }


def _finish(
    runtime: StepContexts,
    ended: Ended,
    state: core.ClientState | None,
    tally: Tally,
    seconds: float,
) -> Stepped:
    """Finish a client's step on its architecture's model, which gets its trained weights.

    If its upload is made already, the client keeps its state.
    """
    begun, trained, work, made = ended
    if made is not None:
        return Stepped(begun.call, made, state, work, seconds)
    method, context = runtime.assembly.algorithm, begun.call.client
    assert isinstance(method, core.LocalTraining)
    if isinstance(trained, Exception):
        raise trained
    context.skeleton.overwrite(trained.tensors)
    upload, after = method.finish(begun.local, trained)
    work = work.then(tally.take())
    return runtime.stepped(begun.call, upload, after, begun.given, work, seconds)
