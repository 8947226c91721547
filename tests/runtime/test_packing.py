"""What goes through Ray comes back as it was, and small things on their own."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray.algorithms.averaging.fedavg import TrainedModel
from fedray.core import ClientState
from fedray.federation import Reply
from fedray.records import Traffic
from fedray.runtime.packing import SMALL, opened, pack, sealed, size, unpack


def reply(numbers: int) -> Reply:
    weights = {"w": torch.randn(numbers), "b": torch.tensor(3)}
    traffic = Traffic({"weights": numbers}, {"weights": 4 * numbers})
    return Reply(TrainedModel(weights, {"n": torch.ones(2)}, 7), traffic, 0.5, {"seen": 1.0})


@pytest.mark.parametrize("numbers", [10, 100_000])
def test_a_reply_comes_back_as_it_was(numbers):
    before = reply(numbers)
    after = unpack(sealed(pack(before)))
    assert same(after.uplink.model, before.uplink.model)
    assert (after.uplink.samples, after.traffic) == (7, before.traffic)
    assert (after.train_loss, after.reports) == (0.5, {"seen": 1.0})


@pytest.mark.parametrize(
    "value", [None, ClientState({"w": torch.ones(3)}, {"c": {"a": torch.ones(1)}})]
)
def test_so_do_states(value):
    after = unpack(sealed(pack(value)))
    if value is None:
        assert after is None
    else:
        assert same(after.model, value.model)
        assert same(after.memory["c"], value.memory["c"])


def test_only_what_is_small_is_sealed():
    small, large = pack(reply(10)), pack(reply(SMALL))
    assert isinstance(sealed(small), bytes)
    assert sealed(large) is large
    assert size(large) == 4 * SMALL + 8 + 8
    assert size(sealed(small)) == len(sealed(small))
    assert opened(large) is large


def test_what_the_standard_pickle_cannot_do_goes_as_it_is():
    class Nobody:
        pass

    value = (Nobody(),)
    assert sealed(value) is value
