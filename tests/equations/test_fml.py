"""FML: its divergence in half precision, its bound on gradients, and the official code's keys."""

from __future__ import annotations

from math import log

import pytest
import torch
from tensors import CPU

from fedray.algorithms.losses import kl_divergence
from fedray.runtime.groups import GroupRunner

LOGITS = torch.tensor([[log(3), 0.0], [0.0, 0.0]])  # 3/4 and 1/4; halves
TEACHER = torch.tensor([[0.0, 0.0], [log(3), 0.0]])


def test_kl_is_in_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        found = kl_divergence(LOGITS.bfloat16(), TEACHER.bfloat16())
    assert found.dtype == torch.float32


def test_gradients_of_each_model_are_clipped_to_the_bound(assemble):
    keys = {"batch_size": 1000, "algorithm.clip_norm": 1e-3}
    assembly = assemble("fml", keys)
    method, server = assembly.algorithm, assembly.server(CPU)
    client = GroupRunner(assembly, CPU).client(1, 1)
    state = method.init_client(client)
    down = method.downlink(method.init_server(server), [1], server)[1]
    sent, kept = method.client_update(client, state, down)
    for before, after in ((state.model, kept.model), (down.model, sent["model"])):
        moved = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
        assert float(moved) == pytest.approx(0.05 * 1e-3, rel=1e-3)  # one step of lr 0.05


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedmrl"])
def test_the_official_code_is_a_preset(assemble, method):
    assembly = assemble(method, {"algorithm.preset": "official_code", "batch_size": 8})
    found, training = assembly.algorithm, assembly.setting.training
    assert (found.clip_norm, found.weights) == (10, "uniform")
    assert (training.shuffle, training.drop_last) == (False, True)
    if method == "fedmrl":
        assert found.official_bug
    else:
        assert (found.kl, found.teacher_gradients) == ("entries", True)
    assert getattr(found, "compress", False) is False
