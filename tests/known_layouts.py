"""The papers' data sets, small, in the layouts in which they are public.

Every builder fills a folder and returns what `data.source` reads it and what must come out: the
words of the classes, and the numbers of training, validation and test images; or the reason of a
refusal.
"""

from __future__ import annotations

import gzip
import json
import pickle
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from image_files import encode, filled, write_aircraft, write_table

from fedray.data.known import known_sets

Split = dict[str, int]
"""Images of a class (and domain) by the name of the split's folder or file."""


class Expected(NamedTuple):
    """What a run gets: the source, its refusal, or its classes and images of each split."""

    source: str
    refused: str = ""
    classes: Sequence[str] = ()
    images: tuple[int, int, int] = (0, 0, 0)
    size: tuple[int, int] = (8, 8)
    options: dict[str, Any] = {}  # noqa: RUF012
    domains: Sequence[str] = ()


def words(name: str) -> list[str]:
    return list(known_sets()[name].classes)


def ids() -> list[str]:
    """Tiny-ImageNet's WordNet ids, in the order of its classes."""
    return [alias for alias in known_sets()["tiny_imagenet"].aliases if alias[1:].isdigit()]


def stored(name: str) -> tuple[int, int]:
    return known_sets()[name].image_size or (8, 8)


def picture(number: int, size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    return encode(filled(number % 256, size), kind)


def folders(root: Path, names: Sequence[str], size: tuple[int, int], **splits: int) -> None:
    """Class folders below split folders; each class has as many images as the split says."""
    for split, images in splits.items():
        for label, name in enumerate(names):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(images):
                (folder / f"{i}.png").write_bytes(picture(label + i, size))


def hub(file: Path, names: Sequence[str], size: tuple[int, int], images: int, **columns: Any):
    """One parquet file as the hub has it."""
    image, label = columns.pop("image", "image"), columns.pop("label", "label")
    labels = list(range(len(names))) * images
    encoded = [{"bytes": picture(one, size), "path": f"{i}.png"} for i, one in enumerate(labels)]
    features = {label: {"names": list(names), "_type": "ClassLabel"}, **columns.pop("features", {})}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    write_table(file, {image: encoded, label: labels, **columns}, about)


def packed(root: Path, name: str) -> None:
    """The set as downloaded, not unpacked."""
    with zipfile.ZipFile(root / name, "w") as archive:
        archive.writestr("a/b.png", picture(1))


def saved_to_disk(root: Path) -> None:
    """The files of datasets' save_to_disk."""
    for split in ("train", "test"):
        (root / split).mkdir()
        (root / split / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")
        (root / split / "state.json").write_text("{}")
    (root / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


# --- CIFAR and Fashion-MNIST ---------------------------------------------------------------------


def cifar_pickles(root: Path, name: str) -> Expected:
    from torchvision.datasets import CIFAR10, CIFAR100

    dataset, key = {"cifar10": (CIFAR10, "labels"), "cifar100": (CIFAR100, "fine_labels")}[name]
    classes = words(name)
    folder = root / dataset.base_folder
    folder.mkdir()
    for batch, _ in dataset.train_list + dataset.test_list:
        labels = list(range(len(classes)))
        content = {"data": np.zeros((len(classes), 3072), np.uint8), key: labels}
        content |= {} if name == "cifar10" else {"coarse_labels": [0] * len(classes)}
        (folder / batch).write_bytes(pickle.dumps(content))
    (folder / dataset.meta["filename"]).write_bytes(pickle.dumps({dataset.meta["key"]: classes}))
    train = len(dataset.train_list) * len(classes)
    return Expected(f"torchvision_{name}", "", classes, (train, 0, len(classes)), (32, 32))


def idx(root: Path, *, gz: bool = False) -> Expected:
    folder = root / "FashionMNIST/raw"
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        head = np.array([2051, 10, 28, 28], ">i4").tobytes()
        files = {
            f"{split}-images-idx3-ubyte": head + bytes(7840),
            f"{split}-labels-idx1-ubyte": np.array([2049, 10], ">i4").tobytes() + bytes(range(10)),
        }
        for name, content in files.items():
            if gz:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    source = "torchvision_fashion_mnist"
    if gz:
        return Expected(source, "FashionMNIST/raw")
    return Expected(source, "", words("fashion_mnist"), (10, 0, 10), (28, 28))


def hub_set(root: Path, name: str, spelled: Sequence[str], **more: Any) -> Expected:
    """Parquet files of the hub, with their own spelling of the classes."""
    for split, images in (("train", 2), ("test", 1)):
        columns = {key: value * images for key, value in more.pop("columns", {}).items()}
        hub(
            root / f"c/{split}-00000-of-00001.parquet",
            spelled,
            stored(name),
            images,
            **more,
            **columns,
        )
    counts = (2 * len(spelled), 0, len(spelled))
    return Expected("parquet", "", words(name), counts, stored(name))


def misspelt(name: str) -> list[str]:
    other = {"cifar100": {"crab": "cra"}, "fashion_mnist": {"T-shirt/top": "T - shirt / top"}}
    return [other.get(name, {}).get(word, word) for word in words(name)]


def folder_set(root: Path, name: str) -> Expected:
    """Class folders, in which no name can have a slash."""
    spelled = [word.replace("/", "_") for word in words(name)]
    folders(root, spelled, stored(name), train=2, test=1)
    expected = [word for _, word in sorted(zip(spelled, words(name), strict=True))]
    return Expected("image_folder", "", expected, (2 * len(spelled), 0, len(spelled)), stored(name))


def missing_shard(root: Path, name: str) -> Expected:
    for split in ("train-00000-of-00002", "test-00000-of-00001"):
        hub(root / f"c/{split}.parquet", words(name), stored(name), 1)
    return Expected("parquet", "c/train-00001-of-00002 is missing")


def two_revisions(root: Path, name: str) -> Expected:
    for revision in ("0b27", "2ad8"):
        for split in ("train", "test"):
            file = root / f"snapshots/{revision}/c/{split}-00000-of-00001.parquet"
            hub(file, words(name), stored(name), 1)
    return Expected("parquet", "holds 2 revisions of a data set, 0b27 and 2ad8 in snapshots/")


def of_save_to_disk(root: Path) -> Expected:
    saved_to_disk(root)
    return Expected("parquet", "no .*.parquet file below")


def as_archive(root: Path, source: str, archive: str) -> Expected:
    packed(root, archive)
    return Expected(source, "no files in|contains no folder|holds no images")


# --- Tiny-ImageNet -------------------------------------------------------------------------------

TINY = "tiny_imagenet"


def tiny_archive(root: Path) -> Expected:
    for i, name in enumerate(ids()):
        (root / f"train/{name}/images").mkdir(parents=True)
        (root / f"train/{name}/{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t62\t62\n")
        for j in range(2):
            path = root / f"train/{name}/images/{name}_{j}.JPEG"
            path.write_bytes(picture(i, stored(TINY), "JPEG"))
    for split in ("val", "test"):
        (root / split / "images").mkdir(parents=True)
        for i in range(200):
            path = root / f"{split}/images/{split}_{i}.JPEG"
            path.write_bytes(picture(i, stored(TINY), "JPEG"))
    (root / "wnids.txt").write_text("\n".join(ids()))
    return Expected("image_folder", "contains no image")


def tiny_sorted(root: Path) -> Expected:
    """Validation images sorted into class folders, as PFLlib's users have them."""
    folders(root, ids(), stored(TINY), train=2, val=1)
    return Expected("image_folder", "", words(TINY), (400, 0, 200), (64, 64))


def tiny_flattened(root: Path) -> Expected:
    """Flattened training images beside val/images, without the list."""
    folders(root, ids(), stored(TINY), train=1)
    for split in ("val", "test"):
        (root / split / "images").mkdir(parents=True)
        (root / split / "images/0.JPEG").write_bytes(picture(0, stored(TINY), "JPEG"))
    return Expected("image_folder", "images: only test images, no image to train on")


def tiny_hub(root: Path) -> Expected:
    for split, images in (("train", 2), ("valid", 1)):
        hub(root / f"data/{split}-00000-of-00001-1359597a.parquet", ids(), stored(TINY), images)
    return Expected("parquet", "", words(TINY), (400, 0, 200), (64, 64))


# --- domains -------------------------------------------------------------------------------------


def domain_folders(
    root: Path, name: str, spelling: Callable[[str, str], str], without: str = ""
) -> dict[str, list[str]]:
    """Two images of every class and domain; the paths of each domain."""
    paths: dict[str, list[str]] = {}
    for domain in known_sets()[name].domains:
        if domain == without:
            continue
        for label, word in enumerate(words(name)):
            folder = root / domain / spelling(domain, word)
            folder.mkdir(parents=True)
            for i in range(2):
                (folder / f"{i}.png").write_bytes(picture(label, stored(name)))
                paths.setdefault(domain, []).append(f"{domain}/{folder.name}/{i}.png")
    return paths


def plain(domain: str, word: str) -> str:
    return word


def back_pack(domain: str, word: str) -> str:
    return word.replace("backpack", "back_pack")


def by_domain(domain: str, word: str) -> str:
    """Mug in one domain, 003.mug in another."""
    return {"amazon": word.title(), "dslr": f"003.{word}"}.get(domain, word)


def of_domains(name: str, images: tuple[int, int, int], source: str = "domain_folder") -> Expected:
    there = known_sets()[name]
    return Expected(source, "", words(name), images, stored(name), {}, there.domains)


def domain_set(root: Path, name: str, spelling: Callable[[str, str], str] = plain) -> Expected:
    domain_folders(root, name, spelling)
    return of_domains(name, (2 * len(known_sets()[name].domains) * len(words(name)), 0, 0))


def fedbn(root: Path, name: str, spelling: Callable[[str, str], str] = plain) -> Expected:
    """FedBN's copy, with its pickles of paths and labels."""
    for domain, paths in domain_folders(root, name, spelling).items():
        for part, start in (("train", 0), ("test", 1)):
            chosen = [f"{root.name}/{path}" for path in paths[start::2]]
            labels = [path.split("/")[2] for path in chosen]
            lists = np.array(chosen), np.array(labels, dtype=object)
            (root / f"{domain}_{part}.pkl").write_bytes(pickle.dumps(lists))
    half = len(known_sets()[name].domains) * len(words(name))
    return of_domains(name, (half, 0, half))._replace(options={"split": "lists"})


def official_lists(root: Path, name: str) -> Expected:
    """DomainNet's lists, of which each line is a path and a label, with classes beyond the ten."""
    for domain in known_sets()[name].domains:
        (root / domain / "aircraft_carrier").mkdir(parents=True)
        (root / domain / "aircraft_carrier/0.png").write_bytes(picture(0))
    for domain, paths in domain_folders(root, name, plain).items():
        more = [f"{domain}/aircraft_carrier/0.png 0"]
        for part, start in (("train", 0), ("test", 1)):
            lines = more * (part == "train") + [f"{path} 3" for path in paths[start::2]]
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    options = {"split": "lists", "classes": tuple(words(name))}
    half = len(known_sets()[name].domains) * len(words(name))
    return of_domains(name, (half, 0, half))._replace(options=options)


def trunks(root: Path) -> Expected:
    """DomainNet's older archive of paintings."""
    domain_folders(root, "domainnet", plain, without="painting")
    folders(root / "painting", ["trunk01", "trunk02"], (8, 8), train=1)
    return Expected("domain_folder", "the domain painting of DomainNet has none of the classes")


def hub_domains(root: Path, name: str, *, integers: bool) -> Expected:
    """One parquet file with a column of domains: texts (PACS), or numbers."""
    domains, classes = known_sets()[name].domains, words(name)
    numbers = [i for i in range(len(domains)) for _ in classes]
    column = numbers if integers else [domains[i] for i in numbers]
    file = root / "data/train-00000-of-00001.parquet"
    hub(file, classes, stored(name), len(domains), domain=column)
    if integers:
        return Expected("parquet", "the domain 0 is no string")
    return of_domains(name, (len(domains) * len(classes), 0, 0), "parquet")


def hub_office(root: Path) -> Expected:
    """A folder of parquet files for each domain."""
    for domain in known_sets()["office_caltech10"].domains:
        for split in ("train", "test"):
            hub(
                root / f"{domain}/{split}-00000-of-00001.parquet",
                words("office_caltech10"),
                (8, 8),
                1,
            )
    return of_domains("office_caltech10", (40, 0, 40), "parquet")


def dassl_pacs(root: Path) -> Expected:
    """Dassl's PACS, with lists that nothing here reads."""
    domain_folders(root / "images", "pacs", plain)
    (root / "splits").mkdir()
    (root / "splits/photo_train_kfold.txt").write_text("photo/dog/0.png 1\n")
    return Expected("domain_folder", "contains no (folder of images|image)")


# --- CoOp's layout -------------------------------------------------------------------------------


def coop_set(root: Path, name: str) -> Expected:
    there = known_sets()[name]
    assert there.coop is not None
    folder = root / there.folder
    split: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for i, part in enumerate(("train", "train", "val", "test")):
        path = folder / there.coop.images / f"class_{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(i))
        split[part].append([f"class_{i % 2}/{i}.png", i % 2, ("grand_piano", "emu")[i % 2]])
    (folder / there.coop.split).write_text(json.dumps(split))
    return Expected("coop", "", ["grand piano", "emu"], (2, 1, 1))


def coop_without_split(root: Path, name: str) -> Expected:
    coop_set(root, name)
    there = known_sets()[name]
    assert there.coop is not None
    (root / there.folder / there.coop.split).unlink()
    return Expected("coop", f"{there.coop.split} is missing; get it with: fedray get {name}")


COOP = [name for name, there in known_sets().items() if there.coop and name != "fgvc_aircraft"]


def aircraft(root: Path) -> Expected:
    """FGVC-Aircraft, with its official lists."""
    write_aircraft(root / "fgvc_aircraft")
    return Expected("coop", "", ["707-320", "Cessna 172"], (2, 2, 2))


LAYOUTS: dict[tuple[str, str], Callable[[Path], Expected]] = {
    **{
        (name, "pickles"): (lambda root, name=name: cifar_pickles(root, name))
        for name in ("cifar10", "cifar100")
    },
    ("fashion_mnist", "unpacked"): idx,
    ("fashion_mnist", "packed files"): lambda root: idx(root, gz=True),
    ("cifar10", "hub parquet"): lambda root: hub_set(
        root, "cifar10", words("cifar10"), image="img"
    ),
    ("cifar100", "hub parquet"): lambda root: hub_set(
        root,
        "cifar100",
        misspelt("cifar100"),
        image="img",
        label="fine_label",
        columns={"coarse_label": [0] * 100},
    ),
    ("fashion_mnist", "hub parquet"): lambda root: hub_set(
        root, "fashion_mnist", misspelt("fashion_mnist")
    ),
    **{
        (name, layout): (lambda root, name=name, build=build: build(root, name))
        for name in ("cifar10", "cifar100", "fashion_mnist")
        for layout, build in (
            ("folders", folder_set),
            ("a shard is missing", missing_shard),
            ("hub cache of two revisions", two_revisions),
        )
    },
    **{
        (name, "save_to_disk"): of_save_to_disk for name in ("cifar10", "cifar100", "fashion_mnist")
    },
    ("cifar10", "archive"): lambda root: as_archive(
        root, "torchvision_cifar10", "cifar-10-python.tar.gz"
    ),
    ("cifar100", "archive"): lambda root: as_archive(
        root, "torchvision_cifar100", "cifar-100-python.tar.gz"
    ),
    (TINY, "archive"): lambda root: as_archive(root, "image_folder", "tiny-imagenet-200.zip"),
    (TINY, "archive, unpacked"): tiny_archive,
    (TINY, "folders"): tiny_sorted,
    (TINY, "hub parquet"): tiny_hub,
    (TINY, "flattened beside val/images"): tiny_flattened,
    ("office_caltech10", "archive"): lambda root: as_archive(
        root, "domain_folder", "office_caltech_10_dataset.zip"
    ),
    ("office_caltech10", "folders"): lambda root: domain_set(root, "office_caltech10", back_pack),
    ("office_caltech10", "folders, spelled by domain"): lambda root: domain_set(
        root, "office_caltech10", by_domain
    ),
    ("office_caltech10", "FedBN's pickles"): lambda root: fedbn(
        root, "office_caltech10", back_pack
    ),
    ("office_caltech10", "parquet"): hub_office,
    ("domainnet", "archive"): lambda root: as_archive(root, "domain_folder", "clipart.zip"),
    ("domainnet", "folders"): lambda root: domain_set(root, "domainnet"),
    ("domainnet", "FedBN's pickles"): lambda root: fedbn(root, "domainnet"),
    ("domainnet", "official lists"): lambda root: official_lists(root, "domainnet"),
    ("domainnet", "hub parquet"): lambda root: hub_domains(root, "domainnet", integers=True),
    ("domainnet", "older paintings"): trunks,
    ("pacs", "archive"): lambda root: as_archive(root, "domain_folder", "PACS.zip"),
    ("pacs", "folders"): lambda root: domain_set(root, "pacs"),
    ("pacs", "hub parquet"): lambda root: hub_domains(root, "pacs", integers=False),
    ("pacs", "Dassl's lists"): dassl_pacs,
    ("fgvc_aircraft", "lists"): aircraft,
    **{
        (name, layout): (lambda root, name=name, build=build: build(root, name))
        for name in COOP
        for layout, build in (("lists", coop_set), ("without the split", coop_without_split))
    },
}
"""Every data set in every layout that is public."""
