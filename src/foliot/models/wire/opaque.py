"""Content that a provider wants back unchanged, marked with the format and the account it belongs to.

A run that falls back from one provider to another carries the first one's signatures in its history; sent to the
second they are refused. So is reasoning that one account had encrypted and another sends, of the same provider too. The
marks keep them at home. What names no account goes to any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from hashlib import blake2b
from urllib.parse import urlsplit

from msgspec.structs import replace

from foliot.kernel.messages import Message, Part, Reasoning, ToolCall


def mark(wire: str, value: str) -> str:
    return f"{wire}:{value}"


def unmark(wire: str, opaque: str | None) -> str | None:
    """The value, if it belongs to this format; else None."""
    if opaque is None or not opaque.startswith(f"{wire}:"):
        return None
    return opaque[len(wire) + 1 :]


def account_of(base_url: str, owner: str) -> str:
    """A short name for who asks where, the same in every process. Four bytes of a hash say nothing about a key.

    `owner` is the account where the endpoint names it, which a new key does not change, and the key where it does not.
    """
    where = urlsplit(base_url)
    return blake2b(f"{where.hostname}:{where.port} {owner}".encode(), digest_size=4, person=b"account").hexdigest()


def stamped(message: Message, account: str) -> Message:
    """The answer of an account, with its name on all that only this account can have back."""
    return _changed(message, lambda opaque: f"@{account} {opaque}")


def at_home(messages: tuple[Message, ...], accounts: Collection[str]) -> tuple[Message, ...]:
    """A history as one may send it who has these accounts: without what others had encrypted."""

    def own(opaque: str) -> str | None:
        if not opaque.startswith("@"):
            return opaque
        whose, _, kept = opaque[1:].partition(" ")
        return kept if whose in accounts else None

    changed = [_changed(message, own) if message.role == "assistant" else message for message in messages]
    return messages if all(map(_is, changed, messages)) else tuple(changed)


def lost_between(before: tuple[Message, ...], after: tuple[Message, ...]) -> bool:
    """Whether `at_home` had to leave something out, and not only to take its own stamps off."""
    return any(
        _is_opaque(one) and not _is_opaque(other)
        for old, new in zip(before, after, strict=True)
        if old is not new
        for one, other in zip(old.parts, new.parts, strict=True)
    )


def _is_opaque(part: Part) -> bool:
    return isinstance(part, (Reasoning, ToolCall)) and part.opaque is not None


def _is(one: object, other: object) -> bool:
    return one is other


def _changed(message: Message, change: Callable[[str], str | None]) -> Message:
    parts: list[Part] | None = None
    for index, part in enumerate(message.parts):
        if isinstance(part, (Reasoning, ToolCall)) and part.opaque is not None:
            kept = change(part.opaque)
            if kept != part.opaque:
                parts = parts if parts is not None else list(message.parts)
                parts[index] = replace(part, opaque=kept)
    return message if parts is None else Message(message.role, tuple(parts))
