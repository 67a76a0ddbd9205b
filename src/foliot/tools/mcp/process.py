"""Starting a stdio server: which command may be started, and what it finds in its environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from foliot.tools.base import ToolDenied, ToolPolicyInvalid
from foliot.tools.mcp.server import ServerSpec

ResolveSecret: TypeAlias = Callable[[str, str], Awaitable[str]]
"""`(reference, namespace)` to the clear value; raises `ToolSecretMissing` or another `FoliotError`."""

# What a program needs to find its way, and nothing that could be somebody's credential.
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\*")
INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line that may be started. `secrets` are values that no message may repeat."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def mask(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "****")
        return text


async def prepare(
    server: ServerSpec, *, allowed: Collection[str], resolve_secret: ResolveSecret, environ: Mapping[str, str]
) -> Launch:
    """What to start for a stdio server.

    Raises `ToolDenied` for a command that is not allowed here, `ToolPolicyInvalid` for one that cannot be found, and
    what `resolve_secret` raises.
    """
    words = _words(server.command)
    program = resolve_command(server, words[0], allowed=_programs(allowed), environ=environ)
    if not server.operator and not command_granted(server, allowed):
        raise ToolDenied(
            f"{server}: this command line, with these variables, may not be started here",
            hint="the operator can add all of it to the setting mcp_commands (FOLIOT_MCP_COMMANDS), "
            "or declare the server",
            layer="deployment",
            server=server.name,
        )
    environment = {name: environ[name] for name in INHERITED if name in environ}
    secrets: list[str] = []
    for variable in server.env:
        value = variable.value
        if variable.secret_ref:
            value = await resolve_secret(variable.secret_ref, server.namespace)
            secrets.append(value)
        environment[variable.name] = value
    # A very short value would mask half of every message, and cannot be much of a secret.
    hidden = tuple(sorted({value for value in secrets if len(value) >= 4}, key=len, reverse=True))
    return Launch((program, *words[1:], *server.args), environment, hidden)


def resolve_command(server: ServerSpec, word: str, *, allowed: Collection[str], environ: Mapping[str, str]) -> str:
    """The absolute path of an allowed command. Raises `ToolDenied`, `ToolPolicyInvalid`."""
    if "/" in word and not os.path.isabs(word):
        raise ToolPolicyInvalid(
            f"{server}: the command {word!r} is a relative path",
            hint="give an absolute path, or the name of a program on PATH",
            server=server.name,
        )
    found = shutil.which(word, path=environ.get("PATH", os.defpath))
    if word not in allowed and (found is None or found not in allowed):
        listed = ", ".join(sorted(allowed)) or "none"
        raise ToolDenied(
            f"{server}: the command {word!r} may not be started here; allowed commands: {listed}",
            hint="whoever runs this process can add it to the setting mcp_commands (FOLIOT_MCP_COMMANDS)",
            layer="deployment",
            server=server.name,
        )
    if found is None:
        raise ToolPolicyInvalid(
            f"{server}: there is no program {word!r}",
            hint="install it where the tools are called, or correct spec.command",
            server=server.name,
        )
    return os.path.abspath(found)


def missing_program(server: ServerSpec, environ: Mapping[str, str]) -> str:
    """The program that a stdio server is started with, if it is not installed on this machine; else nothing."""
    if server.transport != "stdio" or not server.command:
        return ""
    word = _words(server.command)[0]
    return "" if shutil.which(word, path=environ.get("PATH", os.defpath)) else word


def command_granted(server: ServerSpec, allowed: Collection[str]) -> bool:
    """Whether an entry holds the whole command line of a server, and every variable that it sets.

    An entry is a command line, with `NAME=*` in front for each variable; a `*` at its end stands for any arguments. A
    program alone is not enough: `npx` and `python` run whatever their arguments and variables name.
    """
    line = [*_words(server.command), *server.args]
    variables = {variable.name for variable in server.env}
    for entry in allowed:
        words = _words(entry)
        named = {word.removesuffix("=*") for word in words if _VARIABLE.fullmatch(word)}
        words = [word for word in words if not _VARIABLE.fullmatch(word)]
        fits = line[: len(words) - 1] == words[:-1] if words[-1:] == ["*"] else line == words
        if fits and words and variables <= named:
            return True
    return False


def _programs(allowed: Collection[str]) -> frozenset[str]:
    """The programs of the entries; what they may be started with is for `command_granted` to say."""
    lines = ([word for word in _words(entry) if not _VARIABLE.fullmatch(word)] for entry in allowed)
    return frozenset(words[0] for words in lines if words)


def _words(command: str) -> list[str]:
    """The command as a list: manifests may write `npx -y package` in one text. A path may hold spaces."""
    if os.path.isabs(command) and os.path.exists(command):
        return [command]
    try:
        return shlex.split(command) or [command]
    except ValueError:
        return [command]
