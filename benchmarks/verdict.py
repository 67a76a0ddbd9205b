"""What benchmarks are held against: each figure that has an aim is given to `hold`, and `end` is the exit code."""

from __future__ import annotations

import math


class Verdict:
    """The aims of one program, and which of them it missed."""

    def __init__(self) -> None:
        self.held = 0
        self.missed: list[str] = []

    def hold(
        self, what: str, figure: float, unit: str = "", *, most: float = math.inf, least: float = -math.inf
    ) -> bool:
        """Holds a figure against its aim; whether it is met. What is not a number misses it."""
        self.held += 1
        if least <= figure <= most:
            return True
        aim = f"at most {most:,g}" if not figure <= most else f"at least {least:,g}"
        self.missed.append(f"{what}: {figure:,.4g} {unit}".rstrip() + f" (aim: {aim})")
        return False

    def end(self) -> int:
        """Prints which aims were missed; the exit code of the program."""
        if not self.held:
            print("\nNothing was held against an aim.")
        elif not self.missed:
            print(f"\nmet: all {self.held} aims")
        for each in self.missed:
            print(f"MISSED {each}")
        return 1 if self.missed else 0
