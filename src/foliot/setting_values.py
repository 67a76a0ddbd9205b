"""How the text of a setting becomes a value, and what is said when it cannot.

One function per form. What they take is a text with where somebody wrote it, so that the error can say so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from foliot.errors import UsageError

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["text", "json"]
Pairs: TypeAlias = tuple[tuple[str, str], ...]
Access: TypeAlias = Literal["allow", "deny"]
NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
SUBJECT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
POSTGRES_SCHEMES: Final = ("postgresql", "postgres")
QUERY_PASSWORD: Final = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)
# The last label of a name has a letter: what is only digits and dots is an address, and has to be a right one.
HOST: Final = re.compile(
    r"(\*\.)?([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*(?!0x)(?=[0-9-]*[a-z])[a-z0-9]([a-z0-9-]*[a-z0-9])?\.?"
)
ORIGIN: Final = re.compile(r"https?://([a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
# A store of less than this holds a day's work at most: a smaller limit on it is a unit forgotten.
LEAST_ROOM: Final = 64 * 1024**2
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error")


class Given(NamedTuple):
    """A value as somebody wrote it, where, and the folder that a relative path in it starts from."""

    text: str
    origin: str
    base: Path


class Rule(NamedTuple):
    """How one setting is read. `sources` says who may set it; `default` may name the home folder as `{home}`."""

    parse: Callable[[Given], Any]
    default: str | None
    sources: tuple[str, ...]
    secret: bool


def rule(
    parse: Callable[[Given], Any],
    default: str | None,
    *,
    sources: tuple[str, ...] = ("flag", "environment", "file"),
    secret: bool = False,
) -> Mapping[str, Rule]:
    """How a field of `Settings` is read, and what it is when nobody sets it."""
    return {"rule": Rule(parse, default, sources, secret)}


def as_text(given: Given) -> str:
    return given.text


def as_path(given: Given) -> Path:
    """An absolute path; `~` is the user's home."""
    if not given.text.isprintable():
        raise refused(given, "a path without control characters")
    try:
        return Path(os.path.abspath(given.base / Path(given.text).expanduser()))
    except RuntimeError:
        raise refused(given, "a path (there is no such user as its ~ names)") from None


def as_store(given: Given) -> str:
    """A URL that means the same from any folder: `sqlite:////absolute/path` or `postgresql://…`."""
    scheme, separator, rest = given.text.partition("://")
    if not separator:
        return f"sqlite:///{as_path(given)}"
    if scheme == "sqlite" and rest.startswith("/") and rest not in ("/", "/:memory:"):
        return f"sqlite:///{as_path(given._replace(text=rest[1:]))}"
    if scheme in POSTGRES_SCHEMES and rest:
        return f"postgresql://{rest}"
    raise refused(given, "a path, sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database")


def as_nats(given: Given) -> str:
    scheme, separator, rest = given.text.partition("://")
    if scheme in ("nats", "tls", "ws", "wss") and separator and rest:
        return given.text
    raise refused(given, "nats://host:port")


def as_server(given: Given) -> str:
    """An address without a login in it."""
    scheme, separator, rest = given.text.strip().partition("://")
    if scheme in ("http", "https") and separator and rest.strip("/") and not set(rest) & set("@?# "):
        return given.text.strip().rstrip("/")
    raise refused(given, "http://host:port or https://host:port")


def as_token(given: Given) -> str:
    text = given.text.strip()
    if text.isascii() and text.isprintable() and text and " " not in text:
        return text
    raise UsageError(f"{given.origin}: this is no token", hint="`foliot tokens create` makes one")


def as_subject(given: Given) -> str:
    """The beginning of subjects of a message bus; dots at its ends are dropped."""
    text = given.text.strip(".")
    if SUBJECT.fullmatch(text):
        return text
    raise refused(given, "words of letters, digits, dashes and underscores, with dots between them")


def as_stream(given: Given) -> str:
    if SUBJECT.fullmatch(given.text) and "." not in given.text:
        return given.text
    raise refused(given, "letters, digits, dashes and underscores")


def as_namespace(given: Given) -> str:
    """A name by the rule for names of resources."""
    if len(given.text) <= 253 and NAME.fullmatch(given.text):
        return given.text
    raise refused(given, "letters, digits, dots, dashes and underscores, with a letter or digit at both ends")


