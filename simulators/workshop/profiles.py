"""How rough a simulated workshop is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from foliot.errors import UsageError
from simulators.engine.profiles import ANY, Profile


@dataclass(frozen=True)
class ShopProfile(Profile):
    """`lost` and `doubled` are of tickets; `cut` is the chance per look that a process loses the database for a while;
    `skew` is how many seconds clocks may be off, and jump; `talks` is how often somebody says something to a run
    that is about to rest; `woven`: transactions are interleaved by their statements, as on PostgreSQL."""

    tasks: int = 4
    lost: float = 0.0
    doubled: float = 0.0
    cut: float = 0.0
    skew: float = 0.0
    busy_model: float = 0.0
    cancels: int = 0
    talks: int = 0
    woven: bool = False


PROFILES: Final[Mapping[str, ShopProfile]] = {
    profile.name: profile
    for profile in (
        ShopProfile("calm", tasks=5),
        ShopProfile("crashes", crash=0.03, faults=10, workers=3),
        ShopProfile("zombies", pause=0.03, crash=0.01, faults=8, workers=3),
        ShopProfile("disk", disk=0.02, crash=0.005, faults=10, workers=2),
        # Nobody dies, and between two outages leases can be renewed: nothing may be left in doubt.
        ShopProfile(
            "blips", disk=0.02, outage=0.01, outages=(0.02, 0.1, 0.3), recovery=0.4, faults=20, lease_seconds=30.0
        ),
        ShopProfile("blackouts", disk=0.01, outage=0.01, outages=(0.5, 1.0, 1.5, 4.0), faults=10, workers=3),
        ShopProfile("partitions", cut=0.1, crash=0.01, faults=10, workers=3),
        ShopProfile("post", lost=0.3, doubled=0.3, crash=0.01, workers=3),
        ShopProfile("clocks", skew=300.0, crash=0.01, faults=8, workers=3),
        ShopProfile("models", busy_model=0.2, crash=0.01, faults=12, workers=2),
        ShopProfile("crowds", crash=0.03, faults=12, workers=3, talks=30, cancels=2, woven=True),
        ShopProfile("threads", crash=0.02, pause=0.01, disk=0.01, cancels=3, faults=10, workers=4, woven=True),
        ShopProfile("people", cancels=3, stop=0.02, crash=0.01, workers=2),
        ShopProfile(
            "rough",
            tasks=5,
            workers=4,
            crash=0.015,
            pause=0.01,
            stop=0.01,
            disk=0.01,
            outage=0.002,
            cut=0.03,
            lost=0.2,
            doubled=0.2,
            skew=20.0,
            busy_model=0.05,
            cancels=2,
            faults=15,
        ),
    )
}


def profile_for(seed: int, name: str) -> ShopProfile:
    """The profile of that name; with "any" the seed chooses among those that are not woven, which take ten times as
    long. Raises `UsageError`."""
    if name == ANY:
        return Random(f"{seed}/shop").choice([profile for profile in PROFILES.values() if not profile.woven])
    try:
        return PROFILES[name]
    except KeyError:
        raise UsageError(
            f"there is no workshop profile {name!r}", hint=f"there are: {ANY}, {', '.join(PROFILES)}"
        ) from None
