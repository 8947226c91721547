"""The towers taken apart are open_clip's own, and prompts reach only what they should."""

from __future__ import annotations

from copy import deepcopy
from itertools import permutations

import pytest
import torch
from clips import NAMES, choice, prompted
from torch.nn.functional import normalize

from fedray.base.errors import UserError
from fedray.models.clip import FrozenClip
from fedray.models.prompted.base import MOST_SUBSETS
from fedray.models.prompted.texts import (
    ClassTexts,
    insert,
    placeholders,
    word_embeddings,
)


def official_text(pair, texts):
    ids = pair.clip.text._tokenizer(texts)
    with torch.no_grad():
        return normalize(pair.official.encode_text(ids), dim=-1)


def official_image(pair, images):
    mean, std = pair.clip.vision.mean, pair.clip.vision.std
    with torch.no_grad():
        return pair.official.encode_image(((images + 1) / 2 - mean) / std)


def test_the_words_themselves_as_a_prompt_change_nothing(pair):
    texts = ClassTexts(pair.clip.text, NAMES)
    words = word_embeddings(pair.clip.text, "a photo of a", 2)
    assert torch.allclose(texts.encode(words), texts.encode(), atol=1e-5)


def test_placeholders_replaced_by_words_are_those_words(pair):
    texts = ClassTexts(pair.clip.text, NAMES, placeholders(4))
    words = word_embeddings(pair.clip.text, "a photo of a", 4)
    expected = ClassTexts(pair.clip.text, NAMES).encode()
    assert torch.allclose(texts.encode(words), expected, atol=1e-5)


def test_groups_in_one_batch_are_groups_one_by_one(pair):
    texts = ClassTexts(pair.clip.text, NAMES)
    groups = torch.randn(4, 2, pair.clip.text.token_width)
    one_by_one = torch.stack([texts.encode(group) for group in groups])
    assert torch.allclose(texts.encode(groups), one_by_one, atol=1e-5)


def test_some_classes_are_rows_of_all(pair):
    model = prompted("zero_shot", pair.clip, NAMES)
    context = torch.randn(2, pair.clip.text.token_width)
    everything = model.class_texts().encode(context)
    with model.class_subset((2, 0)):
        some = model.class_texts().encode(context)
    assert torch.allclose(some, everything[[2, 0]], atol=1e-5)


def test_deep_prompts_replace_the_same_positions(clip):
    texts = ClassTexts(clip.text, NAMES)
    inserted = insert(texts.embeddings, torch.randn(1, 2, clip.text.token_width))
    second = torch.randn(2, clip.text.token_width)
    blocks = clip.text._tower.transformer.resblocks
    seen = []
    hooks = [
        block.ln_1.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        for block in blocks
    ]
    clip.text.encode(inserted, texts.tokens, [second])
    for hook in hooks:
        hook.remove()
    assert torch.equal(seen[1][:, 1:3], second.expand(3, -1, -1))
    assert not torch.allclose(seen[2][:, 1:3], second.expand(3, -1, -1))  # flows on from there


