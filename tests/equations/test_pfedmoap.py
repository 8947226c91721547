"""pFedMoAP: the official attention as a loop, the nearest prompts by hand, and its rounds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, gradients, noise
from prompting import empty_client, initial_prompts, prompted_model

from fedray.algorithms.prompts.pfedmoap import ExpertClip, ExpertPrompts, PFedMoAP, nearest_prompts
from fedray.core import ClientState
from fedray.errors import UserError
from fedray.models import ImageFeatures
from fedray.models.prompted import ContextClip

SHORT = {"algorithm.length": 4}


def model_of(folder, **hparams):
    hp = PFedMoAP.HParams(length=4, gating_dim=12, heads=3, **hparams)
    return drawn(ExpertClip(clip_of(folder), DIGITS, hp))


def test_the_nearest_prompts_by_hand():
    pool = {k: torch.full((1, 2), value) for k, value in ((0, 0.0), (2, 5.0), (3, -1.0), (7, 2.0))}
    assert nearest_prompts(0, pool, 2)[:, 0, 0].tolist() == [-1.0, 2.0]
    assert nearest_prompts(2, pool, 9)[:, 0, 0].tolist() == [2.0, 0.0, -1.0]
    assert nearest_prompts(2, pool, 0).shape == (0, 1, 2)


def test_the_logits_are_those_of_the_official_lines(tiny_clip):
    model, plain = model_of(tiny_clip), ContextClip(clip_of(tiny_clip), DIGITS, 4)
    features, contexts = noise(6, 24), noise(2, 4, 16)
    image, scale = F.normalize(features, dim=-1), model.clip.scale
    local = scale * image @ model.text_features().T
    torch.testing.assert_close(model(ImageFeatures(features)).logits, local)
    texts = [model.text_features()]
    for context in contexts:
        plain.context.data = context
        texts.append(plain.text_features().detach())
    gate, expected = model.gating, torch.zeros(6, 5)
    for number, small in enumerate(image[:, ::2]):
        for label in range(5):
            values = torch.stack([text[label, ::2] for text in texts])  # of the experts
            heads = []
            for part in torch.arange(12).split(4):
                query, keys = gate["query"](small)[part], gate["key"](values)[:, part]
                shares = torch.softmax(10.0 * keys @ query, dim=0)
                heads.append(shares @ gate["value"](values)[:, part])
            mixed = scale * small @ gate["out"](torch.cat(heads))
            expected[number, label] = 0.5 * local[number, label] + mixed
    model.set_experts(contexts)
    found = model(ImageFeatures(features)).logits
    torch.testing.assert_close(found, expected)
    moved = gradients(model, F.cross_entropy(found, torch.arange(6) % 5))
    assert all(float(g.abs().max()) > 0 for name, g in moved.items() if name != "gating.key.bias")
    with model.class_subset((3, 1)):
        torch.testing.assert_close(model(ImageFeatures(features)).logits, found[:, [3, 1]])


def test_widths_that_do_not_divide_are_refused(assemble):
    for wrong in ({"gating_dim": 10}, {"heads": 5}):
        changes = {f"algorithm.{name}": value for name, value in wrong.items()}
        with pytest.raises(UserError, match="gating_dim"):
            prompted_model(assemble("pfedmoap", changes))


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
    down = ExpertPrompts({"context": mean}, {}, mean[None][:0])
    state = ClientState({**initial, "context": own})
    assert torch.equal(method.begin(client, state, down).model.context, own)
    upload, _ = method.client_update(client, state, down)
    torch.testing.assert_close(upload.weights["context"], mean, rtol=0, atol=1e-5)
    new = method.init_client(client)
    assert torch.equal(method.begin(client, new, down).model.context, mean)


def test_one_expert_is_promptfl_for_training(run):
    alone = run("pfedmoap", {**SHORT, "algorithm.experts": 1})
    plain = run("promptfl", SHORT)
    for ours, theirs in zip(alone.servers, plain.servers, strict=True):
        assert torch.equal(ours["model"]["context"], theirs["model"]["context"])
