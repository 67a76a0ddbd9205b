"""Routing: where a message came from, where its answer goes, and what comes along with it. Pure.

Whoever says something writes a `MessageDetails` with the input. The end of the turn that answers it reads it again and
decides by `answer_address` whether and where the answer is delivered:

    to, channel, account_id                      where the message came in
    reply_to, reply_channel, reply_account_id    where the answer goes instead; each falls back to its partner above
    thread_id                                    the thread, kept for the answer
    group_id, group_channel, group_space         the group, the channel in it, the team or space

Without `deliver` the answer stays in the conversation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

MOST_ATTACHMENTS: Final = 20
LARGEST_ATTACHMENTS: Final = 64 * 1024
# The channel of what was said without one: its answers are read where they were asked for.
DIRECT: Final = "direct"
LONGEST_KEY: Final = 180


class Routing(Struct, frozen=True, omit_defaults=True):
    """The routing of a message. Members that nobody gave are blank, and left out when stored."""

    to: str = ""
    reply_to: str = ""
    channel: str = ""
    reply_channel: str = ""
    account_id: str = ""
    reply_account_id: str = ""
    thread_id: str = ""
    group_id: str = ""
    group_channel: str = ""
    group_space: str = ""


class Provenance(Struct, frozen=True, omit_defaults=True):
    """The origin of a message, for whoever asks later. All of it is optional."""

    source: str = ""
    message_id: str = ""
    channel: str = ""
    tool_call_id: str = ""
    correlation_id: str = ""


class MessageDetails(Struct, frozen=True, omit_defaults=True):
    """Everything that comes along with an input, beside its words. `attachments` are references, never content."""

    routing: Routing = Routing()
    deliver: bool = False
    provenance: Provenance = Provenance()
    attachments: tuple[dict[str, Any], ...] = ()


class Address(Struct, frozen=True, omit_defaults=True):
    """A place to deliver to: `channel` is the name of a Channel in the namespace of the session."""

    channel: str
    to: str = ""
    account_id: str = ""
    thread_id: str = ""
    group_id: str = ""
    group_channel: str = ""
    group_space: str = ""

    def target_in(self, namespace: str) -> str:
        """Returns the name of this place: two have one target exactly when address and namespace are equal.

        Channels of two namespaces may have one name, and people one number on both.
        """
        return hashlib.sha256(msgspec.json.encode((namespace, *msgspec.structs.astuple(self)))).hexdigest()[:32]


def answer_address(details: MessageDetails) -> Address | None:
    """Decides where the answer to a message is delivered; None when it stays in the conversation."""
    routing = details.routing
    channel = routing.reply_channel or routing.channel
    if not details.deliver or not channel or channel == DIRECT:
        return None
    return Address(
        channel,
        routing.reply_to or routing.to,
        routing.reply_account_id or routing.account_id,
        routing.thread_id,
        routing.group_id,
        routing.group_channel,
        routing.group_space,
    )


def read_details(stored: Mapping[str, Any]) -> MessageDetails:
    """Reads what was stored with an input. What is not of these shapes is somebody else's, and is left alone."""
    known = {name: stored[name] for name in MessageDetails.__struct_fields__ if name in stored}
    try:
        return msgspec.convert(known, MessageDetails, strict=False)
    except msgspec.ValidationError:
        return MessageDetails()


def stored_details(details: MessageDetails) -> dict[str, Any]:
    """Returns the details as they are stored with an input."""
    return msgspec.to_builtins(details)


def attachments_problem(attachments: Sequence[Mapping[str, Any]]) -> str:
    """Says what is wrong with the attachments of a message; blank when nothing is."""
    if len(attachments) > MOST_ATTACHMENTS:
        return f"a message has at most {MOST_ATTACHMENTS} attachments, and this one {len(attachments)}"
    try:
        size = len(msgspec.json.encode(attachments))
    except (TypeError, ValueError, RecursionError):
        return "attachments are maps of JSON values"
    if size > LARGEST_ATTACHMENTS:
        return f"the attachments of a message take at most {LARGEST_ATTACHMENTS} bytes of JSON, and these {size}"
    return ""


def bounded_key(prefix: str, rest: str) -> str:
    """Returns `prefix` and `rest` as one key; a long `rest` is replaced by its digest, so that every key fits."""
    whole = prefix + rest
    return whole if len(whole) <= LONGEST_KEY else prefix + hashlib.sha1(rest.encode()).hexdigest()
