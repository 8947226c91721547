"""Zero-shot CLIP: open_clip's own answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of

from fedray.models import Pixels
from fedray.models.prompted import ZeroShotClip


def test_logits_are_those_of_open_clips_encoders(tiny_clip):
    import open_clip

    whole = open_clip.create_model(f"local-dir:{tiny_clip}").eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tiny_clip}")
    model = ZeroShotClip(clip_of(tiny_clip), DIGITS)
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
