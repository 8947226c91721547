"""Steps of stacked clients (`stacked: N`, see `core.stacked`).

Clients begin and finish one by one; in between, clients of one form are trained together. A method
may make the uploads of clients that send no more than what was trained (`uploads_of`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedray import core
from fedray.base.counts import NO_WORK, Tallied, Tally
from fedray.base.errors import UserError, one_line
from fedray.base.flat import structure_of
from fedray.core.stacked import train_stacked
from fedray.runtime.contexts import Member, Step, StepContexts
from fedray.runtime.shares import STACKED_STEP


@dataclass
class Begun:
    """A step between its begin and its end.

    Attributes:
        step: the step; the work of its reply is that so far.
        local: the client after the step has begun.
        weights: the weights with which its training begins.
        form: equal for clients that can be trained together.
        is_plain: whether it has no state, and its step has begun with nothing but weights.
        trained: what it has trained, or the error.
        work: the work of its training.
    """

    step: Step
    local: core.LocalContext
    weights: core.Flat
    form: object
    is_plain: bool
    trained: Any = None
    work: Tallied = NO_WORK


def stacked_steps(
    runtime: StepContexts,
    members: Sequence[Member],
    clients: Mapping[int, core.Client],
    tally: Tally,
) -> Iterator[Step]:
    """Begin the clients' steps, train clients of one form together, and finish the steps."""
    start, streams = time.perf_counter(), runtime.assembly.streams
    client, round_ = members[0].client, clients[members[0].client].round
    _ = runtime.training_samples  # build data and models now, which may draw random numbers
    for architecture in {one.architecture for one in clients.values()}:
        runtime.skeleton(architecture, stacked=True)
    runtime.isolation.seed(streams.entropy("layers/stacked", round_=round_, client=client))
    begun, plain = list[Begun](), dict[str, Begun]()
    alike = defaultdict[object, list[Begun]](list)
    try:
        for member in members:
            client = member.client
            step = runtime.step(STACKED_STEP, clients[client], member)
            begun.append(_begin(runtime, step, plain, tally))
            alike[begun[-1].form].append(begun[-1])
        for group in alike.values():
            client = group[0].step.client.id
            _train_together(runtime, group)
        seconds = (time.perf_counter() - start) / len(members)
        for one in begun:
            client, one.step.reply.seconds = one.step.client.id, seconds
            yield _finish(runtime, one, tally)
    except (Exception, SystemExit) as error:
        raise runtime.blame(error, STACKED_STEP, round_, client) from None


def _begin(runtime: StepContexts, step: Step, plain: dict[str, Begun], tally: Tally) -> Begun:
    """Begin a client's step, and take its weights from the model.

    Args:
        runtime: what steps get.
        step: the step.
        plain: the last plain step of each architecture, which is extended. If the download alone
            determines the model (`one_model`), the next client with this download begins likewise.
        tally: counts the work.
    """
    method, context = runtime.assembly.algorithm, step.client
    like = plain.get(context.architecture) if method.one_model and step.state.is_empty else None
    if like is not None and like.step.down is step.down:
        model, trainable = like.local.model, like.local.trainable
        step.reply.work = like.step.reply.work
        local = core.LocalContext(context, model, step.state, step.received, {}, trainable)
        return Begun(step, local, like.weights, like.form, is_plain=True)
    local = method.begin(context, step.state, step.received)
    step.check()  # the download is that of the next client, too
    is_plain = step.state.is_empty and local.client is context and local.state is step.state
    is_plain = is_plain and not (local.extra or context.reports)
    step.reply.work = tally.take()
    one = Begun(step, local, context.skeleton.tensors.clone(), _form(local), is_plain)
    if is_plain:
        plain[context.architecture] = one
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


def _train_together(runtime: StepContexts, begun: Sequence[Begun]) -> None:
    """Train clients of one form together; note what each has trained, or at once its upload."""
    method, architecture = runtime.assembly.algorithm, begun[0].step.client.architecture
    assert isinstance(method, core.LocalTraining)
    begun = sorted(begun, key=lambda one: -one.local.client.train.index.size)
    rows, contexts = core.stack_trees([one.weights for one in begun]), [one.local for one in begun]
    model = runtime.skeleton(architecture, stacked=True).model
    try:
        results = train_stacked(method, model, rows, contexts)
    except Exception as error:
        words = str(error)
        if isinstance(error, UserError) or not ("vmap" in words or "atching rule" in words):
            raise
        raise UserError(
            f"{method.name} with {architecture} cannot be stacked: {one_line(error)}; set stacked=1"
        ) from error
    for one, (trained, work) in zip(begun, results, strict=True):
        one.trained, one.work = trained, work
    is_plain = [one.is_plain and type(one.trained) is core.Trained for one in begun]
    uploads_of = getattr(method, "uploads_of", None)
    if uploads_of is None or False in is_plain:
        return
    uploads = uploads_of(contexts, rows.map(torch.Tensor.cpu).rows())
    for one, upload in zip(begun, uploads or (), strict=bool(uploads)):
        one.step.reply.uplink = upload
    for step in {id(one.step.down): one.step for one in begun}.values():
        step.check()


def _finish(runtime: StepContexts, begun: Begun, tally: Tally) -> Step:
    """Finish a client's step on its architecture's model, which gets its trained weights.

    If its upload is made already, the client keeps its state.
    """
    step, trained, method = begun.step, begun.trained, runtime.assembly.algorithm
    step.reply.work = step.reply.work.then(begun.work)
    if step.reply.uplink is not None:
        step.after = step.before
        return step
    assert isinstance(method, core.LocalTraining)
    if isinstance(trained, Exception):
        raise trained
    step.client.skeleton.overwrite(trained.tensors)
    upload, after = method.finish(begun.local, trained)
    step.reply.work = step.reply.work.then(tally.take())
    step.keep(method.sent_by(step.step), upload, after)
    return step
