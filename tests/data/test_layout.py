"""Which files of a folder are read, what their split is, and that the rest is named."""

from __future__ import annotations

import json
import unicodedata

import pytest
from image_files import encode, filled, structs, write_aircraft, write_names, write_table
from lab import refused, refused_command

from fedray.data import ReadOptions, load_images
from fedray.data.folders import split_of
from fedray.data.imageset import TEST, TRAIN, VALIDATION
from fedray.data.inspect import source_for

NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def fill(folder, count=1):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        filled(len(str(folder)) % 250).save(folder / f"{i}.png")


def classes(root, names=("cat", "dog"), count=1):
    for name in names:
        fill(root / name, count)


def table(path, labels=(0, 1), **columns):
    images = structs([encode(filled(label)) for label in labels])
    write_table(path, {"image": images, "label": list(labels), **columns})


# --- words for splits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (
            "train Training TRAIN flowers-train train-00000-of-2 data.train train_2017 trainset",
            TRAIN,
        ),
        ("val valid Validation dev VAL my_dev val2017 tiny.valid flowersVal", VALIDATION),
        (
            "test Testing eval evaluation flowers_test.parquet test-0 data.Test 2-TEST TestData",
            TEST,
        ),
        (
            "latest contest trainer station devil interval medieval attest dataset images",
            None,
        ),
    ],
)
def test_every_word_of_the_field_is_known(names, split, tmp_path):
    for name in names.split():
        assert split_of(name, tmp_path) == split, name


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("Training", "eval"), ("my-train", "set.TEST")]
)
def test_folders_of_class_folders_are_splits(tmp_path, train, test):
    classes(tmp_path / train, count=2)
    classes(tmp_path / test)
    images = load_images(source_for(tmp_path), tmp_path)
    assert images.class_names == ("cat", "dog")
    assert images.origin.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("name", ["val", "Validation", "dev", "flowers_val"])
def test_validation_images_are_no_test_beside_a_test(tmp_path, name):
    for split in ("train", name, "test"):
        classes(tmp_path / split)
    images = load_images("image_folder", tmp_path)
    assert sorted(images.origin.tolist()) == [TRAIN, TRAIN, TEST, TEST, VALIDATION, VALIDATION]
    assert "2 of them the official test, 2 official validation images" in images.about
    (tmp_path / "test").rename(tmp_path / ".test")
    images = load_images("image_folder", tmp_path)
    assert images.origin.tolist() == [TRAIN, TRAIN, TEST, TEST]


@pytest.mark.parametrize(
    ("train", "test", "validation"),
    [
        ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet", "validation-0.parquet"),
        ("data.train.parquet", "data.eval.parquet", "data.valid.parquet"),
        ("flowers-train/0.parquet", "flowers-test/0.parquet", "flowers-val/0.parquet"),
        ("default/training/0000.parquet", "default/testing/0000.parquet", "default/val/0.parquet"),
        ("TRAIN.parquet", "Evaluation.parquet", "Valid.parquet"),
    ],
)
def test_parquet_files_are_named_after_splits(tmp_path, train, test, validation):
    write_names(tmp_path)
    for path, labels in ((train, (0, 1, 1)), (test, (0, 1)), (validation, (1,))):
        table(tmp_path / path, labels)
    images = load_images("parquet", tmp_path)
    assert images.origin.tolist() == [TRAIN] * 3 + [TEST] * 2 + [VALIDATION]
    assert images.domains is None
    (tmp_path / test).unlink()
    assert load_images("parquet", tmp_path).origin.tolist() == [TRAIN] * 3 + [TEST]


def test_parquet_files_of_no_split_are_training_data(tmp_path):
    write_names(tmp_path)
    for name in ("0000.parquet", "latest.parquet"):
        table(tmp_path / name)
    assert load_images("parquet", tmp_path).origin.tolist() == [TRAIN] * 4
    table(tmp_path / "test.parquet")
    refused(lambda: load_images("parquet", tmp_path), "0000.parquet")


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (("cat", "dog", "test"), "test"),
        (("cat", "dog", "test/cat"), "cat"),
        (("train", "test"), "test"),
        (("train_test/cat", "val/cat"), "train_test"),
        (("train/cat", "test/owl"), "owl"),
        (("train/cat", "val/images", "test/images"), "images"),
    ],
)
def test_what_is_ambiguous_is_refused_by_run_and_data(tmp_path, capsys, folders, named):
    for folder in folders:
        fill(tmp_path / "set" / folder)
    refused(lambda: load_images("image_folder", tmp_path / "set"), named)
    refused_command(["data", str(tmp_path / "set")], capsys, named)


