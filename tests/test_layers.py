"""Which way the modules depend, and what they may not do, read off their syntax trees."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedray
from fedray.core import algorithms

ROOT = Path(fedray.__file__).parent
MODULES = {
    ".".join(("fedray", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}

LAYERS = """
base
storage
config
command
data
language
models
core
evaluation
algorithms
federation
plugin
tracking
runtime
laws results trained
studies
api
cli run sweep table __main__
"""
"""The parts from below; a part imports those of the layers below it."""
COMMANDS = ("run", "sweep", "table", "__main__")
"""Modules that a user runs, which import `cli`."""
PARTS_OF_A_RUN = (
    *("federation", "core", "algorithms", "evaluation"),
    *("models", "language", "data"),
)
EXCEPT = {
    ("evaluation", "language"): "what is measured knows nothing of texts",
    ("federation", "algorithms"): "the round loop knows no method",
    ("runtime", "algorithms"): "where steps run knows no method",
    ("runtime", "tracking"): "a run does not know who watches it",
    **{("tracking", part): "a tracker sees records alone" for part in PARTS_OF_A_RUN},
    ("data", "models"): "data knows no model",
}
"""Pairs that the layers allow and we do not, with the reason."""
HEIGHT = {part: height for height, parts in enumerate(LAYERS.split("\n")) for part in parts.split()}


def part(module: str) -> str:
    """fedray.data.public belongs to "data"; a command inside a part stands on top."""
    if module.endswith(".__main__"):
        return "__main__"
    return module.split(".")[1] if "." in module else ""


def allowed(importer: str, imported: str) -> bool:
    """Whether one part may import another."""
    if importer == imported or (importer in COMMANDS and imported == "cli"):
        return True
    return HEIGHT[importer] > HEIGHT[imported] and (importer, imported) not in EXCEPT


@cache
def imports(module: str) -> frozenset[str]:
    """Full names of what a module imports; of fedray's own, the module that is meant."""
    found: set[str] = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else str(node.module) for name in inner}
    return frozenset(found)


def own_imports(module: str) -> set[str]:
    return {name for name in imports(module) if name in MODULES and name != "fedray"}


def test_dependencies_point_one_way():
    assert {part(module) for module in MODULES} - {""} <= HEIGHT.keys()
    assert [
        f"{module} may not import {name}: {EXCEPT.get(pair, 'its layer is not below')}"
        for module in MODULES
        for name in sorted(own_imports(module))
        for pair in [(part(module), part(name))]
        if "" not in pair and not allowed(*pair)
    ] == []


