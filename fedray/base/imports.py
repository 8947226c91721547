"""Quick imports of large libraries, and the folders of installed packages."""

import concurrent.futures.thread  # noqa: F401  registers a lock at fork; never in a thread
import gc
import sys
import sysconfig
from importlib import import_module
from pathlib import Path


def import_quickly(*modules: str) -> None:
    """Import modules without garbage collection, which takes a fifth of PyTorch's time."""
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.enable()


def site_folders() -> list[str]:
    """Return the folders of installed packages."""
    paths = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    user = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return list(dict.fromkeys([*paths, *user]))
