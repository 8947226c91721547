"""Zero-shot CLIP: open_clip's own answer, and nothing else happens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from prompting import CPU, NAMES, clip_of

from fedray.algorithms.zero_shot import ZeroShotClip
from fedray.errors import UserError
from fedray.runtime.clients import ClientRuntime


def test_logits_are_those_of_open_clips_encoders(tiny_clip):
    import open_clip

    whole = open_clip.create_model(f"local-dir:{tiny_clip}").eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tiny_clip}")
    model = ZeroShotClip(clip_of(tiny_clip), NAMES)
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    vision = model.clip.vision
    with torch.no_grad():
        text = whole.encode_text(tokenizer([f"a photo of a {name}." for name in NAMES]))
        image = whole.encode_image(((images + 1) / 2 - vision.mean) / vision.std)
        cosines = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
        logits = model(images).logits
    expected = whole.logit_scale.exp() * cosines
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert torch.equal(logits.argmax(1), cosines.argmax(1))


def test_nothing_is_trained_and_nothing_travels(run):
    done = run("zero_shot", {"rounds": 2})
    for result in done.results:
        assert result.up.total_params == result.down.total_params == 0
        assert "train_loss" not in result.metrics
        assert result.per_client == done.results[0].per_client
    assert all(model == {} for model in done.models.values())


def test_the_accuracy_is_that_of_the_text_that_is_asked_for(run):
    texts = {"algorithm.template": "a drawing of a {}, by hand"}
    plain, other = run("zero_shot"), run("zero_shot", texts)
    assert plain.results[0].per_client != other.results[0].per_client
    client = ClientRuntime(other.assembly, CPU).client(0, 1)
    features, labels = client.test.tensors(CPU)
    model = ZeroShotClip(client.skeleton.model.clip, other.assembly.setting.class_names)
    with torch.no_grad():
        text = model.fixed_texts(texts["algorithm.template"])
    right = (F.normalize(features, dim=-1) @ text.T).argmax(1) == labels
    assert other.results[0].per_client[0] == pytest.approx(float(right.float().mean()))


@pytest.mark.parametrize("template", ["a photo", "{} {}", "{name}", "{} }"])
def test_a_template_needs_one_place_for_the_name(run, template):
    with pytest.raises(UserError, match=r"algorithm\.template: .* needs \{\} once, for the name"):
        run("zero_shot", {"algorithm.template": template})
