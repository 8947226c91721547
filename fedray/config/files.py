"""From text to trees: YAML files that extend each other, dotted overrides on top."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from fedray.config.schema import Tree
from fedray.errors import UserError, nearest, one_line, shown
from fedray.files import check_path, read_text
from fedray.plugins import located
from fedray.shipped import EXPERIMENTS

COMPONENTS: Mapping[str, str] = MappingProxyType(
    {
        "algorithm": "algorithm",
        "optimizer": "optimizer",
        "lr_schedule": "learning rate schedule",
        "data.source": "data source",
        "data.partition": "partition",
        "data.evolution": "data evolution",
        "data.augment": "augmentation",
        "model.clip": "CLIP",
        "text.encoder": "text encoder",
        "text.style": "text style",
    }
)
"""The keys that choose an entry of a registry by name, with parameters; each with its kind."""


MOST_BYTES = 1_000_000
"""Of a YAML file or a value; an experiment has some hundred."""
LONGEST_KEY = 200
"""Characters of a dotted key."""


class _Loader(yaml.SafeLoader):
    """YAML with few surprises.

    1e-3 is a number, a key is a word and stands once. 2026-11-22, 1:30, 010, yes and no are texts:
    YAML 1.1 makes a date, 90, 8, true and false of them, which nobody means.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; its keys are words, and none stands twice."""
        line, seen = node.start_mark.line + 1, set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if not isinstance(key, str):
                raise yaml.YAMLError(
                    f"{shown(key)} is no key, in the mapping at line {line}; keys are words"
                )
            if key in seen:
                raise yaml.YAMLError(f"key {shown(key)} stands twice in the mapping at line {line}")
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` or another reader of YAML would take for something else than a text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value that stands twice twice."""
        return True

    def represent_lines(self, text: str) -> yaml.ScalarNode:
        """Write a text of several lines, such as a plug-in's, line by line."""
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_lines)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag == "tag:yaml.org,2002:null"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+|[-+]?(0|[1-9][0-9_]*)\.[0-9_]*"
        r"|[-+]?\.[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
        )


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text; raise a UserError that begins with `where` if it is not valid."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid YAML: {one_line(error)}") from None


def find_yaml(name: str, folders: Iterable[Path], kind: str) -> Path:
    """Find `name` as a file, or as NAME.yaml in one of `folders`; else raise a UserError."""
    try:
        path = Path(check_path(name))
    except ValueError as error:
        raise UserError(f"{kind}: {error}") from None
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        if not path.exists():
            raise UserError(f"{kind} file {path} does not exist")
        return path
    folders = [folder for folder in folders if folder.is_dir()]
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    if Path(f"{name}.yaml").is_file():
        raise UserError(f"there is no {kind} '{name}'; for the file here write {name}.yaml")
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    raise UserError(f"there is no {kind} '{name}'.{nearest(name, names)}")


