"""Which runs a report is about, and what it calls them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedray.config import flatten
from fedray.errors import UserError, nearest
from fedray.report.runs import Group, LoadedRun, is_number


def filtered(runs: Sequence[LoadedRun], conditions: Sequence[str]) -> list[LoadedRun]:
    """The runs whose experiments have these values.

    Args:
        runs: all of them.
        conditions: "key=value" each, or "key=value,value" for any of several; `algorithm` is the
            method's name.

    Raises:
        UserError: when a condition has no `=`, no run has its key, or no run is left.
    """
    left = list(runs)
    for condition in conditions:
        key, sign, text = condition.partition("=")
        if not sign:
            raise UserError(f"--filter {condition}: expected key=value, such as algorithm=fedtsp")
        known = {name for loaded in runs for name in _all_keys(loaded)}
        if key not in known:
            raise UserError(
                f"--filter {condition}: no run has the key.{nearest(key, sorted(known))}"
            )
        wanted = [_plain(value) for value in text.split(",")]
        there = {str(_all_keys(loaded).get(key)) for loaded in left}
        left = [loaded for loaded in left if _plain(_all_keys(loaded).get(key)) in wanted]
        if not left:
            raise UserError(
                f"--filter {condition}: no run has this value; there are {', '.join(sorted(there))}"
            )
    return left


def _all_keys(loaded: LoadedRun) -> dict[str, Any]:
    flat = flatten(loaded.run.info.config)
    return {**flat, "algorithm": loaded.method}


def _plain(value: Any) -> str:
    """A value to compare by, of a file or of the command line: 7, 7.0 and "7" are the same."""
    parsed = value
    if isinstance(value, str) and value:
        with suppress(yaml.YAMLError):  # a text may be anything
            parsed = yaml.safe_load(value)
    return repr(float(parsed)) if is_number(parsed) else str(parsed)


def relabelled(groups: Sequence[Group], labels: Sequence[str]) -> list[Group]:
    """The groups with other labels.

    Args:
        groups: all of them.
        labels: "WHO=TEXT" each; WHO is a label, a run's folder, or a method: of a method that
            several groups have, the rest of their labels stays.

    Raises:
        UserError: when WHO is nobody, or two groups would be called the same.
    """
    texts: dict[int, str] = {}
    for given in labels:
        texts |= _who(groups, given)
    renamed = [replace(each, label=texts.get(i, each.label)) for i, each in enumerate(groups)]
    twice = [label for label, count in Counter(g.label for g in renamed).items() if count > 1]
    if labels and twice:
        raise UserError(f"--label: {twice[0]!r} would stand for several rows; give each its own")
    return renamed


def _who(groups: Sequence[Group], given: str) -> dict[int, str]:
    """The places of the groups that are meant, and their texts; a label may hold `=` itself."""
    ends = [index for index, char in enumerate(given) if char == "="]
    for end in ends:
        who, text = given[:end], given[end + 1 :].strip()
        one = [i for i, member in enumerate(groups) if _is(member, who)]
        of_method = [i for i, member in enumerate(groups) if member.method == who]
        if len(one) == 1 and text:
            return {one[0]: text}
        if of_method and text:
            return {i: groups[i].label.replace(who, text, 1) for i in of_method}
    known = [member.label for member in groups]
    who = given.partition("=")[0]
    raise UserError(
        f"--label {given}: expected WHO=TEXT, where WHO is one row's label or one of its runs' "
        f"folders.{nearest(who, known)}"
    )


def _is(member: Group, who: str) -> bool:
    folders = [loaded.folder for loaded in member.runs]
    return who in {member.label, *(f.name for f in folders)} or Path(who).resolve() in folders
