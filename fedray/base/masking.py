"""Mask passwords, keys and tokens in texts that are printed or written to a file.

The address of a server may hold a password (`http://ada:secret@host:5000`), and libraries repeat
addresses in their error messages.
"""

from __future__ import annotations

import re

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


def mask(text: str) -> str:
    """Replace every recognised password, key and token in `text` by `***`.

    Recognised are passwords in addresses and values of query parameters such as `token=`.
    """
    masked = _USERINFO.sub(_hide_userinfo, text)
    masked = _DATABASE.sub(rf"\1{MASK}@", masked)
    return _QUERY.sub(rf"\1{MASK}", masked)


def _hide_userinfo(match: re.Match[str]) -> str:
    """Mask the password, or a user name without a password, which may be a token."""
    user, colon, _ = match[2].partition(":")
    return f"{match[1]}{user}:{MASK}@" if colon else f"{match[1]}{MASK}@"
