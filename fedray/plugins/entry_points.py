"""Installed plug-ins: modules of distributions with an entry point in `fedray.plugins`.

Their text is not sent to workers; they must be installed on every node. An experiment records the
version and hash of the installed plug-ins that it uses.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

from fedray.base.errors import UserError
from fedray.plugins.plugin import Plugin, hash_of
from fedray.registry import installed_points, search_path


def is_installed(module: str) -> bool:
    """Return True if a module belongs to an entry point of an installed distribution.

    Any other module, even of an installed package, runs only if the user names it: the folder of a
    stranger could name every module on Python's path.
    """
    top = module.partition(".")[0]
    return any(point.module.partition(".")[0] == top for point in installed_points())


def installed_plugin(module: str) -> Plugin:
    """Return an installed module as a plug-in, with its version and the hash of its package."""
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, search_path()) if is_installed(module) else None
    if spec is None:
        raise UserError(
            f"the plug-in {module} is not installed here: no installed package has it as an entry "
            "point fedray.plugins; install its package, or pass its file with --plugin"
        )
    locations = list(spec.submodule_search_locations or [])
    root = Path(locations[0]).parent if locations else Path(str(spec.origin)).parent
    paths = sorted((root / top).rglob("*.py")) or [root / f"{top}.py"]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes().decode("utf-8", errors="replace")
        for path in paths
        if path.is_file()
    }
    dists = (p.dist for p in installed_points() if p.module.partition(".")[0] == top and p.dist)
    version = next((str(dist.version) for dist in dists), "")
    return Plugin(module, str(root), version=version, sha256=hash_of(module, files))


def check_version(plugin: Plugin) -> None:
    """Raise a UserError if the installed version of a plug-in is not the experiment's."""
    installed = installed_plugin(plugin.module)
    if installed.sha256 != plugin.sha256:
        raise UserError(
            f"the plug-in {plugin.module} that is installed here (version "
            f"{installed.version or '?'}, hash {installed.sha256[:12]}) is not that of the "
            "experiment (version "
            f"{plugin.version or '?'}, hash {plugin.sha256[:12]}); install the same one"
        )
