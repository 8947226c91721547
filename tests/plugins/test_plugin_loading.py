"""From a file or a folder to a plug-in in use: what it is, what it registers, what goes wrong."""

from __future__ import annotations

import inspect
import pickle
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from lab import refused
from plugged import METHOD

import fedray.config.plugins as loading
from fedray.base.errors import Failure
from fedray.config import read_plugins
from fedray.config.plugins import Plugin, located, named_plugins, read_plugin, use
from fedray.core import algorithms
from fedray.runtime.resolve import from_tree

AGAIN = METHOD[METHOD.index("@method") :].replace("class Scaled", "class Again")


@pytest.fixture(autouse=True)
def none_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())
    for plugin in list(loading._loaded.values()):  # so that no test sees the modules of another
        loading._unload(plugin)


def write(path: str, text: str = "") -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return path


def load(**texts: str) -> bool:
    files = [write(f"{name}.py", text) for name, text in texts.items()]
    return use(named_plugins(files), check=True)


# --- read ----------------------------------------------------------------------------------------


def test_a_file_and_a_package_that_travels_with_all_of_it(tmp_path):
    found = read_plugin(write("mine.py", "x = 1\n"))
    assert (found.module, found.folder, found.label) == ("mine", str(tmp_path), "mine.py")
    assert found.files == {"mine.py": "x = 1\n"}
    assert found.path_of("mine.py") == str(tmp_path / "mine.py")
    files = ["pack/__init__.py", "pack/inner/__init__.py", "pack/inner/method.py", "pack/other.py"]
    for file in files:
        write(file)
    found = read_plugin("pack/inner/method.py")
    assert found.module == "pack.inner.method"
    assert sorted(found.files) == files
    assert read_plugin("pack").module == read_plugin("pack/").module == "pack"


def test_the_hash_is_of_the_text_not_of_the_place():
    first, moved = read_plugin(write("a/mine.py", "x = 1\n")), write("b/mine.py", "x = 1\n")
    assert read_plugin(moved).sha256 == first.sha256
    assert read_plugin(write("b/mine.py", "x = 2\n")).sha256 != first.sha256
    assert read_plugin(write("b/other.py", "x = 1\n")).sha256 != first.sha256
    Path("b/mine.py").write_bytes(b"x = 1\r\n")
    assert read_plugin("b/mine.py").sha256 == first.sha256


def test_a_text_that_was_edited_where_it_travels_is_refused():
    found = read_plugin(write("mine.py", "x = 1\n"))
    with pytest.raises(ValueError, match="mine"):
        replace(found, files={"mine.py": "x = 2\n"})
    refused(lambda: read_plugins([{**vars(found), "files": {"mine.py": "x = 2\n"}}]), "plugins.0")
    with pytest.raises(ValueError, match="outside"):
        Plugin("mine", "/", {"../mine.py": ""})


def test_a_relative_path_is_of_the_experiments_folder(tmp_path):
    write("sub/mine.py")
    assert located("mine.py", tmp_path / "sub") == str(tmp_path / "sub" / "mine.py")
    assert located("elsewhere.py", tmp_path / "sub") == "elsewhere.py"
    assert located("json", tmp_path) == "json"


@pytest.mark.parametrize("given", ["missing.py", "nothing_here", "my-method.py", "json.py"])
def test_what_cannot_be_a_plugin(given):
    for name in ("my-method.py", "json.py"):
        write(name)
    refused(lambda: read_plugins([given]), given.removesuffix(".py"))


def test_two_of_one_name():
    one, other = write("a/mine.py", "x = 1\n"), write("b/mine.py", "x = 2\n")
    refused(lambda: read_plugins([one, other]), "/a", "/b")
    assert len(read_plugins([one, one])) == 1


# --- in use --------------------------------------------------------------------------------------


def test_what_it_registers_is_there_while_it_is_in_use():
    load(mine=METHOD)
    first = algorithms.get("scaled")
    assert first.__module__ == "mine"
    pickled = pickle.dumps(first)
    assert len(pickled) < 100
    assert pickle.loads(pickled) is first
    use(())
    assert "scaled" not in algorithms.names()
    refused(lambda: algorithms.get("scaled"), "'scaled'")
    load(mine=METHOD)
    assert algorithms.get("scaled") is first


