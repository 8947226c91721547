"""Clients that join at a round: what they start from, and how they are measured before."""

from __future__ import annotations

import pytest
import torch
from lab import refused

from fedray.core import Algorithm, algorithms

JOIN = {
    "data.clients": 4,
    "data.samples": 600,
    "join.clients": 1,
    "join.round": 3,
    "rounds": 4,
}
DP2FL = {**JOIN, "data.partition": {"name": "dominant_class", "shots": 4}, "batch_size": 4}


def test_participation_is_a_share_of_those_that_have_joined(run):
    done = run("fedavg", {**JOIN, "model.group": "cnn2", "participation": 0.5, "rounds": 8})
    early = [r.participants for r in done.results[1:3]]
    late = [r.participants for r in done.results[3:]]
    assert all(len(drawn) == 2 and 3 not in drawn for drawn in early)
    assert any(3 in drawn for drawn in late)


def test_without_newcomers_nothing_new_is_measured(run):
    assert "new_accuracy" not in run("local").results[-1].metrics


def test_clients_that_never_join_are_only_tested_on(run):
    done = run("dp2fl", {**DP2FL, "join.round": 9})
    assert all(3 not in r.participants for r in done.results)
    last = done.results[-1].metrics
    assert {"new_accuracy", "others_accuracy", "global_accuracy"} <= last.keys()
    assert "3" not in done.servers[-1]["validation"]["images"]


@pytest.mark.parametrize("newcomer", ["init", "init_global", "global"])
def test_a_newcomer_starts_from_what_is_asked(run, newcomer):
    done = run("dp2fl", {**DP2FL, "algorithm.newcomer": newcomer})
    method, before = done.assembly.algorithm, done.servers[2]
    down = method.downlink(before, [0, 3], done.assembly.server(torch.device("cpu")))
    task = before["first_task"] if newcomer == "init" else before["task"]
    data = before["data"] if newcomer == "global" else before["personal"][3]
    assert torch.equal(down[3].task, task)
    assert torch.equal(down[3].data, data)
    assert torch.equal(down[0].task, before["task"])
    assert torch.equal(down[0].data, before["personal"][0])
    assert not torch.equal(before["task"], before["first_task"])
    assert not torch.equal(before["data"], before["personal"][3])
    after = done.servers[3]
    assert torch.equal(method.downlink(after, [3], None)[3].task, after["task"])
    assert not torch.equal(after["personal"][3], data)


def test_newcomers_validation_images_go_to_everyone_once(run):
    done = run("dp2fl", DP2FL)
    sizes = [len(indices) * 64 for indices in done.assembly.data.validation]
    first, joining = done.results[0], done.results[3]
    assert first.up.params["images"] == sum(sizes[:3])
    assert first.down.params["images"] == 3 * sum(sizes[:3])
    assert joining.up.params["images"] == sizes[3]
    assert joining.down.params["images"] == 3 * sizes[3] + sum(sizes)
    assert "images" not in done.results[4].up.params
    held = done.memories[0]["validation"]
    assert [*held["images"]] == [*held["labels"]] == ["0", "1", "2", "3"]


def test_an_absent_client_is_sent_later_what_it_missed(run):
    done = run("dp2fl", {**DP2FL, "rounds": 5, "faults.drop": 0.3})
    absent = [set(r.absent) for r in done.results[3:]]
    assert absent == [{0, 2}, {2}, set()]
    measured = done.assembly.algorithm._measured
    holders = [[*measured(state)[:3, 3].tolist(), True] for state in done.servers[3:]]
    assert holders == [[False, True, False, True], [True, True, False, True], [True] * 4]
    assert len(done.results[3].absent) == 2  # one a client, in however many exchanges


def test_whoever_fine_tunes_has_its_gifts(run):
    keys = {**JOIN, "join.round": 9, "rounds": 2, "finetune_epochs": 1, "model.group": "cnn2"}
    assert "finetuned_accuracy" in run("alignfed", keys).results[-1].metrics


def test_someone_must_begin(assemble):
    refused(lambda: assemble("local", {"join.clients": 4}), "join.clients")


PREPARED = [
    method.name
    for method in algorithms.entries()
    if not method.requires.prompts
    and method.name != "fedconcat"
    and method.prepare is not Algorithm.prepare
]
"""Methods that do something before the first round, which clients that join later have missed."""


@pytest.mark.parametrize("method", [*PREPARED, "local", "fedavg", "fedproto", "fedkd"])
def test_methods_take_a_client_that_comes_later(run, method):
    """It is tested from the beginning, and takes part from round 2 on."""
    keys = {"rounds": 2, "data.clients": 3, "join.clients": 1, "join.round": 2}
    group = "cnn2" if method == "fedfa_augmentation" else "mlp"  # it augments maps of features
    done = run(method, {**keys, "model.group": group, "local_epochs": 1, "eval_every": 2})
    assert [list(result.participants) for result in done.results] == [[], [0, 1], [0, 1, 2]]
    assert 2 in done.results[0].per_client


def test_clusters_made_before_the_first_round_take_nobody_later(run):
    refused(
        lambda: run("fedconcat", {"data.clients": 3, "join.clients": 1, "model.group": "mlp"}),
        "join.clients=0",
    )
