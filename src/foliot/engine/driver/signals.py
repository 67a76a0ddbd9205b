"""Saying something to a run from outside."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager

from foliot.engine.driver.journal import read_facts
from foliot.errors import InvalidInput
from foliot.kernel.errors import Unencodable
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import Event, InputReceived
from foliot.store.journal.base import Journal, Signal


def signal(run_id: str, event: Event, at: float, *, signal_id: str | None = None) -> Signal:
    """The event as a signal. The same `signal_id` twice is heard once. Raises `InvalidInput`."""
    with storable(f"what is said to run {run_id}"):
        data = encode(event)
    return Signal(signal_id or secrets.token_hex(12), run_id, at, type_of(event), data)


async def was_said(journal: Journal, run_id: str, input_id: str) -> bool:
    """Whether a run was told the input of this id, heard or not. Raises `NotFound`."""
    # In this order: a signal moves into the journal, never back.
    if any(each.id == input_id for each in await journal.signals([run_id])):
        return True
    facts = await read_facts(journal, run_id)
    return any(isinstance(event, InputReceived) and event.input_id == input_id for _, event in facts)


@contextmanager
def storable(what: str) -> Generator[None]:
    """Around the encoding of what somebody gave. Raises `InvalidInput` for what JSON cannot carry."""
    try:
        yield
    except (Unencodable, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"{what} cannot be stored: {error}",
            hint="half of a surrogate pair is no character: decode the bytes as what they are, or leave them out",
        ) from error
