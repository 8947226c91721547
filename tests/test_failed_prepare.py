"""A client that missed what is sent once gets it before it needs it: nobody trains without."""

from __future__ import annotations

import pytest

from fedray.core import algorithms
from fedray.errors import ClientError

DROP = {"faults.on_client_error": "drop", "local_epochs": 1, "rounds": 4}
GIVEN = [
    ("fedetf", {}),
    ("fedglcl", {}),
    ("fedglcl_fedprox", {}),
    ("fedglcl_moon", {}),
    ("fedglcl_l", {}),
    ("fedglcl_l", {"algorithm.blocks": 1}),
    ("fedbabu", {"model.init": "independent"}),
    ("alignfed", {"algorithm.target_steps": 10}),
]
"""The methods whose clients are given something before the first round."""


@pytest.fixture
def fail_once(monkeypatch):
    """`fail_once(method, step, round_=0, times=9)`: client 1's step fails in that round."""

    def fail_once(method, step, round_=0, times=9):
        owner = algorithms.get(method)
        succeed, failures = getattr(owner, step), []

        def fail(self, client, state, down):
            if (client.id, client.round) == (1, round_) and len(failures) < times:
                failures.append(step)
                raise ArithmeticError("no such thing")
            return succeed(self, client, state, down)

        monkeypatch.setattr(owner, step, fail)

    return fail_once


@pytest.mark.parametrize("eval_every", [1, 0])
@pytest.mark.parametrize(("method", "keys"), GIVEN)
def test_a_client_is_given_what_it_missed_before_it_trains_or_is_tested(
    run, fail_once, method, keys, eval_every
):
    """Its models and accuracies are those of a run without the failure, in every round."""
    keys = {**DROP, **keys, "participation": 0.5, "model.group": "mlp", "eval_every": eval_every}
    whole = run(method, keys)
    fail_once(method, "keep", times=1)
    done = run(method, keys)
    assert [event.client for event in done.results[0].events] == [1]
    assert not any(result.events for result in done.results[1:])
    assert done.same_clients_as(whole)
    extra = [
        result.down.total_bytes - other.down.total_bytes
        for result, other in zip(done.results, whole.results, strict=True)
    ]
    again = 0 if eval_every else 1  # round 0 is tested, or round 1 comes first
    assert [bytes_ > 0 for bytes_ in extra] == [number == again for number in range(5)]


@pytest.mark.parametrize(("method", "keys"), GIVEN[:1])
def test_a_client_that_always_fails_before_its_test_ends_the_run(run, fail_once, method, keys):
    fail_once(method, "keep")
    with pytest.raises(ClientError, match="client 1, round 0, step evaluate"):
        run(method, {**DROP, **keys, "model.group": "mlp"})


def test_prompts_that_a_client_could_not_take_over_are_sent_with_the_next_round(run, fail_once):
    fail_once("fedmgp", "write_back", 1)
    small = {"data.samples": 120, "data.clients": 3, "rounds": 2}
    done = run("fedmgp", {**small, "faults.on_client_error": "drop"})
    assert done.servers[1]["given"]["prompts"].tolist() == [1, -1, 1]
    before = done.servers[1]
    server = done.assembly.server("cpu")
    sent = done.assembly.algorithm.downlink(before, range(3), server)
    assert [payload is None for payload in sent.values()] == [True, False, True]


@pytest.mark.parametrize("step", ["offer_validation", "receive_validation"])
def test_validation_images_that_a_client_missed_are_exchanged_before_it_trains(
    run, fail_once, step
):
    small = {"data.samples": 120, "data.clients": 3, "data.validation_fraction": 0.2}
    fail_once("dp2fl", step)
    done = run("dp2fl", {**DROP, **small, "rounds": 1, "algorithm.length": 2})
    assert [event.client for event in done.results[0].events] == [1]
    assert not done.results[1].events
    assert done.assembly.algorithm._measured(done.servers[1]).all(), "everyone measures"


def events(done):
    """The clients with an event, by round, in rounds that have some."""
    return {r.round: [event.client for event in r.events] for r in done.results if r.events}


def test_clusters_and_encoders_that_a_client_missed(run, fail_once):
    keys = {"algorithm.clusters": 2, "algorithm.cluster_rounds": 1, "model.group": "mlp"}
    fail_once("fedconcat", "label_distribution", 0)
    fail_once("fedconcat", "keep", 2)
    done = run("fedconcat", {**DROP, **keys, "rounds": 3})
    assert events(done) == {0: [1], 2: [1, 1]}  # given again before the test of round 2
    assert done.servers[2]["given"]["encoders"].tolist() == [0, -1, 0, 0]
    assert done.servers[3]["given"]["encoders"].tolist() == [0] * 4
    assert "weights" in done.memories[1]


def test_class_counts_that_a_client_did_not_give_are_asked_for_again(run, fail_once):
    few = {"algorithm.server_epochs": 1, "algorithm.hidden_dim": 8, "algorithm.noise_dim": 4}
    fail_once("fedgen", "count_classes")
    done = run("fedgen", {**DROP, **few, "model.group": "mlp", "rounds": 1})
    assert events(done) == {0: [1]}
    assert [sorted(server["counts"]) for server in done.servers] == [
        ["0", "2", "3"], ["0", "1", "2", "3"]
    ]  # fmt: skip
