"""What all prompted models have in common: classes in scope, types of input."""

from __future__ import annotations

import pytest
import torch
from clips import DIGITS, clip_of, drawn, noise

from fedray.models import ImageFeatures, PatchEmbeddings, PatchFeatures, Pixels
from fedray.models.prompted import (
    AdapterClip,
    ContextClip,
    DualPromptClip,
    GeneratorClip,
    GroupedClip,
    PersonalClip,
    PortfolioClip,
    TransportClip,
    ZeroShotClip,
)

MODELS = {
    "fixed": ZeroShotClip,
    "adapter": AdapterClip,
    "context": lambda clip, names: ContextClip(clip, names, 4),
    "portfolio": lambda clip, names: PortfolioClip(clip, names, 4),
    "transport": lambda clip, names: TransportClip(clip, names, 4),
    "low_rank": lambda clip, names: PersonalClip(clip, names, 4, 2),
    "generator": lambda clip, names: GeneratorClip(clip, names, 4),
    "dual": lambda clip, names: DualPromptClip(clip, names, 2, 1, "a photo of a"),
    "groups": lambda clip, names: GroupedClip(
        clip, names, groups=3, text_length=2, visual_length=2
    ),
    "groups_of_texts": lambda clip, names: GroupedClip(
        clip, names, groups=3, text_length=2, visual_length=0
    ),
}
TAKEN = {
    **{name: {Pixels, ImageFeatures} for name in MODELS},
    "transport": {Pixels, PatchFeatures},
    "dual": {Pixels, PatchEmbeddings},
    "groups": {Pixels},
}


def inputs_of(clip):
    """The same four images as every type of input."""
    pixels = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        embedded = clip.vision.embed(pixels)
        image, patches = clip.vision.encode(embedded)
    return (
        Pixels(pixels),
        PatchEmbeddings(embedded),
        PatchFeatures(patches),
        ImageFeatures(image),
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_type_of_input_is_read_alike_or_refused(tiny_clip, name):
    model = drawn(MODELS[name](clip_of(tiny_clip), DIGITS)).eval()
    inputs = inputs_of(model.clip)
    assert model.reads in TAKEN[name]
    with torch.no_grad():
        expected = model(inputs[0])
        for x in inputs:
            if type(x) in TAKEN[name]:
                assert torch.equal(model(x).logits, expected.logits)
                assert torch.equal(model(x).features, expected.features)
            else:
                with pytest.raises(TypeError, match=f"found {type(x).__name__}$"):
                    model(x)
    with pytest.raises(TypeError, match=r"found Tensor$"):
        model(inputs[0].values)
    assert expected.logits.shape == (4, 5)


@pytest.mark.parametrize("name", MODELS)
def test_the_columns_are_the_classes_in_scope(tiny_clip, name):
    model = drawn(MODELS[name](clip_of(tiny_clip), DIGITS)).eval()
    pixels = inputs_of(model.clip)[0]
    with torch.no_grad(), model.class_subset((3, 1)):
        assert model.classes == (3, 1)
        assert model(pixels).logits.shape == (4, 2)
    assert model.classes == (0, 1, 2, 3, 4)


def test_text_features_are_kept_until_a_prompt_changes(tiny_clip):
    model = drawn(ContextClip(clip_of(tiny_clip), DIGITS, 4))
    with torch.no_grad():
        before = model.texts()
        assert model.texts() is before
        with model.class_subset((1, 0)):
            assert torch.allclose(model.texts(), before[[1, 0]], atol=1e-6)
        model.context.add_(noise(*model.context.shape))
        assert not torch.allclose(model.texts(), before, atol=1e-3)


def test_fixed_texts_are_those_of_the_classes_in_scope(tiny_clip):
    model = ContextClip(clip_of(tiny_clip), DIGITS, 4)
    everything = model.fixed_texts()
    with model.class_subset((3, 1)):
        assert torch.equal(model.fixed_texts(), everything[[3, 1]])
