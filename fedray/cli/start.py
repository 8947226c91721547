"""The start of commands that train."""

from __future__ import annotations

import os
import threading

from fedray.base.activity import say_next
from fedray.base.imports import import_quickly
from fedray.command import is_program


def load_libraries(what: str, *, on_ray: bool, trials: bool = False) -> None:
    """Import large libraries, which takes seconds, while a local Ray starts if it is needed.

    Args:
        what: what is read next, for the message.
        on_ray: whether the command uses Ray.
        trials: whether a study's runs follow, which need Ray Tune.

    Raises:
        FedrayError: if Ray does not start.
    """
    starts = on_ray and is_program() and not os.environ.get("RAY_ADDRESS")
    say_next(f"importing PyTorch, {'starting Ray, ' * starts}reading {what}")
    if starts:
        _import_while_ray_starts("torch", *["fedray.studies.tune"] * trials)
    else:
        import_quickly("torch")


def _import_while_ray_starts(*libraries: str) -> None:
    importing = threading.Thread(target=import_quickly, args=libraries, daemon=True)
    importing.start()
    from fedray.runtime.cluster import connect

    connect()
    importing.join()
