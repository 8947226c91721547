"""LG-FedAvg by hand: averaged heads, personal representations."""

from __future__ import annotations

import pytest
import torch
from tensors import CPU, same

from fedray.runtime.groups import GroupRunner


@pytest.mark.parametrize("method", ["lg_fedavg", "alignfed"])
def test_right_after_the_broadcast_all_heads_are_alike_and_extractors_personal(assemble, method):
    few = {"algorithm.target_steps": 1} if method == "alignfed" else {}
    assembly = assemble(method, {"model.init": "independent", **few})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)
    down = method.downlink(state, range(4), server)
    runtime = GroupRunner(assembly, CPU)
    for number in range(4):
        client = runtime.client(number, 1)
        kept = method.init_client(client)
        loaded = method.begin(client, kept, down[number]).model.state_dict()
        assert same({n: loaded[f"head.{n}"] for n in ("weight", "bias")}, state["head"])
        own = same({n: kept.model[f"head.{n}"] for n in ("weight", "bias")}, state["head"])
        assert own == (method.name == "lg_fedavg" and number == 0)  # the first client's
        for name in kept.model:
            assert name.startswith("head.") or torch.equal(loaded[name], kept.model[name])


def test_the_first_head_is_the_first_clients(assemble):
    assembly = assemble("lg_fedavg")
    first = assembly.models.initial(assembly.models.architectures[0], 0)
    found = assembly.algorithm.init_server(assembly.server(CPU))
    assert same(found["head"], {"weight": first["head.weight"], "bias": first["head.bias"]})
