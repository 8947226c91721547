"""Remove passwords, keys and tokens from everything that is printed or written to a file.

A server's address may hold them (`http://ada:secret@host:5000`), and libraries repeat addresses in
their errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

MASK = "***"

_SCHEME = r"[a-z][a-z0-9+.-]{0,30}://"
_USERINFO = re.compile(rf"({_SCHEME})([^\s/?#'\"<>]{{0,2000}})@", re.IGNORECASE)
_DATABASE = re.compile(
    rf"((?!https?:)\b{_SCHEME}[^\s/:@]{{0,200}}:)([^\s'\"<>]{{1,2000}})@", re.IGNORECASE
)
"""A database's password may hold a slash, which ends a web address's host."""
_QUERY = re.compile(
    r"([?&;][^=&\s'\"]{0,99}(?:pass|pwd|secret|token|key|credential|signature|sig|auth)"
    r"[^=&\s'\"]{0,99}=)([^&\s'\"#;)]+)",
    re.IGNORECASE,
)
"""All are bounded, so that a long text takes a time in proportion."""
_VARIABLE = re.compile(r"(?:PASSWORD|PASSWD|SECRET|TOKEN|_KEY)$")
_SHORTEST = 6
"""Characters of a variable's value that is masked; a shorter one is part of too many words."""
_NAME = re.compile(r"(?=.{1,15}$)[A-Z]?[a-z]+(?:[_-][a-z]+)*")
"""A variable's value that is a word or a short name, such as digits: it would garble messages."""


def mask(text: str) -> str:
    """Return `text` with `***` for every password, key and token that can be recognised.

    These are passwords in addresses, values of query parameters such as `token=`, and, anywhere in
    the text, the values of environment variables such as MLFLOW_TRACKING_PASSWORD and the passwords
    in their addresses. The value of a variable that is a plain word is masked in addresses only.
    """
    masked = _USERINFO.sub(_hide_userinfo, text)
    masked = _DATABASE.sub(rf"\1{MASK}@", masked)
    masked = _QUERY.sub(rf"\1{MASK}", masked)
    for secret in sorted(set(_in_environment()), key=len, reverse=True):
        masked = masked.replace(secret, MASK)
    return masked


def _hide_userinfo(found: re.Match[str]) -> str:
    """Mask the password, or a name without a password, which may be a token."""
    user, colon, _ = found[2].partition(":")
    return f"{found[1]}{user}:{MASK}@" if colon else f"{found[1]}{MASK}@"


def _in_environment() -> Iterator[str]:
    """Yield every secret of the environment, both encoded and decoded (%40 is @)."""
    for name, value in os.environ.items():
        for secret in [value] if _VARIABLE.search(name) else _in_address(value):
            yield from (each for each in (secret, unquote(secret)) if _can_be_masked(each))


def _can_be_masked(secret: str) -> bool:
    """Return True if hiding a secret everywhere does not garble ordinary text."""
    return len(secret) >= _SHORTEST and not _NAME.fullmatch(secret)


def _in_address(value: str) -> Iterator[str]:
    """Yield the secrets of a value that is an address."""
    _, scheme, rest = value.partition("://")
    if scheme:
        userinfo, _, _ = rest.rpartition("@")
        yield userinfo.partition(":")[2]
        yield from (found[2] for found in _QUERY.finditer(value))
