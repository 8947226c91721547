"""Trust in plug-ins: text from a folder runs only after a yes.

Files that the user names, with `--plugin` or in an experiment of his own, run without a question.
Where the text of a run's or study's folder would run (to resume, repeat or predict), the user
agrees at a terminal or passes `--trust`. Nothing is remembered after the process. Ray actors do
not ask, since their driver has asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fedray.activity import end_waiting
from fedray.errors import UserError
from fedray.plugins.plugin import Plugin

_trusted: set[str] = set()
"""SHA-256 of the texts that this process may run."""
_trusts_all = False


def trust(plugins: Iterable[Plugin]) -> None:
    """Let this process run plug-ins whose files the user has named."""
    _trusted.update(plugin.sha256 for plugin in plugins)


def trust_all(trusts: bool = True) -> None:
    """Let this process run every plug-in, as `--trust` does; with False, ask again from now on."""
    global _trusts_all
    _trusts_all = trusts


def check_trusted(plugins: Iterable[Plugin]) -> None:
    """Ask the user about plug-ins that he has not named.

    Raises:
        UserError: if the user refuses, or cannot be asked.
    """
    unknown = [new for new in plugins if new.is_shipped and new.sha256 not in _trusted]
    if unknown and not _is_ray_actor():
        for plugin in unknown:
            if not _trusts_all:
                _ask(plugin)
        trust(unknown)


def _ask(plugin: Plugin) -> None:
    question = (
        f"the plug-in {plugin.label} comes from a folder, and would run with all your permissions "
        "(its text: plugins in run.json)"
    )
    if sys.stdin.isatty() and sys.stderr.isatty():
        end_waiting()
        print(f"{question}\nRun it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise UserError(
        f"{question}; read it, then pass --trust, or your own file with --plugin (in Python: "
        "fedray.plugins.trust_all())"
    )


def _is_ray_actor() -> bool:
    """Return True in a Ray actor, whose driver has already asked."""
    ray = sys.modules.get("ray")
    return (
        ray is not None
        and ray.is_initialized()
        and ray.get_runtime_context().get_actor_id() is not None
    )
