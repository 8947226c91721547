"""The round loop alone, with clients that answer by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedray.config import FaultConfig
from fedray.core import Algorithm, Gate, Payload, payload_field
from fedray.evaluation.score import Score
from fedray.federation import Federation, Plan, Reply, RoundExchange, ScoreReply
from fedray.records import Round
from fedray.streams import Streams

STEPS = ("first", "second")


@dataclass(frozen=True)
class Made(Payload):
    """Says in which round it was made."""

    round: int = payload_field("statistics")


class TwoSteps(Algorithm):
    """Two exchanges a round; notes in which rounds the uploads that each gave were made."""

    name = "two_steps"

    def __init__(self) -> None:
        self.got: dict[int, dict[str, dict[int, int]]] = {}

    def round(self, state: Any, exchange: Any) -> Any:
        replies = {s: exchange.call(s, dict.fromkeys(exchange.participants)) for s in STEPS}
        self.got[exchange.round] = {
            step: {client: made.round for client, made in uplinks.items()}
            for step, uplinks in replies.items()
        }
        return state


@dataclass
class Clients:
    """An executor whose clients report and score what they are told to."""

    reports: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    scores: Mapping[int, Score] = field(default_factory=dict)

    def step(self, name: str, round_: int, down: Any) -> dict[int, Reply]:
        reports = self.reports if name == "first" else {}
        return {client: Reply(Made(round_), reports=reports.get(client, {})) for client in down}

    def test(self, name: str, round_: int, down: Any) -> dict[int, ScoreReply]:
        return {client: ScoreReply([self.scores.get(client, Score(1, 1))]) for client in down}


@dataclass(frozen=True)
class NoServer:
    round: int = 0
    joined: Sequence[int] = ()


def federation(rounds: int, clients: Clients | None = None, **faults: Any) -> Federation:
    plan = Plan(rounds, 3, 1.0, 1, FaultConfig(**faults))
    gate, streams = Gate({}), Streams(0)
    return Federation(TwoSteps(), clients or Clients(), gate, plan, NoServer(), streams)


def events_of(result: Round) -> list[tuple[int, str]]:
    return [(event.client, event.what) for event in result.events]


def test_a_late_reply_is_an_answer_to_its_own_step(monkeypatch):
    def strikes(self: RoundExchange, fault: str, client: int) -> bool:
        return (fault, self.round, client) == ("late", 1, 0)

    run = federation(2)
    monkeypatch.setattr(RoundExchange, "_strikes", strikes)
    monkeypatch.setattr(run, "_cohort", lambda round_: [[], [0, 1], [1, 2]][round_])
    _, one, two = run.rounds()
    assert run.algorithm.got == {
        1: {step: {1: 1} for step in STEPS},
        2: {step: {0: 1, 1: 2, 2: 2} for step in STEPS},
    }
    assert events_of(one) == [(0, "late, due in round 2")] * 2
    assert events_of(two) == [(0, "late reply arrived")] * 2


def test_who_is_absent_is_one_event_in_however_many_exchanges():
    _, one = federation(1, drop=1.0).rounds()
    assert events_of(one) == [(client, "dropped") for client in range(3)]


def test_a_report_is_the_mean_over_the_clients_that_gave_it():
    reports = {0: {"a": 1.0}, 1: {"a": 4.0, "b": 2.0}}
    zero, one = federation(1, Clients(reports)).rounds()
    found = {name: value for name, value in one.metrics.items() if name.startswith("client/")}
    assert found == {"client/a": 2.5, "client/b": 2.0}
    assert not any(name.startswith("client/") for name in zero.metrics)


def test_a_client_without_test_images_has_no_accuracy():
    scores = {0: Score(3, 4), 1: Score(0, 0)}
    for result in federation(1, Clients(scores=scores)).rounds():
        assert result.per_client == {0: 0.75, 2: 1.0}
        assert result.metrics["local_accuracy"] == pytest.approx(0.875)
