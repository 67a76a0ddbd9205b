"""`recall`: the words of a conversation that a summary stands for, found by a search or by their numbers.

It reads the journals of the run that calls it and of the turns before it, and no others: a model cannot name a run, so
the conversation of somebody else is out of its reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from foliot.common.threads import unhurried
from foliot.errors import NotFound
from foliot.kernel.errors import IllegalEvent, UnknownEvent
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import Event, RunCreated, SessionCompacted
from foliot.kernel.run.loop import apply
from foliot.kernel.run.past import Past
from foliot.kernel.run.spec import RunSpec, decode_spec
from foliot.kernel.run.state import State
from foliot.kernel.spoken import spoken
from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition
from foliot.tools.builtin.arguments import object_schema, text
from foliot.tools.builtin.journal import History, JournalRecord

NAME: Final = "recall"
DEFAULT_FOUND: Final = 5
MOST_FOUND: Final = 20
# Characters around the first word that was found, and of all messages that one call shows.
EXCERPT: Final = 500
MOST_SHOWN: Final = 20_000

_messages = msgspec.json.Decoder(tuple[Message, ...])


class Said(NamedTuple):
    """One message of a conversation, by its number there."""

    number: int
    role: str
    words: str


class Recall:
    def __init__(self, history: History) -> None:
        self._history = history
        self.definition = ToolDefinition(
            name=NAME,
            description=(
                "Finds what was said earlier in this conversation, also what only a summary is left of: give words to "
                "look for, or the numbers of messages to read them whole."
            ),
            schema=object_schema(
                {
                    "query": text("Words to look for.", maxLength=1000),
                    "from": {"type": "integer", "minimum": 1, "description": "Read from the message of this number."},
                    "to": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "Up to this one; by default that one alone.",
                    },
                    "top_k": {"type": "integer", "description": f"At most so many finds; {DEFAULT_FOUND} by default."},
                }
            ),
            effect="read",
            category="memory",
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        query = str(call.arguments.get("query") or "").strip()
        first = call.arguments.get("from")
        if bool(query) == (first is not None):
            raise ToolArgumentsInvalid("recall: give either `query` or `from`", field="query")
        said = await conversation_of(self._history, call.run_id)
        if first is not None:
            last = max(first, call.arguments.get("to") or first)
            return _expanded([each for each in said if first <= each.number <= last], last, len(said))
        wanted = call.arguments.get("top_k") or 0
        most = min(wanted if wanted > 0 else DEFAULT_FOUND, MOST_FOUND)
        found = found_in(said, query)
        shown = [
            {"message": each.number, "role": each.role, "text": excerpt(each.words, query)} for each in found[:most]
        ]
        return {"found": shown, "count": len(found), "messages": len(said)}


def _expanded(wanted: Sequence[Said], last: int, count: int) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    left = MOST_SHOWN
    for each in wanted:
        if each.words and left <= 0:
            return {"messages": shown, "more": f"continue with from={each.number}, to={last}"}
        words = each.words if len(each.words) <= left else f"{each.words[:left]}… (cut)"
        shown.append({"message": each.number, "role": each.role, "text": words})
        left -= len(each.words)
    return {"messages": shown} if shown else {"messages": [], "note": f"there are {count} messages"}


# --- searching -------------------------------------------------------------------------------------------------------


def found_in(said: Iterable[Said], query: str) -> list[Said]:
    """The messages with words of the query, those with most of them first, and of these the newest."""
    whole = query.casefold()
    words = list(dict.fromkeys(whole.split()))
    scored: list[tuple[int, int, Said]] = []
    for each in said:
        text = each.words.casefold()
        score = sum(word in text for word in words) + (len(words) if whole in text else 0)
        if score:
            scored.append((score, each.number, each))
    scored.sort(key=lambda found: found[:2], reverse=True)
    return [each for _, _, each in scored]


def excerpt(text: str, query: str) -> str:
    """The part of a text around the query, or around the first of its words that is there."""
    low = text.casefold()
    places = [at for word in (query.casefold(), *query.casefold().split()) if (at := low.find(word)) >= 0]
    begin = max(0, (places[0] if places else 0) - EXCERPT // 4)
    shown = text[begin : begin + EXCERPT]
    return f"{'…' if begin else ''}{shown}{'…' if begin + EXCERPT < len(text) else ''}"


# --- reading ---------------------------------------------------------------------------------------------------------


async def conversation_of(history: History, run_id: str) -> list[Said]:
    """Everything that was said in the conversation of a run, whatever summaries stand for. Raises `NotFound`."""
    journals = {**await history.turns(run_id), run_id: await history.read(run_id)}
    size = sum(len(record.data) for records in journals.values() for record in records)
    facts = await unhurried(size, _decoded, journals)
    chain = [run_id]
    while (created := _creation(facts, chain[-1])).after:
        chain.append(created.after)
    specs: dict[str, RunSpec] = {}
    for turn in chain:
        if (name := _creation(facts, turn).spec) not in specs:
            specs[name] = decode_spec(await history.get_blob(name))
    before = () if created.history is None else _messages.decode(await history.get_blob(created.history))
    return await unhurried(size, _said, before, [(turn, facts[turn]) for turn in reversed(chain)], specs)


def _decoded(journals: dict[str, Sequence[JournalRecord]]) -> dict[str, list[tuple[float, Event]]]:
    return {run_id: [(each.at, event) for each in records if (event := _event(each)) is not None]
            for run_id, records in journals.items()}  # fmt: skip


def _event(record: JournalRecord) -> Event | None:
    try:
        return decode(record.data)
    except UnknownEvent:
        return None  # written by a newer version


def _creation(facts: dict[str, list[tuple[float, Event]]], run_id: str) -> RunCreated:
    told = facts.get(run_id)
    if not told or not isinstance(created := told[0][1], RunCreated):
        raise NotFound(f"there is no run {run_id!r}", hint="recall is a tool of runs: outside of one it has nothing")
    return created


def _said(
    before: Sequence[Message], turns: Sequence[tuple[str, list[tuple[float, Event]]]], specs: dict[str, RunSpec]
) -> list[Said]:
    """The messages of all turns. Without the compactions, the fold of each turn is what was really said in it."""
    past = Past(before)
    for run_id, facts in turns:
        created = facts[0][1]
        assert isinstance(created, RunCreated)
        state = State(specs[created.spec], run_id)
        past.outcomes.clear()  # of calls that were held, a summary may have left nothing
        state.past = past  # names of calls depend on earlier ones
        for at, event in facts:
            if not isinstance(event, SessionCompacted):
                try:
                    apply(state, event, at)
                except IllegalEvent:
                    continue  # about a call that was held because of one of an earlier turn
        past.messages += state.settled_messages()
    return [Said(number, each.role, spoken(each, whole=True)) for number, each in enumerate(past.messages, 1)]
