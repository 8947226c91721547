"""pFedMoAP: the nearest prompts by hand, and its rounds."""

from __future__ import annotations

import torch
from prompting import empty_client, initial_prompts

from fedray.algorithms.prompts.pfedmoap import PFedMoAP, nearest_prompts
from fedray.core import ClientState

SHORT = {"algorithm.length": 4}


def test_the_nearest_prompts_by_hand():
    pool = {k: torch.full((1, 2), value) for k, value in ((0, 0.0), (2, 5.0), (3, -1.0), (7, 2.0))}
    assert nearest_prompts(0, pool, 2)[:, 0, 0].tolist() == [-1.0, 2.0]
    assert nearest_prompts(2, pool, 9)[:, 0, 0].tolist() == [2.0, 0.0, -1.0]
    assert nearest_prompts(2, pool, 0).shape == (0, 1, 2)


def test_clients_get_experts_from_their_second_round_on_and_keep_their_own_prompt(run):
    done = run("pfedmoap", {**SHORT, "rounds": 2, "algorithm.experts": 3})
    context, clients = 4 * 16, len(done.models)
    down = [result.down.params.get("prompts", 0) for result in done.results]
    assert down == [0, clients * context, clients * context * (1 + 2)]
    assert all(result.up.params["prompts"] == clients * context for result in done.results[1:])
    first, second = done.servers[1:]
    for client, model in done.models.items():
        assert torch.equal(model["context"], second["pool"][str(client)])
        assert not torch.equal(second["pool"][str(client)], first["pool"][str(client)])
    gates = [model["gating.out.weight"] for model in done.models.values()]
    assert not torch.equal(gates[0], gates[1])
    initial = run("pfedmoap", {**SHORT, "rounds": 1}).models
    assert torch.equal(*(model["gating.out.weight"] for model in list(initial.values())[:2]))


def test_a_round_begins_with_the_mean_prompt_and_a_test_with_the_own(assemble):
    assembly = assemble("pfedmoap", {**SHORT, "lr": 1e-9})
    client, method = empty_client(assembly, (0, 1)), assembly.algorithm
    initial = initial_prompts(assembly)
    mean, own = torch.ones(4, 16), torch.zeros(4, 16)
    down = PFedMoAP.down({"context": mean}, mean[None][:0])
    state = ClientState({**initial, "context": own})
    assert torch.equal(method.begin(client, state, down).model.context, own)
    upload, _ = method.client_update(client, state, down)
    torch.testing.assert_close(upload["model"]["context"], mean, rtol=0, atol=1e-5)
    new = method.init_client(client)
    assert torch.equal(method.begin(client, new, down).model.context, mean)
