"""Every link inside the documentation leads to a file, also as the host of the code shows it.

Headings and the site's order are checked where the site is built, by `sphinx -W`.
"""

from __future__ import annotations

import re

import pytest
from pages import DOCS, ROOT, pages

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of the wheel")

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#]+)[^)\s]*\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page):
    links = LINK.findall(CODE.sub("`", page.read_text("utf-8")))
    inside = [link for link in links if not re.match(r"[a-z]+:", link)]
    targets = {link: (page.parent / link).resolve() for link in inside}
    assert [
        link
        for link, target in targets.items()
        if not (target.exists() and target.is_relative_to(ROOT))
    ] == []
