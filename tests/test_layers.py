"""Which way the modules depend, and what they may not do, read off their syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedray
from fedray.core import algorithms

ROOT = Path(fedray.__file__).parent
PATHS = {
    ".".join(("fedray", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in sorted(ROOT.rglob("*.py"))
}
MODULES = {name.removesuffix(".__init__"): path for name, path in PATHS.items()}
TREES = {
    name: ast.parse(path.read_text(encoding="utf-8"), str(path)) for name, path in MODULES.items()
}

LAYERS = [
    ["base"],
    ["storage"],
    ["config"],
    ["command"],
    ["data"],
    ["language"],
    ["models"],
    ["core"],
    ["evaluation"],
    ["algorithms"],
    ["federation"],
    ["plugin", "saved_models"],
    ["tracking"],
    ["runtime"],
    ["laws", "results", "trained"],
    ["studies"],
    ["api"],
    ["cli", "run", "sweep", "table", "__main__"],
]
"""The parts from below; a part imports those of the layers below it, and `BESIDE` itself."""

BESIDE = {
    ("cli", "cli"),
    ("run", "cli"),
    ("sweep", "cli"),
    ("table", "cli"),
    ("__main__", "cli"),
}
"""What a part may import of its own layer: (from, to)."""

EXCEPT = {
    ("evaluation", "language"): "what is measured knows nothing of texts",
    ("federation", "algorithms"): "the round loop knows no method",
    ("runtime", "algorithms"): "where steps run knows no method",
    ("runtime", "tracking"): "a run does not know who watches it",
    ("tracking", "federation"): "a tracker sees records alone",
    ("tracking", "core"): "a tracker sees records alone",
    ("tracking", "algorithms"): "a tracker sees records alone",
    ("tracking", "evaluation"): "a tracker sees records alone",
    ("tracking", "models"): "a tracker sees records alone",
    ("tracking", "language"): "a tracker sees records alone",
    ("tracking", "data"): "a tracker sees records alone",
    ("data", "models"): "data knows no model",
}
"""Pairs that the layers allow and we do not, with the reason."""

HEIGHT = {part: height for height, parts in enumerate(LAYERS) for part in parts}


def part(module: str) -> str:
    """fedray.data.public belongs to "data"; a command inside a part stands on top."""
    if module.endswith(".__main__"):
        return "__main__"
    return module.split(".")[1] if "." in module else ""


def allowed(importer: str, imported: str) -> bool:
    """Whether one part may import another."""
    if importer == imported or (importer, imported) in BESIDE:
        return True
    return HEIGHT[importer] > HEIGHT[imported] and (importer, imported) not in EXCEPT


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def walk(node: ast.AST, *, loading: bool) -> Iterator[ast.AST]:
    """All nodes; with `loading`, only what runs when the module is imported."""
    yield node
    if loading and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if loading and is_type_checking(node):
        return
    for child in ast.iter_child_nodes(node):
        yield from walk(child, loading=loading)


@cache
def imports(module: str, *, loading: bool = False) -> frozenset[str]:
    """Full names of what a module imports; of fedray's own, the module that is meant."""
    found: set[str] = set()
    for node in walk(TREES[module], loading=loading):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in MODULES else base)
    return frozenset(found)


def own_imports(module: str, *, loading: bool = False) -> set[str]:
    return {name for name in imports(module, loading=loading) if name in MODULES}


def test_every_part_has_its_layer():
    parts = {part(module) for module in MODULES} - {""}
    assert parts <= HEIGHT.keys()
    assert {"algorithms", "federation", "runtime", "config", "core"} <= parts
    assert sum(map(len, LAYERS)) == len(HEIGHT)
    assert all(HEIGHT[a] == HEIGHT[b] for a, b in BESIDE)
    assert all(HEIGHT[a] >= HEIGHT[b] or a == "data" for a, b in EXCEPT)


def test_dependencies_point_one_way():
    assert [
        f"{module} may not import {name}: {EXCEPT.get(pair, 'its layer is not below')}"
        for module in MODULES
        for name in sorted(own_imports(module))
        for pair in [(part(module), part(name))]
        if "" not in pair and not allowed(*pair)
    ] == []


def test_the_package_itself_imports_none_of_its_parts():
    assert own_imports("fedray", loading=True) == set()


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
    assert done == set(edges)


def test_no_module_is_imported_by_what_it_imports():
    """Imports for types and inside functions count, except those of the package itself."""
    assert_no_circle({module: own_imports(module) - {"fedray"} for module in MODULES})


def test_no_family_of_methods_is_imported_by_what_it_imports():
    def family(module: str) -> str:
        return module.split(".")[2] if module.count(".") > 1 else ""

    methods = [module for module in MODULES if part(module) == "algorithms" and family(module)]
    edges: dict[str, set[str]] = {family(module): set() for module in methods}
    for module in methods:
        edges[family(module)] |= {
            family(name)
            for name in own_imports(module)
            if name in methods and family(name) != family(module)
        }
    assert {"averaging", "prompts", "text_guided"} <= edges.keys()
    assert_no_circle(edges)


PURE = [m for m in MODULES if part(m) in ("core", "algorithms", "evaluation", "federation")]
FILES = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "mkdir", "unlink"}


def test_methods_and_the_round_loop_know_no_ray_and_no_files():
    others = {"ray", "mlflow", "optuna"}
    others |= {"io", "os", "pathlib", "shutil", "tempfile", "pickle", "requests"}
    for module in PURE:
        assert others & {name.split(".")[0] for name in imports(module)} == set(), module
        called = {
            getattr(node.func, "id", getattr(node.func, "attr", ""))
            for node in ast.walk(TREES[module])
            if isinstance(node, ast.Call)
        }
        files = called & (FILES | {"save", "load_file", "save_file"})
        assert files <= {"save"}, module  # Client.save copies


