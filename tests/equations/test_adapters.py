"""Methods that change the towers of a CLIP: equations by hand, and what a run does."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from clips import clip_of, drawn, gradients, noise, prompted
from prompting import initial_prompts

from fedray.algorithms.prompts.fedclip import FedCLIP, batch_contrast
from fedray.algorithms.prompts.flexlora import FlexLoRA, truncated
from fedray.algorithms.prompts.lora import product
from fedray.core import takes_equal_mean
from fedray.models import ImageFeatures, Pixels
from fedray.models.prompted.texts import unit, word_embeddings

# --- A gate on image features --------------------------------------------------------------------


def test_fedclip_a_constant_gate_is_zero_shot(tiny_clip):
    model = prompted("fedclip", clip_of(tiny_clip))
    features = ImageFeatures(noise(6, model.clip.dim))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        plain = prompted("zero_shot", model.clip, template="a picture of a {}")(features).logits
        torch.testing.assert_close(model(features).logits, plain)
        assert (drawn(model)(features).logits - plain).abs().max() > 1e-3


def test_fedclip_the_gate_reads_the_towers_output_as_it_is(tiny_clip):
    """I = (2, 1), W = identity: softmax(tanh I) * I = (0.550437 * 2, 0.449563), of unit length."""
    model = prompted("fedclip", clip_of(tiny_clip))
    image = torch.zeros(1, model.clip.dim)
    image[0, :2] = torch.tensor([2.0, 1.0])
    with torch.no_grad():
        for weight, bias in (model.adapter[0].parameters(), model.adapter[2].parameters()):
            weight.copy_(torch.eye(model.clip.dim))
            bias.copy_(torch.full_like(bias, -100.0).index_fill(0, torch.tensor([0, 1]), 0.0))
    with torch.no_grad():
        features = model.image_features(ImageFeatures(image))[0]
        scaled = model.image_features(ImageFeatures(F.normalize(image)))[0]
    torch.testing.assert_close(features[:2], torch.tensor([0.925785, 0.378053]), atol=1e-5, rtol=0)
    assert (features - scaled).abs().max() > 1e-3


def test_fedclip_the_loss_contrasts_a_batch_in_both_directions():
    """Images of classes 0, 1, 0: rows and columns are images and their texts, as in CLIP's loss."""
    logits = torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0]])
    e = torch.e
    rows = [
        torch.tensor(e**2 / (e**2 + 1 + e**2)),
        torch.tensor(e**3 / (e + e**3 + e)),
        torch.tensor(1 / (1 + e + 1)),
    ]
    columns = [
        torch.tensor(e**2 / (e**2 + e + 1)),
        torch.tensor(e**3 / (1 + e**3 + e)),
        torch.tensor(1 / (e**2 + e + 1)),
    ]
    expected = -sum(p.log() for p in rows + columns) / 6
    torch.testing.assert_close(batch_contrast(logits, torch.tensor([0, 1, 0])), expected)


def test_fedclip_a_batch_of_one_has_no_contrast_and_clients_weigh_equally():
    assert batch_contrast(torch.tensor([[2.0, 0.0]]), torch.tensor([1])) == 0
    assert takes_equal_mean(FedCLIP())
    assert FedCLIP.version == 3


def test_fedclip_all_of_the_adapter_learns(tiny_clip):
    model = drawn(prompted("fedclip", clip_of(tiny_clip)))
    loss = F.cross_entropy(model(ImageFeatures(noise(5, model.clip.dim))).logits, torch.arange(5))
    assert all(float(value.abs().max()) > 0 for value in gradients(model, loss).values())


# --- LoRA and FlexLoRA on CLIP: updates by name, and the means of factors and products by hand


def test_lora_the_product_by_hand():
    """B A = (2, 3)^T (5, 1) of rank 1, and twice as much by alpha = 2."""
    a, b = torch.tensor([[5.0, 1.0]]), torch.tensor([[2.0], [3.0]])
    assert product(a, b, 2.0).tolist() == [[20.0, 4.0], [30.0, 6.0]]
    twice = product(a.repeat(4, 1), b.repeat(1, 4), 1.0)  # r = 4: 4 B A / sqrt(4)
    assert twice.tolist() == [[20.0, 4.0], [30.0, 6.0]]


def test_lora_it_starts_as_clip_and_every_factor_learns(tiny_clip):
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
def test_lora_products_are_averaged_and_cut_to_the_rank_of_each_client(assemble, ranks):
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


