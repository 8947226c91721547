"""The round loop: who takes part, what goes wrong; rounds as a generator.

Knows no method by name and nothing about where steps run: that is the executor's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from traceback import extract_tb
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fedray.config import FaultConfig, JoinConfig
from fedray.core import (
    Algorithm,
    Downlinks,
    Gate,
    Payload,
    Server,
    ServerState,
    StateTree,
)
from fedray.core.privacy import has_covered
from fedray.core.state import contiguous, map_tensors
from fedray.errors import ClientError, Failure, RunFailed, ServerError, UserError
from fedray.evaluation.accountant import Accountant
from fedray.evaluation.kept_scores import KeptScores
from fedray.evaluation.metrics import DataFacts, Evaluated, add_declared, add_metric, measure
from fedray.evaluation.protocols import (
    Analysed,
    Analysis,
    CrossEvaluated,
    HasGlobalModel,
    analysis_metrics,
)
from fedray.evaluation.score import Score
from fedray.files import is_full
from fedray.records import REPORTED, Event, Release, Round, Select, Traffic
from fedray.states import StateStore
from fedray.streams import Streams

_T = TypeVar("_T")
WAVE = 256
"""Clients that are tested at a time: their downloads, and the states on their way, are held."""


@dataclass(frozen=True)
class Reply:
    """What came back from one client's step.

    Attributes:
        uplink: what the client uploaded, past the gate; None when the step uploads nothing.
        traffic: its size.
        train_loss: mean loss of its last local epoch; None when the step did not train.
        reports: numbers that the method's client reports.
        seconds: wall time of the step, where it ran.
        failure: why there is no reply, or None.
    """

    uplink: Payload | None = None
    traffic: Traffic = field(default_factory=Traffic)
    train_loss: float | None = None
    reports: Mapping[str, float] = field(default_factory=dict)
    failure: Failure | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class ScoreReply:
    """What came back from one client's test.

    Attributes:
        scores: of its model, of several models where the test has several.
        failure: why there are none, or None.
    """

    scores: Sequence[Score] = ()
    failure: Failure | None = None


class Executor(Protocol):
    """Where client steps run.

    Attributes:
        states: the clients'; whoever runs may give another store before the first step.
    """

    states: StateStore

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`; a failed step leaves its state alone."""

    def test(self, name: str, round_: int, down: Downlinks) -> dict[int, ScoreReply]:
        """Run a test of `evaluation.testing` for every key of `down`; no state changes."""

    def close(self) -> None:
        """Free whatever the executor holds."""


@dataclass(frozen=True, eq=False)
class LateReply:
    """An upload on its way: it counts in round `due`."""

    client: int
    step: str
    due: int
    uplink: Payload


@dataclass(frozen=True)
class Snapshot:
    """Everything that a federation is after a round, besides the clients' states.

    Attributes:
        round: the last finished round.
        server: the method's server state.
        late: uploads still on their way.
    """

    round: int
    server: StateTree
    late: Sequence[LateReply] = ()


@dataclass(frozen=True)
class Plan:
    """What the loop needs of the experiment; the keys of the same names.

    `facts` of the data hold from a round on, the first from the beginning.
    `lr` is the learning rate of a round, where it changes.
    `revertible` says whether a round that the server fails in can be undone: rounds without a
    checkpoint of their own are.
    `select` is on which images is chosen.
    """

    rounds: int
    clients: int
    participation: float
    eval_every: int
    faults: FaultConfig
    facts: Sequence[tuple[int, DataFacts]] = ((0, DataFacts()),)
    finetune_epochs: int = 0
    join: JoinConfig = field(default_factory=JoinConfig)
    revertible: bool = False
    lr: Callable[[int], float] | None = None
    select: Select = "validation"

    @property
    def newcomers(self) -> Sequence[int]:
        """Ids of the clients that come later."""
        return range(self.clients - self.join.clients, self.clients)

    def joined(self, round_: int) -> Sequence[int]:
        """Ids of the clients that are part of the federation in a round."""
        return range(self.clients - (self.join.clients if round_ < self.join.round else 0))

    def phase_at(self, round_: int) -> int:
        """The round from which on the data is as it is in a round."""
        return max(first for first, _ in self.facts if first <= round_)

    def facts_at(self, round_: int) -> DataFacts:
        """What holds of the data in a round."""
        return dict(self.facts)[self.phase_at(round_)]

    def is_evaluated(self, round_: int) -> bool:
        """Whether all clients are tested after a round."""
        if round_ == self.rounds:
            return True
        return self.eval_every > 0 and round_ % self.eval_every == 0


