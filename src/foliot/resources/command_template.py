"""Command templates: a program with its arguments, in which `{name}` stands for an argument of the call.

No shell reads the result. Each element of the template becomes one argument of the program, or none; a value can
neither add one nor become an option: an element that begins with a placeholder may not begin with a dash once it is
filled, unless `--` comes before it, and an option takes a value only as `--name={value}`. In an element, `{{name}}` is
the text `{name}` itself: `curl -w '%{{http_code}}'`. On standard input it is a value in braces, as JSON has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from foliot.errors import InvalidInput

_FILLED: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What stands in doubled braces has no group: it is text.
_NAMED: Final = re.compile(r"\{\{[A-Za-z_][A-Za-z0-9_]*\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
# The whole of standard input is the arguments of the call, as one JSON object.
JSON: Final = "json"
_OPTION_WITH_VALUE: Final = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_.-]*=")
_CODE_FOLLOWS: Final = re.compile(r"-[a-z]*[ce]")
# They run the text after `-c` or `-e`, so nothing that a model writes may be part of it.
_INTERPRETERS: Final = re.compile(r"(ba|da|z|k|c|tc|fi)?sh|busybox|env|xargs|python[0-9.]*|perl|ruby|node|php|lua")
# Where an `http` tool fills an argument in; with `+` its slashes stay.
ARGUMENT_PLACE: Final = re.compile(r"\{\+?([A-Za-z_][A-Za-z0-9_.-]*)\}")


def placeholders(text: str) -> list[str]:
    """Lists the arguments that a template names, in their order."""
    return [name for name in _NAMED.findall(text) if name]


def wrong_elements(command: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields the elements of a command that no value could fill safely: their place, and why."""
    if command and (placeholders(command[0]) or not command[0].strip()):
        yield 0, "{field} is the program, and the same for every call"
    ended, interprets = False, bool(_INTERPRETERS.fullmatch(command[0].rpartition("/")[2])) if command else False
    for place, element in enumerate(command[1:], 1):
        if "\0" in element:
            yield place, "{field} holds a NUL"
        elif placeholders(element):
            if interprets and _CODE_FOLLOWS.fullmatch(command[place - 1]):
                own = placeholders(element)[0]
                why = "{field} is code that the program runs: give the argument as an element behind it"
                yield place, f"{why}, or write {{{{{own}}}}} for the text {{{own}}} itself"
            elif not ended and element.startswith("-") and not _OPTION_WITH_VALUE.match(_before(element)):
                yield place, "{field}: an option takes an argument of the call only as --name={argument}"
        ended = ended or element == "--"


def filled_command(command: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """The program and its arguments for one call. An option whose value is not given is left out.

    Raises `InvalidInput` with the `field`: an argument that is missing, or that would be an option.
    """
    words, ended = [command[0]], False
    for element in command[1:]:
        names = placeholders(element)
        missing = [name for name in names if arguments.get(name) is None]
        if missing and not ended and element.startswith("-"):
            continue
        if missing:
            raise InvalidInput(f"the argument {missing[0]!r} is missing: the command needs it", field=missing[0])
        word = _NAMED.sub(lambda match: _text(arguments.get(match[1])) if match[1] else match[0][1:-1], element)
        if "\0" in word:
            raise InvalidInput(f"the argument {names[0]!r} holds a NUL", field=names[0])
        if names and not ended and word.startswith("-") and not element.startswith("-"):
            raise InvalidInput(
                f"the argument {names[0]!r} begins with a dash: the program would take it for an option", field=names[0]
            )
        words.append(word)
        ended = ended or element == "--"
    return words


def filled_text(template: str, arguments: Mapping[str, Any]) -> str:
    """The text with every placeholder filled; text as it is, everything else as JSON, what is not given as nothing."""
    return _FILLED.sub(lambda match: _text(arguments.get(match[1])), template)


def filled_input(template: str, arguments: Mapping[str, Any]) -> bytes:
    """Standard input for one call."""
    if template == JSON:
        return msgspec.json.encode(dict(arguments))
    return filled_text(template, arguments).encode("utf-8", "replace")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _before(element: str) -> str:
    """The beginning of an element, up to its first placeholder."""
    found = next((each for each in _NAMED.finditer(element) if each[1]), None)
    return element[: found.start()] if found else element
