"""Where files lie, what they may be called, and that they are there whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from pydantic import BaseModel

from fedray.base.errors import UserError
from fedray.storage.files import (
    cache_folder,
    check_name,
    file_name,
    new_place,
    parse_typed,
    read_regular,
    read_text,
    read_typed,
    replace_whole,
    write_atomic,
    write_json,
    write_rows,
)


def test_default_cache_folder(monkeypatch):
    monkeypatch.delenv("FEDRAY_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(cache_folder()) == "/home/somebody/.cache/fedray"


# --- written whole or not at all ---------------------------------------------------------------


@pytest.mark.parametrize("broken", ["open", "write", "fsync", "replace"])
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch, broken):
    path = tmp_path / "run.json"
    write_atomic(path, "before")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    real = Path.open

    class Half:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            self.file.write(text[: len(text) // 2])
            fail()

    if broken == "write":
        monkeypatch.setattr(Path, "open", lambda *a, **k: Half(real(*a, **k)))
    elif broken == "open":
        monkeypatch.setattr(Path, "open", fail)
    else:
        monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "after " * 1000)
    monkeypatch.undo()
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    assert path.read_text() == "before"


def test_a_number_that_is_none_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "run.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_table_for_other_programs(tmp_path):
    write_rows(tmp_path / "a.csv", [["key", "value"], ["a, b", 'c "d"'], ["two\nlines", 0.1]])
    assert (tmp_path / "a.csv").read_bytes() == (
        b'key,value\r\n"a, b","c ""d"""\r\n"two\nlines",0.1\r\n'
    )


def test_runs_that_begin_in_the_same_second_get_different_folders(tmp_path):
    assert len({new_place(tmp_path, "mine") for _ in range(9)}) > 1


# --- names and paths ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("", " a", "a\nb", "a\0b", "\udcff", "../../escape", "a\\b", "C:x", ".", ".."),
        *(".hidden", "-rf", "~root", "\u00e9" * 51),
    ],
)
def test_names_that_no_file_is_made_of(name):
    with pytest.raises(UserError, match="cannot be the name of a file"):
        check_name(name)


@pytest.mark.parametrize("name", ["fedtsp_digits", "λ 7", "a.b-c+d=e", "x" * 100])
def test_names_that_files_are_made_of(name, tmp_path):
    assert check_name(name) == name
    (tmp_path / f"{name}-20260101-000000").mkdir()


def test_any_text_as_part_of_a_file_s_name(tmp_path):
    for text in ("../../escape", "a/b\0c\n", "x" * 300, "é" * 300, "algorithm.lambda=7"):
        path = tmp_path / f"trial_{file_name(text)}"
        path.mkdir()
        assert path.resolve().parent == tmp_path
    assert file_name("algorithm.lambda=7,tau=0.1") == "algorithm.lambda=7,tau=0.1"


# --- users' JSON -------------------------------------------------------------------------------


class Listed(BaseModel, extra="forbid"):
    names: list[str]
    labels: dict[str, int] = {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is not valid JSON: Expecting value"),
        ("{", "is not valid JSON: Expecting property name"),
        ("[" * 100_000, "is not valid JSON: it is nested too deeply"),
        ("1" * 5000, "is not valid JSON: Exceeds the limit"),
        ("\0" * 64, "is not valid JSON"),
        ('{"names": [], "names": []}', "is not valid JSON: the key 'names' occurs twice"),
        ("[1]", ": input should be an object, found [1]"),
        ("{}", ": names: field required, found {}"),
        ('{"names": ["a", 1]}', ": names.1: input should be a valid string, found 1"),
        ('{"names": "ab"}', ": names: input should be a valid array, found 'ab'"),
        ('{"names": [], "labels": {"a": "2"}}', ": labels.a: input should be a valid integer"),
        ('{"names": [], "name": 1}', ": name: extra inputs are not permitted, found 1"),
        ('{"names": [1, 2, 3]}', ": names.0: input should be a valid string, found 1"),
    ],
)
def test_json_that_holds_something_else_is_one_sentence(tmp_path, text, wrong):
    path = tmp_path / "names.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_typed(path, Listed, "text.names: the file", "expected names")
    said = str(caught.value)
    assert said.removeprefix(f"text.names: the file {path}").lstrip().startswith(wrong.lstrip())
    assert said.endswith("; expected names")
    assert "\n" not in said


def test_json_is_read_as_its_type():
    assert parse_typed('{"names": ["a"], "labels": {"a": 1}}', Listed, "here", "") == Listed(
        names=["a"], labels={"a": 1}
    )
    assert parse_typed("[[1, 2]]", list[tuple[int, int]], "here", "") == [(1, 2)]
    with pytest.raises(UserError, match=r"here: 0: input should be .* integer, found '1'"):
        parse_typed('["1"]', list[int], "here", "")


def test_a_byte_order_mark_is_passed_over(tmp_path):
    content = '["caf\u00e9", "\u732b"]'.encode("utf-8-sig")
    (tmp_path / "names.json").write_bytes(content)
    assert read_typed(tmp_path / "names.json", list[str], "the file", "") == ["café", "猫"]
    assert read_text(tmp_path / "names.json", "the file", 100) == '["café", "猫"]'
    assert parse_typed(content, list[str], "the text", "") == ["café", "猫"]


@pytest.mark.parametrize("content", [b"\xff\xfea\0", b"caf\xe9"])
def test_other_encodings_are_refused(tmp_path, content):
    (tmp_path / "names.json").write_bytes(content)
    with pytest.raises(UserError, match=r"the file .*names.json cannot be read: 'utf-"):
        read_typed(tmp_path / "names.json", list[str], "the file", "")


def test_threads_that_write_one_file_have_their_own_temporary_files(tmp_path):
    names = []
    with ThreadPoolExecutor(4) as threads:
        barrier = Barrier(4)

        def write(temporary):
            barrier.wait(200)
            names.append(temporary.name)
            temporary.write_text("whole")
            barrier.wait(200)

        done = [threads.submit(replace_whole, tmp_path / "one", write) for _ in range(4)]
    assert [each.exception() for each in done] == [None] * 4
    assert len(set(names)) == 4


# --- files that are none --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a pipe"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "it"
    if kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
        path = path if "link" in kind else tmp_path / "pipe"
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular(path)
    with pytest.raises(UserError, match=rf"the file {path} cannot be read: "):
        read_text(path, "the file", 100)


def test_a_file_is_measured_before_it_is_read(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, expected at most 1,073,7"):
        read_regular(tmp_path / "large")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_text(tmp_path / "none", "the file", 100)
