"""From a file or a folder to a plug-in."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fedray.base.errors import UserError
from fedray.config import read_plugins
from fedray.plugins import Plugin, located, read_plugin


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str = "") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return path


def test_a_file(tmp_path):
    found = read_plugin(write("mine.py", "x = 1\n"))
    assert (found.module, found.folder, found.label) == ("mine", str(tmp_path), "mine.py")
    assert found.files == {"mine.py": "x = 1\n"}
    assert found.path_of("mine.py") == str(tmp_path / "mine.py")


def test_a_file_in_a_package_travels_with_all_of_it():
    write("pack/__init__.py")
    write("pack/inner/__init__.py", "y = 2\n")
    write("pack/inner/method.py", "from ..other import z\n")
    write("pack/other.py", "z = 3\n")
    found = read_plugin("pack/inner/method.py")
    assert found.module == "pack.inner.method"
    assert sorted(found.files) == [
        "pack/__init__.py", "pack/inner/__init__.py", "pack/inner/method.py", "pack/other.py",
    ]  # fmt: skip
    assert read_plugin("pack").module == read_plugin("pack/").module == "pack"


def test_the_hash_is_of_the_text_not_of_the_place():
    first, moved = read_plugin(write("a/mine.py", "x = 1\n")), write("b/mine.py", "x = 1\n")
    assert read_plugin(moved).sha256 == first.sha256
    assert read_plugin(write("b/mine.py", "x = 2\n")).sha256 != first.sha256
    assert read_plugin(write("b/other.py", "x = 1\n")).sha256 != first.sha256
    crlf = write("b/mine.py")
    Path(crlf).write_bytes(b"x = 1\r\n")
    assert read_plugin(crlf).sha256 == first.sha256


def test_a_file_in_another_encoding():
    Path("mine.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    assert "é" in read_plugin("mine.py").files["mine.py"]


def test_a_text_that_was_edited_where_it_travels_is_refused():
    found = read_plugin(write("mine.py", "x = 1\n"))
    with pytest.raises(ValueError, match=r"the text of plug-in mine does not match its"):
        replace(found, files={"mine.py": "x = 2\n"})
    with pytest.raises(UserError, match=r"plugins.0: the text of plug-in mine does not match its"):
        read_plugins([{**vars(found), "files": {"mine.py": "x = 2\n"}}])


@pytest.mark.parametrize("file", ["../mine.py", "/tmp/mine.py"])
def test_a_file_stays_in_its_folder(file):
    with pytest.raises(ValueError, match=r"lies outside"):
        Plugin("mine", "/", {file: ""})


def test_a_relative_path_is_of_the_experiments_folder(tmp_path):
    write("sub/mine.py")
    assert located("mine.py", tmp_path / "sub") == str(tmp_path / "sub" / "mine.py")
    assert located("elsewhere.py", tmp_path / "sub") == "elsewhere.py"
    assert located("json", tmp_path) == "json"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("missing.py", "plug-in missing.py: {here}/missing.py does not exist"),
        ("empty/", "plug-in empty/: {here}/empty/__init__.py does not exist"),
        ("nothing_here", "the plug-in nothing_here is neither a file here nor installed"),
        ("my-method.py", "Python cannot import the name 'my-method'; rename it to 'my_method'"),
        ("what is this", "is neither a file here nor installed"),
        ("json.py", "cannot be called 'json', the name of a module of Python; rename it"),
        ("fedray.py", "cannot be called 'fedray'"),
        ("torch.py", "cannot be called 'torch', the name of a module installed as "),
        ("", "plug-in: expected a path"),
        ("latin.py", "cannot be read: "),
    ],
)
def test_what_cannot_be_a_plugin(given, message, tmp_path):
    for name in ("my-method.py", "json.py", "fedray.py", "torch.py", "pack/__init__.py"):
        write(name)
    Path("latin.py").write_bytes(b"x = '\xe9'\n")
    Path("empty").mkdir()
    with pytest.raises(UserError) as error:
        read_plugins([given])
    assert message.format(here=tmp_path) in str(error.value)


def test_a_submitted_job_hears_what_it_has(monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(UserError, match=r"has only the files below its --working-dir"):
        read_plugin("missing.py")


def test_two_of_one_name():
    one, other = write("a/mine.py", "x = 1\n"), write("b/mine.py", "x = 2\n")
    with pytest.raises(UserError, match=r"two plug-ins are called 'mine', in .*/a and in .*/b"):
        read_plugins([one, other])
    assert len(read_plugins([one, one])) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read():
    Path(write("mine.py")).chmod(0)
    with pytest.raises(UserError, match=r"plug-in .*mine.py cannot be read"):
        read_plugin("mine.py")


@pytest.mark.parametrize("given", [3, [["mine.py"]], {"module": "mine"}, {"module": "a b"}])
def test_the_key_takes_names_alone(given):
    from fedray.runtime.resolve import from_tree

    with pytest.raises(UserError, match=r"plugins"):
        from_tree({"plugins": given})
