"""The papers' data sets in their public layouts: right, or refused; and their names."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from image_files import encode, filled, write_aircraft, write_table
from lab import refused, refused_command

from fedray.cli.main import main
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TEST, TRAIN, VALIDATION
from fedray.data.inspect import source_for
from fedray.data.known import ids_among, known_sets, recognise
from fedray.data.sources import load_images
from fedray.language.names import check_words, load_names
from fedray.language.styles import Plain

TINY = "tiny_imagenet"


class Expected(NamedTuple):
    """What a run gets: the source, words of its refusal, or its classes and images by split."""

    source: str
    refused: str = ""
    classes: Sequence[str] = ()
    images: tuple[int, int, int] = (0, 0, 0)
    domains: Sequence[str] = ()
    options: dict[str, Any] = {}  # noqa: RUF012


def words(name: str) -> list[str]:
    return list(known_sets()[name].classes)


def ids() -> list[str]:
    """Tiny-ImageNet's WordNet ids, in the order of its classes."""
    return [alias for alias in known_sets()[TINY].aliases if alias[1:].isdigit()]


def size_of(name: str) -> tuple[int, int]:
    return known_sets()[name].image_size or (8, 8)


def picture(path: Path, number: int, size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "JPEG" if path.suffix == ".JPEG" else "PNG"
    path.write_bytes(encode(filled(number % 256, size), kind))


def folders(root: Path, names: Sequence[str], size: tuple[int, int], **splits: int) -> None:
    """Class folders below split folders; each class has as many images as the split says."""
    for split, images in splits.items():
        for label, name in enumerate(names):
            for i in range(images):
                picture(root / split / name / f"{i}.png", label + i, size)


def hub(file: Path, names: Sequence[str], size: tuple[int, int], images: int, **columns: Any):
    """One parquet file as the hub has it."""
    image, label = columns.pop("image", "image"), columns.pop("label", "label")
    labels = list(range(len(names))) * images
    encoded = [
        {"bytes": encode(filled(n % 256, size)), "path": f"{i}"} for i, n in enumerate(labels)
    ]
    features = {label: {"names": list(names), "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    write_table(file, {image: encoded, label: labels, **columns}, about)


# --- sets without domains ------------------------------------------------------------------------


def cifar_pickles(root: Path, name: str) -> Expected:
    from torchvision.datasets import CIFAR10, CIFAR100

    dataset, key = {"cifar10": (CIFAR10, "labels"), "cifar100": (CIFAR100, "fine_labels")}[name]
    classes, folder = words(name), root / dataset.base_folder
    folder.mkdir()
    for batch, _ in dataset.train_list + dataset.test_list:
        content = {"data": np.zeros((len(classes), 3072), np.uint8), key: list(range(len(classes)))}
        content |= {} if name == "cifar10" else {"coarse_labels": [0] * len(classes)}
        (folder / batch).write_bytes(pickle.dumps(content))
    (folder / dataset.meta["filename"]).write_bytes(pickle.dumps({dataset.meta["key"]: classes}))
    train = len(dataset.train_list) * len(classes)
    return Expected(f"torchvision_{name}", "", classes, (train, 0, len(classes)))


def idx(root: Path, name: str) -> Expected:
    folder = root / "FashionMNIST/raw"
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        head = np.array([2051, 10, 28, 28], ">i4").tobytes()
        (folder / f"{split}-images-idx3-ubyte").write_bytes(head + bytes(7840))
        head = np.array([2049, 10], ">i4").tobytes()
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(head + bytes(range(10)))
    return Expected("torchvision_fashion_mnist", "", words(name), (10, 0, 10))


HUB = {
    "cifar10": {"image": "img"},
    "cifar100": {"image": "img", "label": "fine_label"},
    "fashion_mnist": {},
}
MISSPELT = {"crab": "cra", "T-shirt/top": "T - shirt / top"}
"""Spellings of the hub."""


def hub_set(root: Path, name: str) -> Expected:
    names = [MISSPELT.get(word, word) if name != "cifar10" else word for word in words(name)]
    for split, images in (("train", 2), ("test", 1)):
        coarse = {"coarse_label": [0] * 100 * images} if name == "cifar100" else {}
        file = root / f"c/{split}-00000-of-00001.parquet"
        hub(file, names, size_of(name), images, **HUB[name], **coarse)
    return Expected("parquet", "", words(name), (2 * len(names), 0, len(names)))


def folder_set(root: Path, name: str) -> Expected:
    """Class folders, in which no name can have a slash."""
    spelled = {word.replace("/", "_"): word for word in words(name)}
    folders(root, list(spelled), size_of(name), train=2, test=1)
    expected = [spelled[folder] for folder in sorted(spelled)]
    return Expected("image_folder", "", expected, (2 * len(spelled), 0, len(spelled)))


def missing_shard(root: Path, name: str) -> Expected:
    for split in ("train-00000-of-00002", "test-00000-of-00001"):
        hub(root / f"c/{split}.parquet", words(name), size_of(name), 1)
    return Expected("parquet", "train-00001-of-00002")


def two_revisions(root: Path, name: str) -> Expected:
    for revision in ("0b27", "2ad8"):
        for split in ("train", "test"):
            file = root / f"snapshots/{revision}/c/{split}-00000-of-00001.parquet"
            hub(file, words(name), size_of(name), 1)
    return Expected("parquet", "2 revisions")


def tiny_archive(root: Path, name: str) -> Expected:
    """As it is downloaded: training images below images/, validation images in one folder."""
    for i, wordnet in enumerate(ids()):
        picture(root / f"train/{wordnet}/images/{wordnet}_0.JPEG", i, size_of(TINY))
    for split in ("val", "test"):
        picture(root / f"{split}/images/{split}_0.JPEG", 0, size_of(TINY))
    return Expected("image_folder", "no image")


def tiny_sorted(root: Path, name: str) -> Expected:
    """Validation images sorted into class folders, as PFLlib's users have them."""
    folders(root, ids(), size_of(TINY), train=2, val=1)
    return Expected("image_folder", "", words(TINY), (400, 0, 200))


def tiny_flattened(root: Path, name: str) -> Expected:
    """Flattened training images beside val/images, without the list."""
    folders(root, ids(), size_of(TINY), train=1)
    picture(root / "val/images/0.JPEG", 0, size_of(TINY))
    return Expected("image_folder", "images")


def tiny_hub(root: Path, name: str) -> Expected:
    for split, images in (("train", 2), ("valid", 1)):
        hub(root / f"data/{split}-00000-of-00001-1359597a.parquet", ids(), size_of(TINY), images)
    return Expected("parquet", "", words(TINY), (400, 0, 200))


# --- domains -------------------------------------------------------------------------------------


def domain_paths(
    root: Path, name: str, spelling: Callable[[str, str], str] = lambda domain, word: word
) -> dict[str, list[str]]:
    """Write two images of every class and domain; return the paths of each domain."""
    paths: dict[str, list[str]] = {}
    for domain in known_sets()[name].domains:
        for label, word in enumerate(words(name)):
            for i in range(2):
                path = f"{domain}/{spelling(domain, word)}/{i}.png"
                picture(root / path, label, size_of(name))
                paths.setdefault(domain, []).append(path)
    return paths


def of_domains(name: str, train: int, test: int, source: str = "domain_folder", **options: Any):
    there = known_sets()[name]
    count = len(there.domains) * len(there.classes)
    images = (train * count, 0, test * count)
    return Expected(source, "", there.classes, images, there.domains, options)


def domain_set(root: Path, name: str) -> Expected:
    domain_paths(root, name)
    return of_domains(name, 2, 0)


def by_domain(root: Path, name: str) -> Expected:
    """Mug in one domain, 003.mug in another, back_pack in a third."""
    spelled = {"amazon": str.title, "dslr": "003.{}".format, "webcam": str.lower}
    domain_paths(root, name, lambda domain, word: spelled.get(domain, back_pack)(word))
    return of_domains(name, 2, 0)


def back_pack(word: str) -> str:
    return word.replace("backpack", "back_pack")


def fedbn(root: Path, name: str) -> Expected:
    """FedBN's copy, with its pickles of paths and labels."""
    for domain, paths in domain_paths(root, name, lambda _, word: back_pack(word)).items():
        for part, start in (("train", 0), ("test", 1)):
            chosen = paths[start::2]
            labels = np.array([path.split("/")[1] for path in chosen], dtype=object)
            lists = np.array([f"{root.name}/{path}" for path in chosen]), labels
            (root / f"{domain}_{part}.pkl").write_bytes(pickle.dumps(lists))
    return of_domains(name, 1, 1, split="lists")


def official_lists(root: Path, name: str) -> Expected:
    """DomainNet's lists, of which each line is a path and a label, with classes beyond the ten."""
    for domain, paths in domain_paths(root, name).items():
        more = f"{domain}/aircraft_carrier/0.png"
        picture(root / more, 0)
        for part, start in (("train", 0), ("test", 1)):
            lines = [more] * (part == "train") + paths[start::2]
            (root / f"{domain}_{part}.txt").write_text("".join(f"{line} 3\n" for line in lines))
    return of_domains(name, 1, 1, split="lists", classes=tuple(words(name)))


def trunks(root: Path, name: str) -> Expected:
    """DomainNet's older archive of paintings."""
    domain_paths(root, name)
    (root / "painting").rename(root.with_name("gone"))
    folders(root / "painting", ["trunk01", "trunk02"], (8, 8), train=1)
    return Expected("domain_folder", "painting")


def hub_texts(root: Path, name: str, column: Callable[[int, str], Any] = lambda i, d: d):
    """One parquet file with a column of domains: texts."""
    domains = known_sets()[name].domains
    values = [column(i, domain) for i, domain in enumerate(domains) for _ in words(name)]
    file = root / "data/train-00000-of-00001.parquet"
    hub(file, words(name), size_of(name), len(domains), domain=values)
    return of_domains(name, 1, 0, "parquet")


def hub_numbers(root: Path, name: str) -> Expected:
    hub_texts(root, name, lambda i, domain: i)
    return Expected("parquet", "domain 0")


def hub_folders(root: Path, name: str) -> Expected:
    """A folder of parquet files for each domain."""
    for domain in known_sets()[name].domains:
        for split in ("train", "test"):
            hub(root / f"{domain}/{split}-00000-of-00001.parquet", words(name), (8, 8), 1)
    return of_domains(name, 1, 1, "parquet")


def dassl_pacs(root: Path, name: str) -> Expected:
    """Dassl's PACS, with lists that nothing here reads."""
    domain_paths(root / "images", name)
    return Expected("domain_folder", "image")


# --- CoOp's layout -------------------------------------------------------------------------------


def coop_set(root: Path, name: str) -> Expected:
    there = known_sets()[name]
    assert there.coop is not None
    folder = root / there.folder
    split: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for i, part in enumerate(("train", "train", "val", "test")):
        picture(folder / there.coop.images / f"class_{i % 2}" / f"{i}.png", i)
        split[part].append([f"class_{i % 2}/{i}.png", i % 2, ("grand_piano", "emu")[i % 2]])
    (folder / there.coop.split).write_text(json.dumps(split))
    return Expected("coop", "", ["grand piano", "emu"], (2, 1, 1))


def without_split(root: Path, name: str) -> Expected:
    coop_set(root, name)
    there = known_sets()[name]
    (root / there.folder / there.coop.split).unlink()
    return Expected("coop", f"fedray get {name}")


def aircraft(root: Path, name: str) -> Expected:
    """FGVC-Aircraft, with its official lists."""
    write_aircraft(root / name)
    return Expected("coop", "", ["707-320", "Cessna 172"], (2, 2, 2))


LAYOUTS: list[tuple[str, Callable[[Path, str], Expected]]] = [
    ("cifar10", cifar_pickles),
    ("cifar100", cifar_pickles),
    ("fashion_mnist", idx),
    *((name, make) for name in HUB for make in (hub_set, folder_set)),
    ("cifar10", missing_shard),
    ("cifar10", two_revisions),
    (TINY, tiny_archive),
    (TINY, tiny_sorted),
    (TINY, tiny_hub),
    (TINY, tiny_flattened),
    ("office_caltech10", by_domain),
    ("office_caltech10", fedbn),
    ("office_caltech10", hub_folders),
    ("domainnet", domain_set),
    ("domainnet", fedbn),
    ("domainnet", official_lists),
    ("domainnet", hub_numbers),
    ("domainnet", trunks),
    ("pacs", domain_set),
    ("pacs", hub_texts),
    ("pacs", dassl_pacs),
    ("fgvc_aircraft", aircraft),
    *((n, coop_set) for n, there in known_sets().items() if there.coop and n != "fgvc_aircraft"),
    ("caltech101", without_split),
]
"""Every data set in the layouts that are public."""


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch):
    """Files of CIFAR with other checksums than the whole ones."""
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)


@pytest.mark.parametrize(("name", "make"), LAYOUTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_public_layout_is_right_or_refused_by_run_and_data(tmp_path, name, make):
    root = tmp_path / known_sets()[name].folder
    root.mkdir()
    expected = make(root, name)
    if expected.source == "coop":
        root = root / known_sets()[name].folder
    options = ReadOptions(**expected.options)
    if expected.refused:
        refused(lambda: load_images(expected.source, root, options), expected.refused)
        refused(lambda: load_images(source_for(root), root))
        return
    images = load_images(expected.source, root, options)
    assert list(images.class_names) == list(expected.classes)
    counts = [int((images.origin == origin).sum()) for origin in (TRAIN, VALIDATION, TEST)]
    assert tuple(counts) == expected.images
    assert np.bincount(images.labels).min() == np.bincount(images.labels).max()
    assert images.shape[:0:-1] == size_of(name)
    assert (images.domains and images.domains.names) == (tuple(expected.domains) or None)
    assert source_for(root) == expected.source


# --- names ---------------------------------------------------------------------------------------


def test_other_names_are_said(tmp_path):
    hub_set(tmp_path, "cifar100")
    assert "CIFAR-100" in load_images("parquet", tmp_path).about


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
    domain_paths(tmp_path, "office_caltech10", lambda _, word: back_pack(word))
    for name in ("back_pack", "backpack"):
        images = load_images("domain_folder", tmp_path, ReadOptions(classes=(name, "mug")))
        assert images.class_names == ("backpack", "mug")
        assert len(images) == 16


def test_lists_that_would_run_code_or_lack_a_part_are_refused(tmp_path):
    fedbn(tmp_path, "office_caltech10")

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    def load(source: str = "domain_folder", root: Path = tmp_path) -> None:
        load_images(source, root, ReadOptions(split="lists"))

    (tmp_path / "amazon_test.pkl").write_bytes(pickle.dumps((Harm(), [])))
    refused(load, "amazon_test.pkl")
    assert not (tmp_path / "harm").exists()
    (tmp_path / "amazon_test.pkl").unlink()
    refused(load, "data.split=lists", "amazon_test.pkl")
    refused(lambda: load("image_folder", tmp_path / "amazon"), "_test.pkl")


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
        refused(lambda: check_words(names, "give others"), found[0])
    else:
        check_words(names, "")


@pytest.mark.parametrize(
    ("name", "keys", "remedy"),
    [
        ("fedglcl_digits", ["text.style=plain", "model.group=cnn4"], "text.names"),
        ("promptfl_clip", [], "rename the classes"),
    ],
)
@pytest.mark.slow
def test_a_method_with_texts_refuses_names_that_are_no_words(tmp_path, capsys, name, keys, remedy):
    folders(tmp_path / "mnist", ["0", "1", "2"], (32, 32), train=12, test=4)
    keys = [*keys, "data.source=image_folder", f"data.root={tmp_path}/mnist", "data.clients=2"]
    keys += ["rounds=1", "data.samples=null", "data.partition=iid"]
    words = ["run", name, *keys, "--executor", "serial", "--no-track", "--out", f"{tmp_path}/out"]
    refused_command(words, capsys, "0, 1, 2", remedy)


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
    spelled = dict(zip(ids(), words(TINY), strict=True))
    for name, word in (("n01443537", "goldfish"), ("n02123045", "tabby"), ("n12267677", "acorn")):
        assert spelled[name] == word


def test_coops_layout_is_inspected(tmp_path, capsys):
    coop_set(tmp_path, "caltech101")
    picture(tmp_path / "caltech-101/101_ObjectCategories/BACKGROUND_Google/0.png", 0)
    main(["data", str(tmp_path / "caltech-101"), "data.clients=2"])  # too few images to divide
    out = capsys.readouterr().out
    for said in ("data.source=coop", "4 images of 2 classes", "BACKGROUND_Google"):
        assert said in out