def test_a_file_that_was_edited_replaces_the_version_before():
    assert not load(mine=METHOD)
    first = algorithms.get("scaled")
    assert load(mine=METHOD.replace("a scaled loss", "another loss"))
    assert algorithms.get("scaled") is not first
    assert algorithms.get("scaled").__doc__ == "FedAvg with another loss."


@pytest.mark.parametrize("name", ["style", "source", "encoder", "partition", "clip", "optimizer"])
def test_a_parameter_may_be_named_like_a_component_of_the_experiment(name):
    write("mine.py", METHOD.replace("scale: LossWeight = 1.0", f'{name}: str = "plain"'))
    named_plugins(["mine.py"])
    tree = {"algorithm": "scaled", "plugins": ["mine.py"]}
    found = from_tree(tree, [(f"algorithm.{name}", "fancy")])
    assert found.algorithm.tree()[name] == "fancy"


def test_plugins_import_each_other_and_packages_themselves():
    write("pack/__init__.py", "from .inner import NAME\nimport pack.inner\n")
    write("pack/inner.py", "NAME = 'mine'\n")
    write("helpers.py", "from pack import NAME\n")
    text = METHOD.replace('"scaled"', "helpers.NAME")
    write("mine.py", text.replace("from fedray.plugin", "import helpers\nfrom fedray.plugin"))
    files = ["mine.py", "helpers.py", "pack"]
    use(named_plugins(files), check=True)
    assert "mine" in algorithms.names()
    write("helpers.py", "NAME = 'yours'\n")
    use(named_plugins(files), check=True)  # is imported anew, because its helper has changed
    assert "yours" in algorithms.names()
    assert "mine" not in algorithms.names()


def test_a_script_that_imports_its_own_method_may_name_it_too(monkeypatch):
    write("mine.py", METHOD.replace("scaled", "imported"))
    monkeypatch.syspath_prepend(".")
    import mine

    use(named_plugins(["mine.py"]), check=True)
    assert algorithms.get("imported") is sys.modules["mine"].Scaled is not mine.Scaled
    del algorithms._entries["imported"]


def test_a_traceback_and_the_source_are_those_of_the_users_file_also_where_it_is_gone(tmp_path):
    text = f"{METHOD}\n\ndef f():\n    raise ValueError('broken')  # here\n"
    line = len(text.splitlines())
    load(mine=text)
    module = sys.modules["mine"]
    Path("mine.py").unlink()
    try:
        module.f()
    except ValueError as error:
        shown, failure = traceback.format_exc(), Failure.of(error)
    assert f'File "{tmp_path}/mine.py", line {line}, in f' in shown
    assert "raise ValueError('broken')  # here" in shown
    assert failure.cause == f"ValueError: broken (mine.py, line {line})"
    assert '@method("scaled"' in inspect.getsource(algorithms.get("scaled"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = 1\ny = x + nothing\n", "line 2"),
        ("import sys\nsys.exit(3)\n", "line 2"),
        ("def f(:\n", "line 1"),
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("raise SystemError\n", "line 1"),
        (METHOD.replace('"scaled"', '"fedprox"'), "'fedprox'"),
        (METHOD + AGAIN, "'scaled'"),
        (METHOD.replace('"scaled"', '"../up"'), "mine"),
    ],
)
def test_what_does_not_import_leaves_nothing_behind(text, named):
    refused(lambda: load(mine=text), named)
    assert "mine" not in sys.modules
    assert "scaled" not in algorithms.names()
    load(mine=METHOD)
    assert "scaled" in algorithms.names()


def test_two_plugins_with_one_name_for_something():
    refused(lambda: load(mine=METHOD, other=METHOD), "other.py", "'scaled'")


def test_a_module_that_a_plugin_imports_first_is_not_the_plugins():
    """Whoever is being imported registers, not whoever imports it."""
    load(mine="from fedray.algorithms.averaging.fedprox import FedProx\n")
    use(())
    assert "fedprox" in algorithms.names()
