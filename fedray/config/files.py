"""Read experiments as trees: YAML files that extend each other, and dotted overrides."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from fedray.base.errors import UserError, nearest, one_line, shown
from fedray.base.shipped import EXPERIMENTS
from fedray.config.experiment import Experiment
from fedray.config.plugins import located
from fedray.config.registry import canonical_name, spelled
from fedray.config.schema import Chosen, Frozen, Tree
from fedray.storage.files import check_path, read_text
from fedray.storage.run_folder import RUN, RunFolder


def _choices(model: type[BaseModel], place: str = "") -> Iterator[tuple[str, Chosen]]:
    for name, field in model.model_fields.items():
        yield from ((place + name, m) for m in field.metadata if isinstance(m, Chosen))
        if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen):
            yield from _choices(field.annotation, f"{place}{name}.")


_CHOICES = dict(_choices(Experiment))
COMPONENTS: Mapping[str, str] = MappingProxyType({key: m.kind for key, m in _CHOICES.items()})
"""The keys that choose an entry of a registry, by name and with parameters, and its kind."""

MOST_BYTES = 1_000_000
"""Maximal size of a YAML file; an experiment has some hundred bytes."""
MOST_VALUES = 100_000
"""Maximal number of values of a YAML file, with aliases written out."""
LONGEST_KEY = 200
"""Maximal number of characters of a dotted key."""


class _Loader(yaml.SafeLoader):
    """YAML without the surprises of YAML 1.1.

    1e-3 is a number. Keys are words and may occur once. 2026-11-22, 1:30, 010, yes and no are
    texts, whereas YAML 1.1 reads a date, 90, 8, true and false.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; raise a YAMLError for a key that is no word or occurs twice."""
        line, keys = node.start_mark.line + 1, set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if not isinstance(key, str):
                raise yaml.YAMLError(
                    f"{shown(key)} is no key, in the mapping at line {line}; keys are words"
                )
            if key in keys:
                raise yaml.YAMLError(f"key {shown(key)} occurs twice in the mapping at line {line}")
            keys.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes every text which `_Loader` or YAML 1.1 would not read as a text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: repeated values are written out, without anchors and aliases."""
        return True

    def represent_lines(self, text: str) -> yaml.ScalarNode:
        """Write a text of several lines, such as a plug-in's code, as a block."""
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_lines)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
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
    """Parse YAML text; raise a UserError that begins with `where` if the text is not valid."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, {})
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid YAML: {one_line(error)}") from None


def _check_size(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Return the number of values of a node in which every alias is written out.

    Args:
        node: the node.
        sizes: the sizes of the nodes so far; 0 for those whose values are being counted.

    Raises:
        YAMLError: if there are too many values, or a node contains itself.
    """
    line = node.start_mark.line + 1
    if sizes.get(node) == 0:
        raise yaml.YAMLError(f"the value at line {line} contains itself; write it without an alias")
    if node not in sizes:
        sizes[node] = 0
        pairs = isinstance(node, yaml.MappingNode)
        children = [child for pair in node.value for child in pair] if pairs else node.value
        nodes = children if isinstance(node, yaml.CollectionNode) else ()
        sizes[node] = 1 + sum(_check_size(child, sizes) for child in nodes)
    if sizes[node] > MOST_VALUES:
        raise yaml.YAMLError(
            f"the value at line {line} has more than {MOST_VALUES:,} values if its aliases are "
            "written out; write fewer"
        )
    return sizes[node]


def find_yaml(name: str, folders: Iterable[Path], kind: str) -> Path:
    """Find `name` as a file, or as NAME.yaml in one of `folders`; else raise a UserError."""
    try:
        path = Path(check_path(name))
    except ValueError as error:
        raise UserError(f"{kind}: {error}") from None
    if name.endswith((".yaml", ".yml", RUN)) or os.sep in name:
        if not path.exists():
            raise UserError(f"{kind} file {path} does not exist")
        return path
    folders = [folder for folder in folders if folder.is_dir()]
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    if Path(f"{name}.yaml").is_file():
        raise UserError(f"there is no {kind} '{name}'; write {name}.yaml for the file of that name")
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    raise UserError(f"there is no {kind} '{name}'.{nearest(name, names)}")


