"""Public images belong to no client, carry labels only if wanted, and lie once on a node."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import data as data_command
from image_files import filled
from lab import refused
from tensors import CPU

from fedray.base.shipped import names
from fedray.base.trees import leaves
from fedray.config import missing_roots_allowed
from fedray.runtime.groups import GroupRunner
from fedray.runtime.resolve import resolve

SHARE = {"data.public": {"name": "share", "fraction": 0.2}}
SHAPES = {
    "data.public": {"name": "source", "source": "shapes", "labelled": False, "samples": 30},
    "data.image_size": 16,
    "data.channels": 3,
}
LABELLED = {"name": "source", "source": "shapes"}
MANY = {**SHAPES["data.public"], "samples": 9999}
PARQUET = {"name": "source", "source": "parquet"}


def write_images(root):
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for value in range(12):
            filled(20 * value + len(name)).save(root / name / f"{value}.png")


def owned(data):
    return np.concatenate([*data.train, *data.test, *(data.validation or ())])


@pytest.mark.parametrize(
    "changes", [{}, {"data.validation_fraction": 0.2}, {"data.imbalance": 3}, {"data.shots": 9}]
)
def test_a_share_belongs_to_no_client_and_is_the_same_for_all_methods(assemble, changes):
    data = assemble("local", {**SHARE, **changes}).data
    assert len(data.public.index) == 48  # a fifth of 240
    assert not np.isin(data.public.index, owned(data)).any()
    other = assemble("fedmd", {**SHARE, **changes}).data
    assert np.array_equal(other.public.index, data.public.index)
    assert data.sha256 != assemble("local", changes).data.sha256
    assert data.manifest()["public"]["images"] == data.public.index.tolist()


def test_a_share_stays_public_in_later_phases(assemble):
    phases = {"phases": [{"round": 2, "partition": "iid"}]}
    data = assemble("local", {**SHARE, "data.evolution": phases}).data
    (_, later), public = data.later[0], data.public.index
    assert np.array_equal(later.public.index, public)
    assert not np.isin(public, owned(later)).any()


def test_a_few_shot_protocol_draws_from_what_is_not_public(assemble):
    changes = {"data.partition": "dominant_class", "data.partition.shots": 4, "data.samples": None}
    data = assemble("local", {**SHARE, **changes}).data
    assert len(data.public.index) == round(0.2 * 1797)
    assert not np.isin(data.public.index, owned(data)).any()


@pytest.mark.parametrize("changes", [SHARE, SHAPES])
def test_unlabelled_images_have_no_labels_for_any_step(assemble, changes):
    public = {**changes["data.public"], "labelled": False}
    assembly = assemble("feddf", {**changes, "data.public": public})
    for samples in (GroupRunner(assembly, CPU).client(0, 1).public, assembly.server(CPU).public):
        assert not samples.is_labelled
        assert samples.labels.unique().tolist() == [-1]
        assert np.unique(samples._all_labels).tolist() == [-1]


def test_labels_are_read_if_they_are_wanted(assemble):
    assembly = assemble("feddf", SHARE)
    samples, data = assembly.server(CPU).public, assembly.data
    assert samples.is_labelled
    assert samples.labels.tolist() == data.images.labels[data.public.index].tolist()


def test_all_steps_read_one_copy_and_only_methods_that_need_it(assemble):
    assembly = assemble("fedmd")
    runtime, images = GroupRunner(assembly, CPU), assembly.data.images.images
    for part in (runtime.client(0, 1).public, runtime.client(3, 2).public):
        assert np.shares_memory(part._stored, images)
    assert np.shares_memory(assembly.server(CPU).public._stored, images)
    other = assemble("fedavg", {**SHARE, "model.group": "mlp"})
    assert GroupRunner(other, CPU).client(0, 1).public is other.server(CPU).public is None


def test_they_are_in_no_state_and_no_message(run):
    done = run("fedmd", {"algorithm.public_epochs": 1, "algorithm.private_epochs": 1})
    assert not any(done.memories.values())
    assert [path for path, _ in leaves(done.servers[-1])] == [("given", "transfer")]
    assert done.results[0].down.params == {}
    assert set(done.results[1].down.params) == {"logits", "statistics"}


def test_prompts_read_their_features(assemble):
    changes = {**SHARE, "data.public": {"name": "share", "fraction": 0.2, "labelled": False}}
    assembly = assemble("promptfl", {**changes, "data.samples": 60})
    found = assembly.models.public_samples(CPU)
    assert len(found) == 12
    assert found.kind is assembly.models.samples(CPU)(assembly.data.train[0]).kind
    assert found._stored.shape == (12, found._stored.shape[1])
    assert found.labels.unique().tolist() == [-1]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data.public": "none"}, "data.public=none"),
        ({"data.public.fraction": 0.001}, "data.public.fraction=0.001"),
        ({"data.public.fraction": 0.999}, "data.public.fraction=0.999"),
        ({"data.public": "source"}, "data.public.source=digits"),
        ({**SHAPES, "data.image_size": 8}, "data.image_size=8"),
        ({**SHAPES, "data.public": LABELLED}, "data.public.labelled=false"),
        ({**SHAPES, "data.public": MANY}, "data.public.samples=9999"),
        ({"data.public": {**PARQUET, "root": "/not/here"}}, "data.root=/not/here"),
        ({"data.public.labelled": False}, "algorithm.public_epochs=0"),
    ],
)
def test_impossible_values_are_refused_with_their_key(assemble, changes, named):
    def start() -> None:
        assembly = assemble("fedmd", changes)
        assembly.algorithm.init_server(assembly.server(CPU))

    refused(start, named)


def test_the_folder_of_another_source_counts_by_its_content(assemble, tmp_path):
    root = tmp_path / "public"
    write_images(root)
    keys = ["data.public=source", "data.public.source=image_folder", f"data.public.root={root}"]
    first = resolve("feddf_digits", keys).identity()
    moved = tmp_path / "moved"
    root.rename(moved)
    keys[-1] = f"data.public.root={moved}"
    assert resolve("feddf_digits", keys).identity() == first
    next(moved.rglob("*.png")).unlink()
    assert resolve("feddf_digits", keys).identity() != first


def test_a_changed_folder_of_another_source_is_read_again_in_the_same_process(assemble, tmp_path):
    write_images(tmp_path)
    other = {"name": "source", "source": "image_folder", "root": str(tmp_path), "labelled": False}
    changes = {"data.public": other, "data.image_size": 8}
    before = assemble("feddf", changes).data.public
    next(tmp_path.rglob("*.png")).unlink()
    after = assemble("feddf", changes).data.public
    assert [len(public.index) for public in (before, after)] == [24, 23]
    assert before.images.sha256 != after.images.sha256


def test_the_folder_of_the_clients_is_refused_with_other_classes_or_another_split(
    assemble, tmp_path
):
    write_images(tmp_path)
    (tmp_path / "emu").mkdir()
    filled(7).save(tmp_path / "emu" / "0.png")
    paths = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")]
    (tmp_path / "split.json").write_text(json.dumps({"train": paths[::2], "test": paths[1::2]}))
    public = {"name": "source", "source": "image_folder", "root": str(tmp_path)}
    own = {"data.source": "image_folder", "data.root": str(tmp_path), "data.samples": None}
    own |= {"data.partition": "iid"}
    for changes in (
        {"data.public": {**public, "labelled": False}, "data.classes": ["cat", "dog"]},
        {"data.public": public, "data.split": "split.json", "data.test": "official"},
    ):
        made = assemble("feddf", {**own, "data.clients": 2, **changes})
        refused(lambda made=made: made.data, "data.public")


def test_they_are_in_the_identity_only_when_they_are_set():
    with missing_roots_allowed():
        for name in names("experiments"):
            experiment = resolve(name, [])
            is_set = experiment.data.public.name != "none"
            assert ("public" in experiment.reproducibility_key()["data"]) is is_set, name
    plain, unset = resolve("fedavg_digits", []), resolve("fedavg_digits", ["data.public=none"])
    assert plain.identity() == unset.identity()
    identities = {
        resolve("feddf_digits", ["data.public=share", *keys]).identity()
        for keys in ([], ["data.public.fraction=0.3"], ["data.public.labelled=true"])
    }
    assert len(identities) == 3
    shared = resolve("fedavg_digits", ["data.public=share"])
    assert shared.identity() != plain.identity()


def test_fedray_data_counts_them_and_refuses_what_cannot_be(tmp_path, capsys):
    write_images(tmp_path / "mine")
    words = [str(tmp_path / "mine"), "data.public=share", "data.clients=1"]
    assert data_command([*words, "data.public.fraction=0.25"]) == 0
    assert "public images" in capsys.readouterr().out
    assert data_command([*words, "data.public.fraction=0.001"]) == 2
    assert "training images public" in capsys.readouterr().err


def test_other_sources_are_sampled_by_the_seed(assemble):
    drawn = [assemble("feddf", {**SHAPES, "seed": seed}).data.public.index for seed in (0, 0, 1)]
    assert len(drawn[0]) == 30
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert (np.diff(drawn[0]) > 0).all()
