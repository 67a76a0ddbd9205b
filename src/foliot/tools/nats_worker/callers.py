"""Callers over a message bus, as the operator declares them: recognised by a key, by a subject, or anybody.

    [desk]                      # the name in records, and in `Foliot-Caller`
    key = "…"                   # 32 bytes or more in base64 (or key_file): its calls are signed, see signatures.py
    namespace = "team-a"        # by whose rules they are judged
    namespaces = ["team-a"]     # only calls that were made in these; `namespace` when not given
    user = "ann"                # in whose name; the name of the entry when not given
    agent = "finder"            # with the roles and tools of this agent
    tools = ["search"]          # only these; all that are served when not given

    [team-b]
    prefix = "team-b"           # calls on team-b.tool.execute.NAME, where permissions in NATS let only team-b publish

    [anybody]
    anonymous = true            # calls on tool.execute.NAME that nobody signed
    tools = ["ping"]

What a message says of its caller has no part in it, except to refuse: an installation with many namespaces signs for
all of them with one key, and says under the signature in which one the call was made. One exception is granted by the
operator: `on_behalf = true` on an entry with a key lets it name the agent and the user that it calls for; it is
recorded as who acted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import stat
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.errors import InvalidInput
from foliot.kernel.identity import is_name
from foliot.tools.base import Caller
from foliot.tools.nats_worker.messages import CallMessage, prefix_of

# --- signatures ------------------------------------------------------------------------------------------------------

# Signed messages: who sent a call or a result over a message bus, and that nobody has changed it.
#
# A signature travels in headers and covers the very bytes of the message, its subject and its kind; nothing has to be
# brought into a canonical form, so any language can make one with a hash function:
#
#     Foliot-Caller      the name under which the key is known
#     Foliot-Time        when it was signed, ms since 1970
#     Foliot-Expires     until when it counts, ms since 1970
#     Foliot-Signature   v1=HEX: HMAC-SHA256 under the key, of these seven lines, without a newline at the end:
#                        foliot-nats-v1, kind (call, result or output), subject, caller, time, expires,
#                        SHA-256 of the message in hex
#
# One key is shared by one caller and those who serve it, for both directions. Whoever has another key can forge
# neither.

SCHEME: Final = "foliot-nats-v1"
CALLER: Final = "Foliot-Caller"
TIME: Final = "Foliot-Time"
EXPIRES: Final = "Foliot-Expires"
SIGNATURE: Final = "Foliot-Signature"
SHORTEST_KEY: Final = 32
# How far clocks may differ, and how long a call may wait for somebody to take it. Outcomes are kept for longer than
# that, so a message that is sent again is answered from what was kept.
SKEW_SECONDS: Final = 300.0
LONGEST_SECONDS: Final = 24 * 3600.0

Kind: TypeAlias = Literal["call", "result", "output"]
Headers: TypeAlias = Mapping[str, str]


class BadSignature(Exception):
    """A signature that is missing, wrong or no longer counts. The text says which, and holds nothing of the key."""


class Signer:
    """Signs and checks the messages of one caller."""

    __slots__ = ("_clock", "_key", "name")

    def __init__(self, name: str, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self._key = key
        self._clock = clock

    def sign(self, kind: Kind, subject: str, data: bytes, *, expires: float | None = None) -> dict[str, str]:
        """Returns the headers for a message. `expires` is in seconds since 1970, a day from now when not given."""
        now = self._clock()
        latest = now + LONGEST_SECONDS
        until = latest if expires is None else min(expires, latest)
        said = self.name, str(round(now * 1000)), str(round(until * 1000))
        signature = self._signature(kind, subject, data, said)
        return dict(zip((CALLER, TIME, EXPIRES), said, strict=True)) | {SIGNATURE: f"v1={signature}"}

    def check(self, kind: Kind, subject: str, data: bytes, headers: Headers | None, *, aged: bool = False) -> None:
        """Raises `BadSignature`. With `aged` the time does not matter: what was signed is bound to something else."""
        given = headers or {}
        said = given.get(CALLER, ""), given.get(TIME, ""), given.get(EXPIRES, "")
        signature = self._signature(kind, subject, data, said)
        if not hmac.compare_digest(given.get(SIGNATURE, "").encode(), f"v1={signature}".encode()):
            raise BadSignature("the signature is not that of this message")
        if said[0] != self.name:
            raise BadSignature("the message is signed for another caller")
        if aged:
            return
        try:
            signed_at, until, now = int(said[1]) / 1000, int(said[2]) / 1000, self._clock()
        except ValueError:
            raise BadSignature("the times of the signature are no numbers") from None
        if signed_at > now + SKEW_SECONDS:
            raise BadSignature("the message was signed in the future: the clocks differ")
        if until <= now or until > signed_at + LONGEST_SECONDS:
            raise BadSignature("the signature has expired, or would count for more than a day")

    def dedupe(self, id: str) -> str:
        """Returns an id for JetStream that nobody else can use up before: what comes second under an id is dropped."""
        return hmac.new(self._key, f"{SCHEME}\ndedupe\n{id}".encode(), sha256).hexdigest()

    def _signature(self, kind: Kind, subject: str, data: bytes, said: tuple[str, str, str]) -> str:
        lines = (SCHEME, kind, subject, *said, sha256(data).hexdigest())
        return hmac.new(self._key, "\n".join(lines).encode(), sha256).hexdigest()


def read_key(text: str, where: str) -> bytes:
    """Returns a key from base64. Raises `InvalidInput`, without the text."""
    try:
        key = base64.b64decode("".join(text.split()), altchars=b"-_" if set(text) & set("-_") else None, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST_KEY:
        raise InvalidInput(f"{where} is no key of {SHORTEST_KEY} bytes in base64", hint="`openssl rand -base64 32`")
    return key


# --- callers ---------------------------------------------------------------------------------------------------------

VIA: Final = "nats"
LARGEST_FILE: Final = 1024 * 1024
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Unidentified(Exception):
    """A call whose caller is not known, or is not who the message says. The text is for whoever sent it."""


class BusCallerEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One caller, as declared."""

    key: str = ""
    key_file: str = ""
    prefix: str = ""
    anonymous: bool = False
    namespace: str = "default"
    namespaces: tuple[str, ...] = ()
    user: str = ""
    agent: str = ""
    roles: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    on_behalf: bool = False