def read_mapping(path: Path) -> Tree:
    """Read a YAML file, or a run's run.json; raise a UserError if that is no mapping."""
    if path.name == RUN:
        return RunFolder(path.parent).experiment()
    tree = parse_yaml(read_text(path, "the file", MOST_BYTES), str(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds {type(tree).__name__}, expected a mapping of keys")
    return tree


def merge(base: Tree, over: Mapping[str, Any]) -> Tree:
    """Return `base` updated by `over`; a component with another name replaces the whole component.

    Raises:
        UserError: if one tree has a plain value where the other has keys.
    """
    result: Tree = _copied(base)
    _lay(over, result, "")
    return result


def override(tree: Tree, pairs: Iterable[tuple[str, Any]]) -> Tree:
    """Return a tree updated by dotted keys (`data.partition.alpha`), as `merge` does."""
    result: Tree = _copied(tree)
    for key, value in pairs:
        _lay(reduce(lambda inner, part: {part: inner}, reversed(key.split(".")), value), result, "")
    return result


def _copied(value: Any) -> Any:
    """Return a copy in which an anchored value, and each of its aliases, is a value of its own."""
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else deepcopy(value)


def _lay(over: Mapping[str, Any], below: Tree, place: str) -> None:
    """Update `below` by `over` in place; `place` is the dotted key of both, with a final dot."""
    for key, value in over.items():
        under = below.get(key)
        mixed = isinstance(under, Mapping) != isinstance(value, Mapping)
        if f"{place}{key}" in COMPONENTS or (mixed and key in COMPONENTS):  # the latter: in studies
            under = {"name": under} if isinstance(under, str) else under
            value = {"name": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or under is None:
            below[key] = deepcopy(value)
        elif not isinstance(under, dict):
            keys = ", ".join(map(str, value)) or "keys"
            raise UserError(
                f"{place}{key} is set to {shown(under)} and also to a mapping of {keys}; leave one "
                "of them out"
            )
        elif not _has_same_name(value, under, _CHOICES.get(f"{place}{key}")):
            below[key] = deepcopy(value)
        else:
            below[key] = under
            _lay(value, under, f"{place}{key}.")


def _has_same_name(over: Mapping[str, Any], under: Mapping[str, Any], of: Chosen | None) -> bool:
    """Return True if a mapping names no other entry than the one below, however both are spelled.

    Args:
        over: the upper mapping; without a name, it continues the one below.
        under: the mapping below.
        of: the component's annotation; None for a mapping of another kind.
    """
    other = under.get("name", of.unnamed if of else None)
    name = over.get("name", other)
    if name == other or not isinstance(name, str) or not isinstance(other, str):
        return bool(name == other)
    if of is None:
        return spelled(name) == spelled(other)
    return canonical_name(of.kind, name) == canonical_name(of.kind, other)


def with_canonical_names(tree: Mapping[str, Any]) -> Tree:
    """Return a tree in which every component has the name of its entry, however it was spelled."""
    names = {
        key: canonical_name(kind, name)
        for key, kind in COMPONENTS.items()
        if isinstance(name := flatten(tree).get(f"{key}.name"), str)
    }
    return override(dict(tree), [(f"{key}.name", name) for key, name in names.items()])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree by dotted key; a component given by name has the key `.name`.

    A mapping whose keys are no words, such as `text.names` may be, is one value.

    Args:
        tree: plain data.
        prefix: the beginning of all keys, with a final dot.
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if path in COMPONENTS and isinstance(value, str):
            leaves[f"{path}.name"] = value
        elif isinstance(value, Mapping) and value and all(map(str.isidentifier, value)):
            leaves |= flatten(value, f"{path}.")
        else:
            leaves[path] = value
    return leaves


def parse_assignments(assignments: Iterable[str]) -> list[tuple[str, Any]]:
    """Parse ["algorithm.lambda=7", ...] to [("algorithm.lambda", 7), ...], parents first.

    So `algorithm.lambda=7 algorithm=fedproto` keeps the 7, as in the other order. Of several
    assignments to one key, the last counts.

    Raises:
        UserError: for an argument without "=", key or value.
    """
    pairs = []
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not is_key(key):
            raise UserError(f"{shown(text)} is not key=value, for example rounds=5")
        if not value.strip():
            raise UserError(f"{key}= has no value; write {key}=null for an empty one")
        pairs.append((key, parse_yaml(value, f"the value of {key}")))
    return parents_first(pairs)


def is_key(text: str) -> bool:
    """Return True if a text is a dotted key: words separated by dots."""
    return len(text) <= LONGEST_KEY and all(part.isidentifier() for part in text.split("."))


def parents_first(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the last value of each dotted key, parents first; mappings are divided into keys.

    So a parameter that was set stays when another component is named, before or after it.
    """
    names = {f"{component}.name": component for component in COMPONENTS}
    values: dict[str, Any] = {}
    for key, value in pairs:
        values |= {names.get(k, k): inner for k, inner in flatten({key: value}).items()}
    return sorted(values.items(), key=lambda item: item[0].count("."))


class ExperimentFile(NamedTuple):
    """One file of an experiment, without the files that it extends."""

    path: Path
    tree: Tree


def read_experiment(name: str) -> Tree:
    """Read a shipped experiment or an experiment file, merged with the files that it extends."""
    return merged(read_chain(name))


def merged(chain: Iterable[ExperimentFile]) -> Tree:
    """Merge the files of `read_chain`; later files override earlier ones."""
    return reduce(merge, (file.tree for file in chain), {})


def read_chain(name: str) -> list[ExperimentFile]:
    """Read an experiment's file and all files that it extends, the base first.

    Raises:
        UserError: if a file does not exist, is no mapping, or extends itself.
    """
    files = []
    for path, tree in read_extended(name, [EXPERIMENTS], "experiment"):
        tree.setdefault("name", path.stem)
        if "plugins" in tree:  # paths are relative to the file
            tree["plugins"] = [
                located(plugin, path.parent) if isinstance(plugin, str) else plugin
                for plugin in listed(tree)
            ]
        files.append(ExperimentFile(path, tree))
    return files


def read_extended(
    name: str, folders: Sequence[Path], kind: str, children: tuple[Path, ...] = ()
) -> list[tuple[Path, Tree]]:
    """Return the paths and trees of a file and of all files that it extends, the base first.

    A base is a file beside the one that names it, or what `find_yaml` finds.

    Args:
        name: a shipped name or a file.
        folders: the folders of shipped files.
        kind: experiment, sweep or table.
        children: the files that extend this one, the last first.

    Raises:
        UserError: if a file does not exist, is no mapping, or extends itself.
    """
    try:
        path = find_yaml(name, folders, kind).resolve()
    except UserError as error:
        raise UserError(f"{children[0]}: extends: {error}" if children else str(error)) from None
    if path in children:
        between = [child.name for child in reversed(children[: children.index(path)])]
        through = f" through {', '.join(between)}" if between else ""
        raise UserError(f"{path} extends itself{through}; leave one extends: out")
    tree = read_mapping(path)
    base = tree.pop("extends", None)
    if base is None:
        return [(path, tree)]
    if not isinstance(base, str):
        article = "an" if kind == "experiment" else "a"
        raise UserError(f"{path}: extends is {shown(base)}, expected {article} {kind}'s name")
    beside = path.parent / (base if base.endswith((".yaml", ".yml")) else f"{base}.yaml")
    base = str(beside) if beside.is_file() else base
    return [*read_extended(base, folders, kind, (path, *children)), (path, tree)]


def listed(tree: Mapping[str, Any]) -> list[Any]:
    """Return the value of `plugins` in a tree as a list; raise a UserError for other types."""
    value = tree.get("plugins")
    value = [] if value is None else value
    plugins = list(value) if isinstance(value, list | tuple) else [value]
    for plugin in plugins:
        if not isinstance(plugin, str | Mapping):
            raise UserError(
                f"plugins has {shown(plugin)}, expected files or modules, for example [mine.py]"
            )
    return plugins


def dump_yaml(tree: Any) -> str:
    """Return plain data as YAML; keys keep their order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