def read_mapping(path: Path) -> Tree:
    """Read a YAML file; raise a UserError if it cannot be read or holds no mapping."""
    tree = parse_yaml(read_text(path, "the file", MOST_BYTES), str(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds {type(tree).__name__}, expected a mapping of keys")
    return tree


def merge(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Return `base` updated by `over`; a component with another name replaces the whole component.

    Raises:
        UserError: if one has a plain value where the other has keys.
    """
    result = deepcopy(base)
    _lay(over, result, "")
    return result


def override(tree: Tree, pairs: Iterable[tuple[str, Any]]) -> Tree:
    """Return a tree with dotted keys (`data.partition.alpha`) set, as by `merge`."""
    result = deepcopy(tree)
    for key, value in pairs:
        _lay(reduce(lambda inner, part: {part: inner}, reversed(key.split(".")), value), result, "")
    return result


def _lay(over: Mapping[str, Any], below: Tree, place: str) -> None:
    """Update `below` by `over`, in place; `place` is the dotted key of both, with a final dot."""
    for key, value in over.items():
        under = below.get(key)
        if f"{place}{key}" in COMPONENTS:
            under = {"name": under} if isinstance(under, str) else under
            value = {"name": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or under is None:
            below[key] = deepcopy(value)
        elif not isinstance(under, dict):
            keys = ", ".join(map(str, value)) or "keys"
            raise UserError(
                f"{place}{key} is {shown(under)}, and yet {place}{key} has {keys}; leave one of "
                "them out"
            )
        elif value.get("name", under.get("name")) != under.get("name"):
            below[key] = deepcopy(value)
        else:
            below[key] = under
            _lay(value, under, f"{place}{key}.")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree by dotted key; a component that is only a name has the key `.name`.

    Args:
        tree: plain data.
        prefix: the beginning of all keys, with a final dot.
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if path in COMPONENTS and isinstance(value, str):
            leaves[f"{path}.name"] = value
        elif isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{path}.")
        else:
            leaves[path] = value
    return leaves


def parse_assignments(assignments: Iterable[str]) -> list[tuple[str, Any]]:
    """Turn ["algorithm.lambda=7", ...] into [("algorithm.lambda", 7), ...], shorter keys first.

    So `algorithm.lambda=7 algorithm=fedproto` keeps the 7, as in the other order. Later assignments
    of one key win.

    Raises:
        UserError: for an argument without "=", key or value.
    """
    pairs = []
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not is_key(key):
            raise UserError(f"{shown(text)} is not key=value, for example rounds=5")
        if not value.strip():
            raise UserError(f"{key}= has no value; write {key}=null where none is meant")
        pairs.append((key, parse_yaml(value, f"the value of {key}")))
    return parents_first(pairs)


def is_key(text: str) -> bool:
    """Return True if a text is a dotted key: words with a dot between them."""
    return len(text) <= LONGEST_KEY and all(part.isidentifier() for part in text.split("."))


def parents_first(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort pairs of dotted keys and values, so that a parent does not undo its children."""
    return sorted(pairs, key=lambda pair: pair[0].count("."))


class ExperimentFile(NamedTuple):
    """One file of an experiment, without the files that it extends."""

    path: Path
    tree: Tree
    sources: Any


def read_experiment(name: str) -> Tree:
    """Read a shipped experiment or a file, with the files that it `extends`, as a tree."""
    return merged(read_chain(name))


def merged(chain: Iterable[ExperimentFile]) -> Tree:
    """Merge the files of `read_chain`; later ones override earlier ones."""
    return reduce(merge, (file.tree for file in chain), {})


def read_chain(name: str, seen: tuple[Path, ...] = ()) -> list[ExperimentFile]:
    """Read an experiment's file and all that it extends, the base first.

    Raises:
        UserError: if one does not exist, is no mapping, or extends itself.
    """
    path = find_yaml(name, [EXPERIMENTS], "experiment").resolve()
    if path in seen:
        raise UserError(f"{path} extends itself")
    tree = read_mapping(path)
    base, sources = tree.pop("extends", None), tree.pop("sources", {})
    if base is not None and not isinstance(base, str):
        raise UserError(f"{path}: extends is {shown(base)}, expected an experiment's name")
    tree.setdefault("name", path.stem)
    if "plugins" in tree:  # paths are relative to the file
        tree["plugins"] = [
            located(each, path.parent) if isinstance(each, str) else each for each in listed(tree)
        ]
    file = ExperimentFile(path, tree, sources)
    if base is None:
        return [file]
    sibling = path.parent / f"{base}.yaml"
    return [*read_chain(str(sibling) if sibling.is_file() else base, (*seen, path)), file]


def listed(tree: Mapping[str, Any]) -> list[Any]:
    """Return the plug-ins that a tree names; one may stand without a list."""
    given = tree.get("plugins")
    given = [] if given is None else given
    given = list(given) if isinstance(given, list | tuple) else [given]
    for each in given:
        if not isinstance(each, str | Mapping):
            raise UserError(
                f"plugins has {shown(each)}, expected files or modules, for example [mine.py]"
            )
    return given


def dump_yaml(tree: Any) -> str:
    """Return plain data as YAML, keys in their order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