class Federation:
    """One federated run.

    Args:
        algorithm: the method.
        executor: where client steps run.
        gate: what every payload passes.
        plan: the loop's keys.
        server: the server's side, with the text tower where the method needs one.
        streams: the experiment's random streams.
        accountant: counts what clients release, where privacy with noise was asked for.

    Attributes:
        snapshot: what the federation is after the last round that was yielded.
        tracebacks: of the failures that a run survived; whoever keeps them clears it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        executor: Executor,
        gate: Gate,
        plan: Plan,
        server: Server,
        streams: Streams,
        accountant: Accountant | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.executor = executor
        self.gate = gate
        self.plan = plan
        self.server = server
        self.streams = streams
        self.accountant = accountant
        self.snapshot = Snapshot(0, {})
        self.tracebacks: list[str] = []
        self._scores = KeptScores()

    def rounds(self, resume: Snapshot | None = None) -> Iterator[Round]:
        """Yield a record per round, round 0 first; after each, `snapshot` is that round's.

        Args:
            resume: go on after this snapshot; the executor already holds the clients' states.
        """
        self._scores.clear()  # whoever calls has given the executor other states
        if resume is None:
            yield self._round(0, self.plan.joined(0), self._begin)
        else:
            self.snapshot = resume
        for number in range(self.snapshot.round + 1, self.plan.rounds + 1):
            if self.plan.revertible:
                self.executor.states.hold()
            yield self._round(number, self._cohort(number), self._go_on)

    def retest(self, snapshot: Snapshot) -> Round:
        """Test a federation again as it is after a round; nobody trains, nothing is counted.

        The metrics are those that the round had under the same settings of evaluation.

        Args:
            snapshot: the federation; the executor already holds the clients' states.

        Raises:
            ServerError: when the method's code on the server raises anything.
        """
        self.snapshot = snapshot
        self._scores.clear()
        participants = self._cohort(snapshot.round) if snapshot.round else ()
        return self._round(snapshot.round, participants, lambda _: snapshot.server)

    def sent(self) -> Iterator[Downlinks]:
        """What all clients are tested with after the last round, so many at a time as are held."""
        number = self.snapshot.round
        server = replace(self.server, round=number, joined=self.plan.joined(number))
        return self._downloads(server, self.snapshot.server)

    def changed(self, client: int) -> None:
        """Note that a client's state may be another now."""
        self._scores.forget(client)

    def _begin(self, exchange: RoundExchange) -> ServerState:
        return self.algorithm.prepare(self.algorithm.init_server(exchange.server), exchange)

    def _go_on(self, exchange: RoundExchange) -> ServerState:
        state = self.snapshot.server
        if self.plan.revertible:  # a checkpoint may still be written from it
            state = map_tensors(Tensor.clone, state)
        return self.algorithm.round(state, exchange)

    def _round(
        self,
        number: int,
        participants: Sequence[int],
        steps: Callable[[RoundExchange], ServerState],
    ) -> Round:
        """One round.

        Raises:
            ServerError: when the method's code on the server raises anything.
        """
        started = time.perf_counter()
        exchange = RoundExchange(self, number, participants, self.snapshot.late)
        try:
            done, snapshot = self._finish(exchange, steps(exchange), started)
        except (UserError, RunFailed, ClientError):
            raise
        except (Exception, SystemExit) as error:
            if is_full(error):
                raise
            raise ServerError(number, self._step_of(error), Failure.of(error)) from error
        self.snapshot = snapshot
        return done

    def _step_of(self, error: BaseException) -> str:
        """The innermost of the method's steps on the server that an error passed."""
        names = [frame.name for frame in extract_tb(error.__traceback__)]
        steps = [n for n in names if hasattr(self.algorithm, n) and not n.startswith("_")]
        return steps[-1] if steps else "round"

    def _cohort(self, round_: int) -> Sequence[int]:
        """The sorted ids of a round's participants, uniform without replacement."""
        joined = len(self.plan.joined(round_))
        count = max(1, round(self.plan.participation * joined))
        if count == joined:
            return range(count)
        random = self.streams.numpy("participation", round_=round_)
        drawn = random.choice(joined, size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def _finish(
        self, exchange: RoundExchange, state: ServerState, started: float
    ) -> tuple[Round, Snapshot]:
        """Test, measure; returns the round's record and what the federation is after it."""
        snapshot = Snapshot(exchange.round, contiguous(state), exchange.late)
        spent = self.accountant.spent(exchange.round) if self.accountant else None
        facts = self.plan.facts_at(exchange.round)
        lr = self.plan.lr(exchange.round) if self.plan.lr and exchange.round else None
        evaluated = Evaluated(
            facts, train_losses=exchange.train_losses, spent=spent, lr=lr, select=self.plan.select
        )
        analysis = Analysis()
        if self.plan.is_evaluated(exchange.round):
            evaluated = self._evaluate(exchange, state, evaluated)
            if isinstance(self.algorithm, Analysed):
                analysis = self.algorithm.analyse(state, exchange.server)
        metrics = measure(evaluated)
        giver = f"the analysis of {self.algorithm.name}"
        add_declared(metrics, analysis.metrics, analysis_metrics(self.algorithm), giver)
        for name, value in _means(exchange.reports).items():
            add_metric(metrics, name, value)
        scores = {**evaluated.scores, **evaluated.newcomers}
        done = Round(
            round=exchange.round,
            seconds=time.perf_counter() - started,
            client_seconds=exchange.client_seconds,
            metrics=metrics,
            per_client={c: score.accuracy for c, score in sorted(scores.items()) if score.total},
            up=exchange.up,
            down=exchange.down,
            participants=list(exchange.participants) if exchange.round else [],
            events=exchange.events,
            matrices={name: value.tolist() for name, value in analysis.matrices.items()},
        )
        return done, snapshot

    def _evaluate(
        self, exchange: RoundExchange, state: ServerState, evaluated: Evaluated
    ) -> Evaluated:
        """Test everybody, and whatever else the method offers."""
        algorithm = self.algorithm
        scores = {
            client: score
            for sent in self._downloads(exchange.server, state)
            for client, score in self._own_tests(exchange.round, sent).items()
        }
        last = self.plan.finetune_epochs > 0 and exchange.round == self.plan.rounds
        return replace(
            evaluated,
            scores={client: scores[client] for client in exchange.everyone},
            newcomers={client: scores[client] for client in self.plan.newcomers},
            has_global_model=isinstance(algorithm, HasGlobalModel)
            and algorithm.has_global_model(state),
            cross_evaluations=self._cross_evaluations(exchange, state),
            fine_tuned=self._fine_tuned(exchange, state) if last else (),
        )

    def _own_tests(self, round_: int, sent: Downlinks) -> dict[int, Score]:
        """Every client's own test; only those are asked of whom something has changed."""
        phase = self.plan.phase_at(round_)
        scores = self._scores.found(phase, sent)
        asked = {client: payload for client, payload in sent.items() if client not in scores}
        tested = {client: reply.scores[0] for client, reply in self._tests(round_, asked).items()}
        self._scores.keep(phase, sent, tested)
        return {**scores, **tested}

    def _downloads(self, server: Server, state: ServerState) -> Iterator[Downlinks]:
        """Yield what all clients are tested with, so many at a time as may be held at once."""
        for first in range(0, self.plan.clients, WAVE):
            some = range(first, min(first + WAVE, self.plan.clients))
            down = self.algorithm.downlink(state, some, server)
            yield _once(self.gate.down, down)[0]

    def _tests(self, round_: int, sent: Downlinks) -> dict[int, ScoreReply]:
        """Clients' tests on their own splits.

        Raises:
            ClientError: when one fails: a round without it would be another number.
        """
        tested = self.executor.test("evaluate", round_, sent) if sent else {}
        for client, reply in tested.items():
            if reply.failure is not None:
                raise ClientError(client, round_, "evaluate", reply.failure)
        return tested

    def _fine_tuned(self, exchange: RoundExchange, state: ServerState) -> list[Sequence[Score]]:
        """The scores of those clients whose fine-tuning went well, in client order."""
        found = []
        for sent in self._downloads(exchange.server, state):
            replies = self.executor.test("finetune", exchange.round, sent)
            for client, tested in sorted(replies.items()):
                if tested.failure is not None:
                    exchange.fail(client, "finetune", tested.failure)
                else:
                    found.append(tested.scores)
        return found

    def _cross_evaluations(
        self, exchange: RoundExchange, state: ServerState
    ) -> dict[str, list[list[Score]]]:
        """Test further models, as many clients at a time as are asked for different ones."""
        if not isinstance(self.algorithm, CrossEvaluated):
            return {}
        asked = self.algorithm.cross_evaluations(state, exchange.server)
        scores: dict[str, list[list[Score]]] = {
            name: [[] for _ in models] for name, models in asked.items()
        }
        queues: dict[int, list[tuple[list[Score], Payload | None]]] = {}
        for name, models in asked.items():
            for found, model in zip(scores[name], models, strict=True):
                for client, payload in model.items():
                    queues.setdefault(client, []).append((found, payload))
        while queues:
            wave = {client: queue.pop(0) for client, queue in sorted(queues.items())}
            for some in _cut(wave):
                sent = _once(self.gate.down, {c: payload for c, (_, payload) in some.items()})[0]
                for client, reply in self._tests(exchange.round, sent).items():
                    wave[client][0].append(reply.scores[0])
            queues = {client: queue for client, queue in queues.items() if queue}
        return scores


def _cut(wave: Mapping[int, _T]) -> Iterator[dict[int, _T]]:
    """A mapping in pieces of as many clients as may be tested at a time."""
    clients = list(wave)
    for first in range(0, len(clients), WAVE):
        yield {client: wave[client] for client in clients[first : first + WAVE]}


def _means(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each number that clients reported, as the mean over those that did."""
    found: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            found.setdefault(f"{REPORTED}{name}", []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


class RoundExchange:
    """One round's calls, with the scenario's faults and the ledger (`core.Exchange`)."""

    def __init__(
        self,
        federation: Federation,
        round_: int,
        participants: Sequence[int],
        late: Sequence[LateReply] = (),
    ) -> None:
        self.round = round_
        self.participants = participants
        self.everyone: Sequence[int] = federation.plan.joined(round_)
        self.replied: set[int] = set()
        self.server = replace(federation.server, round=round_, joined=self.everyone)
        self.late = list(late)
        self.up = Traffic()
        self.down = Traffic()
        self.events: list[Event] = []
        self.train_losses: list[float] = []
        self.reports: list[Mapping[str, float]] = []
        self._spent: dict[int, float] = {}
        self._noised: dict[str, set[int]] = {}
        self._federation = federation

    @property
    def client_seconds(self) -> float | None:
        """Wall time of the steps of a client, in the mean; None where no client was asked."""
        return sum(self._spent.values()) / len(self._spent) if self._spent else None

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send, run, collect; see `core.Exchange.call`."""
        gate, executor = self._federation.gate, self._federation.executor
        reached = self._send(down)
        release = self._ask(step, reached)
        replies = executor.step(step, self.round, reached) if reached else {}
        if release is not None:
            if any(_tells(reply) for reply in replies.values()):
                self._noised.setdefault(step, set()).update(reached)
            else:
                self._release(replace(release, void=True))
        arrived = self._due(step)
        uplinks = self._collect(step, replies)
        for client, uplink in arrived.items():
            fresh = client in uplinks
            self.events.append(Event(client, "late reply " + ("replaced" if fresh else "arrived")))
            uplinks.setdefault(client, uplink)
        return gate.together(dict(sorted(uplinks.items())), round_=self.round, step=step)

    def _send(self, down: Downlinks) -> dict[int, Payload | None]:
        """Send downloads; returns what arrived where, sorted by client."""
        self.replied = set()
        passed, traffic = _once(self._federation.gate.down, dict(sorted(down.items())))
        self.down = Traffic.total([self.down, *traffic.values()])
        absent = {client for client in passed if self._strikes("drop", client)}
        dropped = [Event(client, "dropped") for client in sorted(absent)]
        self.events += [event for event in dropped if event not in self.events]  # once a round
        return {client: payload for client, payload in passed.items() if client not in absent}

    def _ask(self, step: str, down: Downlinks) -> Release | None:
        """Note what clients are about to release, where somebody counts it."""
        if self._federation.accountant is None or not down:
            return None
        self._check_noise(step, down)
        drawn = len(self.participants) if down.keys() <= set(self.participants) else None
        everyone = len(self.everyone)
        release = Release(self.round, step, tuple(down), drawn or everyone, everyone)
        self._release(release)
        return release

    def _check_noise(self, step: str, down: Downlinks) -> None:
        """Refuse a call that would get the same noise as an earlier one of this round.

        Raises:
            UserError: naming the step.
        """
        privacy, before = self._federation.gate.privacy, self._noised.get(step, set())
        if privacy is None or privacy.noise_seed is None:
            return
        if before if privacy.mode == "central" else before & down.keys():
            raise UserError(
                f"privacy.noise_seed={privacy.noise_seed} gives a step's calls in one round the "
                f"same noise, and round {self.round} calls {step} a second time; leave "
                "privacy.noise_seed out, or give the second call a step of its own"
            )

    def _release(self, release: Release) -> None:
        assert self._federation.accountant is not None
        self._federation.accountant.add(release)

    def _collect(self, step: str, replies: Mapping[int, Reply]) -> dict[int, Payload]:
        """Take in what came back; uploads that the scenario delays are left for a later round."""
        uplinks: dict[int, Payload] = {}
        sizes: list[Traffic] = []
        for client, reply in sorted(replies.items()):
            if reply.failure is not None:
                self.fail(client, step, reply.failure)
                continue
            self.replied.add(client)
            self._federation.changed(client)
            self._spent[client] = self._spent.get(client, 0.0) + reply.seconds
            sizes.append(reply.traffic)
            self.reports.append(reply.reports)
            if reply.train_loss is not None:
                self.train_losses.append(reply.train_loss)
            if reply.uplink is None:
                continue
            if self._strikes("late", client):
                due = self.round + self._federation.plan.faults.late_rounds
                self.late.append(LateReply(client, step, due, reply.uplink))
                self.events.append(Event(client, f"late, due in round {due}"))
            else:
                uplinks[client] = reply.uplink
        self.up = Traffic.total([self.up, *sizes])
        return uplinks

    def _strikes(self, fault: str, client: int) -> bool:
        """Whether the scenario's fault hits this client; what precedes round 1 is spared."""
        probability: float = getattr(self._federation.plan.faults, fault)
        if probability == 0 or self.round == 0:
            return False
        random = self._federation.streams.numpy(f"fault_{fault}", round_=self.round, client=client)
        return bool(random.random() < probability)

    def _due(self, step: str) -> dict[int, Payload]:
        due: dict[int, Payload] = {}
        later: list[LateReply] = []
        for item in self.late:
            if item.step == step and item.due <= self.round:
                due[item.client] = item.uplink
            else:
                later.append(item)
        self.late = later
        return due

    def fail(self, client: int, step: str, failure: Failure) -> None:
        """Note that a client did not reply, or end the run, as the experiment asks.

        Raises:
            ClientError: with faults.on_client_error=stop.
        """
        error = ClientError(client, self.round, step, failure)
        if self._federation.plan.faults.on_client_error == "stop":
            raise error
        self.events.append(Event(client, f"failed: {failure.cause}"))
        if failure.traceback:
            self._federation.tracebacks.append(f"{error}\n{failure.traceback}")


def _tells(reply: Reply) -> bool:
    """Whether a reply holds anything that privacy covers."""
    return reply.uplink is not None and has_covered(reply.uplink)


def _once(
    gate: Callable[[Payload], tuple[Payload, Traffic]], down: Downlinks
) -> tuple[dict[int, Payload | None], dict[int, Traffic]]:
    """Pass every distinct payload through the gate once, however many clients get it."""
    passed: dict[int, tuple[Payload, Traffic]] = {}
    payloads: dict[int, Payload | None] = {}
    traffic: dict[int, Traffic] = {}
    for client, payload in down.items():
        if payload is None:
            payloads[client], traffic[client] = None, Traffic()
            continue
        if id(payload) not in passed:
            passed[id(payload)] = gate(payload)
        payloads[client], traffic[client] = passed[id(payload)]
    return payloads, traffic
