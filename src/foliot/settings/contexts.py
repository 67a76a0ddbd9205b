"""Servers by name: which one the command line talks to, as whom, and in which namespace.

They are kept in `<home>/contexts.json`, readable by its owner only, because a context may hold a token. Nothing here
ever shows one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from foliot.errors import NotFound, UsageError
from foliot.settings.settings import Given

FILE: Final = "contexts.json"
VARIABLE: Final = "FOLIOT_CONTEXT"
# What a context can give, by the names of settings.
GIVEN: Final = ("server", "token", "token_file", "namespace", "server_ca", "server_cert", "server_cert_key")


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One server. Paths are absolute. At most one of `token` and `token_file` is set."""

    server: str
    token: str = ""
    token_file: str = ""
    namespace: str = ""
    server_ca: str = ""
    server_cert: str = ""
    server_cert_key: str = ""

    def __repr__(self) -> str:
        return f"Context({self.server!r})"


class Contexts(msgspec.Struct, frozen=True):
    """`current` is used when none is named; blank for none."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """Raises `NotFound`."""
        found = self.contexts.get(name)
        if found is None:
            listed = ", ".join(sorted(self.contexts))
            hint = (
                f"Known are: {listed}."
                if listed
                else "There are none yet: `foliot context set NAME --server URL` makes one."
            )
            raise NotFound(f"There is no context {name!r}.", hint=hint)
        return found


def load_contexts(home: Path) -> Contexts:
    """Loads the contexts of this home folder.

    Raises `UsageError` for a file that others can read, or that is damaged.
    """
    path = home / FILE
    try:
        mode = path.stat().st_mode & 0o777
        data = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise UsageError(f"others can read {path}, and it may hold tokens", hint=f"chmod 600 {path}")
    try:
        return msgspec.json.decode(data, type=Contexts)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # What the decoder says may quote the file.
        raise UsageError(f"{path} is damaged", hint="move it away, and set the contexts again") from None


def save_contexts(home: Path, contexts: Contexts) -> None:
    """All or nothing, and never readable by others, not even for a moment."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(dir=home, prefix=f".{FILE}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, home / FILE)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def chosen(home: Path, flags: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str, Context] | None:
    """The context to use: by flag, by environment, the current one; None when there is none.

    Naming a server or a store on the way is stronger: a token of a context is never sent to another server.
    """
    asked = flags.get("context") or ("" if {"server", "store"} & flags.keys() else environ.get(VARIABLE, "").strip())
    if flags.get("context") and {"server", "store"} & flags.keys():
        raise UsageError("--context names a server already.", hint="Give --context, --server or --store.")
    if not asked and any(flags.get(name) or environ.get(f"FOLIOT_{name.upper()}") for name in ("server", "store")):
        return None
    contexts = load_contexts(home)
    name = asked or contexts.current
    return (name, contexts.named(name)) if name else None


def values_of(name: str, context: Context, home: Path) -> dict[str, Given]:
    """Returns the values of a context, as settings."""
    origin = f"context {name} in {home / FILE}"
    found = {each: getattr(context, each) for each in GIVEN}
    return {each: Given(text, origin, home) for each, text in found.items() if text}
