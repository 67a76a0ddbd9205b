"""What a docstring says of a function and of its parameters, in the three styles people write.

Google       Args:               NumPy    Parameters         Sphinx    :param city: Its name,
                 city: Its name.          ----------                       in English.
                                          city : str
                                              Its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

_SECTION: Final = re.compile(
    r"(?:Args|Arguments|(?:Other )?Param(?:eter)?s|Keyword Arg(?:ument)?s|Returns?|Yields?|Raises)[ \t]*:?[ \t]*$"
)
_OF_PARAMETERS: Final = re.compile(r"(?:Args|Arguments|(?:Other )?Param(?:eter)?s|Keyword)")
_RULE: Final = re.compile(r"\s*-{3,}\s*$")
_FIELD: Final = re.compile(r":(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b[^:]*:")
_FIELD_OF_PARAMETER: Final = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:(.*)"
)
_GOOGLE: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


def summary(text: str) -> str:
    """All that comes before the first section on parameters, results or errors. `text` is what `inspect.getdoc` gives.

    A heading counts when its section follows: something indented, or a rule of dashes.
    """
    lines = text.splitlines()
    starts = (number for number in range(len(lines)) if _begins_section(lines, number))
    return "\n".join(lines[: next(starts, len(lines))]).strip()


def parameters(text: str) -> dict[str, str]:
    """What is said of each parameter, by name; lines that go on are joined."""
    lines = text.splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        rest = lines[number + 1 :]
        if (field := _FIELD_OF_PARAMETER.match(line)) is not None:
            found[field[1]] = _joined([field[2], *takewhile(lambda row: row[:1].isspace(), rest)])
        elif _OF_PARAMETERS.match(line) and _begins_section(lines, number):
            if _RULE.match(rest[0]):
                found |= _numpy(rest[1:])
            else:
                found |= _google(rest)
    return {name: said for name, said in found.items() if said}


def _begins_section(lines: list[str], number: int) -> bool:
    line = lines[number]
    if _FIELD.match(line):
        return True
    if not _SECTION.match(line):
        return False
    after = next((row for row in lines[number + 1 :] if row.strip()), "")
    return after[:1].isspace() or bool(_RULE.match(after))


def _google(lines: Iterable[str]) -> dict[str, str]:
    said: dict[str, list[str]] = {}
    depth, last = None, None
    for line in takewhile(lambda row: not row.strip() or row[:1].isspace(), lines):
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        depth = indent if depth is None else depth
        named = _GOOGLE.match(line.strip()) if indent == depth else None
        if named is not None:
            last = said[named[1]] = [named[2]]
        elif last is not None:
            last.append(line)
    return {name: _joined(rows) for name, rows in said.items()}


def _numpy(lines: list[str]) -> dict[str, str]:
    said: dict[str, list[str]] = {}
    last: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        if line[:1].isspace():
            last.append(line)
            continue
        named = _NUMPY.match(line)
        if named is None or _begins_section(lines, number) or _is_heading(lines, number):
            break
        last = []
        for name in named[1].split(","):
            said[name.strip().lstrip("*")] = last
    return {name: _joined(rows) for name, rows in said.items()}


def _is_heading(lines: list[str], number: int) -> bool:
    """Whether the next line underlines this one: a section such as `Notes` or `Examples`."""
    return number + 1 < len(lines) and bool(_RULE.match(lines[number + 1]))


def _joined(rows: Iterable[str]) -> str:
    return " ".join(row.strip() for row in rows if row.strip())
