"""Values come back from Ray's messages as they were, and small ones on their own."""

from __future__ import annotations

import torch
from tensors import same

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import ClientState
from fedray.federation import Reply
from fedray.runtime.messages import SMALL, Message, from_message, to_message
from fedray.storage.run import Traffic


def reply(numbers: int) -> Reply:
    weights = {"w": torch.randn(numbers), "b": torch.tensor(3)}
    traffic = Traffic({"weights": numbers}, {"weights": 4 * numbers})
    return Reply(FedAvg.up(weights, 7), traffic, 0.5, {"seen": 1.0})


def check(after: Reply, before: Reply) -> None:
    assert same(after.uplink.model, before.uplink.model)
    assert (after.uplink.samples, after.traffic) == (7, before.traffic)
    assert (after.train_loss, after.reports) == (0.5, {"seen": 1.0})


def test_a_small_reply_is_a_message_and_comes_back_as_it_was():
    before = reply(10)
    message = to_message(before)
    assert isinstance(message, Message)
    check(from_message(message), before)


def test_a_large_reply_is_left_to_ray():
    large = reply(SMALL)
    assert to_message(large) is large
    assert from_message(large) is large


def test_a_state_comes_back_as_it_was():
    value = ClientState({"w": torch.ones(3)}, {"c": {"a": torch.ones(1)}})
    after = from_message(to_message(value))
    assert same(after.model, value.model)
    assert same(after.memory["c"], value.memory["c"])


def test_a_tensor_stays_small_when_it_is_part_of_a_large_one():
    whole = torch.zeros(SMALL)
    assert isinstance(to_message({"part": whole[:10]}), Message)


def test_a_value_that_only_rays_pickler_can_handle_is_unchanged():
    class Nobody:
        pass

    value = (Nobody(),)
    assert to_message(value) is value
