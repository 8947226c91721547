"""Plug-in texts that may run without a question: those that this user has named or run before.

A run's folder carries the texts of its plug-ins, and commands that only look at it (`fedray show`,
`fedray predict`) have to run them. So a text that came with a folder runs only if this user has
run the same text before, agrees at a terminal, or passes `--trust`. The hashes of texts that ran
are kept in `~/.config/fedray/trusted_plugins`. Ray actors do not ask: their driver has.
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

_trusted: set[str] = set()
"""SHA-256 of the texts that this process may run."""
_trusts_all = False


def _file() -> Path:
    """Return the file of hashes, in $FEDRAY_CONFIG or ~/.config/fedray."""
    return Path(os.environ.get("FEDRAY_CONFIG") or "~/.config/fedray").expanduser() / (
        "trusted_plugins"
    )


def trust(plugins: Iterable[Plugin]) -> None:
    """Let this process run these plug-ins, because the user has named their files."""
    _trusted.update(plugin.sha256 for plugin in plugins)


def trust_all(trusts: bool = True) -> None:
    """Let this process run every plug-in, as `--trust` does; False: ask again from now on."""
    global _trusts_all
    _trusts_all = trusts


def check_trusted(plugins: Iterable[Plugin], path_of: Callable[[Plugin], str]) -> None:
    """Ask the user about texts that this user has never run.

    Raises:
        UserError: if the user says no, or cannot be asked.
    """
    unknown = [each for each in plugins if each.is_shipped and each.sha256 not in _trusted]
    if not unknown or _is_ray_actor():
        return
    recorded = _recorded()
    for plugin in unknown:
        if plugin.sha256 not in recorded and not _trusts_all:
            _ask(plugin, path_of(plugin))
        _trusted.add(plugin.sha256)


def record(plugin: Plugin) -> None:
    """Remember that this user runs a plug-in's text, so that nobody asks again."""
    if not plugin.is_shipped or _is_ray_actor() or plugin.sha256 in _recorded():
        return
    with suppress(OSError):  # without the record the next command asks
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write(f"{plugin.sha256}\n")


def _ask(plugin: Plugin, path: str) -> None:
    what = (
        f"plug-in {plugin.label} came with files that were not made with this account's fedray, "
        f"and would run here with all your rights (its text: {path})"
    )
    if sys.stdin.isatty() and sys.stderr.isatty():
        end_waiting()
        print(f"{what}\nRun it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise UserError(
        f"{what}; read it, then pass --trust, or call fedray.plugins.trust_all() in Python"
    )


def _recorded() -> set[str]:
    try:
        return set(_file().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def _is_ray_actor() -> bool:
    """Return True in an actor of Ray, whose driver has asked about what it sends."""
    ray = sys.modules.get("ray")
    return (
        ray is not None
        and ray.is_initialized()
        and ray.get_runtime_context().get_actor_id() is not None
    )
