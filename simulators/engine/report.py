"""The report of one seed."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.engine.history import History
from simulators.engine.profiles import Profile


@dataclass(frozen=True)
class Report:
    """`occasions` is at how many points a process could have died. `program` is the module that replays it."""

    program: str
    seed: int
    profile: Profile
    history: History
    violations: list[str]
    occasions: int
    callbacks: int

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def digest(self) -> str:
        return self.history.digest()

    @property
    def command(self) -> str:
        """The command that replays this world exactly."""
        return f"python -m {self.program} --seed {self.seed} --profile {self.profile.name} -v"

    def __str__(self) -> str:
        head = f"seed {self.seed}, profile {self.profile.name}: {len(self.violations)} violations"
        broken = [f"  {violation}" for violation in self.violations]
        return "\n".join((head, *broken, *self.history.lines(), f"replay: {self.command}"))