def as_level(given: Given) -> LogLevel:
    for level in LEVELS:
        if given.text.lower() == level:
            return level
    raise refused(given, "one of " + ", ".join(LEVELS))


def as_log_format(given: Given) -> LogFormat:
    match given.text.lower():
        case "text":
            return "text"
        case "json":
            return "json"
        case _:
            raise refused(given, "text or json")


def as_http(given: Given) -> str:
    scheme, separator, rest = given.text.partition("://")
    if scheme in ("http", "https") and separator and rest and given.text.isprintable():
        return given.text
    raise refused(given, "http://host:port or https://host")


def as_pairs(given: Given) -> Pairs:
    """Names with values, separated by commas: `x-team=agents,authorization=Bearer …`. Never shown: they are secret."""
    pairs: list[tuple[str, str]] = []
    for part in given.text.split(","):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            pairs.append((name.strip(), value.strip()))
        elif part.strip():
            raise UsageError(f"{given.origin}: a part of it is not NAME=VALUE", hint="such as x-team=agents,x-key=…")
    return tuple(pairs)


def as_access(given: Given) -> Access:
    match given.text.lower():
        case "allow":
            return "allow"
        case "deny":
            return "deny"
        case _:
            raise refused(given, "allow or deny")


def as_names(given: Given) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(part.strip() for part in given.text.split(",") if part.strip())


def as_hosts(given: Given) -> tuple[str, ...]:
    """Names, addresses and networks, separated by commas: `intranet.example, *.svc.local, 10.1.0.0/16, ::1`."""
    import ipaddress  # only who sets it pays

    entries = tuple(part.strip().lower() for part in given.text.split(",") if part.strip())
    for entry in entries:
        if not HOST.fullmatch(entry):
            try:
                ipaddress.ip_network(entry)
            except ValueError as error:
                raise refused(given, f"hosts and networks such as intranet.example, 10.1.0.0/16 ({error})") from None
    return entries


def as_modules(given: Given) -> tuple[str, ...]:
    """Python modules separated by commas: `desk`, or `acme.tools.*` for a package and everything in it."""
    entries = tuple(part.strip() for part in given.text.split(",") if part.strip())
    for entry in entries:
        if not all(word.isidentifier() for word in entry.removesuffix(".*").split(".")):
            raise refused(given, "names of Python modules such as desk or acme.tools.*, separated by commas")
    return entries


def as_subject_patterns(given: Given) -> tuple[str, ...]:
    """Subjects of NATS separated by commas: `billing.tool.execute.*`, `{namespace}.tool.execute.>`."""
    entries = tuple(part.strip() for part in given.text.split(",") if part.strip())
    for entry in entries:
        words = entry.removesuffix(".>").split(".") if entry != ">" else ["*"]
        if not all(word in ("*", "{namespace}") or re.fullmatch(r"[^\s*>{}]+", word) for word in words):
            raise refused(given, "subjects such as billing.tool.execute.* or {namespace}.tool.execute.>")
    return entries


def as_commands(given: Given) -> tuple[str, ...]:
    """Command lines separated by commas: `npx, /opt/tools/search-server`, `GITHUB_TOKEN=* npx -y @acme/github`."""
    entries = tuple(part.strip() for part in given.text.split(",") if part.strip())
    for entry in entries:
        program = next((word for word in entry.split() if not word.endswith("=*")), "")
        if not program or not entry.isprintable() or ("/" in program and not os.path.isabs(program)):
            raise refused(given, "programs on PATH or absolute paths, with their arguments, separated by commas")
    return entries


def as_listen(given: Given) -> str:
    """`host:port`, an address of IPv6 in brackets: `127.0.0.1:8080`, `[::1]:8080`, `0.0.0.0:0`."""
    host, colon, port = given.text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if colon and bare and port.isascii() and port.isdigit() and int(port) < 65536 and (":" in bare) == (bare != host):
        return f"{host}:{port}"
    raise refused(given, "an address and a port, such as 127.0.0.1:8080 or [::1]:8080")


def as_size(given: Given) -> int:
    """A number of bytes: `65536`, `512KiB`, `4MiB`."""
    number, factor = given.text.strip(), 1
    for suffix, times in (("KiB", 1024), ("MiB", 1024**2)):
        if number.endswith(suffix):
            number, factor = number.removesuffix(suffix).strip(), times
    if number.isascii() and number.isdigit() and 0 < int(number) * factor <= 1024**3:
        return int(number) * factor
    raise refused(given, "a number of bytes up to 1 GiB, such as 65536, 512KiB or 4MiB")


