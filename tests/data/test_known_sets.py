"""Every data set of the papers, in every public layout: right, or refused; none silent."""

from __future__ import annotations

import re

import numpy as np
import pytest
from known_layouts import LAYOUTS, coop_set, folders, ids, picture, words

from fedray.__main__ import main
from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TEST, TRAIN, VALIDATION
from fedray.data.inspect import source_for
from fedray.data.known import ids_among, known_sets, recognise
from fedray.data.sources import load_images
from fedray.language.names import check_words, load_names
from fedray.language.styles import Plain


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch):
    """Files of CIFAR with other checksums than the whole ones."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_a_public_layout_is_right_or_refused_by_run_and_data(tmp_path, name, layout):
    root = tmp_path / known_sets()[name].folder
    root.mkdir()
    expected = LAYOUTS[name, layout](root)
    if expected.source == "coop":
        root = root / known_sets()[name].folder
    options = ReadOptions(**expected.options)
    if expected.refused:
        with pytest.raises(UserError, match=expected.refused):
            load_images(expected.source, root, options)
        if layout != "without the split" or name != "stanford_cars":  # a folder of images
            with pytest.raises(UserError):
                load_images(source_for(root), root)
        return
    images = load_images(expected.source, root, options)
    assert list(images.class_names) == list(expected.classes)
    counts = [int((images.origin == origin).sum()) for origin in (TRAIN, VALIDATION, TEST)]
    assert tuple(counts) == expected.images
    assert np.bincount(images.labels).min() == np.bincount(images.labels).max()
    assert images.shape[:0:-1] == expected.size
    assert (images.domains and images.domains.names) == (tuple(expected.domains) or None)
    assert source_for(root) == expected.source


# --- names ---------------------------------------------------------------------------------------


def test_other_names_are_said(tmp_path):
    LAYOUTS["cifar100", "hub parquet"](tmp_path)
    assert "of 100 classes, recognised as CIFAR-100" in load_images("parquet", tmp_path).about


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["cat", "dog", "owl"], None),  # some classes of a set are a set of one's own
        (["cra", "cat"], None),
        (["n01443537", "n12267677"], ["goldfish", "acorn"]),
        (["n01443537", "n99999999"], None),
        ([word.upper() for word in words("pacs")], words("pacs")),
        (["plane", "car", *words("cifar10")[2:]], words("cifar10")),
        ([*words("cifar10"), "van"], None),
    ],
)
def test_a_set_is_recognised_by_all_its_names(names, word):
    recognised = recognise(names)
    assert (recognised and list(recognised.words.values())) == word


def test_classes_are_chosen_by_either_name(tmp_path):
    LAYOUTS["office_caltech10", "folders"](tmp_path)
    for name in ("back_pack", "backpack"):
        images = load_images("domain_folder", tmp_path, ReadOptions(classes=(name, "mug")))
        assert images.class_names == ("backpack", "mug")
        assert len(images) == 16


def test_a_domain_without_the_chosen_classes_is_left_out(tmp_path):
    folders(tmp_path, ["pen"], (8, 8), office=1, shop=1)
    folders(tmp_path, ["cup"], (8, 8), home=1)
    images = load_images("domain_folder", tmp_path, ReadOptions(classes=("pen",)))
    assert images.domains.names == ("office", "shop")
    assert "2 domains (office, shop), no official test; 1 file not read" in images.about


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    import os
    import pickle

    LAYOUTS["office_caltech10", "FedBN's pickles"](tmp_path)

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / "amazon_test.pkl").write_bytes(pickle.dumps((Harm(), [])))
    with pytest.raises(UserError, match=r"amazon_test.pkl is not a list .*holds posix.mkdir"):
        load_images("domain_folder", tmp_path, ReadOptions(split="lists"))
    assert not (tmp_path / "harm").exists()


def test_a_domain_without_its_second_list_is_refused(tmp_path):
    LAYOUTS["office_caltech10", "FedBN's pickles"](tmp_path)
    (tmp_path / "dslr_test.pkl").unlink()
    with pytest.raises(UserError, match=r"data.split=lists: dslr_test.pkl or .txt is missing"):
        load_images("domain_folder", tmp_path, ReadOptions(split="lists"))
    with pytest.raises(UserError, match=r"<domain>_test.pkl or .txt is missing"):
        load_images("image_folder", tmp_path / "amazon", ReadOptions(split="lists"))


# --- names that are no words ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["n01443537", "cat"], ["n01443537"]),
        (["0", "1", "2"], ["0", "1", "2"]),
        (["class_1", "class_2"], ["class_1", "class_2"]),
        (["c001", "c002"], ["c001", "c002"]),
        (["707-320", "Cessna 172"], []),
        (["A", "B"], []),
        (["zero", "one"], []),
        (["9f86d081884c7d659a2feaa0", "cat"], ["9f86d081884c7d659a2feaa0"]),
        (["defaced", "effaced"], []),
    ],
)
def test_identifiers_are_found_among_names(names, found):
    assert ids_among(names) == found
    if found:
        with pytest.raises(UserError, match=f"the class names {found[0]}.* are no words"):
            check_words(names, "give others")
    else:
        check_words(names, "")


@pytest.mark.parametrize(
    ("name", "keys", "remedy"),
    [
        ("fedglcl_digits", ["text.style=plain", "model.group=cnn4"], "with text.names"),
        ("promptfl_clip", [], "rename the classes"),
    ],
)
@pytest.mark.slow
def test_a_method_with_texts_refuses_names_that_are_no_words(
    tmp_path, monkeypatch, capsys, name, keys, remedy
):
    monkeypatch.chdir(tmp_path)
    folders(tmp_path / "mnist", ["0", "1", "2"], (32, 32), train=12, test=4)
    keys = [*keys, "data.source=image_folder", "data.root=mnist", "data.clients=2", "rounds=1"]
    command = ["run", name, "--executor", "serial", "--no-track", "--out", "out"]
    assert main([*command, "data.samples=null", "data.partition=iid", *keys]) == 2
    error = capsys.readouterr().err
    assert "the class names 0, 1, 2 are no words" in error
    assert remedy in error


# --- the descriptions ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_sets())
def test_a_description_is_complete(name):
    there = known_sets()[name]
    assert there.class_count == (len(there.classes) or there.class_count)
    assert there.origin.files or there.origin.by_hand
    assert all(file.url.startswith("http") for file in there.origin.files)
    assert set(there.aliases.values()) <= set(there.classes)
    assert list(there.domains) == sorted(there.domains)
    if there.classes:
        assert recognise(there.classes, there.domains).data_set is there
        spelled = {re.sub(r"\W", "", word).casefold() for word in there.classes}
        assert len(spelled) == there.class_count


def test_classes_stand_in_one_place():
    """Lists of names and the descriptions of classes are the same files."""
    assert load_names("office_caltech10") == known_sets()["office_caltech10"].classes
    (text,) = Plain().texts(None, load_names("office_caltech10"))[5]
    assert text == "a photo of a laptop computer"


def test_tiny_imagenets_ids_belong_to_its_words():
    spelled = dict(zip(ids(), words("tiny_imagenet"), strict=True))
    for name, word in (("n01443537", "goldfish"), ("n02123045", "tabby"), ("n12267677", "acorn")):
        assert spelled[name] == word


def test_coops_layout_is_inspected(tmp_path, capsys):
    coop_set(tmp_path, "caltech101")
    (tmp_path / "caltech-101/101_ObjectCategories/BACKGROUND_Google").mkdir()
    background = tmp_path / "caltech-101/101_ObjectCategories/BACKGROUND_Google/0.png"
    background.write_bytes(picture(0))
    main(["data", str(tmp_path / "caltech-101"), "data.clients=2"])
    out = capsys.readouterr().out
    assert "data.source=coop" in out
    assert "4 images of 2 classes" in out
    assert "BACKGROUND_Google" in out
