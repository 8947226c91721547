"""fedray: federated-learning experiments with language in the loop, on Ray.

The Python API (docs/api.md); each name imports its module when it is first used:

    result = fedray.Experiment("fedtsp_digits", lr=0.1).train()
    result = fedray.load("fedray_results/runs/fedtsp_digits-...")
    result.model(client=0).predict("image.png")
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.api.experiment import Experiment
    from fedray.api.result import Result, load
    from fedray.api.studies import Sweep, SweepResult, Table, TableResult
    from fedray.api.trainable import trainable
    from fedray.base.errors import UserError

__version__ = "0.1.0"

_HOMES = {
    "Experiment": "fedray.api.experiment",
    "Result": "fedray.api.result",
    "Sweep": "fedray.api.studies",
    "SweepResult": "fedray.api.studies",
    "Table": "fedray.api.studies",
    "TableResult": "fedray.api.studies",
    "UserError": "fedray.base.errors",
    "load": "fedray.api.result",
    "trainable": "fedray.api.trainable",
}
"""The module that defines each name of the Python API."""

LIGHT = ("fedray.api.result", "fedray.base.errors")
"""The modules that do without PyTorch."""

__all__ = [
    "Experiment",
    "Result",
    "Sweep",
    "SweepResult",
    "Table",
    "TableResult",
    "UserError",
    "__version__",
    "load",
    "trainable",
]


def _leave_current_folder() -> None:
    """Remove the current folder from Python's path if `python -m fedray` has put it there.

    In the folder of a stranger, Python would import a file there in place of any module. Workers of
    a checkout that is not installed need its folder.
    """
    try:
        here = os.path.realpath(os.curdir)
    except FileNotFoundError:  # it has been removed
        return
    called = any(
        flag == "-m" and name.partition(".")[0] == __name__
        for flag, name in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    )
    is_first = bool(sys.path) and os.path.realpath(sys.path[0]) == here
    if called and is_first and here != os.path.dirname(os.path.dirname(os.path.realpath(__file__))):
        del sys.path[0]


if sys.argv[:1] == ["-m"]:  # while Python looks for the module to run
    _leave_current_folder()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedray' has no attribute '{name}'")
    if _HOMES[name] not in LIGHT and "torch" not in sys.modules:
        from fedray.base.activity import end_waiting, say_next
        from fedray.base.imports import import_quickly

        say_next("importing PyTorch")
        import_quickly("torch", _HOMES[name])
        end_waiting()
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
