"""LoRA and FlexLoRA on CLIP: updates by name, and the means of factors and products by hand."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from clips import clip_of, drawn, gradients, noise, prompted
from prompting import initial_prompts

from fedray.algorithms.prompts.flexlora import FlexLoRA, truncated
from fedray.algorithms.prompts.lora import product
from fedray.models import Pixels


def test_the_product_by_hand():
    """B A = (2, 3)^T (5, 1) of rank 1, and twice as much by alpha = 2."""
    a, b = torch.tensor([[5.0, 1.0]]), torch.tensor([[2.0], [3.0]])
    assert product(a, b, 2.0).tolist() == [[20.0, 4.0], [30.0, 6.0]]
    twice = product(a.repeat(4, 1), b.repeat(1, 4), 1.0)  # r = 4: 4 B A / sqrt(4)
    assert twice.tolist() == [[20.0, 4.0], [30.0, 6.0]]


def test_it_starts_as_clip_and_every_factor_learns(tiny_clip):
    model = drawn(prompted("lora", clip_of(tiny_clip)))
    images = Pixels(noise(6, 3, 8, 8))
    plain = model.image_features(images), model.text_features()
    torch.testing.assert_close(plain[1], model.fixed_texts(), rtol=0, atol=1e-5)
    with torch.no_grad():
        for b in model.b.values():
            b.normal_(generator=torch.Generator().manual_seed(0))
    logits = model(images).logits
    assert all(
        float(g.abs().max()) > 0 for g in gradients(model, logits.logsumexp(1).sum()).values()
    )
    assert (model.image_features(images) - plain[0]).abs().max() > 1e-2
    assert (model.text_features() - plain[1]).abs().max() > 1e-2


def uploads(assembly, ranks):
    """Random factors of two clients with 10 and 30 images."""
    sent = {}
    for client, (rank, samples) in enumerate(zip(ranks, (10, 30), strict=True)):
        like = initial_prompts(assembly, client)
        factors = {n: noise(*t.shape, seed=client + 5) for n, t in like.items()}
        assert factors["b.text"].shape[-1] == rank
        sent[client] = FlexLoRA.up(factors, samples)
    return sent


def step(assembly, sent):
    """The server's state after the uploads, and what it sends next."""
    method, server = assembly.algorithm, assembly.server(torch.device("cpu"))
    state = method.server_update(method.init_server(server), sent, server)
    return state["model"], method.downlink(state, sorted(sent), server)


@pytest.mark.parametrize("ranks", [(3, 2), (8, 6)])
def test_products_are_averaged_and_cut_to_the_rank_of_each_client(assemble, ranks):
    """A straight loop over towers, blocks and maps, as in FlexLoRA's paper."""
    assembly = assemble("flexlora", {"algorithm.ranks": [*ranks]})
    sent = uploads(assembly, ranks)
    _, downs = step(assembly, sent)
    for tower in ("vision", "text"):
        for block in range(3):
            for part in range(3):
                mean = 0.0
                for client, weight in ((0, 0.25), (1, 0.75)):
                    a, b = (sent[client].model[f"{n}.{tower}"][block, part] for n in "ab")
                    mean = mean + weight / sqrt(ranks[client]) * b.double() @ a.double()
                u, s, v = torch.linalg.svd(mean)
                for client, rank in enumerate(ranks):
                    down = downs[client].model
                    a, b = (down[f"{n}.{tower}"][block, part] for n in "ab")
                    assert a.shape[0] == b.shape[1] == rank
                    expected = (u[:, :rank] * s[:rank]) @ v[:rank]
                    found = b.double() @ a.double() / sqrt(rank)
                    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_rank_as_large_as_the_means_loses_nothing():
    a, b = noise(2, 3, 8), noise(2, 8, 3, seed=2)
    back = product(*truncated(product(a, b, 2.0), 5, 2.0), 2.0)
    torch.testing.assert_close(back, product(a, b, 2.0), rtol=0, atol=1e-5)


def test_clients_of_several_ranks_train_and_one_alone_has_its_own_product(run):
    done = run("flexlora", {"algorithm.ranks": [1, 2], "rounds": 2, "lr": 0.5})
    names = done.assembly.models.architectures
    assert names == ("prompted_clip/1", "prompted_clip/2") * 2
    assert "global_accuracy" not in done.results[-1].metrics
    assert all(float(tensor.abs().max()) > 0 for tensor in done.servers[-1]["model"].values())
    alone = {"data.clients": 1, "rounds": 1, "lr": 0.5}
    both = run("lora", alone), run("flexlora", {**alone, "algorithm.ranks": [2]})
    models = [one.servers[-1]["model"] for one in both]
    first, second = (product(model["a.text"], model["b.text"], 1.0) for model in models)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)
    assert first.abs().max() > 1e-4
