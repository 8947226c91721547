"""What came of injected faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Outcomes by kind of fault, and every outcome that must not be.

    Attributes:
        outcomes: how often each (fault, outcome) was seen.
        wrong: one sentence for each fault that ended in a traceback, a hang or another number.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many faults were injected."""
        return sum(self.outcomes.values())

    def add(self, fault: str, outcome: str) -> None:
        """Note one fault that ended as it may."""
        self.outcomes[fault, outcome] += 1

    def add_wrong(self, fault: str, what: str) -> None:
        """Note one fault that ended as it must not."""
        self.outcomes[fault, "WRONG"] += 1
        self.wrong.append(f"{fault}: {what}")

    def say(self) -> None:
        """Print how it stands, for whoever waits."""
        print(f"  {self.count} faults so far, {len(self.wrong)} wrong", flush=True)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.outcomes + other.outcomes, self.wrong + other.wrong)

    def table(self) -> str:
        """A Markdown table of outcomes, and below it what was wrong."""
        rows = [
            f"| {fault} | {outcome} | {n} |"
            for (fault, outcome), n in sorted(self.outcomes.items())
        ]
        lines = ["| fault | outcome | times |", "|---|---|---:|", *rows, ""]
        lines.append(f"{self.count} faults, {len(self.wrong)} wrong")
        return "\n".join([*lines, *(f"- {each}" for each in self.wrong)])