def as_seconds(given: Given) -> int:
    """A length of time in seconds: `45s`, `30m`, `12h`, `7d`."""
    number, unit = given.text.strip()[:-1], given.text.strip()[-1:]
    factor = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(unit, 0)
    if number.isascii() and number.isdigit() and len(number) < 10 and 0 < int(number) * factor <= 366 * 86400:
        return int(number) * factor
    raise refused(given, "a length of time up to a year, such as 30m, 12h or 7d")


def as_age(given: Given) -> int:
    """How long something is kept, in seconds: `90d`, `12h`; 0 for `forever`."""
    if given.text.strip().lower() == "forever":
        return 0
    number, unit = given.text.strip()[:-1], given.text.strip()[-1:]
    factor = {"h": 3600, "d": 86400}.get(unit, 0)
    if number.isascii() and number.isdigit() and len(number) < 8 and 0 < int(number) * factor <= 3660 * 86400:
        return int(number) * factor
    raise refused(given, "how long to keep it, up to ten years, such as 12h or 30d, or forever")


def as_room(given: Given) -> int:
    """How much disk something may take, in bytes: `500MiB`, `10GiB`, never less than 64 MiB; 0 for any size.

    A number alone is not taken as bytes: whoever writes 10 means something larger, and would lose what is stored.
    """
    text = given.text.strip()
    if text == "0":
        return 0
    for suffix, times in (("MiB", 1024**2), ("GiB", 1024**3)):
        number = text.removesuffix(suffix).strip()
        if text.endswith(suffix) and number.isascii() and number.isdigit() and len(number) < 16:
            size = int(number) * times
            if size == 0 or LEAST_ROOM <= size <= 1024**5:
                return size
    raise refused(given, "a size with its unit, such as 500MiB or 10GiB, and at least 64MiB; 0 for any size")


def as_issuer(given: Given) -> str:
    """The address of an identity provider, exactly as it writes itself. Plain http only on this machine."""
    scheme, separator, rest = given.text.partition("://")
    host = rest.partition("/")[0]
    local = re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", host) is not None
    if separator and host and (scheme == "https" or (scheme == "http" and local)) and not set(rest) & set("@?# "):
        return given.text
    raise refused(given, "https://host or https://host/path")


def as_role_rules(given: Given) -> tuple[str, ...]:
    """Who has which role where, separated by commas: `platform=admin@*, devs=author@team-a, *=reader@default`."""
    rules = tuple(part.strip() for part in given.text.split(",") if part.strip())
    for each in rules:
        value, equals, grant = each.rpartition("=")
        role, at, namespace = grant.partition("@")
        if not (value.strip() and equals and role.isalpha() and at and (namespace == "*" or NAME.fullmatch(namespace))):
            raise refused(given._replace(text=each), "VALUE=ROLE@NAMESPACE, such as devs=author@team-a")
    return rules


def as_count(given: Given) -> int:
    """A number of things; 0 is any number of them."""
    text = given.text.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise refused(given, "a number, such as 1000; 0 for any number")


def as_origins(given: Given) -> tuple[str, ...]:
    """What browsers call the origin of a page, separated by commas: `https://console.example, http://localhost:5173`."""
    entries = tuple(part.strip().lower() for part in given.text.split(",") if part.strip())
    for entry in entries:
        if not ORIGIN.fullmatch(entry):
            raise refused(given, "origins such as https://console.example:8443, without a path; there is no wildcard")
    return entries


def refused(given: Given, expected: str) -> UsageError:
    """The error for a value that cannot be used."""
    return UsageError(f"{given.origin}: {mask_password(given.text)!r} cannot be used", hint=f"expected {expected}")


def mask_password(url: str) -> str:
    """The text, with the password or token of a URL hidden, wherever in it that stands."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "sqlite":
        return url
    rest = QUERY_PASSWORD.sub(r"\1****", rest)
    login, at, place = rest.rpartition("@")  # the last one: passwords are not always escaped as they should be
    user, colon, _ = login.partition(":")
    if at and (colon or scheme not in POSTGRES_SCHEMES):
        login = f"{user}:****" if colon else "****"  # a login without colon is a token, except for PostgreSQL
    return f"{scheme}{separator}{login}{at}{place}"
