"""The start of commands that train on Ray."""

from __future__ import annotations

import threading

from fedray.base.imports import import_quickly


def import_while_ray_starts(*, trials: bool = False) -> None:
    """Start a local Ray, and import large libraries in a thread meanwhile; each takes two seconds.

    Args:
        trials: whether a study's runs follow, which need Ray Tune.

    Raises:
        FedrayError: if Ray does not start.
    """
    libraries = ["torch", *(["fedray.studies.tune"] if trials else [])]
    importing = threading.Thread(target=import_quickly, args=libraries, daemon=True)
    importing.start()
    from fedray.runtime.cluster import connect

    connect()
    importing.join()
