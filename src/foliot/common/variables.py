"""Names of variables that hold a secret: any but those that decide what runs, and those that Foliot sets itself."""

from __future__ import annotations

import re
from typing import Final

SECRET_VARIABLE: Final = r"[A-Z][A-Z0-9_]{0,127}"
# What a runner sets for every program; names that go on with `_` belong to them.
_SURROUNDINGS: Final = r"(PATH|HOME|USER|SHELL|LANG|TERM|TMPDIR)(_.*)?"
# What loaders, shells and interpreters read before the first line of a program.
_LOADERS: Final = (
    r"LD_.*|DYLD_.*|PYTHON.*|GLIBC_TUNABLES|GCONV_PATH|BASH_ENV|BASH_FUNC_.*|ENV|IFS|SHELLOPTS|BASHOPTS|PROMPT_COMMAND"
    r"|NODE_OPTIONS|NODE_PATH|PERL5.*|RUBYOPT|RUBYLIB|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS"
)
_RESERVED: Final = re.compile(rf"{_SURROUNDINGS}|(FOLIOT|LC|XDG)_.*|{_LOADERS}", re.IGNORECASE)


def reserved_variable(name: str) -> str:
    """Says why a secret cannot be in a variable of this name; blank when it can."""
    if _RESERVED.fullmatch(name) is None:
        return ""
    return f"{name[:80]} is set by Foliot, or decides what runs: a secret is in a variable of its own"


def secret_variable_problem(name: str) -> str:
    """Says why nobody declares a secret in a variable of this name; blank when it is sound."""
    if reserved := reserved_variable(name):
        return reserved
    if re.fullmatch(SECRET_VARIABLE, name) is None:
        return f"{name[:80]!r} cannot be the name of a variable with a secret: expected capitals, digits and '_'"
    return ""
