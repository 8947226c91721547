"""Mask passwords, keys and tokens in texts that are printed or written to a file.

The address of a server may hold a password (`http://ada:secret@host:5000`), and libraries repeat
addresses in their error messages.
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
"""Separate from `_USERINFO`, because a database password may hold a slash."""
_QUERY = re.compile(
    r"([?&;][^=&\s'\"]{0,99}(?:pass|pwd|secret|token|key|credential|signature|sig|auth)"
    r"[^=&\s'\"]{0,99}=)([^&\s'\"#;)]+)",
    re.IGNORECASE,
)
"""All repetitions in these patterns are bounded, so that matching takes linear time."""
_VARIABLE = re.compile(r"(?:PASSWORD|PASSWD|SECRET|TOKEN|_KEY)$")
_SHORTEST = 6
"""Minimal length of a masked value; shorter values occur inside ordinary words."""
_NAME = re.compile(r"(?=.{1,15}$)[A-Z]?[a-z]+(?:[_-][a-z]+)*")
"""A plain word or short name, such as digits, whose masking would garble messages."""


def mask(text: str) -> str:
    """Replace every recognised password, key and token in `text` by `***`.

    Recognised are passwords in addresses and values of query parameters such as `token=`. Anywhere
    in the text, the values of environment variables such as MLFLOW_TRACKING_PASSWORD, and passwords
    in addresses that environment variables hold, are masked too, unless the value is a plain word.
    """
    masked = _USERINFO.sub(_hide_userinfo, text)
    masked = _DATABASE.sub(rf"\1{MASK}@", masked)
    masked = _QUERY.sub(rf"\1{MASK}", masked)
    for secret in sorted(set(_environment_secrets()), key=len, reverse=True):
        masked = masked.replace(secret, MASK)
    return masked


def _hide_userinfo(match: re.Match[str]) -> str:
    """Mask the password, or a user name without a password, which may be a token."""
    user, colon, _ = match[2].partition(":")
    return f"{match[1]}{user}:{MASK}@" if colon else f"{match[1]}{MASK}@"


def _environment_secrets() -> Iterator[str]:
    """Yield every secret of the environment, as written and percent-decoded (%40 is @)."""
    for name, value in os.environ.items():
        for secret in [value] if _VARIABLE.search(name) else _address_secrets(value):
            yield from (text for text in (secret, unquote(secret)) if _can_be_masked(text))


def _can_be_masked(secret: str) -> bool:
    """Return True if masking a secret everywhere does not garble ordinary text."""
    return len(secret) >= _SHORTEST and not _NAME.fullmatch(secret)


def _address_secrets(value: str) -> Iterator[str]:
    """Yield the secrets in a value, if the value is an address."""
    _, scheme, location = value.partition("://")
    if scheme:
        userinfo, _, _ = location.rpartition("@")
        yield userinfo.partition(":")[2]
        yield from (match[2] for match in _QUERY.finditer(value))
