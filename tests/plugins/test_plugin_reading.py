"""From a file or a folder to a plug-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedray.base.errors import UserError
from fedray.config import read_plugins
from fedray.config.plugins import Plugin, located, read_plugin


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
        ("nothing_here", "the plug-in nothing_here is neither a file here nor installed"),
        ("my-method.py", "Python cannot import the name 'my-method'; rename it to 'my_method'"),
        ("json.py", "cannot be called 'json', the name of a module of Python; rename it"),
    ],
)
def test_what_cannot_be_a_plugin(given, message, tmp_path):
    for name in ("my-method.py", "json.py"):
        write(name)
    with pytest.raises(UserError) as error:
        read_plugins([given])
    assert message.format(here=tmp_path) in str(error.value)


def test_two_of_one_name():
    one, other = write("a/mine.py", "x = 1\n"), write("b/mine.py", "x = 2\n")
    with pytest.raises(UserError, match=r"two plug-ins are called 'mine', in .*/a and in .*/b"):
        read_plugins([one, other])
    assert len(read_plugins([one, one])) == 1
