"""Names of time zones."""

from __future__ import annotations

import difflib
import zoneinfo
from functools import lru_cache


@lru_cache(maxsize=256)
def time_zone_problem(name: str) -> str | None:
    """None when `name` is an IANA time zone, else what is wrong, with the nearest name.

    Where a machine has no time zone data at all, nothing can be said against a name.
    """
    if name == "UTC":
        return None
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = sorted(zoneinfo.available_timezones())
        if not known:
            return None
        lower = {zone.lower(): zone for zone in known}
        near = difflib.get_close_matches(name.lower(), list(lower), n=1)
        return f"unknown time zone; did you mean {lower[near[0]]}?" if near else "unknown time zone"
    return None