NO_METHOD = {
    ("fedray.runtime", "local"): "a Ray of one's own, in Ray's words",
    ("fedray.runtime.cluster", "local"): "a Ray of one's own, in Ray's words",
    ("fedray.laws.draws", "local"): "a kind of privacy",
}
"""Words of others that are a method's name, too."""


def test_the_round_loop_and_the_runtime_know_no_method_by_name():
    methods = set(algorithms.names())
    files = {algorithms.get(name).__module__ for name in methods}
    classes = {algorithms.get(name).__name__ for name in methods}
    for module in (
        m for m in MODULES if part(m) in ("federation", "evaluation", "runtime", "laws")
    ):
        assert own_imports(module) & files == set(), module
        for node in ast.walk(TREES[module]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                known = node.value in methods and (module, node.value) not in NO_METHOD
                assert not known, f"{module}, line {node.lineno}"
            if isinstance(node, ast.Name):
                assert node.id not in classes, f"{module}, line {node.lineno}"
        if part(module) != "evaluation":  # which cites the papers of its measures
            words = MODULES[module].read_text(encoding="utf-8").lower()
            assert [name for name in methods - {"local"} if name in words] == [], module


# --- size -----------------------------------------------------------------------------------------

BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


def depth(node: ast.AST, level: int = 0) -> int:
    """How deep blocks are nested in a function; an `elif` is as deep as its `if`."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        below = level + (isinstance(child, BLOCKS) and not chained)
        deepest = max(deepest, depth(child, below))
    return deepest


def test_a_function_has_at_most_forty_lines_and_three_levels():
    nodes = [(module, node) for module, tree in TREES.items() for node in ast.walk(tree)]
    for module, node in nodes:
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{module}.{node.name} has {lines} lines"
            assert depth(node) <= 3, f"{module}.{node.name} is nested {depth(node)} levels deep"


# --- random numbers ------------------------------------------------------------------------------

TORCH_DRAWS = {
    f"torch.{name}"
    for name in (
        "rand",
        "randn",
        "randint",
        "randperm",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
        "rand_like",
        "randn_like",
        "randint_like",
    )
}
TORCH_SEEDS = {
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.seed",
    "torch.default_generator.manual_seed",
    "torch.set_rng_state",
}
INPLACE_DRAWS = {
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "cauchy_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "trunc_normal_",
}
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
        given = any(keyword.arg == "generator" for keyword in tree.keywords)
        if name in TORCH_SEEDS and not isolated:
            yield f"line {tree.lineno}: {name}"
        if name in TORCH_DRAWS and not given and not isolated:
            yield f"line {tree.lineno}: {name} without generator"
        if last in INPLACE_DRAWS and not given and not isolated:
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
    "line",
    [
        "import random",
        "from random import choice",
        "from numpy.random import rand",
        "torch.manual_seed(0)",
        "x = torch.randn(3)",
        "nn.init.kaiming_uniform_(w, a=1)",
        "x.normal_()",
        "np.random.seed(0)",
        "np.random.rand(3)",
        "np.random.default_rng()",
        "torch.default_generator.manual_seed(1)",
    ],
)
def test_the_search_finds_what_it_looks_for(line):
    assert len(list(global_draws(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "torch.randn(3, generator=g)",
        "np.random.default_rng(seed)",
        "random.random()",
        "torch.Generator().manual_seed(3)",
        "with torch.random.fork_rng(devices):\n    torch.cuda.manual_seed(1)",
        "torch.random.fork_rng(devices)",
        "with torch_seeded(0, device):\n    torch.randn(3)",
    ],
)
def test_the_search_lets_streams_be(line):
    assert list(global_draws(ast.parse(line))) == []


def private_doors(tree: ast.AST) -> Iterator[str]:
    """Private names of other objects or modules; `_replace` is public, of named tuples."""
    own = ("self", "cls", "super()")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        is_private = isinstance(node, ast.Attribute) and re.match(r"_(?!_|replace$)", node.attr)
        if is_private and ast.unparse(node.value) not in own:
            yield ast.unparse(node)


def test_methods_use_no_private_names_of_others():
    methods = {module: tree for module, tree in TREES.items() if ".algorithms." in module}
    found = {module: list(private_doors(tree)) for module, tree in methods.items()}
    assert {module: names for module, names in found.items() if names} == {}
    doors = ast.parse("from a import _b\nself._c.d\nclip._model.e")
    assert list(private_doors(doors)) == ["_b", "clip._model"]


@pytest.mark.parametrize(
    "part", ["fedray.results", "fedray.results.pages", "fedray.results.analyses"]
)
def test_a_packages_list_of_modules_is_whole(part):
    said = ast.get_docstring(TREES[part]) or ""
    names = {path.stem for path in MODULES[part].parent.glob("*.py")} - {"__init__"}
    listed = {name for name in names if re.search(rf"\b{name}\.py ", said)}
    assert names - listed <= {"__main__"}


def test_folders_of_configuration_hold_no_python():
    root = ROOT.parent
    if not (root / "pyproject.toml").exists():
        pytest.skip("installed without the repository")
    assert [*root.glob("mlflow/**/*.py"), *root.glob("tune/**/*.py")] == []
    assert [*root.glob("clusters/**/*.py")] == []
