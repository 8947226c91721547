"""The version of the package's own code: in a run's identity, in its record, in keys of caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from lab import refused
from PIL import Image
from rounds import serial

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.fedprox import FedProx
from fedray.config import component
from fedray.config.registry import HOMES, registry, version_of
from fedray.data import load_images
from fedray.language.encoders import encoders
from fedray.language.text_cache import cached_text_embeddings
from fedray.models.clip import load_clip
from fedray.results.difference import input_changes
from fedray.runtime.resolve import resolve
from fedray.runtime.session import Session
from fedray.storage.run_folder import RunFolder
from fedray.studies.plan import store_key

PHASES = "data.evolution.phases=[{round: 2, partition: dirichlet}]"
USES = [
    ("algorithm", "fedtsp", []),
    ("optimizer", "adam", ["optimizer=adam"]),
    ("learning rate schedule", "cosine", ["lr_schedule=cosine"]),
    ("architecture", "cnn2", []),
    ("model group", "digits", []),
    ("CLIP", "small", ["algorithm=promptfl"]),
    ("data source", "digits", []),
    ("partition", "iid", ["data.partition=iid"]),
    ("partition", "dirichlet", ["data.evolution=repartition", PHASES]),
    ("data evolution", "repartition", ["data.evolution=repartition", PHASES]),
    ("augmentation", "flip_crop", ["data.augment=flip_crop"]),
    ("text encoder", "minilm", []),
    ("text style", "fine", []),
]
"""Kind and name of an entry, and the keys with which `fedtsp_digits` uses it."""
OTHERS = [
    ("CLIP", "small"),
    ("algorithm", "fedprox"),
    ("architecture", "resnet18"),
    ("partition", "iid"),
    ("text encoder", "bert"),
]


RAISED = 9


def raise_version(monkeypatch: pytest.MonkeyPatch, kind: str, name: str) -> None:
    entries = registry(kind)
    entry = entries.get(name)
    if isinstance(entry, type):
        monkeypatch.setattr(entry, "version", RAISED)
    else:
        monkeypatch.setitem(entries._entries, name, replace(entry, version=RAISED))


@pytest.mark.parametrize("kind", HOMES)
def test_every_entry_has_a_version(kind):
    assert all(version_of(entry) >= 1 for entry in registry(kind).entries())


@pytest.mark.parametrize(("kind", "name", "keys"), USES)
def test_a_raised_version_makes_another_run(monkeypatch, kind, name, keys):
    experiment = resolve("fedtsp_digits", keys)
    before, stored = experiment.identity(), store_key(experiment)
    raise_version(monkeypatch, kind, name)
    assert experiment.identity() != before
    assert store_key(experiment) != stored
    assert experiment.record()["versions"][kind] == {name: RAISED}


@pytest.mark.parametrize(("kind", "name"), OTHERS)
def test_the_version_of_what_a_run_does_not_use_changes_nothing(monkeypatch, kind, name):
    experiment = resolve("fedtsp_digits")
    before, record = experiment.identity(), experiment.record()
    raise_version(monkeypatch, kind, name)
    assert experiment.identity() == before
    assert experiment.record() == record


def test_a_base_raises_its_subclasses(monkeypatch):
    monkeypatch.setattr(FedAvg, "version", 3)
    assert version_of(FedProx) == 3
    monkeypatch.setattr(FedProx, "version", 2, raising=False)
    assert version_of(FedProx) == 4
    assert version_of(FedAvg) == 3


def test_a_version_that_a_plugin_states_for_itself_does_not_count(monkeypatch):
    class Mine(FedAvg):
        version: ClassVar[Any] = "0.7"

    assert version_of(Mine) == 1
    monkeypatch.setattr(FedAvg, "version", 2)
    assert version_of(Mine) == 2


def session(out) -> Session:
    keys = ["rounds=2", "local_epochs=1", "data.clients=3", "data.samples=300", "model.group=mlp"]
    experiment = resolve("fedavg_digits", keys)
    return serial(experiment, out)


def test_a_run_of_other_code_is_not_resumed(tmp_path, monkeypatch):
    rounds = session(tmp_path).rounds()
    next(rounds)
    rounds.close()
    with monkeypatch.context() as raised:
        raise_version(raised, "architecture", "mlp")
        refused(lambda: session(tmp_path), str(tmp_path), "code")
    assert [done.round for done in session(tmp_path).rounds()] == [1, 2]


def test_verify_names_the_code_that_changed(tmp_path):
    list(session(tmp_path).rounds())
    then = RunFolder(tmp_path).read().info
    now = replace(then, config={**then.config, "versions": {"architecture": {"mlp": 2}}})
    assert input_changes(then, now) == ["architecture mlp: version 1, now 2"]
    assert input_changes(now, then) == ["architecture mlp: version 2, now 1"]


def test_text_features_of_older_code_are_not_read(monkeypatch):
    choice = component("text encoder", "minilm").build()
    entry, texts = encoders.get("minilm"), ["a cat", "a dog"]
    first = cached_text_embeddings(choice, texts)
    built = choice.build()
    monkeypatch.setattr(entry, "build", lambda self: built)
    monkeypatch.setattr(built, "features", lambda texts: first + 1)
    assert torch.equal(cached_text_embeddings(choice, texts), first)
    with monkeypatch.context() as raised:
        raised.setattr(entry, "version", RAISED)
        assert torch.equal(cached_text_embeddings(choice, texts), first + 1)
    assert torch.equal(cached_text_embeddings(choice, texts), first)


@pytest.mark.parametrize("package", ["transformers", "open_clip_torch"])
def test_texts_of_another_version_of_a_package_are_computed_again(monkeypatch, cache, package):
    choice = component("text encoder", "minilm").build()
    cached_text_embeddings(choice, ["a cat"])
    stored = len(list((cache / "text").glob("*/*.npy")))
    version = "fedray.language.text_cache.importlib.metadata.version"
    monkeypatch.setattr(version, lambda name: "99" if name == package else "1")
    cached_text_embeddings(choice, ["a cat"])
    assert len(list((cache / "text").glob("*/*.npy"))) == 2 * stored


def test_a_clip_of_older_code_has_another_identity(monkeypatch):
    load_clip.cache_clear()
    choice = component("CLIP", "small").build()
    before = load_clip(choice, torch.device("cpu")).identity
    raise_version(monkeypatch, "CLIP", "small")
    load_clip.cache_clear()
    assert load_clip(choice, torch.device("cpu")).identity != before
    load_clip.cache_clear()


def test_images_of_older_code_are_decoded_again(tmp_path, monkeypatch):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / label / "0.png")
    source = registry("data source").get("image_folder")
    load_images("image_folder", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(source, "read", lambda *args: pytest.fail("decoded twice"))
        load_images("image_folder", tmp_path)
    read, decoded = source.read, []
    monkeypatch.setattr(source, "read", lambda *args: decoded.append(1) or read(*args))
    monkeypatch.setattr(source, "version", 2, raising=False)
    load_images("image_folder", tmp_path)
    assert decoded == [1]
