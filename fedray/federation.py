"""The round loop: who takes part, what goes wrong, what is measured; rounds as a generator.

Knows no method by name and nothing about where steps run: that is the executor's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fedray.algorithms.base import Algorithm, Downlinks, Server, ServerState
from fedray.client import ClientState, plain
from fedray.comm import Gate, Payload, Traffic
from fedray.config import FaultConfig, JoinConfig
from fedray.errors import ClientError
from fedray.evaluation import Score, dice, summarise, summarise_models
from fedray.streams import Streams


@dataclass(frozen=True)
class Reply:
    """What came back from one client's step.

    Attributes:
        uplink: what the client uploaded, past the gate; None when the step uploads nothing.
        traffic: its size.
        metrics: numbers for the tracker, such as "train_loss".
        failure: why there is no reply, or None.
    """

    uplink: Payload | None = None
    traffic: Traffic = field(default_factory=Traffic)
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


class Executor(Protocol):
    """Where client steps run. It keeps the clients' states for the caller, who owns them."""

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`; a failed step leaves its state alone."""

    def evaluate(self, round_: int, down: Downlinks) -> dict[int, Score]:
        """Test every key of `down` on its own test split."""

    def export(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientState]]:
        """Yield the states of `clients` that have one; a client never called has none."""

    def restore(self, states: Mapping[int, ClientState]) -> None:
        """Take over these states; every other client is as at the beginning."""

    def close(self) -> None:
        """Free whatever the executor holds."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a round: a reply dropped, late, arrived, or an error."""

    client: int
    what: str


@dataclass(frozen=True)
class RoundResult:
    """One round, as it is written to result.json.

    Attributes:
        round: 0 is the evaluation before the first round.
        seconds: wall time of the round, evaluation included.
        metrics: by name; empty `per_client` when the round was not evaluated.
        per_client: accuracy by client id.
        up: uploads of the round.
        down: downloads of the round.
        participants: ids that were asked.
        events: what went wrong.
        matrices: the method's analyses as nested lists, by name.
    """

    round: int
    seconds: float
    metrics: Mapping[str, float]
    per_client: Mapping[int, float]
    up: Traffic
    down: Traffic
    participants: Sequence[int]
    events: Sequence[Event]
    matrices: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Plain data for result.json."""
        return {
            "round": self.round,
            "seconds": self.seconds,
            "metrics": {
                **self.metrics,
                "per_client": {str(client): value for client, value in self.per_client.items()},
            },
            "up_bytes": self.up.total_bytes,
            "down_bytes": self.down.total_bytes,
            "up_params": self.up.total_params,
            "down_params": self.down.total_params,
            "up_bytes_by_kind": dict(self.up.bytes),
            "down_bytes_by_kind": dict(self.down.bytes),
            "up_params_by_kind": dict(self.up.params),
            "down_params_by_kind": dict(self.down.params),
            "participants": list(self.participants),
            "events": [{"client": event.client, "what": event.what} for event in self.events],
        }


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
    server: ServerState
    late: Sequence[LateReply] = ()


@dataclass(frozen=True)
class Plan:
    """What the loop needs of the experiment; the keys of the same names."""

    rounds: int
    clients: int
    participation: float
    eval_every: int
    faults: FaultConfig
    domains: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The clients of each domain, where clients have one."""
    finetune_epochs: int = 0
    majority: Sequence[Collection[int]] = ()
    """Each client's majority classes, by its training images."""
    dense_classes: Sequence[str] = ()
    """In dense prediction the classes' names, the background first."""
    join: JoinConfig = field(default_factory=JoinConfig)

    @property
    def newcomers(self) -> Sequence[int]:
        """Ids of the clients that come later."""
        return range(self.clients - self.join.clients, self.clients)

    def joined(self, round_: int) -> Sequence[int]:
        """Ids of the clients that are part of the federation in a round."""
        return range(self.clients - (self.join.clients if round_ < self.join.round else 0))


class Federation:
    """One federated run.

    Args:
        algorithm: the method.
        executor: where client steps run.
        gate: what every payload passes.
        plan: the loop's knobs.
        server: the server's side, with the text tower where the method needs one.
        streams: the experiment's random streams.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        executor: Executor,
        gate: Gate,
        plan: Plan,
        server: Server,
        streams: Streams,
    ) -> None:
        self.algorithm = algorithm
        self.executor = executor
        self.gate = gate
        self.plan = plan
        self.server = server
        self.streams = streams
        self.snapshot = Snapshot(0, {})
        self.stepped: set[int] = set()
        """Clients whose state may have changed; whoever saves them clears it."""

    def rounds(self, resume: Snapshot | None = None) -> Iterator[RoundResult]:
        """Yield a result per round, round 0 first; after each, `snapshot` is that round's.

        Args:
            resume: go on after this snapshot; the executor already holds the clients' states.
        """
        if resume is None:
            started = time.perf_counter()
            exchange = RoundExchange(self, 0, self.plan.joined(0))
            state = self.algorithm.init_server(exchange.server)
            state = self.algorithm.prepare(state, exchange)
            self.snapshot = Snapshot(0, plain(state), exchange.late)
            yield self._result(exchange, state, started)
        else:
            self.snapshot = resume
        for number in range(self.snapshot.round + 1, self.plan.rounds + 1):
            started = time.perf_counter()
            exchange = RoundExchange(self, number, self._cohort(number), self.snapshot.late)
            state = self.algorithm.round(self.snapshot.server, exchange)
            self.snapshot = Snapshot(number, plain(state), exchange.late)
            yield self._result(exchange, state, started)

    def _cohort(self, round_: int) -> Sequence[int]:
        """The sorted ids of a round's participants, uniform without replacement."""
        joined = len(self.plan.joined(round_))
        count = max(1, round(self.plan.participation * joined))
        if count == joined:
            return range(count)
        random = self.streams.numpy("participation", round_=round_)
        drawn = random.choice(joined, size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def _result(self, exchange: RoundExchange, state: ServerState, started: float) -> RoundResult:
        metrics: dict[str, float] = {}
        scores: dict[int, Score] = {}
        matrices: dict[str, Any] = {}
        if self._is_evaluated(exchange.round):
            everyone = range(self.plan.clients)
            down = self.algorithm.downlink(state, everyone, exchange.server)
            sent = _once(self.gate.down, down)[0]
            scores = self.executor.evaluate(exchange.round, sent)
            joined = {client: scores[client] for client in exchange.everyone}
            metrics = summarise(joined, self.plan.domains, self.plan.majority)
            metrics |= dice(joined, self.plan.dense_classes, self.plan.domains)
            new = {"new": [[scores[client]] for client in self.plan.newcomers]}
            metrics |= summarise_models(new) | self._visits(exchange, state)
            if self.algorithm.has_one_model(state):
                metrics["global_accuracy"] = metrics["local_accuracy_weighted"]
            if self.plan.finetune_epochs > 0 and exchange.round == self.plan.rounds:
                metrics |= self._finetune(exchange, sent)
            analysis = self.algorithm.analyse(state, exchange.server)
            metrics |= analysis.metrics
            matrices = {name: value.tolist() for name, value in analysis.matrices.items()}
        metrics |= _means(exchange.metrics)
        return RoundResult(
            round=exchange.round,
            seconds=time.perf_counter() - started,
            metrics=metrics,
            per_client={c: score.accuracy for c, score in sorted(scores.items()) if score.total},
            up=exchange.up,
            down=exchange.down,
            participants=list(exchange.participants) if exchange.round else [],
            events=exchange.events,
            matrices=matrices,
        )

    def _finetune(self, exchange: RoundExchange, sent: Downlinks) -> dict[str, float]:
        """What fine-tuned heads achieve, as means over the clients that replied."""
        replies = self.executor.step("finetune", exchange.round, sent)
        for client, reply in sorted(replies.items()):
            if reply.failure is not None:
                exchange.fail(client, "finetune", reply.failure)
        reached = [reply for _, reply in sorted(replies.items()) if reply.failure is None]
        return _means([reply.metrics for reply in reached])

    def _visits(self, exchange: RoundExchange, state: ServerState) -> dict[str, float]:
        """Test further models, as many clients at a time as are asked for different ones."""
        asked = self.algorithm.visits(state, exchange.server)
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
            sent = _once(self.gate.down, {c: payload for c, (_, payload) in wave.items()})[0]
            for client, score in self.executor.evaluate(exchange.round, sent).items():
                wave[client][0].append(score)
            queues = {client: queue for client, queue in queues.items() if queue}
        return summarise_models(scores)

    def _is_evaluated(self, round_: int) -> bool:
        if round_ == self.plan.rounds:
            return True
        return self.plan.eval_every > 0 and round_ % self.plan.eval_every == 0


def _means(replies: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each number that clients reported, as the mean over those that did."""
    found: dict[str, list[float]] = {}
    for reply in replies:
        for name, value in reply.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


class RoundExchange:
    """One round's calls, with the scenario's faults and the ledger (`algorithms.base.Exchange`)."""

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
        self.server = replace(federation.server, round=round_, joined=self.everyone)
        self.late = list(late)
        self.up = Traffic()
        self.down = Traffic()
        self.events: list[Event] = []
        self.metrics: list[Mapping[str, float]] = []
        self._federation = federation

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send, run, collect; see `algorithms.base.Exchange.call`."""
        gate, executor = self._federation.gate, self._federation.executor
        passed, traffic = _once(gate.down, dict(sorted(down.items())))
        for client in passed:
            self.down += traffic[client]
        absent = {client for client in passed if self._strikes("drop", client)}
        dropped = [Event(client, "dropped") for client in sorted(absent)]
        self.events += [event for event in dropped if event not in self.events]  # once a round
        reached = {client: payload for client, payload in passed.items() if client not in absent}
        replies = executor.step(step, self.round, reached) if reached else {}
        arrived = self._due(step)
        uplinks: dict[int, Any] = {}
        for client, reply in sorted(replies.items()):
            if reply.failure is not None:
                self.fail(client, step, reply.failure)
                continue
            self._federation.stepped.add(client)
            self.metrics.append(reply.metrics)
            self.up += reply.traffic
            if reply.uplink is None:
                continue
            if self._strikes("late", client):
                due = self.round + self._federation.plan.faults.late_rounds
                self.late.append(LateReply(client, step, due, reply.uplink))
                self.events.append(Event(client, f"late, due in round {due}"))
            else:
                uplinks[client] = reply.uplink
        for client, uplink in arrived.items():
            fresh = client in uplinks
            self.events.append(Event(client, "late reply " + ("replaced" if fresh else "arrived")))
            uplinks.setdefault(client, uplink)
        return dict(sorted(uplinks.items()))

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

    def fail(self, client: int, step: str, cause: str) -> None:
        """Note that a client did not reply, or end the run, as the experiment asks.

        Raises:
            ClientError: with faults.on_client_error=stop.
        """
        if self._federation.plan.faults.on_client_error == "stop":
            raise ClientError(client, self.round, step, cause)
        self.events.append(Event(client, f"failed: {cause}"))


def _once(
    gate: Any, down: Mapping[int, Payload | None]
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
