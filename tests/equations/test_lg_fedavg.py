"""LG-FedAvg by hand: averaged heads, personal representations."""

from __future__ import annotations

import torch
from tensors import CPU, same

from fedray.algorithms.personalised.shared_head import initial_head
from fedray.runtime.clients import ClientRuntime


def test_right_after_the_broadcast_all_heads_are_alike_and_extractors_personal(assemble):
    assembly = assemble("lg_fedavg", {"model.init": "independent"})
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)
    down = method.downlink(state, range(4), server)
    runtime = ClientRuntime(assembly, CPU)
    for number in range(4):
        client = runtime.client(number, 1)
        kept = method.init_client(client)
        loaded = method.begin(client, kept, down[number]).model.state_dict()
        assert same({n: loaded[f"head.{n}"] for n in ("weight", "bias")}, state["head"])
        own = same({n: kept.model[f"head.{n}"] for n in ("weight", "bias")}, state["head"])
        assert own == (number == 0)  # it is the first client's
        for name in kept.model:
            assert name.startswith("head.") or torch.equal(loaded[name], kept.model[name])


def test_the_first_head_is_the_first_clients(assemble):
    assembly = assemble("lg_fedavg")
    first = assembly.models.initial(assembly.models.architectures[0], 0)
    found = initial_head(assembly.server(CPU))
    assert same(found, {"weight": first["head.weight"], "bias": first["head.bias"]})


def test_absent_clients_have_no_part_in_the_mean_and_keep_their_extractors(run):
    done = run("lg_fedavg", {"participation": 0.5, "rounds": 1})
    present = done.results[1].participants
    absent = [number for number in range(4) if number not in present]
    sizes = [len(done.assembly.data.train[number]) for number in present]
    biases = torch.stack([done.models[number]["head.bias"] for number in present])
    mean = (biases * torch.tensor(sizes).unsqueeze(1)).sum(0) / sum(sizes)
    torch.testing.assert_close(done.servers[1]["head"]["bias"], mean)
    models = done.assembly.models
    for number in absent:
        assert same(done.models[number], models.initial(models.architectures[number], number))


def test_without_uploads_nothing_changes(assemble):
    assembly = assemble("lg_fedavg")
    method, server = assembly.algorithm, assembly.server(CPU)
    state = method.init_server(server)
    assert method.server_update(state, {}, server) is state
