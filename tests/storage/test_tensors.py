"""Trees of tensors: all comes back from files and bytes, what is cut or changed is refused."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from fedray.errors import UserError
from fedray.storage.tensors import read_tree, tree_from_bytes, tree_to_bytes, write_tree
from fedray.trees import leaves

BASE = torch.arange(12.0).reshape(3, 4)
TREE = {
    "z": torch.randn(3, 5),
    "a": {"b/c": torch.tensor([True, False]), "h": torch.randn(3).half(), "nothing": {}},
    "a/b": {"c": torch.tensor(7), "b": torch.randn(2).bfloat16()},
    "empty": torch.zeros(0, 4),
    "views": {"rows": BASE[1:], "columns": BASE.T, "again": BASE},
    "double": torch.tensor(0.1, dtype=torch.float64),
}


@pytest.mark.parametrize("kind", ["file", "bytes"])
def test_everything_comes_back_in_its_order(tmp_path, kind):
    if kind == "file":
        write_tree(tmp_path / "tree", TREE)
        found = read_tree(tmp_path / "tree")
    else:
        found = tree_from_bytes(tree_to_bytes(TREE))
    before, after = dict(leaves(TREE)), dict(leaves(found))
    assert list(found) == list(TREE)
    assert list(after) == list(before)
    for path, tensor in before.items():
        assert after[path].dtype == tensor.dtype
        assert torch.equal(after[path], tensor)


def test_a_file_and_bytes_are_the_same(tmp_path):
    write_tree(tmp_path / "tree", TREE)
    assert (tmp_path / "tree").read_bytes() == tree_to_bytes(TREE)


def test_a_file_is_plain_safetensors_that_others_may_read(tmp_path):
    write_tree(tmp_path / "tree", {"model": {"w": BASE}})
    assert torch.equal(load_file(tmp_path / "tree")["model/w"], BASE)
    (tmp_path / "plain").touch()
    assert (tmp_path / "tree").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_to_write_to_what_was_read_changes_no_file(tmp_path):
    write_tree(tmp_path / "tree", {"w": BASE})
    read_tree(tmp_path / "tree")["w"].fill_(9)
    assert torch.equal(read_tree(tmp_path / "tree")["w"], BASE)


def test_what_was_read_is_mapped(tmp_path):
    write_tree(tmp_path / "tree", {"w": torch.zeros(10**6)})
    found = read_tree(tmp_path / "tree")
    with open("/proc/self/maps") as maps:
        assert str(tmp_path / "tree") in maps.read()
    assert float(found["w"].sum()) == 0


@pytest.mark.parametrize("cut", [0, 3, 20, 1000])
def test_a_cut_file_is_refused(tmp_path, cut):
    path = tmp_path / "tree"
    write_tree(path, {"w": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"tree is damaged"):
        read_tree(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"tree is damaged \(it is missing\)"):
        read_tree(tmp_path / "tree")
