"""The rules of a session's inbox: its own options, then those of its agent as it is declared now, then the defaults.

Each field is taken by itself. The Agent is read in the transaction that decides by it: all processes decide by the same
text, and a changed Agent holds from the next decision on. Rules decide about inputs that wait beside others, so an
empty inbox reads none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from foliot.common.durations import seconds
from foliot.kernel.inbox import InboxOptions
from foliot.store.base import Database, Key
from foliot.store.resources.documents import key_text
from foliot.store.sessions.base import Session
from foliot.store.transaction import Row, Tx, rows

# Among the options of a session, and in the spec of an agent.
INBOX: Final = "inbox"


class AgentObject(Struct, frozen=True):
    """An agent of Python, as far as it rules inboxes: `inbox` of its spec, as in a manifest.

    Unless it `replaces` one that is declared under its name, it counts only where none is.
    """

    inbox: Mapping[str, Any]
    replaces: bool = False


class _Spec(Struct):
    inbox: dict[str, Any] = {}


class _Document(Struct):
    spec: _Spec


_FIELDS: Final = frozenset(InboxOptions.__struct_fields__)
_documents = msgspec.json.Decoder(_Document)


def inbox_rules(session: Session, agent: AgentObject | None) -> Tx[InboxOptions]:
    """Returns the rules of a session's inbox, as a part of a transaction; `agent` is that of this process."""
    key = _declared_key(session, agent)
    return _rules(_own(session), agent, (yield from rows("resource_get", key=key)) if key else ())


async def read_inbox_rules(database: Database, session: Session, agent: AgentObject | None) -> InboxOptions:
    """Returns the same outside of a transaction."""
    key = _declared_key(session, agent)
    return _rules(_own(session), agent, await database.read("resource_get", key=key) if key else ())


def run_inbox_rules(namespace: str, name: str, agent: AgentObject | None) -> Tx[InboxOptions]:
    """Returns the rules for what is said to a run outside of sessions: those of its agent, then the defaults."""
    if agent is not None and agent.replaces:
        return rules_of(agent)
    return _rules({}, agent, (yield from rows("resource_get", key=key_text(Key("Agent", namespace, name)))))


def rules_of(agent: AgentObject | None) -> InboxOptions:
    """Returns the rules of an agent of this process."""
    return _rules({}, agent, ())


def _own(session: Session) -> Mapping[str, Any]:
    return session.options.get(INBOX, {})


def _declared_key(session: Session, agent: AgentObject | None) -> str:
    """The key of the Agent whose rules count; blank where none does."""
    if (agent is not None and agent.replaces) or set(_own(session)) >= _FIELDS:
        return ""
    return key_text(Key("Agent", session.place.namespace, session.place.agent))


def _rules(own: Mapping[str, Any], agent: AgentObject | None, declared: Sequence[Row]) -> InboxOptions:
    rules: dict[str, Any] = {} if agent is None else dict(agent.inbox)
    if declared:
        rules = _documents.decode(declared[0]["document"]).spec.inbox
    if "debounce" in rules:
        rules["debounce"] = seconds(rules["debounce"])
    return msgspec.convert({**rules, **own}, InboxOptions)
