"""The lines of code on the page about the architecture stand so in the files that it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_the_round_on_the_page_is_the_code():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    lines, missing = set[str](), []
    for line in block.splitlines():
        named = re.match(r"# (fedray/\S+\.py)", line)
        if named:
            lines = {each.strip() for each in (ROOT / named[1]).read_text().splitlines()}
        elif line.strip() and line.strip() not in lines:
            missing.append(line)
    assert not missing
    code = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len(code) <= 30


def test_what_the_page_names_is_there():
    source = "\n".join(path.read_text() for path in (ROOT / "fedray").rglob("*.py"))
    names = re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE)
    assert len(names) > 10
    for owner, name in names:
        assert re.search(rf"class {owner}\b", source), owner
        assert re.search(rf"(def |self\.|    ){name}\b", source), name
    for file in re.findall(r"`(\w+/\w+\.py)`", PAGE):
        assert (ROOT / "fedray" / file).is_file() or (ROOT / file).is_file(), file
