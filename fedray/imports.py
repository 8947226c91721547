"""Imports of large libraries without garbage collection, which takes a fifth of PyTorch's time."""

import concurrent.futures.thread  # noqa: F401  registers a lock at fork; never in a thread
import gc
from importlib import import_module


def import_quickly(*modules: str) -> None:
    """Import modules without garbage collection, which finds nothing meanwhile."""
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.enable()
