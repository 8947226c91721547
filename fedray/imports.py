"""Imports of large libraries without garbage collection, which takes a fifth of PyTorch's time."""

import gc
from importlib import import_module


def import_quickly(*modules: str) -> None:
    """Import modules, and exempt their objects from garbage collection, at exit, too."""
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.enable()
        gc.freeze()
