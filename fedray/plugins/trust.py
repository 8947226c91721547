"""Trust in plug-ins: a text runs only if this user has named its file or run it before.

The folder of a run contains the texts of its plug-ins, and even commands that only read the folder
(`fedray show`, `fedray predict`) must run them. Such a text runs only if this user has run the same
text before, agrees at a terminal, or passes `--trust`. The hashes of texts that have run are stored
in `~/.config/fedray/trusted_plugins`. Ray actors do not ask, since their driver has asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fedray.activity import end_waiting
from fedray.errors import UserError
from fedray.plugins.plugin import Plugin
from fedray.storage.files import expanded

_trusted: set[str] = set()
"""SHA-256 of the texts that this process may run."""
_trusts_all = False


def _file() -> Path:
    """Return the file of hashes, in $FEDRAY_CONFIG or ~/.config/fedray."""
    return expanded(os.environ.get("FEDRAY_CONFIG") or "~/.config/fedray", "FEDRAY_CONFIG") / (
        "trusted_plugins"
    )


def trust(plugins: Iterable[Plugin]) -> None:
    """Let this process run plug-ins whose files the user has named."""
    _trusted.update(plugin.sha256 for plugin in plugins)


def trust_all(trusts: bool = True) -> None:
    """Let this process run every plug-in, as `--trust` does; with False, ask again from now on."""
    global _trusts_all
    _trusts_all = trusts


def check_trusted(plugins: Iterable[Plugin], path_of: Callable[[Plugin], str]) -> None:
    """Ask the user about plug-in texts that this user has never run.

    Args:
        plugins: the plug-ins to check.
        path_of: returns a file with the text of a plug-in, for the user to read.

    Raises:
        UserError: if the user refuses, or cannot be asked.
    """
    unknown = [new for new in plugins if new.is_shipped and new.sha256 not in _trusted]
    if not unknown or _is_ray_actor():
        return
    recorded = _recorded()
    for plugin in unknown:
        if plugin.sha256 not in recorded and not _trusts_all:
            _ask(plugin, path_of(plugin))
        _trusted.add(plugin.sha256)


def record(plugin: Plugin) -> None:
    """Record that this user has run a plug-in's text, so that later commands do not ask."""
    if not plugin.is_shipped or _is_ray_actor() or plugin.sha256 in _recorded():
        return
    with suppress(OSError):  # without the record, the next command asks again
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write(f"{plugin.sha256}\n")


def _ask(plugin: Plugin, path: str) -> None:
    question = (
        f"plug-in {plugin.label} came with files that your account did not make, and would run "
        f"with all your permissions (its text: {path})"
    )
    if sys.stdin.isatty() and sys.stderr.isatty():
        end_waiting()
        print(f"{question}\nRun it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise UserError(
        f"{question}; read it, then pass --trust, or call fedray.plugins.trust_all() in Python"
    )


def _recorded() -> set[str]:
    try:
        return set(_file().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def _is_ray_actor() -> bool:
    """Return True in a Ray actor, whose driver has already asked."""
    ray = sys.modules.get("ray")
    return (
        ray is not None
        and ray.is_initialized()
        and ray.get_runtime_context().get_actor_id() is not None
    )