def test_lora_a_rank_as_large_as_the_means_loses_nothing():
    a, b = noise(2, 3, 8), noise(2, 8, 3, seed=2)
    back = product(*truncated(product(a, b, 2.0), 5, 2.0), 2.0)
    torch.testing.assert_close(back, product(a, b, 2.0), rtol=0, atol=1e-5)


def test_lora_clients_of_several_ranks_train_and_one_alone_has_its_own_product(run):
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


# --- VPT and IVLP: prompts of the image tower by a straight loop; how those of both start --------

IMAGES = Pixels(noise(6, 3, 8, 8))


def looped(model):
    """Image features as MaPLe has them: prompts pass ln_pre; those of later blocks replace them."""
    visual = model.clip.towers["image tower"]
    x = visual.conv1(((IMAGES.values + 1) / 2 - model.clip.vision.mean) / model.clip.vision.std)
    x = x.flatten(2).permute(0, 2, 1)
    x = torch.cat([visual.class_embedding.expand(6, 1, -1), x], 1) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([x, model.visual[0].expand(6, -1, -1)], 1))
    for i, block in enumerate(visual.transformer.resblocks):
        if 0 < i < len(model.visual):
            kept = x[:, : x.shape[1] - model.visual.shape[1]]
            x = torch.cat([kept, model.visual[i].expand(6, -1, -1)], 1)
        x = block(x)
    return unit(visual.ln_post(x[:, 0]) @ visual.proj)


@pytest.mark.parametrize("depth", [1, 2, None])
def test_vpt_image_features_are_those_of_a_straight_loop(tiny_clip, depth):
    model = drawn(prompted("vpt", clip_of(tiny_clip), length=2, depth=depth))
    assert len(model.visual) == (depth or 3)
    with torch.no_grad():
        model.visual.mul_(20)
        features = model.image_features(IMAGES)
        torch.testing.assert_close(features, looped(model), rtol=0, atol=1e-5)
        assert (features - unit(model.encode(IMAGES))).abs().max() > 1e-2
    assert torch.equal(model.text_features(), model.fixed_texts())
    gradient = gradients(model, model(IMAGES).logits.logsumexp(1).sum())["visual"]
    assert float(gradient.abs().amax((1, 2)).min()) > 0


def test_vpt_prompts_of_both_towers_start_as_words_and_noise(tiny_clip):
    model = drawn(prompted("ivlp", clip_of(tiny_clip), depth=1))
    assert torch.equal(model.text[0], word_embeddings(model.clip.text, "a photo of a", 2))
    torch.testing.assert_close(model.text_features(), model.fixed_texts(), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.image_features(IMAGES), looped(model), rtol=0, atol=1e-5)
    deep = drawn(prompted("ivlp", model.clip))
    assert 0.01 < deep.text[1:].std() < 0.03
    assert 0.01 < deep.visual.std() < 0.03
    assert not torch.allclose(deep.text_features(), deep.fixed_texts(), atol=1e-3)
    for gradient in gradients(deep, deep(IMAGES).logits.logsumexp(1).sum()).values():
        assert float(gradient.abs().amax((1, 2)).min()) > 0


# --- MaPLe's prompts: what each comparison of DP2FL shares ---------------------------------------


def model_of(tiny_clip, length=2, depth=1, words="a photo of a"):
    return drawn(
        prompted("maple_fedavg", clip_of(tiny_clip), length=length, depth=depth, words=words)
    )


def test_maple_the_first_prompt_is_a_photo_and_deeper_maps_start_equal(tiny_clip):
    model = model_of(tiny_clip, depth=3)
    assert torch.equal(model.task[0], word_embeddings(model.clip.text, "a photo", 2))
    assert not torch.equal(model.task[1], model.task[2])
    assert torch.equal(model.data[1].weight, model.data[2].weight)
    assert not torch.equal(model.data[0].weight, model.data[1].weight)
    bound = 1 / model.clip.text.token_width**0.5
    assert 0.9 * bound < model.data[0].weight.abs().max() <= bound


def test_maple_text_features_start_as_those_of_the_plain_texts(tiny_clip):
    model = model_of(tiny_clip)
    plain = model.class_texts().encode()
    assert torch.allclose(model.text_features(), plain, atol=1e-6)


def test_maple_longer_prompts_leave_the_names_alone(tiny_clip):
    model = model_of(tiny_clip, length=6, words=None)
    assert model.template == "X X X X X X {}."
    features = model.text_features()
    assert not torch.allclose(features[0], features[1], atol=1e-4)


def test_maple_random_words_start_from_noise(tiny_clip):
    model = model_of(tiny_clip, words=None)
    assert 0.005 < model.task[0].std() < 0.05