def assert_no_circle(edges: dict[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name in done:
            return
        for other in sorted(edges[name]):
            visit(other, (*above, name))
        done.add(name)

    for name in edges:
        visit(name, ())


def test_no_module_and_no_family_of_methods_is_imported_by_what_it_imports():
    """Imports for types and inside functions count, except those of the package itself."""
    assert_no_circle({module: own_imports(module) for module in MODULES})
    families: dict[str, set[str]] = defaultdict(set)
    methods = [name for name in MODULES if re.match(r"fedray\.algorithms\.\w+\.\w+", name)]
    for module in methods:
        family = module.split(".")[2]
        families[family] |= {name.split(".")[2] for name in own_imports(module) & {*methods}}
        families[family].discard(family)
    assert len(families) > 2
    assert_no_circle(families)


PURE = [m for m in MODULES if part(m) in ("core", "algorithms", "evaluation", "federation")]
FOREIGN = {"ray", "mlflow", "optuna", "io", "os", "pathlib", "shutil", "tempfile", "pickle"}
FILES = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "mkdir", "unlink"}


def test_methods_and_the_round_loop_know_no_ray_and_no_files():
    for module in PURE:
        assert FOREIGN & {name.split(".")[0] for name in imports(module)} == set(), module
        called = {
            getattr(node.func, "id", getattr(node.func, "attr", ""))
            for node in ast.walk(TREES[module])
            if isinstance(node, ast.Call)
        }
        assert called & {*FILES, "load_file", "save_file"} == set(), module


def test_the_round_loop_and_the_runtime_know_no_method_by_name():
    names = set(algorithms.names()) - {"local"}  # which is also a kind of privacy, and of Ray
    files = {algorithms.get(name).__module__ for name in names}
    for module in MODULES:
        if part(module) in ("federation", "evaluation", "runtime", "laws"):
            assert own_imports(module) & files == set(), module
            words = {node.value for node in ast.walk(TREES[module])
                     if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip
            assert words & names == set(), module


def test_benchmarks_and_tools_import_neither_tests_nor_each_other():
    for path in [*ROOT.parent.glob("benchmarks/**/*.py"), *ROOT.parent.glob("tools/**/*.py")]:
        other = "tools" if "benchmarks" in path.parts else "benchmarks"
        imported = rf"^\s*(from|import) (tests|{other})\b"
        assert not re.search(imported, path.read_text(encoding="utf-8"), re.M), path


# --- names ---------------------------------------------------------------------------------------

FREE = ("algorithms", "trained")
"""Folders that may use a name of each other: a payload is called as in its paper."""
SAME = {"main", "command", "sync", "Entry", "Experiment"}
"""Names with one meaning in several modules: programs, entries of a registry."""


def test_a_public_name_has_one_meaning():
    found = defaultdict(list)
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    assert {
        name: modules
        for name, modules in found.items()
        if len(modules) > 1
        and name not in SAME
        and any(part(module) not in FREE and ".templates." not in module for module in modules)
    } == {}


# --- random numbers ------------------------------------------------------------------------------

DRAWS = """
rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like randint_like
"""
SEEDS = """
manual_seed random.manual_seed cuda.manual_seed cuda.manual_seed_all seed set_rng_state
default_generator.manual_seed
"""
IN_PLACE = """
normal_ uniform_ random_ bernoulli_ exponential_ cauchy_ kaiming_normal_ kaiming_uniform_
xavier_normal_ xavier_uniform_ trunc_normal_
"""
TORCH_DRAWS, TORCH_SEEDS = ({f"torch.{n}" for n in names.split()} for names in (DRAWS, SEEDS))
NUMPY_FINE = {"default_rng", "Generator", "SeedSequence", "PCG64", "BitGenerator"}


def global_draws(tree: ast.AST, isolated: bool = False) -> Iterator[str]:
    """Draws from, and seeds of, generators that the whole process shares.

    Inside `torch.random.fork_rng` and `torch_seeded`, torch's may be used: it is put back.
    """
    if isinstance(tree, ast.With):
        contexts = ast.unparse(tree).partition("\n")[0]
        isolated |= "torch.random.fork_rng(" in contexts or "torch_seeded(" in contexts
    if isinstance(tree, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in tree.names]
        if "random" in (names if isinstance(tree, ast.Import) else [tree.module]):
            yield f"line {tree.lineno}: the module random"
        if getattr(tree, "module", "") == "numpy.random" and not set(names) <= NUMPY_FINE:
            yield f"line {tree.lineno}: numpy.random"
    if isinstance(tree, ast.Call):
        name = ast.unparse(tree.func)
        last = name.rsplit(".", 1)[-1]
        given = isolated or any(keyword.arg == "generator" for keyword in tree.keywords)
        if name in TORCH_SEEDS and not isolated:
            yield f"line {tree.lineno}: {name}"
        if (name in TORCH_DRAWS or last in IN_PLACE.split()) and not given:
            yield f"line {tree.lineno}: {name} without generator"
        drawn = name.startswith(("np.random.", "numpy.random.")) and "(" not in name
        if drawn and last not in NUMPY_FINE:
            yield f"line {tree.lineno}: {name}"
        if last == "default_rng" and not tree.args:
            yield f"line {tree.lineno}: {name} without seed"
    for child in ast.iter_child_nodes(tree):
        yield from global_draws(child, isolated)


def test_nothing_draws_from_a_global_generator():
    found = {module: list(global_draws(tree)) for module, tree in TREES.items()}
    for module in ("fedray.base.streams", "fedray.runtime.isolation"):  # they put all back
        del found[module]
    assert {module: draws for module, draws in found.items() if draws} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("import random", 1),
        ("from random import choice", 1),
        ("from numpy.random import rand", 1),
        ("torch.manual_seed(0)", 1),
        ("x = torch.randn(3)", 1),
        ("nn.init.kaiming_uniform_(w, a=1)", 1),
        ("np.random.rand(3)", 1),
        ("np.random.default_rng()", 1),
        ("torch.default_generator.manual_seed(1)", 1),
        ("torch.randn(3, generator=g)", 0),
        ("np.random.default_rng(seed)", 0),
        ("torch.Generator().manual_seed(3)", 0),
        ("with torch.random.fork_rng(devices):\n    torch.cuda.manual_seed(1)", 0),
        ("with torch_seeded(0, device):\n    torch.randn(3)", 0),
    ],
)
def test_the_search_finds_global_generators_alone(line, count):
    assert len(list(global_draws(ast.parse(line)))) == count


def test_methods_use_no_private_names_of_others():
    for module, tree in TREES.items():
        for node in ast.walk(tree) if ".algorithms." in module else ():
            if isinstance(node, ast.ImportFrom):
                assert not [a.name for a in node.names if a.name.startswith("_")], module
            # `_replace` is public, of named tuples
            if isinstance(node, ast.Attribute) and re.match(r"_(?!_|replace$)", node.attr):
                owner = ast.unparse(node.value)
                assert owner in ("self", "cls", "super()"), f"{module}, line {node.lineno}"
