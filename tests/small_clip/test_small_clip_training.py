"""The program that trained the small CLIP, on the digits that scikit-learn brings."""

from __future__ import annotations

import json
from pathlib import Path

import open_clip
import pytest
import torch

from tools.small_clip import command, texts
from tools.small_clip.command import main
from tools.small_clip.images import training_pool
from tools.small_clip.loop import CHECKPOINT, EPOCHS, WorkerRank
from tools.small_clip.model import Towers, build
from tools.small_clip.spec import load_spec
from tools.small_clip.stages import ImageStage, TextStage
from tools.small_clip.texts import captions, levels_of
from tools.small_clip.tokenizer import END, PAD, START, UNKNOWN, prune, whole_words

TINY = """
train: [{source: digits}]
held_out: [{source: digits}]
embed_dim: 8
weight_decay: 0.0
precision: float32
workers: 0
text:
  teacher: {name: bert, path: %s, pooling: mean}
  pieces: 64
  words: 20
  pairs: 12
  context_length: 16
  width: 12
  layers: 1
  heads: 2
  epochs: 12
  batch_size: 16
  lr: 0.01
image: {size: 8, patch: 4, width: 32, head_width: 16, layers: 2, epochs: 4, batch_size: 32,
  lr: 0.005, augment: none}
"""


@pytest.fixture
def tiny(tmp_path, tiny_bert) -> str:
    """A configuration that takes seconds."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY % tiny_bert)
    return str(path)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / CHECKPOINT, weights_only=True)["model"]


def score(out: Path) -> float:
    return json.loads((out / "scores.json").read_text())["scores"]["digits"]["accuracy"]


def run(tiny: str, out: Path, *changes: str) -> int:
    return main([*changes, "--config", tiny, "--out", str(out)])


def test_it_learns_and_open_clip_loads_what_it_writes(tiny, tmp_path):
    out = tmp_path / "out"
    assert run(tiny, out) == 0
    assert score(out) > 0.5  # chance is 0.1
    name = f"local-dir:{out / 'model'}"
    model, tokenizer = open_clip.create_model(name), open_clip.get_tokenizer(name)
    printed = [f"a photo of a {noun}." for noun in ("zero", "one", "nine")]
    ids = tokenizer(printed)
    assert ids.shape == (3, 16)
    assert (ids[:, 0] == model.vocab_size - 2).all()  # the start token
    assert (ids.max(1).values == model.vocab_size - 1).all()  # the end token is the largest id
    trained = {name.removeprefix("text."): tensor for name, tensor in weights(out).items()}
    assert trained.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name].half().float()), name
    spec = load_spec(tiny, [])
    rebuilt = build(spec, model.vocab_size)
    rebuilt.load_state_dict(weights(out))
    features = Towers(rebuilt, out).text_features(printed)
    with torch.no_grad():
        whole = torch.nn.functional.normalize(model.encode_text(ids), dim=1)
    assert torch.allclose(features, whole, atol=1e-2)  # half precision


@pytest.mark.slow
def test_stopped_and_started_again_equals_undisturbed_in_either_stage(tiny, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(tiny, whole) == 0
    original = command.describe

    def stop_after(count):
        left = iter([True] * (count - 1) + [False])

        def describe(record):
            if not next(left):
                raise KeyboardInterrupt
            return ""

        return describe

    for count in (5, 9):  # in the text stage, in the image stage
        monkeypatch.setattr(command, "describe", stop_after(count))
        assert run(tiny, broken) == 130
    monkeypatch.setattr(command, "describe", original)
    assert run(tiny, broken) == 0
    a, b = weights(whole), weights(broken)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert score(whole) == score(broken)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_two_ray_train_workers_learn_what_one_process_learns(tiny, tmp_path):
    import ray

    changes = ["text.epochs=2", "image.epochs=1"]
    assert run(tiny, tmp_path / "one", *changes) == 0
    try:
        assert run(tiny, tmp_path / "two", *changes, "workers=2") == 0
    finally:
        ray.shutdown()
    records = [
        [json.loads(line) for line in (tmp_path / name / EPOCHS).read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert [record["stage"] for record in records[1]] == ["text", "text", "image"]
    for one, two in zip(*records, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
    a, b = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in a:
        if "in_proj_bias" not in name:  # a key's bias has no gradient but rounding
            assert (a[name] - b[name]).norm() < 0.02 * a[name].norm(), name


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("imagee.epochs=3", "unknown key 'imagee'"),
        ("image.patch=3", "size=8 is no multiple of patch=3"),
        ("workers=3", "text.batch_size=16 is no multiple of workers=3"),
        ("text.teacher=random", "teacher"),
        ("embed_dim=4000", "set embed_dim"),
        ("train=[{source: parquet, root: no_such_folder}]", "no_such_folder"),
    ],
)
def test_bad_input_is_one_sentence(tiny, tmp_path, capsys, change, sentence):
    assert run(tiny, tmp_path / "out", change) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_a_folder_with_another_configuration_is_refused(tiny, tmp_path, capsys):
    changes = ["text.epochs=1", "image.epochs=1"]
    assert run(tiny, tmp_path / "out", *changes) == 0
    assert run(tiny, tmp_path / "out", *changes, "seed=3") == 2
    assert "another configuration" in capsys.readouterr().err


def test_the_kept_pieces_spell_every_word_and_the_end_token_is_last():
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "the": 2, "cat": 3, "##s": 4, "a": 5, "##b": 6, "owl": 7}
    pieces = prune(vocabulary, 2, ["An OWL"])
    kept = ["the", "cat", "##s", "a", "##b", "owl"]
    assert pieces == [PAD, UNKNOWN, *kept, START, END]
    assert prune(vocabulary, 1, []) == [PAD, UNKNOWN, "the", "##s", "a", "##b", START, END]
    assert whole_words(vocabulary, 2) == ["the", "cat"]


def test_a_class_has_a_name_a_kind_and_a_wider_kind():
    nouns, positions = levels_of(["Golden_Retriever", "tabby", "tailed frog", "gizmo"])
    assert nouns == [
        ["gizmo", "golden retriever", "tabby cat", "tailed frog"],
        ["cat", "dog", "frog", "gizmo"],
        ["animal", "gizmo"],
    ]
    assert positions == [[1, 2, 3, 0], [1, 0, 2, 3], [0, 0, 0, 1]]
    assert all(len(entry) == 3 and all(entry) for entry in captions().values())


def test_two_shares_have_the_whole_batch_s_gradient(tiny, tmp_path):
    spec = load_spec(tiny, [])
    pool = training_pool(spec)
    texts.prepare(spec, pool.class_names, tmp_path)
    data = texts.read(tmp_path)
    model = build(spec, len(data.pieces))
    towers = Towers(model, tmp_path)
    for stage in (TextStage(spec, model, towers, data), ImageStage(spec, model, towers, pool)):
        rows = stage.order[:16]
        whole = stage.loss(rows, WorkerRank().share(16), step=3)
        halves = [stage.loss(rows, WorkerRank(rank, 2).share(16), step=3) for rank in (0, 1)]
        assert torch.allclose(whole, sum(halves) / 2, atol=1e-5)


def test_initial_weights_come_from_the_seed_and_leave_the_global_generator_alone(tiny):
    spec = load_spec(tiny, [])
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = build(spec, 40).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    second, other = build(spec, 40), build(load_spec(tiny, ["seed=1"]), 40)
    assert all(torch.equal(first[name], tensor) for name, tensor in second.state_dict().items())
    assert not torch.equal(first["visual.proj"], other.state_dict()["visual.proj"])
