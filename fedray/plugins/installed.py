"""Plug-ins that are installed: modules of distributions with an entry point `fedray.plugins`.

Their text does not travel: they are on every node, or a run there says which one is not. What an
experiment names of them is recorded with version and hash.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from fedray.errors import UserError
from fedray.plugins.plugin import Plugin, hash_of
from fedray.registry import installed_points


def site_folders() -> list[str]:
    """Where packages are installed."""
    paths = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    user = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return list(dict.fromkeys([*paths, *user]))


def is_installed(module: str) -> bool:
    """Whether a module is one of those that an installed package registers, or lies among them."""
    top = module.partition(".")[0]
    if any(point.module.partition(".")[0] == top for point in installed_points()):
        return True
    return PathFinder.find_spec(top, site_folders()) is not None


def installed_plugin(module: str) -> Plugin:
    """An installed module with its version and the hash of its package's texts.

    Raises:
        UserError: when it is not installed here.
    """
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, sys.path)
    if spec is None:
        raise UserError(f"the plug-in {module} is not installed here; install its package")
    locations = list(spec.submodule_search_locations or [])
    root = Path(locations[0]).parent if locations else Path(str(spec.origin)).parent
    files = {path.relative_to(root).as_posix(): _text(path) for path in sorted(_files(root, top))}
    return Plugin(module, str(root), version=_version(top), sha256=hash_of(module, files))


def check_installed(plugin: Plugin) -> None:
    """Refuse another version of an installed plug-in than the experiment was resolved with.

    Raises:
        UserError: with both.
    """
    here = installed_plugin(plugin.module)
    if here.sha256 != plugin.sha256:
        raise UserError(
            f"the plug-in {plugin.module} that is installed here (version {here.version or '?'}, "
            f"hash {here.sha256[:12]}) is not that of the experiment (version "
            f"{plugin.version or '?'}, hash {plugin.sha256[:12]}); install the same one"
        )


def _files(root: Path, top: str) -> Iterator[Path]:
    if (root / top).is_dir():
        yield from (root / top).rglob("*.py")
    elif (root / f"{top}.py").is_file():
        yield root / f"{top}.py"


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def _version(top: str) -> str:
    """Of the distribution whose entry point names the module; "" where there is none."""
    for point in installed_points():
        if point.module.partition(".")[0] == top and point.dist is not None:
            return str(point.dist.version)
    return ""