@pytest.mark.parametrize("depth", [0, 1, -1])
def test_a_common_beginning_is_computed_once_and_changes_nothing(clip, depth):
    depth %= clip.text.layers
    texts = ClassTexts(clip.text, NAMES)
    context = torch.randn(2, clip.text.token_width, requires_grad=True)
    deep = [torch.randn(2, clip.text.token_width, requires_grad=True) for _ in range(depth)]
    inserted = insert(texts.embeddings, context.unsqueeze(0))
    expected = normalize(clip.text.encode(inserted, texts.tokens, deep), dim=-1)
    found = texts.encode(context, deep)
    assert torch.allclose(found, expected, atol=1e-5)
    wanted = torch.autograd.grad(expected[:, 0].sum(), [context, *deep])
    grads = torch.autograd.grad(found[:, 0].sum(), [context, *deep])
    for a, b in zip(grads, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_visual_prompts_are_appended_and_dropped(clip, images):
    vision = clip.vision
    embedded = vision.embed(images)
    prompt = torch.randn(2, vision.width)
    features, patches = vision.encode(embedded, [prompt])
    assert patches.shape == (5, vision.patches, clip.dim)
    whole = vision._visual
    by_hand = torch.cat([embedded, whole.ln_pre(prompt).expand(5, -1, -1)], 1)
    for block in whole.transformer.resblocks:
        by_hand = block(by_hand)
    expected = whole.ln_post(by_hand[:, 0]) @ whole.proj
    assert torch.allclose(features, expected, atol=1e-5)
    zero, _ = vision.encode(embedded, [torch.zeros(2, vision.width)])
    assert not torch.allclose(zero, vision.encode(embedded)[0], atol=1e-3)  # never neutral


@pytest.mark.parametrize("depth", [0, 1, -1])
def test_the_last_block_at_the_class_token_alone_changes_nothing(clip, images, depth):
    vision = clip.vision
    embedded = vision.embed(images)
    count = 1 + depth % vision.layers
    prompts = [torch.randn(2, vision.width, requires_grad=True) for _ in range(count)]
    expected = vision.encode(embedded, prompts)[0]
    found = vision.encode_prompted(embedded, prompts)
    assert torch.allclose(found, expected, atol=1e-5)
    wanted = torch.autograd.grad(expected[:, 0].sum(), prompts)
    grads = torch.autograd.grad(found[:, 0].sum(), prompts)
    for a, b in zip(grads, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


MODULES = ("transformer.resblocks.0", "transformer.resblocks.2", "transformer.resblocks.1.mlp")
WEIGHTS = [
    f"transformer.resblocks.{i}.{name}"
    for i in (0, 2)
    for name in ("attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.bias")
]


@pytest.mark.parametrize("kind", ["weights", "branches"])
def test_additions_by_name_are_those_of_a_changed_model(pair, images, kind):
    """open_clip's own model with the same changes, or the same hooks, has the same features."""
    added, official = {}, deepcopy(pair.official)
    for of_text, tower in enumerate(pair.clip.towers.values()):
        owner = official if of_text and not hasattr(official, "text") else None
        owner = owner or (official.text if of_text else official.visual)
        if kind == "weights":
            added[of_text] = {n: 0.1 * torch.randn_like(tower.get_parameter(n)) for n in WEIGHTS}
            for name, change in added[of_text].items():
                owner.get_parameter(name).data += change
        else:
            added[of_text] = {name: lambda x: 0.1 * x.cos() for name in MODULES}
            for name, branch in added[of_text].items():
                owner.get_submodule(name).register_forward_hook(
                    lambda _, inputs, output, branch=branch: output + branch(inputs[0])
                )
    clip, changed = pair.clip, pair._replace(official=official)
    texts = [f"a photo of a {name}." for name in NAMES]
    expected = official_text(changed, texts), official_image(changed, images)
    words = word_embeddings(clip.text, "a photo of a", 2)
    for context in (None, words):
        encoded = ClassTexts(clip.text, NAMES).encode(context, **{kind: added[1]})
        assert torch.allclose(encoded, expected[0], atol=1e-5)
    embedded = clip.vision.embed(images)
    image = clip.vision.encode_prompted(embedded, **{kind: added[0]})
    assert torch.allclose(image, expected[1], atol=1e-5)
    assert (clip.vision.encode(embedded)[0] - image).abs().max() > 1e-2  # and nothing is left


def test_gradients_reach_pixels_and_additions(clip, images):
    pixels, name = images.clone().requires_grad_(), WEIGHTS[0]
    change = torch.zeros_like(clip.towers["image tower"].get_parameter(name), requires_grad=True)
    clip.vision.encode_prompted(clip.vision.embed(pixels), weights={name: change}).sum().backward()
    assert pixels.grad.abs().min() > 0
    assert change.grad.abs().sum() > 0
    assert all(p.grad is None for p in clip._model.parameters())


def test_an_addition_that_fits_nothing_is_named(clip, images):
    embedded, name = clip.vision.embed(images), WEIGHTS[0]
    with pytest.raises(KeyError, match=f"{name}s"):
        clip.vision.encode_prompted(embedded, weights={f"{name}s": torch.zeros(1)})
    with pytest.raises(KeyError, match=r"resblocks\.0"):
        clip.vision.encode_prompted(embedded, branches={"resblocks.0": torch.cos})


def test_grey_images_count_as_rgb(clip, images):
    grey = images[:, :1]
    assert torch.equal(clip.vision.embed(grey), clip.vision.embed(grey.expand(-1, 3, -1, -1)))


def test_insert_keeps_start_and_rest():
    embeddings = torch.arange(2 * 4.0).reshape(2, 4, 1)
    context = torch.tensor([[[10.0]], [[20.0]]])
    found = insert(embeddings, context)[..., 0].tolist()
    assert found == [[0, 10, 2, 3], [4, 10, 6, 7], [0, 20, 2, 3], [4, 20, 6, 7]]


def test_the_longest_name_decides_how_long_prompts_may_be(clip):
    texts = ClassTexts(clip.text, ["cat", " ".join(["dog"] * 20)], placeholders(20))
    with pytest.raises(UserError, match=r"algorithm\.length=11 leaves no room .*to 10 or less"):
        texts.encode(torch.zeros(11, clip.text.token_width))
    assert texts.encode(torch.zeros(10, clip.text.token_width)).shape == (2, clip.dim)


@pytest.mark.parametrize("model", ["RN50", "convnext_base", "coca_ViT-B-32", "roberta-ViT-B-32"])
def test_what_cannot_take_prompts(model):
    with pytest.raises(UserError, match=rf"model\.clip\.model={model} .*ViT-B-"):
        FrozenClip(choice(model=model, pretrained="random").source())


@pytest.mark.slow
def test_weights_in_other_formats_are_read(tmp_path):
    drawn = choice(model="ViT-B-32", pretrained="random", seed=1)
    whole = FrozenClip(drawn.source())
    torch.save({"state_dict": whole._model.state_dict()}, tmp_path / "weights.pt")
    from_file = choice(model="ViT-B-32", path=str(tmp_path / "weights.pt"))
    found = FrozenClip(from_file.source())
    names = ("dog", "cat")
    assert torch.equal(
        ClassTexts(found.text, names).encode(), ClassTexts(whole.text, names).encode()
    )
    assert found.scale == pytest.approx(1 / 0.07)


def test_texts_of_many_subsets_of_classes_are_not_all_kept(pair):
    names = ("cat", "dog", "fur", "animal", "round")
    model = prompted("zero_shot", pair.clip, names)
    subsets = [*permutations(range(len(names)), 4)]
    for subset in subsets:
        with model.class_subset(subset):
            found = model.class_texts()
            assert found.names == tuple(names[c] for c in subset)
            assert model.class_texts() is found
    assert len(subsets) > MOST_SUBSETS >= len(model._texts)
