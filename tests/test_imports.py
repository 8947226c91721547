"""Imports without garbage collection."""

import gc
import subprocess
import sys

import pytest

from fedray.imports import import_quickly


def test_garbage_is_collected_again_after_imports():
    import_quickly("json", "colorsys")
    assert gc.isenabled()


def test_and_after_an_import_that_fails():
    with pytest.raises(ImportError):
        import_quickly("json", "no_such_module")
    assert gc.isenabled()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fedray.cli.run", "fedray.cli.study", "fedray"])
def test_a_command_can_say_something_before_large_libraries_are_imported(module):
    code = f"import sys, {module}; print({{'torch', 'ray', 'mlflow'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
