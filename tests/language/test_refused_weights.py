"""Weight files that are refused in one sentence with the cure; what counts as their content."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import clips
import pytest
import torch
from encoding import choose
from test_published_forms import in_hub_cache, write_sentence_encoder

from fedray.base.errors import UserError
from fedray.config import content_of
from fedray.language.encoders.weights import get_line, hub_file, read_weights
from fedray.language.text_cache import cached_text_embeddings, cached_tokens
from fedray.models.clip import FrozenClip, small_clip_folder

TEXTS = ["a cat", "a dog"]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 598641023\n"
QUICK = {**clips.CONFIG, "quick_gelu": True}


def load_clip(**options) -> FrozenClip:
    return FrozenClip(clips.choice(**options).source())


@pytest.fixture
def bert(bert_folder, tmp_path) -> Path:
    """A copy of the BERT's folder."""
    return shutil.copytree(bert_folder, tmp_path / "bert")


def load_bert(folder: Path, **options):
    return choose("bert", path=str(folder), **options).build()


def changed(file: Path, **changes) -> None:
    """Change keys of a JSON file; None removes a key."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


# --- files that hold no weights ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.safetensors", "a.bin", "a.pt"])
@pytest.mark.parametrize(
    "content", [b"", POINTER, b"<!DOCTYPE html><html></html>", b"PK\x03\x04 torn", bytes(100)]
)
def test_a_file_without_weights_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        UserError, match=rf"{name} is not a weight file \(.*; download it again$"
    ) as e:
        read_weights(tmp_path / name, "key")
    assert "weights_only" not in str(e.value)


def test_pickles_of_other_objects_are_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"model\.pt .*or a pickle of other objects than tensors"):
        read_weights(tmp_path / "model.pt", "key")
    torch.save({"epoch": 3}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="holds no state dict; expected tensors by name"):
        read_weights(tmp_path / "model.pt", "key")


@pytest.mark.parametrize("content", [POINTER, b"\n<!DOCTYPE html>\n<p>404</p>"])
def test_vocabularies_that_are_pointers_or_pages(bert, tmp_path, content):
    (bert / "tokenizer.json").unlink()
    (bert / "vocab.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"vocab\.txt is a web page or a Git LFS pointer; downl"):
        load_bert(bert).tokenize(["a cat"])
    folder = Path(shutil.copytree(small_clip_folder(), tmp_path / "clip"))
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json is a web page or a Git"):
        choose("openclip", path=str(folder)).build()


# --- BERT ----------------------------------------------------------------------------------------


def test_layers_that_the_configuration_does_not_have(bert):
    changed(bert / "config.json", num_hidden_layers=1)
    with pytest.raises(UserError, match=r"has, beyond .*, 16 weights, first encoder\.layer\.1\."):
        load_bert(bert)


def test_a_vocabulary_larger_than_the_embeddings(bert):
    vocabulary = (bert / "vocab.txt").read_text().split()
    words = {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 5, "dog": len(vocabulary)}
    tokenizer = json.loads((bert / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = words
    (bert / "tokenizer.json").write_text(json.dumps(tokenizer))
    encoder = load_bert(bert)
    assert encoder.features(["a"]).shape == (1, 32)
    with pytest.raises(UserError, match=r"gives the id 20, but its model has 20 word embeddings"):
        encoder.features(["a dog"])


CASED = "[PAD] [UNK] [CLS] [SEP] [MASK] a A photo of cat Cat dog BMW bm ##w c ##at"


@pytest.mark.parametrize(
    ("words", "settings", "expected"),
    [
        (CASED, None, None),
        (CASED, {"model_max_length": 24}, None),
        (CASED, {"do_lower_case": False}, ["A", "Cat", "BMW"]),
        (CASED, {"do_lower_case": True}, ["a", "cat", "bm", "##w"]),
        ("[PAD] [UNK] [CLS] [SEP] [MASK] a photo of cat dog bmw", None, ["a", "cat", "bmw"]),
    ],
)
def test_a_cased_vocabulary(bert, words, settings, expected):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bert / name).unlink(missing_ok=True)
    vocabulary = words.split()
    (bert / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    if settings is not None:
        (bert / "tokenizer_config.json").write_text(json.dumps(settings))
    encoder = load_bert(bert)
    if expected is None:
        with pytest.raises(UserError, match=r"words with capitals, such as 'A'; write .*false"):
            encoder.tokenize(["A Cat BMW"])
    else:
        ids = encoder.tokenize(["A Cat BMW"]).ids[0].tolist()
        assert [vocabulary[i] for i in ids[1:-1]] == expected


@pytest.mark.parametrize(
    ("prescribed", "pooling", "more", "message"),
    [
        ("mean", "cls", (), r"pooling mean, but text\.encoder\.pooling=cls; set it to mean"),
        ("cls", "mean", (), r"pooling cls, but text\.encoder\.pooling=mean; set it to cls"),
        ("max", "mean", (), r"pooling max, but text\.encoder\.pooling=mean"),
        ("mean", "mean", ("Dense",), r"has Dense, which is not supported"),
    ],
)
@pytest.mark.parametrize("layout", ["old", "new"])
def test_sentence_encoders_that_would_compute_something_else(
    bert, prescribed, pooling, more, message, layout
):
    write_sentence_encoder(bert, prescribed, layout, *more)
    with pytest.raises(UserError, match=message):
        load_bert(bert, pooling=pooling)


def test_sentence_encoders_that_change_texts(bert):
    write_sentence_encoder(bert, "mean", "old", "Normalize")
    load_bert(bert, pooling="mean")
    file = bert / "config_sentence_transformers.json"
    file.write_text(json.dumps({"default_prompt_name": "query"}))
    with pytest.raises(UserError, match="has default_prompt_name in config_sentence"):
        load_bert(bert, pooling="mean")


@pytest.mark.parametrize("kind", ["distilbert", "align", "clip"])
def test_models_of_other_kinds(bert, kind):
    changed(bert / "config.json", model_type=kind)
    with pytest.raises(UserError, match=f"a model of the kind '{kind}'; give another text.encod"):
        load_bert(bert)


def test_a_configuration_without_kind_is_a_berts_only_with_its_vocabulary(bert):
    changed(bert / "config.json", model_type=None)
    (bert / "vocab.txt").unlink()
    with pytest.raises(UserError, match="a model of the kind 'None'"):
        load_bert(bert)


# --- CLIP ----------------------------------------------------------------------------------------


@pytest.fixture
def add_architecture(tmp_path):
    """Add an architecture "tiny", and "tiny-quickgelu", with changes of the text tower."""
    import open_clip

    def add(**text) -> None:
        config = {**clips.CONFIG, "text_cfg": {**clips.CONFIG["text_cfg"], **text}}
        (tmp_path / "architectures").mkdir()
        for name, quick in (("tiny", False), ("tiny-quickgelu", True)):
            file = tmp_path / "architectures" / f"{name}.json"
            file.write_text(json.dumps({**config, "quick_gelu": quick}))
        open_clip.add_model_config(tmp_path / "architectures")

    return add


def test_openai_weights_need_quickgelu(tmp_path, add_architecture):
    add_architecture()
    model = clips.save_clip(tmp_path, config=QUICK)
    (tmp_path / "openai").mkdir()
    state = {**model.state_dict(), "input_resolution": torch.tensor(8)}
    torch.save(state, tmp_path / "openai" / "a.pt")
    place = str(tmp_path / "openai" / "a.pt")
    for load in (load_clip, lambda **options: choose("openclip", **options).build()):
        with pytest.raises(UserError, match=r"were trained with QuickGELU; set the model's name"):
            load(path=place, model="tiny")
    load_clip(path=place, model="tiny-quickgelu")
    shutil.move(place, tmp_path / "pytorch_model.bin")
    (tmp_path / "open_clip_model.safetensors").unlink()
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    config["model_cfg"]["quick_gelu"] = False
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r'write "quick_gelu": true into its configuration'):
        load_clip(path=str(tmp_path))


def test_a_file_with_a_configuration_beside_it_is_given_by_its_folder(tmp_path, add_architecture):
    add_architecture(heads=4)
    clips.save_clip(tmp_path)
    place = str(tmp_path / "open_clip_model.safetensors")
    for options in ({}, {"model": "tiny"}):
        with pytest.raises(UserError, match=r"is a weight file: give its folder instead"):
            load_clip(path=place, **options)


@pytest.mark.parametrize("tower", ["text_cfg", "vision_cfg"])
def test_layers_that_an_architecture_does_not_have(tmp_path, tower):
    clips.save_clip(tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    config["model_cfg"][tower]["layers"] = 2
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    match = r"does not fit local-dir.* 12 tensors are .*resblocks\.2\..*; give the model's name or"
    with pytest.raises(UserError, match=match):
        load_clip(path=str(tmp_path))
    encoder = choose("openclip", path=str(tmp_path))
    if tower == "text_cfg":
        with pytest.raises(UserError, match="12 tensors are missing, left over"):
            encoder.build()


def test_a_clip_of_transformers_needs_its_folder_and_tokenizer(tmp_path, add_architecture):
    from transformers import CLIPConfig, CLIPModel

    add_architecture()
    text = {"hidden_size": 16, "intermediate_size": 64, "num_attention_heads": 2}
    small = {"num_hidden_layers": 1, "image_size": 8, "patch_size": 4}
    config = CLIPConfig(text_config={**text, **small}, vision_config={**text, **small})
    CLIPModel(config).save_pretrained(tmp_path / "hf")
    file = str(tmp_path / "hf" / "model.safetensors")
    with pytest.raises(UserError, match=r"holds a CLIPModel of transformers; set .*\.path to its"):
        load_clip(path=file, model="tiny")
    with pytest.raises(UserError, match=r"is a weight file: give its folder instead"):
        load_clip(path=file)
    with pytest.raises(UserError, match=r"has no tokenizer, .*; add the tokenizer\.json"):
        load_clip(path=str(tmp_path / "hf"))
    with pytest.raises(UserError, match=r"describes the model; remove model\.clip\.model"):
        load_clip(path=str(tmp_path / "hf"), model="tiny")
    changed(tmp_path / "hf" / "config.json", model_type="siglip")
    with pytest.raises(
        UserError, match=r"lacks open_clip_config\.json .*; give a folder with both"
    ):
        load_clip(path=str(tmp_path / "hf"))


def test_an_activation_that_open_clip_does_not_have(tmp_path):
    settings = {"model_type": "clip", "text_config": {"hidden_act": "relu"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        UserError, match="has the activations relu and quick_gelu; give a CLIP with"
    ):
        load_clip(path=str(tmp_path))


def test_a_tokenizer_without_words_and_one_that_is_missing(tmp_path):
    folder = Path(shutil.copytree(small_clip_folder(), tmp_path / "clip"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"clip has no tokenizer, .*; add the tokenizer\.json"):
        choose("openclip", path=str(folder)).build()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no (readable )?tokenizer"):
        choose("openclip", path=str(folder)).build()


def test_ids_beyond_the_embeddings_of_a_clip(tmp_path):
    clips.save_clip(tmp_path, vocab_size=1000)
    with pytest.raises(UserError, match="gives the id 49407, but its model has 1000 word embed"):
        choose("openclip", path=str(tmp_path)).build().features(TEXTS)


@pytest.mark.parametrize("words", [8, 100])
def test_texts_that_the_small_clip_cuts(caplog, words):
    encoder = choose("openclip", path=str(small_clip_folder())).build()
    with caplog.at_level(logging.WARNING, logger="fedray"):
        tokens = encoder.tokenize(["cat " * words, "a dog"])
    assert tokens.cut == ((0,) if words == 100 else ())
    assert ("more than the 32 tokens" in caplog.text) == (words == 100)


# --- what counts as content ----------------------------------------------------------------------


def test_a_replaced_tokenizer_is_another_encoder(tmp_path):
    folder = Path(shutil.copytree(small_clip_folder(), tmp_path / "clip"))
    choice = choose("openclip", path=str(folder))
    before, clip = choice.identity(), load_clip(path=str(folder)).identity
    cached_tokens(choice, choice.build(), TEXTS)
    cached_text_embeddings(choice, TEXTS)
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["cat"], words["dog"] = words["dog"], words["cat"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    encoder = choice.build()
    assert choice.identity() == encoder.identity != before
    assert load_clip(path=str(folder)).identity != clip
    assert torch.equal(cached_tokens(choice, encoder, TEXTS).ids, encoder.tokenize(TEXTS).ids)
    features = cached_text_embeddings(choice, TEXTS)
    assert torch.allclose(features, encoder.features(TEXTS), atol=1e-5)


def test_a_folders_configuration_counts(tmp_path):
    clips.save_clip(tmp_path)
    choice = choose("openclip", path=str(tmp_path))
    before, content = choice.identity(), content_of(str(tmp_path))
    changed(tmp_path / "open_clip_config.json", preprocess_cfg={"mean": [0.5] * 3})
    assert choice.identity() != before
    assert content_of(str(tmp_path)) != content


# --- hub and network -----------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch, tmp_path):
    """An empty cache, and a hub at an address where nobody listens."""
    import huggingface_hub.constants as constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    return tmp_path / "hub"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "get"),
    [
        ("bert", {}, "fedray get bert"),
        ("align", {}, "fedray get align"),
        ("openclip", {}, "fedray get clip-vit-b32"),
        ("openclip", {"model": "hf-hub:a/b"}, "text.encoder=minilm"),
        ("bert", {"model": "a/b"}, "text.encoder=minilm"),
    ],
)
def test_a_hub_out_of_reach_is_one_sentence(online, name, options, get):
    with pytest.raises(UserError, match=rf"the hub is out of reach \(.*{get}"):
        choose(name, **options).build()


def test_the_clip_of_paper_experiments_names_its_command(online):
    with pytest.raises(UserError, match="fedray get clip-vit-b16 downloads it"):
        load_clip()
    assert get_line("minilm") == "fedray get minilm"
    assert get_line("a/b") == ""


def test_a_cache_without_the_tokenizer_is_completed_or_refused(online, bert_folder, tmp_path):
    (half := tmp_path / "half").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(bert_folder / name, half)
    in_hub_cache(online, "bert-base-uncased", half)
    with pytest.raises(UserError, match="has no tokenizer, so that all words would read the same"):
        choose("bert").build().features(["a cat"])


def test_the_next_name_is_tried_only_if_the_hub_lacks_a_file(monkeypatch, online):
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError

    asked = []

    def download(repository, name):
        asked.append(name)
        if name == "a":
            raise RemoteEntryNotFoundError.__new__(RemoteEntryNotFoundError)
        return f"/{name}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert hub_file("x/y", ("a", "b", "c")) == Path("/b")
    assert asked == ["a", "b"]
