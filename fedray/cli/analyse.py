"""`fedray analyse NAME RUN [RUN ...]`: one analysis of finished runs."""

from __future__ import annotations

from types import MappingProxyType

import click

from fedray.command import SETTINGS, LazyGroup
from fedray.results.analyses.harness import MODULES


class _Analyses(LazyGroup):
    """All analyses."""

    what = "analysis"
    sections = MappingProxyType({"Analyses": MODULES})

    def place(self, name: str) -> str:
        """Return "module:attribute" of the command of an analysis."""
        return f"fedray.results.analyses.{name}:command"


@click.group(
    cls=_Analyses,
    epilog="fedray analyse NAME --help lists the options of an analysis.",
    context_settings=SETTINGS,
)
def command() -> None:
    """Analyse one aspect of finished runs."""
