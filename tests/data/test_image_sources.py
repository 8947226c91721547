"""Every source gives the right pixels, labels and names, or one clear sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import (
    described,
    encode,
    filled,
    structs,
    write_names,
    write_table,
)
from lab import refused
from PIL import Image

from fedray.base.errors import UserError
from fedray.data import ReadOptions, load_images
from fedray.data.decoding import decode
from fedray.data.sources import Source


def write_parquet(path, images, labels, *, names=None, domain=None, image="image", label="label"):
    columns = {image: structs(images), label: labels}
    if domain is not None:
        columns["domain"] = domain
    write_table(path, columns, described(names, label) if names else None)


def two(values=(10, 20), **kwargs):
    return [encode(filled(value, **kwargs)) for value in values]


# --- digits --------------------------------------------------------------------------------------


def test_digits():
    from sklearn.datasets import load_digits

    images = load_images("digits")
    assert images.images.shape == (1797, 1, 8, 8)
    assert images.images.dtype == np.uint8
    assert (images.images.min(), images.images.max()) == (0, 255)
    assert images.class_names[0] == "zero"
    assert images.class_names[9] == "nine"
    assert not images.origin.any()
    original = load_digits()
    assert np.array_equal(images.labels, original.target)
    assert np.array_equal(np.rint(images.images[:, 0] * (16 / 255)), original.images)
    assert images.images[original.images[:, None] == 8][0] == 128  # round(8 * 255 / 16)


# --- decoding ------------------------------------------------------------------------------------


def test_shorter_side_then_centre_crop():
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200  # the middle third
    made = decode([encode(Image.fromarray(wide))], str, ReadOptions(image_size=10))
    assert made.shape == (1, 3, 10, 10)
    assert (made == 200).all()
    tall = decode(
        [np.ascontiguousarray(wide.transpose(1, 0, 2))], str, ReadOptions(image_size=5, channels=1)
    )
    assert tall.shape == (1, 1, 5, 5)
    assert (tall[0, 0, 2] == 200).all()


def test_channels_follow_the_images():
    grey, colour = encode(filled(9, mode="L")), encode(filled(9))
    assert decode([grey, grey], str, ReadOptions()).shape[1] == 1
    assert decode([colour, grey], str, ReadOptions()).shape[1] == 3
    assert decode([grey] * 70 + [colour], str, ReadOptions()).shape[1] == 3
    assert decode([colour], str, ReadOptions(channels=1)).shape[1] == 1


def test_many_large_images_keep_their_order():
    values = np.arange(200)
    encoded = two(values, size=(70, 70), mode="L")
    made = decode(encoded, str, ReadOptions())
    assert np.array_equal(made[:, 0, 35, 35], values)


# --- parquet -------------------------------------------------------------------------------------


def test_parquet_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)
    encoded = [encode(Image.fromarray(one)) for one in pixels]
    write_parquet(tmp_path / "test-00000-of-00001.parquet", encoded[4:], [1, 1, 0])
    write_parquet(tmp_path / "train-00000-of-00001.parquet", encoded[:4], [0, 1, 0, 1])
    write_names(tmp_path)
    images = load_images("parquet", tmp_path)
    assert np.array_equal(images.images, pixels.transpose(0, 3, 1, 2))
    assert images.labels.tolist() == [0, 1, 0, 1, 1, 1, 0]
    assert images.origin.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert images.class_names == ("cat", "dog")
    assert images.domains is None
    assert images.source == "parquet"


def test_parquet_decodes_once_until_a_file_changes(tmp_path, monkeypatch):
    calls = []
    read = Source.read
    monkeypatch.setattr(Source, "read", lambda *args: calls.append(1) or read(*args))
    path = tmp_path / "data.parquet"
    write_parquet(path, two(), [0, 1])
    write_names(tmp_path)
    first = load_images("parquet", tmp_path)
    second = load_images("parquet", tmp_path)
    assert len(calls) == 1
    assert first.sha256 == second.sha256
    assert isinstance(second.images, np.memmap)
    load_images("parquet", tmp_path, ReadOptions(image_size=4))
    assert len(calls) == 2
    write_parquet(path, two((10, 21)), [0, 1])
    os.utime(path, ns=(1, 1))
    assert load_images("parquet", tmp_path).sha256 != first.sha256
    assert len(calls) == 3
    write_names(tmp_path, ("cat", "wolf"))
    assert load_images("parquet", tmp_path).class_names == ("cat", "wolf")


def test_names_from_hugging_face_dataset_info(tmp_path):
    write_parquet(tmp_path / "data.parquet", two(), [0, 1], names=["wrong", "names"])
    info = {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    assert load_images("parquet", tmp_path).class_names == ("cat", "dog")


def test_domains_from_column_and_from_folders(tmp_path):
    by_column, by_folder = tmp_path / "column", tmp_path / "folder"
    for root in (by_column, by_folder):
        write_names(root)
    write_parquet(by_column / "train.parquet", two(), [0, 1], domain=["web", "amazon"])
    images = load_images("parquet", by_column)
    assert images.domains.names == ("amazon", "web")
    assert images.domains.ids.tolist() == [1, 0]
    for name in ("web", "amazon"):
        write_parquet(by_folder / name / "train-0.parquet", two(), [0, 1])
        write_parquet(by_folder / name / "test-0.parquet", two(), [0, 1])
    images = load_images("parquet", by_folder)
    assert images.domains.names == ("amazon", "web")
    assert images.domains.ids.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert images.origin.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


# --- a split of one's own -------------------------------------------------------------------------


def write_split(root, content):
    (root / "split.json").write_text(json.dumps(content))


def test_a_split_file_replaces_the_official_one(tmp_path):
    write_names(tmp_path)
    write_parquet(tmp_path / "train.parquet", two((10, 20, 30)), [0, 1, 1])
    write_split(tmp_path, {"train": ["2.png"], "test": ["1.png", "0.png"]})
    official = load_images("parquet", tmp_path)
    images = load_images("parquet", tmp_path, ReadOptions(split="split.json"))
    assert images.origin.tolist() == [1, 1, 0]
    assert official.origin.tolist() == [0, 0, 0]
    assert np.array_equal(images.images, official.images)
    assert images.labels.tolist() == official.labels.tolist()
    assert images.sha256 != official.sha256
    write_split(tmp_path, {"web": {"train": ["2.png"], "test": []}, "phone": {
        "train": ["1.png"], "test": ["0.png"]}})  # fmt: skip
    assert load_images("parquet", tmp_path, ReadOptions(split="split.json")).origin.tolist() == [
        1,
        0,
        0,
    ]
    assert load_images("parquet", tmp_path).sha256 == official.sha256


def test_a_split_needs_unique_paths_of_images(tmp_path):
    write_names(tmp_path)
    write_parquet(tmp_path / "train.parquet", two(), [0, 1])
    refused(
        lambda: load_images("parquet", tmp_path, ReadOptions(split="../split.json")),
        "data.split=../split.json",
    )
    write_split(tmp_path, {"train": ["0.png", "1.png"], "test": []})
    write_parquet(tmp_path / "test.parquet", two(), [0, 1])
    refused(lambda: load_images("parquet", tmp_path, ReadOptions(split="split.json")), "0.png")
    for image in (pa.array([encode(filled(1))]), pa.array([{"bytes": encode(filled(1))}])):
        pq.write_table(pa.table({"image": image, "label": [0]}), tmp_path / "test.parquet")
        refused(
            lambda: load_images("parquet", tmp_path, ReadOptions(split="split.json")),
            "test.parquet, row 0",
        )


def test_lists_of_classes_and_splits_may_begin_with_a_byte_order_mark(tmp_path):
    names, split = json.dumps(["tea", "café"]), json.dumps({"train": ["1.png"], "test": ["0.png"]})
    write_parquet(tmp_path / "train.parquet", two(), [0, 1])
    (tmp_path / "dataset_info.json").write_text(f'{{"class_names": {names}}}', encoding="utf-8-sig")
    (tmp_path / "split.json").write_text(split, encoding="utf-8-sig")
    images = load_images("parquet", tmp_path, ReadOptions(split="split.json"))
    assert images.class_names == ("tea", "café")
    assert images.origin.tolist() == [1, 0]


# --- image folder --------------------------------------------------------------------------------


def fill(folder, *values):
    folder.mkdir(parents=True)
    for value in values:
        filled(value).save(folder / f"{value:03}.png")


def test_image_folder(tmp_path):
    fill(tmp_path / "dog", 30, 10)
    fill(tmp_path / "cat", 20)
    (tmp_path / "README.txt").write_text("not a class")
    images = load_images("image_folder", tmp_path)
    assert images.class_names == ("cat", "dog")
    assert images.images[:, 0, 0, 0].tolist() == [20, 10, 30]
    assert images.labels.tolist() == [0, 1, 1]
    assert images.origin.tolist() == [0, 0, 0]


def test_domain_folders(tmp_path):
    fill(tmp_path / "sketch/train/owl", 1, 2)
    fill(tmp_path / "sketch/test/owl", 3)
    fill(tmp_path / "photo/cat", 4)
    fill(tmp_path / "photo/owl", 5)
    images = load_images("domain_folder", tmp_path)
    assert images.class_names == ("cat", "owl")
    assert images.domains.names == ("photo", "sketch")
    assert images.domains.ids.tolist() == [0, 0, 1, 1, 1]
    assert images.images[:, 0, 0, 0].tolist() == [4, 5, 1, 2, 3]
    assert images.labels.tolist() == [0, 1, 1, 1, 1]
    assert images.origin.tolist() == [0, 0, 0, 0, 1]


# --- torchvision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("torchvision_cifar10", "cifar-10-batches-py"),
        ("torchvision_cifar100", "cifar-100-python"),
        ("torchvision_fashion_mnist", "FashionMNIST"),
    ],
)
def test_torchvision_does_not_download_unasked(tmp_path, name, folder):
    match = rf"data.source={name}: no files in .*{folder}.*or set data.download=true"
    with pytest.raises(UserError, match=match):
        load_images(name, tmp_path)
    with pytest.raises(UserError, match=match):
        load_images(name)


# --- real images ---------------------------------------------------------------------------------

REAL = os.environ.get("FEDRAY_DATA")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="FEDRAY_DATA does not name a folder of real images")
def test_fedglcls_own_split_of_office():
    root = Path(REAL or "") / "office_caltech10"
    if not (root / "fedglcl_split.json").is_file():
        pytest.skip("FedGLCL's split of Office-Caltech-10 is not below FEDRAY_DATA")
    images = load_images("parquet", root, ReadOptions(image_size=16, split="fedglcl_split.json"))
    official = load_images("parquet", root, ReadOptions(image_size=16))
    sizes = [np.bincount(images.origin[images.domains.ids == d]).tolist() for d in range(4)]
    assert sizes == [[766, 192], [898, 225], [125, 32], [236, 59]]  # FedGLCL, Table 6
    assert (images.origin != official.origin).sum() > 100
