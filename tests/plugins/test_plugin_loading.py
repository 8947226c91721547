"""Texts as modules: what is in use, what it registers, and what goes wrong."""

from __future__ import annotations

import inspect
import pickle
import sys
import traceback
from pathlib import Path

import pytest
from plugged import METHOD

import fedray.config.plugins as loading
from fedray.base.errors import Failure, UserError
from fedray.config.plugins import named_plugins, use
from fedray.core import algorithms
from fedray.plugin import partitions
from fedray.runtime.resolve import from_tree

AGAIN = METHOD[METHOD.index("@method") :].replace("class Scaled", "class Again")


@pytest.fixture(autouse=True)
def none_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())
    for plugin in list(loading._loaded.values()):  # so that no test sees the modules of another
        loading._unload(plugin)


def load(**texts: str) -> bool:
    for name, text in texts.items():
        Path(f"{name}.py").write_text(text)
    return use(named_plugins([f"{name}.py" for name in texts]), check=True)


def test_what_it_registers_is_there_while_it_is_in_use():
    load(mine=METHOD)
    assert algorithms.get("scaled").__module__ == "mine"
    assert "scaled" in algorithms.names()
    use(())
    assert "scaled" not in algorithms.names()
    with pytest.raises(UserError, match=r"there is no algorithm 'scaled'.*give its file with --pl"):
        algorithms.get("scaled")


@pytest.mark.parametrize("name", ["style", "source", "encoder", "partition", "clip", "optimizer"])
def test_a_parameter_may_be_named_like_a_component_of_the_experiment(name):
    Path("mine.py").write_text(METHOD.replace("scale: LossWeight = 1.0", f'{name}: str = "plain"'))
    named_plugins(["mine.py"])
    tree = {"algorithm": "scaled", "plugins": ["mine.py"]}
    found = from_tree(tree, [(f"algorithm.{name}", "fancy")])
    assert found.algorithm.tree()[name] == "fancy"
    under = from_tree({**tree, "algorithm": {"name": "scaled", name: "mild"}}, [("rounds", 1)])
    assert under.algorithm.tree()[name] == "mild"


def test_it_comes_back_as_the_same_class():
    load(mine=METHOD)
    first = algorithms.get("scaled")
    use(())
    load(mine=METHOD)
    assert algorithms.get("scaled") is first


def test_a_file_that_was_edited_replaces_the_version_before():
    assert not load(mine=METHOD)
    first = algorithms.get("scaled")
    assert load(mine=METHOD.replace("a scaled loss", "another loss"))
    assert algorithms.get("scaled") is not first
    assert algorithms.get("scaled").__doc__ == "FedAvg with another loss."


def test_what_is_defined_there_is_pickled_by_its_name():
    load(mine=METHOD)
    pickled = pickle.dumps(algorithms.get("scaled"))
    assert len(pickled) < 100
    assert pickle.loads(pickled) is algorithms.get("scaled")


def test_plugins_import_each_other_and_packages_themselves():
    Path("pack").mkdir()
    Path("pack/__init__.py").write_text("from .inner import NAME\nimport pack.inner\n")
    Path("pack/inner.py").write_text("NAME = 'mine'\n")
    Path("helpers.py").write_text("from pack import NAME\n")
    Path("mine.py").write_text(METHOD.replace('"scaled"', "helpers.NAME").replace(
        "from fedray.plugin", "import helpers\nfrom fedray.plugin"))  # fmt: skip
    files = ["mine.py", "helpers.py", "pack"]
    use(named_plugins(files), check=True)
    assert "mine" in algorithms.names()
    Path("helpers.py").write_text("NAME = 'yours'\n")
    use(named_plugins(files), check=True)  # is imported anew, because its helper has changed
    assert "yours" in algorithms.names()
    assert "mine" not in algorithms.names()


def test_a_script_that_imports_its_own_method_may_name_it_too(monkeypatch):
    Path("mine.py").write_text(METHOD.replace("scaled", "imported"))
    monkeypatch.syspath_prepend(".")
    import mine

    use(named_plugins(["mine.py"]), check=True)
    assert algorithms.get("imported") is sys.modules["mine"].Scaled is not mine.Scaled
    del algorithms._entries["imported"]


def test_the_same_text_from_another_folder_shows_that_folder(tmp_path):
    text = "def where():\n    return where.__code__.co_filename\n"
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "mine.py").write_text(text)
        use(named_plugins([str(folder / "mine.py")]))
        assert sys.modules["mine"].where() == str(folder / "mine.py")


def test_a_traceback_shows_the_users_file_and_line_also_where_it_is_gone(tmp_path):
    load(mine="def f():\n    raise ValueError('broken')  # here\n")
    module = sys.modules["mine"]
    Path("mine.py").unlink()
    try:
        module.f()
    except ValueError as error:
        text, failure = traceback.format_exc(), Failure.of(error)
    assert f'File "{tmp_path}/mine.py", line 2, in f' in text
    assert "raise ValueError('broken')  # here" in text
    assert failure.cause == "ValueError: broken (mine.py, line 2)"


def test_the_source_of_a_class_is_found_also_where_the_file_is_gone():
    load(mine=METHOD)
    Path("mine.py").unlink()
    assert '@method("scaled"' in inspect.getsource(algorithms.get("scaled"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x + nothing\n", "NameError: name 'nothing' is not defined (mine.py, line 2)"),
        ("import sys\nsys.exit(3)\n", "does not import: SystemExit: 3 (mine.py, line 2)"),
        ("def f(:\n", "(mine.py, line 1)"),
        ("import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
        ("raise SystemError\n", "plug-in mine.py does not import: SystemError (mine.py, line 1)"),
        (
            METHOD.replace('"scaled"', '"fedprox"'),
            "plug-in mine.py registers the algorithm 'fedprox', which already exists",
        ),
        (METHOD + AGAIN, "two algorithms are called 'scaled'"),
        (METHOD.replace('"scaled"', '"../up"'), "has no valid name"),
    ],
)
def test_what_does_not_import_leaves_nothing_behind(text, message):
    with pytest.raises(UserError) as error:
        load(mine=text)
    assert message in str(error.value)
    assert "mine" not in sys.modules
    assert "scaled" not in algorithms.names()
    load(mine=METHOD)
    assert "scaled" in algorithms.names()


def test_two_plugins_with_one_name_for_something():
    with pytest.raises(
        UserError, match=r"plug-in other.py registers the algorithm 'scaled', .*in m"
    ):
        load(mine=METHOD, other=METHOD)


def test_plugins_without_what_is_asked_for():
    load(mine="x = 1\n")
    with pytest.raises(UserError, match=r"The plug-ins in use register no partition."):
        partitions.get("mine")


def test_a_module_that_a_plugin_imports_first_is_not_the_plugins():
    """Whoever is being imported registers, not whoever imports it."""
    load(mine="from fedray.algorithms.averaging.fedprox import FedProx\n")
    use(())
    assert "fedprox" in algorithms.names()