class KnownCaller:
    """One caller, ready to be recognised. `signer` signs what goes back; None for callers without a key."""

    __slots__ = ("entry", "name", "signer")

    def __init__(self, name: str, entry: BusCallerEntry, signer: Signer | None) -> None:
        self.name = name
        self.entry = entry
        self.signer = signer

    @property
    def prefix(self) -> str:
        """The prefix of the caller's subjects: empty, or words and a dot."""
        return f"{self.entry.prefix}." if self.entry.prefix else ""

    def check_namespace(self, call: CallMessage) -> None:
        """Raises `Unidentified` for a signed call that was made in a namespace which this entry is not for.

        Only Foliot says where a call was made. A key of somebody else is that of one caller.
        """
        if self.signer is None or "*" in self.entry.namespaces:
            return
        made_in = call.metadata.get("namespace") or ""
        if made_in and made_in not in (self.entry.namespaces or (self.entry.namespace,)):
            raise Unidentified("calls of this namespace are not taken from this caller")

    def caller(self, call: CallMessage, advertised: frozenset[str] | None) -> Caller:
        """Returns on whose behalf the call is made. `advertised` is what the message says; it can only narrow."""
        entry = self.entry
        user, by, agent = entry.user or self.name, "", entry.agent
        if entry.on_behalf:
            agent = agent or _text(call.metadata.get("agent.name"))
            if (named := _text(call.metadata.get("user"))) and named != user:
                user, by = named, user
        if entry.tools:
            advertised = frozenset(entry.tools) if advertised is None else advertised & frozenset(entry.tools)
        return Caller(entry.namespace, agent, entry.roles, advertised=advertised, user=user, by=by, via=VIA)

    def check_named(self, call: CallMessage) -> None:
        """Raises `Unidentified` when the call is made for somebody whose name is none."""
        if self.entry.on_behalf and (named := _text(call.metadata.get("user"))) and not is_name(named):
            raise Unidentified("the user that it is made for has no printable name")


