"""The public data sets that fedray knows, one YAML file each.

A description says where a set comes from, how its classes are called in the papers, in which
spellings they come, its domains, its official split and the size of its pictures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from fedray.base.errors import UserError, nearest
from fedray.config import Frozen, parse_yaml
from fedray.data.downloads import Origin

FOLDER = Path(__file__).parent
DESCRIPTIONS = FOLDER.parents[1] / "language" / "descriptions"
"""The shipped descriptions of classes, whose keys are the classes in the papers' words."""


class Split(Frozen):
    """Numbers of images of the official split."""

    train: int
    """Training images."""
    validation: int = 0
    """Validation images, which only few-shot protocols use."""
    test: int = 0
    """Test images."""


class CoOpLayout(Frozen):
    """How a set is called in CoOp's layout."""

    images: str
    """The folder of its images, "" for the set's folder itself."""
    split: str
    """The file that identifies the set: the split file, or the first official list."""


class KnownSet(Frozen):
    """A public data set."""

    name: str
    """Its name in fedray, that of its YAML file."""
    title: str
    """Its name in texts."""
    folder: str
    """Its folder below $FEDRAY_DATA in the shipped experiments."""
    source: str
    """The `data.source` of the shipped paper-scale experiments."""
    layout: str
    """The files of that source, in words."""
    classes: tuple[str, ...] = ()
    """Its classes in the papers' words, in the order of their labels; empty if only the files say
    them (CoOp's split files)."""
    class_count: int
    """C."""
    aliases: Mapping[str, str] = Field(default_factory=dict)
    """Other spellings of class names, such as WordNet ids, with the paper's word. Case,
    underscores, blanks, punctuation and leading numbers need no alias."""
    domains: tuple[str, ...] = ()
    """Its domains, sorted; empty without."""
    images: Split
    """The number of images of the official split; all in `train` if there is none."""
    image_size: tuple[int, int] | None = None
    """Width and height of all pictures; None if sizes differ."""
    more_classes: bool = False
    """Whether the public files hold further classes (DomainNet has 345)."""
    coop: CoOpLayout | None = None
    """Its names in CoOp's layout; None if it does not belong to it."""
    origin: Origin
    """Where it comes from."""

    @cached_property
    def spellings(self) -> dict[str, str]:
        """Return the paper's word of every spelling of a class (see `spelling`)."""
        named = (*self.aliases.items(), *zip(self.classes, self.classes, strict=True))
        return {spelling(other): word for other, word in named}


@cache
def known_sets() -> dict[str, KnownSet]:
    """Return all known sets by name, sorted by name."""
    sets = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        described = DESCRIPTIONS / f"{tree.pop('described', '')}.json"
        if described.is_file():
            tree["classes"] = list(json.loads(described.read_text(encoding="utf-8")))
        ids = tree.pop("ids", ())
        tree["aliases"] = {
            **tree.get("aliases", {}),
            **dict(zip(ids, tree.get("classes", ()), strict=bool(ids))),
        }
        tree.setdefault("class_count", len(tree.get("classes", ())))
        sets[path.stem] = KnownSet(name=path.stem, **tree)
    return sets


def title_of(source: str, root: str | None) -> str:
    """Return the title of the known set in a folder, else the folder's name or the source's."""
    folder = "" if root is None else Path(root).name
    for one in known_sets().values():
        if folder == one.folder or (not folder and source == one.name):
            return one.title
    return folder or source


class Recognised(NamedTuple):
    """A known set, and the papers' words of the names in the data.

    Attributes:
        data_set: the set.
        words: for each name in the data its word; a name without one stays.
    """

    data_set: KnownSet
    words: dict[str, str]


def recognise(names: Sequence[str], domains: Collection[str] = ()) -> Recognised | None:
    """Return the known set that class names belong to; None if there is none.

    The data hold all classes of the set, in any of their spellings, and no other ones (except for a
    set with `more_classes`, which needs several of its domains); or all their names are WordNet ids
    of the set's classes.
    """
    are_ids = bool(names) and all(map(_WORDNET.fullmatch, names))
    for data_set in known_sets().values():
        spelled, classes = data_set.spellings, {*data_set.classes}
        words = {name: spelled.get(spelling(name), name) for name in names}
        present = {*words.values()}
        is_known, is_whole = present <= classes, present >= classes
        has_more = data_set.more_classes and len({*data_set.domains} & {*domains}) > 1
        if (is_whole and (is_known or has_more)) or (is_known and are_ids):
            return Recognised(data_set, words)
    return None


_WORDNET = re.compile(r"n\d{8}")


def spelling(name: str) -> str:
    """Return a class name without case, blanks, punctuation and leading number, to compare it."""
    without_number = re.sub(r"^\d+[\W_]+(?=[^\W\d_])", "", name)
    return re.sub(r"[\W_]+", "", without_number).casefold() or name


def ids_among(names: Sequence[str]) -> list[str]:
    """Return the class names that are identifiers rather than words.

    Those are WordNet ids and hashes, and all names if every name is a number or a numbered
    abbreviation: 7, 003, class_3 or c0012. A few among words may be words (707-320, an aircraft).
    """
    plain = [re.sub(r"[\W_]+", "", name).casefold() for name in names]
    if all(_NUMBERED.fullmatch(text) for text in plain):
        return list(names)
    return [name for name, text in zip(names, plain, strict=True) if _ID.fullmatch(text)]


_ID = re.compile(r"n\d{8}|(?=.*\d)[0-9a-f]{16,}")
_NUMBERED = re.compile(r"([a-z]{1,2}|class|label|category|cls)?\d+")


def spellings() -> list[dict[str, str]]:
    """Return the spellings of all sets, of which the class names of decoded images depend."""
    return [data_set.spellings for data_set in known_sets().values()]
