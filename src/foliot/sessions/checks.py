"""Checks of what people give for sessions: ids, titles, places, options. Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, Final, cast

import msgspec

from foliot.common.suggestions import check_word
from foliot.errors import InvalidInput
from foliot.kernel.identity import is_name
from foliot.kernel.inbox import DROPS, LARGEST_CAP, LONGEST_DEBOUNCE, InboxOptions
from foliot.sessions.base import TurnOptions
from foliot.sessions.keys import LONGEST_KEY
from foliot.store.sessions.base import Place
from foliot.store.sessions.inbox_rules import INBOX

LONGEST_TITLE: Final = 200
LONGEST_TEXT: Final = 512
LARGEST_OPTIONS: Final = 65_536
LONGEST_TURN: Final = 7 * 86_400.0
LONGEST_SYSTEM: Final = 200_000
MOST_EXCLUDED: Final = 1000
# What can be typed again and stands in a path; a key of a session may be the id of one.
_ID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:%@-]{0,254}[A-Za-z0-9])?")


def check_session_id(id: str) -> None:
    """Raises `InvalidInput` for what cannot be the id of a session."""
    if not _ID.fullmatch(id):
        raise InvalidInput(
            f"{id[:80]!r} cannot be the id of a session",
            hint="use up to 256 letters, digits, dots, dashes, underscores and colons, such as `support:17`",
        )


def check_place(place: Place) -> None:
    """Raises `InvalidInput` for a user or a channel that cannot be named so."""
    if place.user and not is_name(place.user):
        raise InvalidInput(f"{place.user[:80]!r} cannot be the name of a user")
    if len(place.channel) > LONGEST_KEY or not place.channel.isprintable():
        raise InvalidInput(f"{place.channel[:80]!r} cannot be a channel: it is too long, or cannot be printed")


def check_texts(**texts: str) -> None:
    """Raises `InvalidInput` for texts that are too long, or that cannot be printed."""
    for name, text in texts.items():
        if not isinstance(cast("object", text), str):
            raise InvalidInput(f"the {name} is a text, and not {type(text).__name__}")
        if len(text) > LONGEST_TEXT or not text.isprintable():
            raise InvalidInput(
                f"the {name} {text[:80]!r} is too long, or cannot be printed",
                hint=f"use up to {LONGEST_TEXT} characters on one line",
            )


def check_title(title: str) -> str:
    """Returns a title on one line. Raises `InvalidInput` for one that is too long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in title).split())
    if len(line) > LONGEST_TITLE:
        raise InvalidInput(f"a title has at most {LONGEST_TITLE} characters, and this one {len(line)}")
    return line


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a session. Raises `InvalidInput` for rules of an inbox that are none."""
    for name in options:
        check_word("the option of a session", name, (INBOX,))  # another one would do nothing
    given = options.get(INBOX)
    for name in cast("dict[str, Any]", given) if isinstance(given, dict) else ():
        check_word("the option of an inbox", name, InboxOptions.__struct_fields__)
    try:
        size = len(msgspec.json.encode(options))
        inbox = msgspec.convert(options.get(INBOX, {}), InboxOptions)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"the options of the session cannot be read: {error}") from None
    if size > LARGEST_OPTIONS:
        raise InvalidInput(f"the options of a session have at most {LARGEST_OPTIONS} bytes, and these {size}")
    if not 0 <= inbox.debounce <= LONGEST_DEBOUNCE:
        raise InvalidInput(f"inbox.debounce is between 0 and {LONGEST_DEBOUNCE:g} seconds", field="inbox.debounce")
    if not 1 <= inbox.cap <= LARGEST_CAP:
        raise InvalidInput(f"inbox.cap is between 1 and {LARGEST_CAP}", field="inbox.cap")
    if inbox.drop not in DROPS:
        raise InvalidInput(f"inbox.drop is one of {', '.join(DROPS)}", field="inbox.drop")
    return options


def check_turn_options(options: TurnOptions | None) -> TurnOptions:
    """Returns the options of a turn, without blank names of tools. Raises `InvalidInput` for what no turn can have."""
    if options is None:
        return TurnOptions()
    if not isinstance(cast("object", options), TurnOptions):
        raise InvalidInput(f"the options of a turn are TurnOptions, and not {type(options).__name__}")
    seconds = options.max_seconds
    if seconds is not None and not (isfinite(seconds) and 0 < seconds <= LONGEST_TURN):
        raise InvalidInput(
            f"max_seconds is {seconds:g}, and has to be above 0 and at most {LONGEST_TURN:g}",
            hint="leave it out for the limit of the agent",
            field="max_seconds",
        )
    if len(options.system) > LONGEST_SYSTEM:
        raise InvalidInput(f"system has at most {LONGEST_SYSTEM:,} characters, and this one {len(options.system):,}")
    tools = tuple(dict.fromkeys(name.strip() for name in options.exclude_tools if name.strip()))
    if len(tools) > MOST_EXCLUDED:
        raise InvalidInput(f"exclude_tools names at most {MOST_EXCLUDED} tools, and these are {len(tools)}")
    check_texts(model=options.model, **{f"tool {n} of exclude_tools": name for n, name in enumerate(tools, 1)})
    system = options.system if options.system.strip() else ""
    return TurnOptions(options.model.strip(), system, tools, seconds)
