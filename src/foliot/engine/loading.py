"""A run as its journal tells it."""

from __future__ import annotations

import msgspec

from foliot.errors import Conflict
from foliot.kernel.codec import decode
from foliot.kernel.events import Event, RunCreated
from foliot.kernel.loop import fold
from foliot.kernel.messages import Message
from foliot.kernel.spec import decode_spec
from foliot.kernel.state import State
from foliot.store.runs import Journal, RunInfo

_messages = msgspec.json.Decoder(tuple[Message, ...])


async def load_run(journal: Journal, run_id: str, *, upto: int | None = None) -> tuple[RunInfo, State]:
    """The run and the fold of its journal (of the first `upto` events). Raises `NotFound`."""
    info = await journal.get(run_id)
    facts = await read_facts(journal, run_id, limit=upto)
    if not facts or not isinstance(created := facts[0][1], RunCreated):
        raise Conflict(f"the journal of run {run_id} does not begin with its creation")
    spec = decode_spec(await journal.get_blob(info.spec))
    return info, fold(spec, run_id, facts, await read_history(journal, created))


async def read_facts(journal: Journal, run_id: str, *, limit: int | None = None) -> list[tuple[float, Event]]:
    """What was recorded of the run, each fact with its time."""
    return [(entry.at, decode(entry.data)) for entry in await journal.read(run_id, limit=limit)]


async def read_history(journal: Journal, created: RunCreated) -> tuple[Message, ...]:
    """What was said before the run, in full."""
    return _messages.decode(await journal.get_blob(created.history)) if created.history else ()
