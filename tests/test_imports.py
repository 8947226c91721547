"""Imports without garbage collection."""

import gc

import pytest

from fedray.base.imports import import_quickly


def test_garbage_is_collected_again_after_imports():
    import_quickly("json", "colorsys")
    assert gc.isenabled()


def test_and_after_an_import_that_fails():
    with pytest.raises(ImportError):
        import_quickly("json", "no_such_module")
    assert gc.isenabled()