class Callers:
    """The callers that a server knows. Without any, every call is refused."""

    def __init__(self, known: Iterable[KnownCaller] = ()) -> None:
        self._known = {each.name: each for each in known}
        self._by_prefix = {each.prefix: each for each in self._known.values() if each.prefix}
        self._anonymous = next((each for each in self._known.values() if each.entry.anonymous), None)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[KnownCaller]:
        return iter(self._known.values())

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of the subjects to serve besides `tool.execute`."""
        return tuple(sorted(self._by_prefix))

    def identify(self, subject: str, headers: Headers | None, data: bytes) -> KnownCaller:
        """Returns who sent the call. Raises `Unidentified`.

        A signature that is there must be right: a message is never taken for an anonymous one because it is wrong.
        """
        prefix = prefix_of(subject)
        bound = self._by_prefix.get(prefix)
        if prefix and bound is None:
            raise Unidentified("no caller has this subject")
        given = headers or {}
        if given.get(SIGNATURE) or given.get(CALLER):
            known = self._known.get(given.get(CALLER, ""))
            if known is None or known.signer is None or known.prefix != prefix:
                raise Unidentified("the message is signed by nobody that is known here")
            try:
                known.signer.check("call", subject, data, headers)
            except BadSignature as error:
                raise Unidentified(str(error)) from None
            return known
        if bound is not None:
            if bound.signer is not None:
                raise Unidentified("calls on this subject must be signed")
            return bound
        if self._anonymous is None:
            raise Unidentified("calls must be signed by a caller that is known here")
        return self._anonymous


def new_callers(entries: Mapping[str, BusCallerEntry], *, clock: Callable[[], float] = time.time) -> Callers:
    """Returns the callers of these entries. Raises `InvalidInput` that names the entry."""
    known: list[KnownCaller] = []
    taken: set[str] = set()
    for name, entry in entries.items():
        _check(name, entry, taken)
        taken.add("(anonymous)" if entry.anonymous else entry.prefix)
        text = _read_private(Path(entry.key_file), f"{name}: key_file") if entry.key_file else entry.key
        signer = Signer(name, read_key(text, f"{name}: key"), clock=clock) if text else None
        known.append(KnownCaller(name, entry, signer))
    return Callers(known)


def load_callers(path: Path, *, namespace: str = "default", clock: Callable[[], float] = time.time) -> Callers:
    """Returns the callers of a TOML file; those that name no namespace are in `namespace`. Raises `InvalidInput`."""
    text = _read_private(path, "the file of callers")
    try:
        tables: dict[str, Any] = tomllib.loads(text)
        given = {name: {"namespace": namespace} | table for name, table in tables.items()}
        entries = msgspec.convert(given, dict[str, BusCallerEntry])
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{path}: {error}", hint="each table is a caller: [desk]") from None
    resolved = {
        name: msgspec.structs.replace(entry, key_file=str(path.parent / entry.key_file)) if entry.key_file else entry
        for name, entry in entries.items()
    }
    return new_callers(resolved, clock=clock)


def _check(name: str, entry: BusCallerEntry, taken: set[str]) -> None:
    signed = bool(entry.key or entry.key_file)
    if not name.isascii() or not name.isprintable() or not name or " " in name:
        raise InvalidInput(f"{name!r} is no name for a caller", hint="letters, digits, dashes, dots")
    if entry.key and entry.key_file:
        raise InvalidInput(f"{name}: key and key_file are two keys", hint="leave one out")
    if signed + bool(entry.prefix) == 0 and not entry.anonymous:
        raise InvalidInput(f"{name}: nothing shows who it is", hint="give it a key, a prefix, or anonymous = true")
    if entry.anonymous and (signed or entry.prefix):
        raise InvalidInput(f"{name}: anonymous callers have neither key nor prefix")
    if entry.namespaces and not signed:
        raise InvalidInput(f"{name}: namespaces needs a key", hint="without a signature anybody can name any namespace")
    if entry.on_behalf and not signed:
        raise InvalidInput(f"{name}: on_behalf needs a key", hint="a subject alone says too little to act for others")
    if entry.anonymous and "(anonymous)" in taken:
        raise InvalidInput(f"{name}: one entry is anonymous already")
    if entry.prefix and entry.prefix in taken:
        raise InvalidInput(f"{name}: another caller has the prefix {entry.prefix}")
    if entry.prefix and not _PREFIX.fullmatch(entry.prefix):
        raise InvalidInput(f"{name}: {entry.prefix!r} cannot begin a subject")


def _read_private(path: Path, what: str) -> str:
    """Raises `InvalidInput` for a file that others can read or write: it holds keys, and says who may do what."""
    try:
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InvalidInput(f"{what} ({path}) is open to other users, so it is not used", hint=f"chmod 600 {path}")
        if status.st_size > LARGEST_FILE:
            raise InvalidInput(f"{what} ({path}) is too large")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{what} ({path}) cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{what} ({path}) is not text") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
