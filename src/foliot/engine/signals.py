"""Saying something to a run from outside."""

from __future__ import annotations

import secrets

from foliot.kernel.codec import encode, type_of
from foliot.kernel.events import Event
from foliot.store.runs import Signal


def signal(run_id: str, event: Event, at: float, *, signal_id: str | None = None) -> Signal:
    """The event as a signal. The same `signal_id` twice is heard once."""
    return Signal(signal_id or secrets.token_hex(12), run_id, at, type_of(event), encode(event))
