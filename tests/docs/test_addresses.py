"""No file sends people to a home of the project, which it does not have yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of the wheel")

HOME = re.compile(
    r"(?:https?://|git@|git\+)[^\s\"'<>)]*fedray[^\s\"'<>)]*"  # a site, a repository, an image
    r"|\bfedray\.(?:github|readthedocs)\.io"
    r"|\bpip install (?:-U |--upgrade )?[\"']?fedray\b(?!\[[\w{}]+\][\"'])",
    re.IGNORECASE,
)
"""An extra of an installed fedray (`pip install "fedray[text]"`) needs no home."""
LOCAL = re.compile(r"//(?:localhost|127\.|\[|[\w.-]*example\.(?:org|com)|[\w.-]+:\d+/?)")
"""Addresses of the reader's own machine or network, and those reserved for examples."""
FOLDERS = ("benchmarks", "clusters", "docs", "fedray", "mlflow", "notebooks", "tools", "tune")
SUFFIXES = {".md", ".py", ".toml", ".yaml", ".yml", ".cff", ".ipynb", ".j2", ".cfg", ".sh", ".txt"}


def addresses(text: str) -> list[str]:
    """The addresses in a text that pretend to be the project's."""
    return [address for address in HOME.findall(text) if not LOCAL.search(address)]


def files() -> list[Path]:
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [path for path in (*ROOT.iterdir(), *below) if path.suffix in SUFFIXES]


def test_no_file_names_a_home_of_the_project():
    named = {
        path.relative_to(ROOT).as_posix(): found
        for path in files()
        if (found := addresses(path.read_text("utf-8", errors="replace")))
    }
    assert named == {}


@pytest.mark.parametrize(
    "text",
    [
        'pip install "fedray[text] @ git+https://github.com/somebody/fedray"',
        "git clone git@github.com:somebody/fedray.git",
        "see https://fedray.readthedocs.io/en/latest",
        "FedRay.github.io",
        "pip install fedray",
    ],
)
def test_a_home_is_seen(text):
    assert addresses(text)


@pytest.mark.parametrize(
    "text",
    ["http://localhost:5000/fedray", "s3://bucket/fedray", "registry.example.org/fedray:0.1.0"],
)
def test_an_address_of_the_readers_own_is_none(text):
    assert addresses(text) == []


def test_every_installation_is_from_a_checkout():
    first = re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.S | re.M)[0]
    assert first.split() == ["make", "demo", "make", "test"]
    for page in (ROOT / "README.md", ROOT / "docs" / "start.md"):
        installed = re.findall(r"pip install (.*?)[`\n]", page.read_text("utf-8"))
        assert set(installed) <= {'".[text]"', '-e ".[text]"'}
