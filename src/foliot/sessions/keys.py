"""Keys of sessions: the channel under which a session of an agent and a person is found again. Pure.

    {agent}:{platform}:{external user}:{context}     a sender who is not linked to an account
    {agent}:user:{user}:{context}                    a user; the same session over all platforms

A part may contain anything: `%` and `:` are escaped, so two different keys are never the same text. `user` is no
platform, so the two forms are never the same either.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

from foliot.errors import InvalidInput

USER: Final = "user"
LONGEST_KEY: Final = 1024


class SessionKey(Struct, frozen=True):
    """A key by its parts. `platform` is blank when `user` is one of Foliot, and not of a platform."""

    agent: str
    user: str
    context: str
    platform: str = ""

    def __str__(self) -> str:
        """Formats the key, with its parts escaped."""
        return ":".join(_escaped(part) for part in (self.agent, self.platform or USER, self.user, self.context))


def platform_key(agent: str, platform: str, user: str, context: str) -> str:
    """Returns the key of a sender on a platform. Raises `InvalidInput` for parts that make no key."""
    if platform.strip().lower() == USER:
        raise InvalidInput(
            f"{platform!r} cannot be the name of a platform", hint="`user` stands in the keys of users of Foliot"
        )
    return _checked(SessionKey(agent, user, context, platform), {"platform": platform})


def user_key(agent: str, user: str, context: str) -> str:
    """Returns the key of a user of Foliot. Raises `InvalidInput` for parts that make no key."""
    return _checked(SessionKey(agent, user, context), {})


def chat_context(channel: str, group: str = "", thread: str = "") -> str:
    """Returns the context of what is said in a chat of a channel, by the name of its resource.

    It is `private`, `group/{channel}/{group}` or `thread/{channel}/{group}/{thread}`, with a blank group in private:
    only a private chat is one over all channels, for ids of groups and threads mean nothing on another one.
    """
    if not group and not thread:
        return "private"
    parts = ("thread", channel, group, thread) if thread else ("group", channel, group)
    return "/".join(quote(part, safe="") for part in parts)


def read_key(text: str) -> SessionKey:
    """Returns the parts of a key. Raises `InvalidInput` for another text."""
    parts = text.split(":")
    found = [unquote(part) if "%" in part else part for part in parts]
    if len(found) == 4 and all(found[:3]):
        agent, platform, user, context = found
        key = SessionKey(agent, user, context, "" if platform == USER else platform)
        if str(key) == text:
            return key
    raise InvalidInput(f"{text[:80]!r} is no key of a session", hint="its form is agent:platform:user:context")


def _checked(key: SessionKey, more: dict[str, str]) -> str:
    empty = [name for name, part in {"agent": key.agent, "user": key.user, **more}.items() if not part.strip()]
    if empty:
        raise InvalidInput(f"a key of a session needs its {' and '.join(empty)}")
    text = str(key)
    if len(text) > LONGEST_KEY or not text.isprintable():
        raise InvalidInput(f"the key of a session is too long, or cannot be printed: {text[:80]!r}")
    return text


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")