def test_names_of_classes_may_have_words_for_splits(tmp_path):
    classes(tmp_path, ("crash_test", "train_station", "train", "valid ticket"))
    images = load_images("image_folder", tmp_path)
    assert images.class_names == ("crash_test", "train", "train_station", "valid ticket")
    assert images.origin.tolist() == [TRAIN] * 4


# --- unread files ---------------------------------------------------------------------------------


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")


def in_class_folders(root):
    classes(root, count=2)
    touch(root, "cat/a.heic", "notes.txt", "cat/more/0.png", ".hidden", "dog/Thumbs.db")
    return "image_folder", "3 files not read: notes.txt, cat/a.heic, cat/more/0.png"


def flat_test(root):
    classes(root / "train")
    fill(root / "test", 5)
    return "image_folder", "5 files not read, such as test/0.png, test/1.png, test/2.png"


def beside_parquet(root):
    write_names(root)
    table(root / "train.parquet")
    touch(root, "README.md")
    return "parquet", "1 file not read: README.md"


def all_is_read(root):
    classes(root / "train")
    classes(root / "test")
    touch(root, ".DS_Store", "train/cat/._0.png", "__MACOSX/x.png", "test/desktop.ini")
    return "image_folder", "official test"


def aircraft(root):
    write_aircraft(root)
    return "coop", "for few-shot protocols"


@pytest.mark.parametrize(
    "make", [in_class_folders, flat_test, beside_parquet, all_is_read, aircraft]
)
def test_whatever_is_not_read_is_counted(tmp_path, make):
    source, end = make(tmp_path / "set")
    assert source_for(tmp_path / "set") == source
    for _ in range(2):  # decoded, then from the cache
        assert load_images(source, tmp_path / "set").about.endswith(end)


# --- names and links ------------------------------------------------------------------------------


def test_composed_and_decomposed_folders_are_one_class(tmp_path):
    assert NFC != NFD
    fill(tmp_path / "train" / NFC, 2)
    fill(tmp_path / "train" / "tea")
    fill(tmp_path / "test" / NFD, 3)
    images = load_images("image_folder", tmp_path)
    assert images.class_names == (NFC, "tea")
    assert images.labels.tolist() == [0, 0, 1, 0, 0, 0]
    one = load_images("image_folder", tmp_path, ReadOptions(classes=("tea", NFD)))
    assert one.class_names == ("tea", NFC)
    lists = {"train": ["tea/0.png", f"{NFC}/0.png"], "test": [f"{NFC}/1.png"]}
    fill(tmp_path / "lists" / NFD, 2)
    fill(tmp_path / "lists" / "tea")
    (tmp_path / "lists" / "split.json").write_text(json.dumps(lists))
    images = load_images("image_folder", tmp_path / "lists", ReadOptions(split="split.json"))
    assert sorted(images.origin.tolist()) == [0, 0, 1]


def test_domains_are_composed(tmp_path):
    for form, name in ((NFC, "cat"), (NFD, "dog")):
        fill(tmp_path / form / name)
    assert load_images("domain_folder", tmp_path).domains.names == (NFC,)
    write_names(tmp_path / "table")
    table(tmp_path / "table/train.parquet", domain=[NFC, NFD])
    assert load_images("parquet", tmp_path / "table").domains.names == (NFC,)


@pytest.mark.timeout(60)
def test_folders_that_link_to_each_other_are_listed_once_and_links_elsewhere_are_read(tmp_path):
    names = [f"class{i}" for i in range(8)]
    classes(tmp_path / "set", names)
    for one in names:
        for other in set(names) - {one}:
            (tmp_path / "set" / one / f"to_{other}").symlink_to(tmp_path / "set" / other)
    assert len(load_images(source_for(tmp_path / "set"), tmp_path / "set")) == 8
    (tmp_path / "links").mkdir()
    for name in names:
        (tmp_path / "links" / name).symlink_to(tmp_path / "set" / name)
    assert load_images("image_folder", tmp_path / "links").class_names == tuple(names)
