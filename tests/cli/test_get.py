"""`fedray get`: what arrives is whole, checked, and where experiments look."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import zipfile

import pytest
from commands import get, run
from image_files import described, encode, filled, structs, write_table
from serving import serving

from fedray.cli import get as module
from fedray.data import downloads
from fedray.data.downloads import Origin, OriginFile
from fedray.data.known import Split, known_sets
from fedray.runtime.assembly import read_images
from fedray.runtime.resolve import resolve

DOMAINS = ("amazon", "caltech", "dslr", "webcam")


@pytest.fixture
def origin(tmp_path, monkeypatch):
    """A server that also stands in for the hub, with empty folders for data and weights."""
    from huggingface_hub import constants

    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving() as server:
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


def describe(monkeypatch, **changes):
    """Describe one set only, "tiny"."""
    tiny = known_sets()["office_caltech10"].model_copy(
        update={"name": "tiny", "source": "image_folder", "folder": "tiny", "class_count": 2,
                "images": Split(train=4, test=2), **changes}
    )  # fmt: skip
    monkeypatch.setattr(module, "known_sets", lambda: {"tiny": tiny})
    return tiny


def zipped(top="set/", count=2, extra=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for split, images in (("train", count), ("test", 1)):
            for name in ("cat", "dog"):
                for i in range(images):
                    content = encode(filled(10 * i, (40, 40)), "BMP")
                    archive.writestr(f"{top}{split}/{name}/{i}.bmp", content)
        for name in extra:
            archive.writestr(name, b"x")
    return buffer.getvalue()


def file_of(origin, content, path="/set.zip", **changes):
    origin.files[path] = content
    digest = f"md5:{hashlib.md5(content).hexdigest()}"
    return OriginFile(
        url=origin.url + path,
        **{"unpack": True, "top": "set", "checksum": digest, "bytes": len(content), **changes},
    )


def office(monkeypatch, origin, *files):
    return describe(monkeypatch, origin=Origin(page=origin.url, files=files))


@pytest.mark.slow
def test_a_set_is_fetched_checked_and_put_in_place(origin, tmp_path, monkeypatch, capsys):
    office(monkeypatch, origin, file_of(origin, zipped()))
    assert get(["tiny"]) == 0
    said = capsys.readouterr().out
    assert "licence: not stated" in said
    assert "6 images of 2 classes" in said
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["tiny"]
    assert len(list((tmp_path / "data/tiny").rglob("*.bmp"))) == 6
    origin.files.clear()
    assert get(["tiny"]) == 0  # what is there is only counted
    assert "6 images of 2 classes" in capsys.readouterr().out
    assert get([]) == 0
    assert "here" in capsys.readouterr().out


@pytest.mark.slow
def test_a_connection_that_breaks_off_is_resumed(origin, tmp_path, monkeypatch):
    office(monkeypatch, origin, file_of(origin, zipped()))
    monkeypatch.setattr(downloads, "_CHUNK", 1_000)
    origin.breaks = [10_000, 5_000]
    assert [get(["tiny"]) for _ in range(3)] == [2, 2, 0]
    assert origin.ranges == [None, "bytes=10000-", "bytes=15000-"]


@pytest.mark.slow
def test_a_killed_download_goes_on(origin, tmp_path, monkeypatch):
    content = zipped()
    office(monkeypatch, origin, file_of(origin, content))
    stage = tmp_path / "data/tiny.part"
    stage.mkdir(parents=True)
    (stage / "set.zip.part").write_bytes(content[:7_000])
    assert get(["tiny"]) == 0
    assert origin.ranges == ["bytes=7000-"]


@pytest.mark.slow
def test_a_complete_part_without_a_known_size(origin, tmp_path, monkeypatch):
    content = zipped()
    office(monkeypatch, origin, file_of(origin, content, bytes=None))
    stage = tmp_path / "data/tiny.part"
    stage.mkdir(parents=True)
    (stage / "set.zip.part").write_bytes(content)
    assert get(["tiny"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("key", ["checksum", "bytes"])
def test_a_wrong_file_is_removed(origin, tmp_path, monkeypatch, capsys, key):
    wrong = {"checksum": f"md5:{'0' * 32}", "bytes": 7}[key]
    office(monkeypatch, origin, file_of(origin, zipped(), **{"checksum": None, key: wrong}))
    assert get(["tiny"]) == 2
    assert "expected" in capsys.readouterr().err
    assert not (tmp_path / "data/tiny").exists()
    assert not list((tmp_path / "data/tiny.part").glob("set*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["refuses", "silent"])
def test_no_network_is_an_answer(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(downloads, "_SECONDS", (3.0, 0.3))
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/set.zip"
    if kind == "refuses":
        listening.close()
    describe(monkeypatch, origin=Origin(page=url, files=(OriginFile(url=url, unpack=True),)))
    assert get(["tiny"]) == 2
    said = capsys.readouterr().err
    assert f"{url} cannot be fetched" in said
    assert f"put set.zip into {tmp_path / 'data/tiny.part'}" in said
    listening.close()


@pytest.mark.slow
def test_a_page_is_not_the_file_and_what_a_browser_fetched_is(
    origin, tmp_path, monkeypatch, capsys
):
    origin.files["/page"] = b"<html>too large to scan</html>"
    by_hand = OriginFile(url=f"{origin.url}/page", saved_as="set.zip", unpack=True, top="set")
    office(monkeypatch, origin, by_hand)
    assert get(["tiny"]) == 2
    assert f"with a browser into {tmp_path / 'data/tiny.part'}" in capsys.readouterr().err
    (tmp_path / "data/tiny.part/set.zip").write_bytes(zipped())
    assert get(["tiny"]) == 0
    assert "no checksum is known" in capsys.readouterr().out


@pytest.mark.slow
def test_a_set_with_too_few_images(origin, tmp_path, monkeypatch, capsys):
    office(monkeypatch, origin, file_of(origin, zipped(count=1)))
    assert get(["tiny"]) == 2
    assert "has 4 images of 2 classes, but" in capsys.readouterr().err
    assert not (tmp_path / "data/tiny").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../evil", "/evil", "set/../../evil", "set\\..\\evil"])
def test_an_archive_that_leads_out_of_its_folder(origin, tmp_path, monkeypatch, name):
    office(monkeypatch, origin, file_of(origin, zipped(extra=[name])))
    get(["tiny"])
    assert not [path for path in tmp_path.rglob("evil") if "tiny" not in path.parts]


def test_links_out_of_a_tar_are_refused(tmp_path):
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("set/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(downloads.UserError, match="cannot be unpacked"):
        downloads.unpack(tmp_path / "set.tar.gz", tmp_path / "out", "set")


def test_an_archive_of_something_else(tmp_path):
    (tmp_path / "set.zip").write_bytes(zipped(top="other/"))
    with pytest.raises(downloads.UserError, match="no folder set"):
        downloads.unpack(tmp_path / "set.zip", tmp_path / "out", "set")


def test_a_torn_archive(tmp_path):
    (tmp_path / "set.zip").write_bytes(zipped()[:-30])
    with pytest.raises(downloads.UserError, match="cannot be unpacked"):
        downloads.unpack(tmp_path / "set.zip", tmp_path / "out")


def test_an_unknown_name(capsys):
    assert get(["cifar1O"]) == 2
    assert "cifar10" in capsys.readouterr().err


def test_data_needs_a_folder(monkeypatch, capsys):
    monkeypatch.delenv("FEDRAY_DATA", raising=False)
    assert get(["cifar10"]) == 2
    assert "FEDRAY_DATA is not set" in capsys.readouterr().err


# --- the hub --------------------------------------------------------------------------------------


def parquet_bytes(tmp_path, names, count, column="img"):
    labels = [i % len(names) for i in range(count)]
    images = structs([encode(filled(i, (32, 32))) for i in range(count)])
    file = tmp_path / "made.parquet"
    write_table(file, {column: images, "label": labels}, described(names))
    return file.read_bytes()


@pytest.fixture
def cifar10(origin, tmp_path, monkeypatch):
    """A small CIFAR-10 on the hub."""
    whole = known_sets()["cifar10"]
    small = whole.model_copy(update={"images": Split(train=40, test=20)})
    monkeypatch.setattr(module, "known_sets", lambda: {"cifar10": small})
    origin.hub["datasets/uoft-cs/cifar10"] = {
        "README.md": b"about",
        "plain_text/train-00000-of-00001.parquet": parquet_bytes(tmp_path, whole.classes, 40),
        "plain_text/test-00000-of-00001.parquet": parquet_bytes(tmp_path, whole.classes, 20),
    }
    return origin


@pytest.mark.slow
def test_the_papers_experiment_finds_what_was_fetched(cifar10, tmp_path, capsys):
    assert run(["fedtsp_cifar10_paper"]) == 2
    assert "fedray get cifar10" in capsys.readouterr().err
    assert get(["cifar10"]) == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["cifar10"]
    images = read_images(resolve("fedtsp_cifar10_paper").data)
    assert (len(images.labels), images.class_names) == (60, known_sets()["cifar10"].classes)


@pytest.mark.slow
def test_a_file_that_differs_from_the_hubs_checksum(cifar10, tmp_path, capsys):
    cifar10.lies = True
    assert get(["cifar10"]) == 2
    assert "differs from its checksum" in capsys.readouterr().err
    assert not list((tmp_path / "data").rglob("*.parquet"))
    cifar10.lies = False
    assert get(["cifar10"]) == 0


@pytest.mark.slow
def test_a_hub_download_that_was_killed_goes_on(cifar10, tmp_path, monkeypatch, capsys):
    import huggingface_hub

    real = huggingface_hub.HfApi.snapshot_download

    def killed(api, repo, *, allow_patterns, **options):
        real(api, repo, allow_patterns=allow_patterns[:1], **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub.HfApi, "snapshot_download", killed)
    assert get(["cifar10"]) == 130
    assert not (tmp_path / "data/cifar10").exists()
    monkeypatch.setattr(huggingface_hub.HfApi, "snapshot_download", real)
    cifar10.ranges.clear()
    assert get(["cifar10"]) == 0
    assert len(cifar10.ranges) == 1  # the first file was kept


@pytest.mark.slow
def test_weights_land_where_they_are_looked_for(origin, tmp_path, capsys):
    origin.hub["timm/vit_base_patch16_clip_224.openai"] = {
        "open_clip_model.safetensors": b"weights",
        "open_clip_config.json": b"{}",
        "pytorch_model.bin": b"not needed",
    }
    assert get(["clip-vit-b16"]) == 0
    folder = next((tmp_path / "hub").glob("models--timm--*/snapshots/*"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "open_clip_config.json",
        "open_clip_model.safetensors",
    ]
    origin.hub.clear()
    assert get(["clip-vit-b16"]) == 0  # without asking
    assert "is in" in capsys.readouterr().out


@pytest.mark.slow
def test_pickled_weights_only_where_there_are_no_others(origin, tmp_path):
    origin.hub["bert-base-uncased"] = dict.fromkeys(
        ("config.json", "vocab.txt", "pytorch_model.bin", "tf_model.h5"), b"{}"
    )
    assert get(["bert"]) == 0
    folder = next((tmp_path / "hub").glob("models--bert-base-uncased/snapshots/*"))
    assert len(list(folder.iterdir())) == 3
    next(folder.glob("vocab.txt")).unlink()  # as after an interruption
    assert get(["bert"]) == 0
    assert len(list(folder.iterdir())) == 3


@pytest.mark.slow
def test_a_hub_out_of_reach(tmp_path, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    assert get(["clip-vit-b16"]) == 2
    assert "cannot be fetched from" in capsys.readouterr().err


def test_the_list(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    assert get([]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["cifar10"].split()[1] == "here"
    assert rows["pacs"].split()[1] == "-"
    assert "  package " in rows["minilm"]
