"""From text to trees: YAML files that extend each other, dotted overrides on top."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fedray.config.typed import Tree
from fedray.errors import UserError, nearest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
"""The shipped experiments."""

COMPONENTS: Mapping[str, str] = MappingProxyType(
    {
        "algorithm": "algorithm",
        "data.source": "data source",
        "data.partition": "partition",
        "data.augment": "augmentation",
        "model.clip": "CLIP",
        "text.encoder": "text encoder",
        "text.style": "text style",
    }
)
"""The keys that choose an entry of a registry by name, with parameters; each with its kind."""


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as everybody expects, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"key '{key}' stands twice in the mapping at line {line}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text; `where` names it in errors.

    Raises:
        UserError: when the text is not valid YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where} is not valid YAML: {reason}") from None


def find_yaml(name: str, folders: Iterable[Path], kind: str) -> Path:
    """Find `name` as a file, or as NAME.yaml in one of `folders`.

    Raises:
        UserError: when there is none; it names the nearest one.
    """
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{kind} file {path} does not exist")
        return path
    folders = [folder for folder in folders if folder.is_dir()]
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    raise UserError(f"there is no {kind} '{name}'.{nearest(name, names)}")


def read_mapping(path: Path) -> Tree:
    """Read one YAML file that must hold a mapping.

    Raises:
        UserError: when it cannot be read or holds something else.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds {type(tree).__name__}, expected a mapping of keys")
    return tree


def merge(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Lay `over` on `base`; a component with another name replaces the one below it whole."""
    result = deepcopy(base)
    for key, value in over.items():
        below = result.get(key)
        if key in _COMPONENT_KEYS:
            below = {"name": below} if isinstance(below, str) else below
            value = {"name": value} if isinstance(value, str) else value
        if (
            isinstance(below, dict)
            and isinstance(value, Mapping)
            and value.get("name", below.get("name")) == below.get("name")
        ):
            result[key] = merge(below, value)
        else:
            result[key] = deepcopy(value)
    return result


_COMPONENT_KEYS = frozenset(key.rsplit(".", 1)[-1] for key in COMPONENTS)


def override(tree: Tree, key: str, value: Any) -> Tree:
    """Set one dotted key (`data.partition.alpha`) in a tree; returns a new tree."""
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return merge(tree, nested)


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's tree by dotted key; a component that is only a name has the key `.name`."""
    return dict(_leaves(tree, ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if path in COMPONENTS and isinstance(value, str):
            yield f"{path}.name", value
        elif isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def parse_assignments(assignments: Iterable[str]) -> list[tuple[str, Any]]:
    """Turn ["algorithm.lambda=7", ...] into [("algorithm.lambda", 7), ...], shorter keys first.

    So `algorithm.lambda=7 algorithm=fedproto` keeps the 7, as in the other order.

    Raises:
        UserError: for an argument without "=" or with an empty key.
    """
    pairs = []
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not all(key.split(".")):
            raise UserError(f"'{text}' is not key=value, for example rounds=5")
        pairs.append((key, parse_yaml(value, f"the value of {key}")))
    return sorted(pairs, key=lambda pair: pair[0].count("."))


def read_experiment(name: str) -> Tree:
    """Read a shipped experiment or a file, with what it `extends`, as a tree.

    Raises:
        UserError: when it does not exist, is not a mapping, or extends itself.
    """
    return _read_extending(name, ())


def _read_extending(name: str, seen: tuple[Path, ...]) -> Tree:
    path = find_yaml(name, [EXPERIMENTS], "experiment").resolve()
    if path in seen:
        raise UserError(f"{path} extends itself")
    tree = read_mapping(path)
    base = tree.pop("extends", None)
    tree.setdefault("name", path.stem)
    if base is None:
        return tree
    sibling = path.parent / f"{base}.yaml"
    below = _read_extending(str(sibling) if sibling.is_file() else str(base), (*seen, path))
    return merge(below, tree)


def dump_yaml(tree: Any) -> str:
    """Plain data as YAML, keys in their order."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
