"""The words that are typed into a chat: a command, or something to say. Pure.

A command is a `/`, a word of this table, and what follows it; the word may be written in any case. A word that is very
like one of them is a slip of the fingers, and not said at all. A text that begins with any other word is said as it
stands, also when it begins with `/`: paths are talked about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import wrap
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from foliot.common.suggestions import VERY_ALIKE, did_you_mean, nearest
from foliot.errors import InvalidInput
from foliot.kernel.run.events import InputMode

Action: TypeAlias = Literal[
    "branch",
    "compact",
    "config",
    "help",
    "history",
    "model",
    "new",
    "quit",
    "regenerate",
    "search",
    "stop",
    "title",
    "whoami",
]


class Command(Struct, frozen=True):
    """A command, with what follows its word."""

    action: Action
    rest: str = ""


class Say(Struct, frozen=True):
    """A message. `mode` is None where none was typed: the chat's own mode is meant."""

    text: str
    mode: InputMode | None = None


# word: (argument, what it does, what is meant)
COMMANDS: Final[Mapping[str, tuple[str, str, Action]]] = {
    "help": ("", "show this list", "help"),
    "new": ("[TITLE]", "begin a new session; this one is archived", "new"),
    "stop": ("[all]", "stop the turn at work (as Ctrl-C), and with all take out what waits behind it", "stop"),
    "regenerate": ("", "answer the last message again; the earlier answer is kept", "regenerate"),
    "branch": ("TURN", "continue after this turn from now on; /history numbers them", "branch"),
    "compact": ("", "summarize what was said so far; all of it stays readable", "compact"),
    "model": ("[NAME]", "show the model, or ask another one from the next turn on; - is the agent's own", "model"),
    "title": ("[TEXT]", "show or set the title", "title"),
    "history": ("[N]", "show the last turns", "history"),
    "search": ("TEXT", "search in your sessions", "search"),
    "whoami": ("", "say who you are, and where", "whoami"),
    "quit": ("", "leave; a turn at work goes on (as Ctrl-D)", "quit"),
}
# Other words for the same; `config` is known so that a secret which follows it is said to no one.
OTHERS: Final[Mapping[str, Action]] = {
    "start": "help",
    "abort": "stop",
    "exit": "quit",
    "retry": "regenerate",
    "config": "config",
}
MODE_WORDS: Final[Mapping[str, InputMode]] = {
    "steer": "steer",
    "followup": "followup",
    "collect": "collect",
    "queue": "queue",
    "interrupt": "interrupt",
    "steer-backlog": "steer-backlog",
}
MODE_HELP: Final[Mapping[str, str]] = {
    "steer": "heard between two steps of the turn at work (what is typed without a word)",
    "followup": "answered by a turn of its own afterwards",
    "collect": "answered afterwards, together with others that are collected",
    "queue": "as followup, and never dropped for others",
    "steer-backlog": "as steer, and answered once more afterwards",
    "interrupt": "ends the turn at work, and comes first",
}
_WORD: Final = re.compile(r"[a-z][a-z-]{2,20}")
_LINES: Final = "Enter sends. A line that ends with \\ goes on in the next one; Alt-Enter and pastes hold lines too."
_KEYS: Final = (
    "Ctrl-C stops the turn, and what waits is answered next; twice leaves; Ctrl-D leaves. Arrows recall what was typed."
)


def read_typed(text: str) -> Command | Say | None:
    """Returns what a text means; None for one without a word.

    Raises `InvalidInput` for a misspelt command, and for a mode without a text.
    """
    said = text.strip()
    if not said:
        return None
    word, rest = _word(said)
    if word in COMMANDS:
        return Command(COMMANDS[word][2], rest)
    if word in OTHERS:
        return Command(OTHERS[word], rest)
    if word in MODE_WORDS:
        if not rest:
            raise InvalidInput(f"/{word} needs a text to say", hint=f"/{word} TEXT")
        return Say(rest, MODE_WORDS[word])
    # A path has a second slash, or something that no word of ours has.
    if (
        text.startswith("/")
        and _WORD.fullmatch(word)
        and (meant := nearest(word, (*COMMANDS, *OTHERS, *MODE_WORDS), alike=VERY_ALIKE))
    ):
        raise InvalidInput(
            f"There is no /{word}, and it was not said to the agent.",
            hint=f"{did_you_mean(f'/{meant[0]}')} A space before the slash says it as it stands.",
        )
    return Say(text.strip("\n"))


def is_private(text: str) -> bool:
    """Whether a text is kept out of the history: a secret may follow the word."""
    word = _word(text.strip())[0]
    return word == "config" or "config" in nearest(word, (*COMMANDS, *OTHERS, *MODE_WORDS))


def help_lines(columns: int) -> list[str]:
    """Lists what can be typed, in rows of at most so many columns."""
    rows = [(f"/{word} {argument}".rstrip(), does) for word, (argument, does, _) in COMMANDS.items()]
    rows += [(f"/{word} TEXT", does) for word, does in MODE_HELP.items()]
    width = max(len(left) for left, _ in rows) + 2
    texts = [f"{left.ljust(width)}{does}" for left, does in rows]
    listed = [line for text in texts for line in wrap(text, columns, subsequent_indent=" " * width)]
    return [*listed, "", *wrap(_LINES, columns), *wrap(_KEYS, columns)]


def _word(said: str) -> tuple[str, str]:
    """The word behind the slash in lower case, and the rest; a blank word when there is no slash."""
    if not said.startswith("/"):
        return "", said
    first, *rest = said[1:].split(None, 1)[:2] or [""]
    return first.lower(), rest[0] if rest else ""
