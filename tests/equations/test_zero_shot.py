"""Zero-shot CLIP: nothing is trained, and tests are those of the texts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import CPU, DIGITS, clip_of, drawn, prompted

from fedray.base.errors import UserError
from fedray.models import Pixels
from fedray.runtime.groups import GroupRunner


def test_nothing_is_trained(run):
    done = run("zero_shot", {"rounds": 2})
    for result in done.results:
        assert "train_loss" not in result.metrics
        assert result.per_client == done.results[0].per_client
    assert all(model == {} for model in done.models.values())


def test_the_accuracy_is_that_of_the_text_that_is_asked_for(run):
    texts = {"algorithm.template": "a drawing of a {}, by hand"}
    other = run("zero_shot", texts)
    runtime = GroupRunner(other.assembly, CPU)
    client = runtime.client(0, 1)
    tested = other.assembly.data.test[0]
    features, labels = other.assembly.models.samples(CPU)(tested).tensors(CPU)
    model = prompted("zero_shot", client.skeleton.model.clip, other.assembly.setting.class_names)
    with torch.no_grad():
        text = model.fixed_texts(texts["algorithm.template"])
    right = (F.normalize(features, dim=-1) @ text.T).argmax(1) == labels
    assert other.results[0].per_client[0] == pytest.approx(float(right.float().mean()))


def test_logits_are_those_of_open_clips_encoders(tiny_clip):
    import open_clip

    whole = open_clip.create_model(f"local-dir:{tiny_clip}").eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tiny_clip}")
    model = prompted("zero_shot", clip_of(tiny_clip))
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    vision = model.clip.vision
    with torch.no_grad():
        text = whole.encode_text(tokenizer([f"a photo of a {name}." for name in DIGITS]))
        image = whole.encode_image(((images + 1) / 2 - vision.mean) / vision.std)
        cosines = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
        logits = model(Pixels(images)).logits
    expected = whole.logit_scale.exp() * cosines
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert torch.equal(logits.argmax(1), cosines.argmax(1))


@pytest.mark.parametrize("names", [("Cat", "dog", "cat"), ("a b", "dog", "a  b")])
@pytest.mark.parametrize("kind", ["zero_shot", "promptfl"])
def test_class_names_with_the_same_tokens_are_refused(tiny_clip, kind, names):
    with pytest.raises(UserError, match=r"CLIP of model\.clip cannot distinguish the classes 0 "):
        prompted(kind, clip_of(tiny_clip), names)


@pytest.mark.parametrize("kind", ["zero_shot", "promptfl"])
def test_long_names_that_differ_behind_the_last_token_are_refused(tiny_clip, kind):
    long = "very " * 40
    with pytest.raises(UserError, match="cannot distinguish the classes 0 and 2: 'very "):
        prompted(kind, clip_of(tiny_clip), (f"{long}cat", "dog", f"{long}owl"))


def test_novel_classes_with_the_tokens_of_a_class_are_refused(tiny_clip):
    model = prompted("zero_shot", clip_of(tiny_clip), ("cat", "dog"))
    with pytest.raises(UserError, match="cannot distinguish the classes 1 and 2"):
        model.add_classes(["Dog"])


def test_a_name_that_leaves_no_room_is_named(tiny_clip):
    model = drawn(
        prompted("promptfl", clip_of(tiny_clip), ("cat", "very " * 40 + "long"), length=4)
    )
    match = "leaves no room for the class name 'very .* in the 32 tokens .*; shorten the name"
    with pytest.raises(UserError, match=match):
        model.text_features()
