"""The model card: on what a model was trained, how, and how well it does."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from fedray.data.imageset import TRAIN
from fedray.pretrain.captions import levels_of, nouns_of
from fedray.pretrain.images import decode, split_rows
from fedray.pretrain.loop import EPOCHS, EpochRecord
from fedray.pretrain.scores import name_of
from fedray.pretrain.spec import PretrainConfig

FILE = "README.md"

_TEXT = """# {name}: a small CLIP

An open_clip model of {parameters:.2f} million parameters, trained by `python -m fedray.pretrain`.
It knows everyday things in {size} x {size} pixels, roughly: enough to develop, test and compare
methods on a laptop, and for nothing else.

```python
import open_clip

model = open_clip.create_model("local-dir:FOLDER", require_pretrained=True)
tokenizer = open_clip.get_tokenizer("local-dir:FOLDER")
```

|  | width | blocks | heads | reads |
|---|---|---|---|---|
| image tower | {image_width} | {image_layers} | {image_heads} | {size} x {size} pixels in patches \
of {patch} x {patch} |
| text tower, causal | {text_width} | {text_layers} | {text_heads} | up to {context} of {pieces} \
word pieces |
| joint space | {embed_dim} | | | logit scale {scale:g} |

Weights are stored in float16 and loaded in float32.

## Trained on

| images of | classes | training images | seen per epoch |
|---|---|---|---|
{train}

Captions are made of class names: a name, a kind and a wider kind (golden retriever, dog, animal;
fedray/pretrain/captions.json), in one of 18 frames such as "a photo of a golden retriever.".
The text tower was taught by {teacher} on {texts} texts: the captions' nouns, the first {words}
whole words of the teacher's vocabulary, {pairs} random pairs of them, and the sentences of
fedray/language/descriptions for {descriptions}.
The terms of the collections and of the teacher apply to the weights; the image collections are
mostly for research.

## How

1. The text tower learns the teacher's vectors, centred and in their first {embed_dim} principal
   directions, whatever frame stands around a noun: {text_epochs} epochs, batches of {text_batch}.
2. The text tower is locked. The image tower learns to point at its class's texts, by softmax over
   all names and over all kinds of either width: {image_epochs} epochs, batches of {image_batch}.

Muon (matrices of the blocks) and AdamW (all else) at peak rates of {text_lr:g} and {image_lr:g}
with warm-up and cosine to zero; arithmetic {precision}; seed {seed}.

{pace}
Python {python}, torch {torch}, open_clip {open_clip}, ray {ray}.

## How well: zero-shot accuracy, one seed

Of all official test images, those whose nearest text "A photo of a {{name}}." is their class's.
No image and no list of classes of a set that is held out entirely was used in training.

| images of | classes | of these, words of a caption | test images | chance | accuracy | |
|---|---|---|---|---|---|---|
{scores}
"""


def model_card(
    config: PretrainConfig,
    out: Path,
    parameters: int,
    scores: Mapping[str, Mapping[str, float]],
) -> str:
    """The card of the model whose run is in `out`.

    Args:
        config: of the run.
        out: the run's folder.
        parameters: how many numbers the model has.
        scores: from `scores.zero_shot`.
    """
    texts = json.loads((out / "texts.json").read_text(encoding="utf-8"))
    text, image = config.text, config.image
    return _TEXT.format(
        name=config.name,
        parameters=parameters / 1e6,
        size=image.size,
        image_width=image.width,
        image_layers=image.layers,
        image_heads=image.width // image.head_width,
        patch=image.patch,
        text_width=text.width,
        text_layers=text.layers,
        text_heads=text.heads,
        context=text.context_length,
        pieces=len(texts["pieces"]),
        embed_dim=config.embed_dim,
        scale=image.scale,
        train="\n".join(_train_rows(config)),
        teacher="all-MiniLM-L6-v2" if text.teacher.name == "minilm" else text.teacher.name,
        texts=len(texts["nouns"]) + len(texts["sentences"]),
        words=text.words,
        pairs=text.pairs,
        descriptions=", ".join(text.descriptions) or "nothing",
        text_epochs=text.epochs,
        text_batch=text.batch_size,
        image_epochs=image.epochs,
        image_batch=image.batch_size,
        text_lr=text.lr,
        image_lr=image.lr,
        precision=config.precision,
        seed=config.seed,
        pace=_pace(config, out),
        python=platform.python_version(),
        torch=version("torch"),
        open_clip=version("open_clip_torch"),
        ray=version("ray"),
        scores="\n".join(_score_rows(config, scores)),
    )


def _train_rows(config: PretrainConfig) -> list[str]:
    rows = []
    for part in config.train:
        images = decode(part, config.image.size)
        count = len(split_rows(images, TRAIN))
        classes = len(images.class_names)
        rows.append(f"| {name_of(part)} | {classes} | {count:,} | {count * part.repeat:,} |")
    return rows


def _score_rows(config: PretrainConfig, scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    trained = {name_of(part) for part in config.train}
    names = [name for part in config.train for name in decode(part, config.image.size).class_names]
    levels, _ = levels_of(names, known=config.captions)
    captioned = {noun for level in levels for noun in level}
    rows = []
    for part in config.held_out:
        name, score = name_of(part), scores[name_of(part)]
        classes = decode(part, config.image.size).class_names
        known = sum(
            nouns_of(label, known=config.captions and name in trained)[0] in captioned
            for label in classes
        )
        note = "other images of the trained classes" if name in trained else "held out entirely"
        rows.append(
            f"| {name} | {len(classes)} | {known} | {score['images']:,.0f} | "
            f"{100 * score['chance']:.1f} % | {100 * score['accuracy']:.1f} % | {note} |"
        )
    return rows


def _pace(config: PretrainConfig, out: Path) -> str:
    """How long each stage took, by the clock; an epoch done twice counts once."""
    lines = (out / EPOCHS).read_text(encoding="utf-8").splitlines()
    epochs = [EpochRecord(**json.loads(line)) for line in lines]
    last = {(epoch.stage, epoch.epoch): epoch for epoch in epochs}
    processes, threads = max(config.workers, 1), config.threads
    words = [f"Time, with {processes} process(es) of {threads} thread(s):"]
    for stage, what in (("text", "texts"), ("image", "images")):
        done = [epoch for (name, _), epoch in last.items() if name == stage]
        seconds = sum(epoch.seconds for epoch in done)
        pace = sum(epoch.rows for epoch in done) / seconds
        words.append(f"{stage} stage {seconds / 60:.0f} min ({pace:.0f} {what}/s);")
    return " ".join(words).rstrip(";") + "."
