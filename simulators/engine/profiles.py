"""How rough a simulated world is. Chances are per occasion; `faults` bounds their sum, so every world calms down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from foliot.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """`crash`, `pause` and `stop` are rolled before and after every write, question and tool effect.

    `crash_at` kills at exactly those occasions instead, counted from 1. `disk` is the chance that a write or a read
    answers "unavailable", in half of the writes after it was stored. `outage` is the chance that the store is away for
    everyone from then on, for `outages` parts of a lease; after one it is there for `recovery` parts of a lease.
    `clumsy` and `tool_trouble` are how often the model and the tools misbehave; `signals` is how much is said to runs
    from outside.
    """

    name: str
    runs: int = 2
    workers: int = 2
    crash: float = 0.0
    pause: float = 0.0
    stop: float = 0.0
    disk: float = 0.0
    outage: float = 0.0
    outages: tuple[float, ...] = (0.1, 0.5, 0.9, 2.0)
    recovery: float = 0.0
    faults: int = 6
    clumsy: float = 0.0
    tool_trouble: float = 0.0
    signals: int = 0
    silent_person: float = 0.0
    limits: bool = False
    lease_seconds: float = 3.0
    crash_at: tuple[int, ...] = ()


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("calm"),
        Profile("crashes", crash=0.06, faults=8),
        Profile("zombies", runs=1, workers=3, crash=0.01, pause=0.08, tool_trouble=0.1),
        Profile("disk", runs=3, disk=0.06, crash=0.01, faults=8),
        # Nobody dies, and between two outages leases can be renewed: nothing may be left in doubt.
        Profile(
            "blips",
            runs=3,
            disk=0.06,
            outage=0.04,
            outages=(0.02, 0.1, 0.3),
            recovery=0.4,
            faults=20,
            lease_seconds=30.0,
        ),
        # The store is away for longer than leases last, which end in the middle of slow calls.
        Profile(
            "blackouts",
            runs=3,
            outage=0.03,
            outages=(0.5, 1.0, 1.5, 4.0),
            tool_trouble=0.1,
            faults=8,
            lease_seconds=1.5,
        ),
        Profile("blunders", clumsy=0.25, tool_trouble=0.25, limits=True, crash=0.01),
        Profile("meddling", signals=6, crash=0.02, stop=0.03, limits=True, silent_person=0.2),
        Profile(
            "rough",
            runs=3,
            workers=3,
            crash=0.03,
            pause=0.02,
            stop=0.01,
            disk=0.02,
            outage=0.005,
            faults=10,
            clumsy=0.08,
            tool_trouble=0.1,
            signals=4,
            silent_person=0.1,
            limits=True,
        ),
    )
}
ANY: Final = "any"


def profile_for(seed: int, name: str) -> Profile:
    """The profile of that name; with "any" the seed chooses. Raises `UsageError`."""
    if name == ANY:
        return Random(f"{seed}/profile").choice(list(PROFILES.values()))
    try:
        return PROFILES[name]
    except KeyError:
        raise UsageError(
            f"there is no simulator profile {name!r}", hint=f"there are: {ANY}, {', '.join(PROFILES)}"
        ) from None
