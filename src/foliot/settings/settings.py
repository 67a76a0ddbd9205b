"""Every setting, in one frozen object that knows where each value came from.

A value is looked for in this order: a flag, the environment (`FOLIOT_<NAME>`), the configuration file
(`<home>/config.toml`, or the file that `FOLIOT_CONFIG` names), the default. Read once at the start of a process and
passed down; nothing below this module looks at the environment for a setting.

A new setting is one line in `Settings`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from foliot.common import sizes
from foliot.common.durations import nanoseconds
from foliot.common.suggestions import VERY_ALIKE, suggestion
from foliot.errors import UsageError

# --- setting values --------------------------------------------------------------------------------------------------

# How the text of a setting becomes a value, and what is said when it cannot.
#
# One function per form. What they take is a text with where somebody wrote it, so that the error can say so.

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


class SettingRule(NamedTuple):
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
) -> Mapping[str, SettingRule]:
    """How a field of `Settings` is read, and what it is when nobody sets it."""
    return {"rule": SettingRule(parse, default, sources, secret)}


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
    if not separator and given.text != ":memory:":
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


def as_places(given: Given) -> tuple[str, ...]:
    """Absolute paths of files and folders separated by commas: `/srv/modules, /opt/acme/resize.wasm`."""
    entries = tuple(part.strip() for part in given.text.split(",") if part.strip())
    return tuple(str(as_path(given._replace(text=entry))) for entry in entries)


def as_mounts(given: Given) -> tuple[str, ...]:
    """Absolute paths separated by commas, with `:rw` behind what may be changed: `/srv/data, /srv/out:rw`."""
    entries = [part.strip() for part in given.text.split(",") if part.strip()]
    bare = as_places(given._replace(text=",".join(entry.removesuffix(":rw") for entry in entries)))
    return tuple(f"{path}:rw" if entry.endswith(":rw") else path for path, entry in zip(bare, entries, strict=True))


_SIZED: Final = frozenset({"memory", "file_size", "tmp_size", "output", "quota"})
LIMITS: Final = (*sorted(_SIZED), "cpu_seconds", "cpus", "max_files", "open_files", "processes", "seconds")


def as_limits(given: Given) -> dict[str, float]:
    """Limits of sandboxes with the most of each: `memory=4Gi, processes=512, cpus=2, quota=10Gi`."""
    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, given.text.split(","))):
        name, _, text = map(str.strip, part.partition("="))
        if name not in LIMITS:
            raise refused(given, f"limits such as memory=4Gi, processes=512; there are {', '.join(LIMITS)}")
        try:
            found[name] = sizes.bytes_of(text) if name in _SIZED else float(text)
        except ValueError:
            found[name] = 0
        if not 0 < found[name] < float("inf"):
            raise refused(given, f"limits such as memory=4Gi, processes=512, and not {part[:80]!r}")
    return found


_IMAGE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:/-]{0,255}@)?sha256:[0-9a-f]{64}")
_IMAGES: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}/\*")


def as_image(given: Given) -> str:
    """An image by its digest: `registry.example/tools@sha256:…`."""
    text = given.text.strip()
    if not text or _IMAGE.fullmatch(text):
        return text
    raise refused(given, "an image by its digest, such as registry.example/tools@sha256: and 64 digits")


def as_images(given: Given) -> tuple[str, ...]:
    """Images by their digest, or all below a name, separated by commas: `registry.example/team/*`."""
    entries = tuple(part.strip() for part in given.text.split(",") if part.strip())
    for entry in entries:
        if not _IMAGES.fullmatch(entry) and not _IMAGE.fullmatch(entry):
            raise refused(given, "images by their digest, or all below a name, such as registry.example/team/*")
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
    try:
        size = sizes.bytes_of(given.text)
    except ValueError:
        size = 0
    if 0 < size <= 1024**3:
        return size
    raise refused(given, "a number of bytes up to 1 GiB, such as 65536, 512KiB or 4MiB")


def as_seconds(given: Given) -> int:
    """A length of time in whole seconds, as manifests write it: `45s`, `1h30m`, `7d`."""
    if (length := _whole_seconds(given.text)) is not None and 0 < length <= 366 * 86400:
        return length
    raise refused(given, "a length of time in whole seconds, up to a year, such as 30m, 1h30m or 7d")


def as_age(given: Given) -> int:
    """How long something is kept, in seconds: `90d`, `1d12h`; 0 for `forever`.

    At least an hour: whoever writes 30m or 30s meant something longer, and would lose what is stored.
    """
    if given.text.strip().lower() == "forever":
        return 0
    if (length := _whole_seconds(given.text)) is not None and 3600 <= length <= 3660 * 86400:
        return length
    raise refused(given, "how long to keep it, from 1h up to ten years, such as 12h or 30d, or forever")


def _whole_seconds(text: str) -> int | None:
    """Return a length of time in seconds; None for what is none, and for one with a fraction of a second."""
    try:
        whole, rest = divmod(nanoseconds(text), 1_000_000_000)
    except ValueError:
        return None
    return None if rest else whole


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
    """Parses role rules, separated by commas: `platform=admin@*, devs=author@team-a, *=reader@default`."""
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
    """Parses browser origins, separated by commas: `https://console.example, http://localhost:5173`."""
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


# --- settings --------------------------------------------------------------------------------------------------------

PREFIX: Final = "FOLIOT_"
CONFIG: Final = "FOLIOT_CONFIG"
# What begins like this is a secret for tools and models, unless it is a setting: see tools/secrets/secrets.py.
SECRET_PREFIX: Final = "FOLIOT_SECRET_"
# Read elsewhere: they steer a tool, not the system.
OTHER_VARIABLES: Final = (CONFIG, "FOLIOT_CONTEXT", "FOLIOT_DEBUG", "FOLIOT_TEST_POSTGRES_URL", "FOLIOT_TEST_NATS_URL")


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The settings of one process. Make it with `load_settings`."""

    home: Path = field(metadata=rule(as_path, "~/.foliot", sources=("flag", "environment")))
    store: str = field(metadata=rule(as_store, "{home}/foliot.db"))
    # How long a starting process waits for a store that is away; by default a service for ever, a command a moment.
    store_wait: int | None = field(metadata=rule(as_seconds, None))
    # How long a run stays with a process that is not heard of. Every wait for an answer is a part of it: see
    # common/waits.py.
    lease: int = field(metadata=rule(as_seconds, "30s"))
    namespace: str = field(metadata=rule(as_namespace, "default"))
    # A key does not belong in a file that people copy around, nor on a command line that others can list.
    secret_key: str | None = field(metadata=rule(as_text, None, sources=("environment",), secret=True))
    secret_key_file: Path = field(metadata=rule(as_path, "{home}/secret.key"))
    log_level: LogLevel = field(metadata=rule(as_level, "warning"))
    # One JSON object a line for programs that collect logs.
    log_format: LogFormat = field(metadata=rule(as_log_format, "text"))
    # A collector of OpenTelemetry that takes OTLP over HTTP; without it nothing is traced.
    otel_endpoint: str | None = field(metadata=rule(as_http, None))
    otel_headers: Pairs = field(metadata=rule(as_pairs, "", sources=("environment",), secret=True))
    otel_service: str = field(metadata=rule(as_text, "foliot"))
    nats: str | None = field(metadata=rule(as_nats, None))
    # Files for NATS: who we are (a .creds file or an nkey seed), whom to trust, and a certificate of our own.
    nats_credentials: Path | None = field(metadata=rule(as_path, None))
    nats_ca: Path | None = field(metadata=rule(as_path, None))
    nats_cert: Path | None = field(metadata=rule(as_path, None))
    nats_cert_key: Path | None = field(metadata=rule(as_path, None))
    # The JetStream stream that carries tickets to workers, and what the subjects in it begin with.
    nats_stream: str = field(metadata=rule(as_stream, "FOLIOT_AGENT_MESSAGES"))
    nats_prefix: str = field(metadata=rule(as_subject, "foliot.agentmsg"))
    # Tools over NATS: the name and key that calls are signed with, and the file that says whose calls are served.
    nats_caller: str = field(metadata=rule(as_text, "foliot"))
    nats_caller_key: str | None = field(metadata=rule(as_text, None, sources=("environment",), secret=True))
    # Subjects that tools may be called on which somebody else than the operator declares, besides tool.execute.NAME.
    nats_subjects: tuple[str, ...] = field(metadata=rule(as_subject_patterns, ""))
    nats_callers: Path | None = field(metadata=rule(as_path, None))
    # Hosts inside this network that tools may reach; without it they reach only the public internet.
    outbound_allow: tuple[str, ...] = field(metadata=rule(as_hosts, ""))
    # Python modules whose functions a Tool may name that somebody else than the operator declares.
    tool_modules: tuple[str, ...] = field(metadata=rule(as_modules, ""))
    # Files, and folders of files, that may be the WebAssembly module of a Tool that somebody else than the operator
    # declares; and folders that such a module may be given to read.
    wasm_modules: tuple[str, ...] = field(metadata=rule(as_places, ""))
    wasm_folders: tuple[str, ...] = field(metadata=rule(as_places, ""))
    # Files and folders of this machine that a fence may show which somebody else than the operator declares.
    sandbox_mounts: tuple[str, ...] = field(metadata=rule(as_mounts, ""))
    # The most that fences and workspaces may have which somebody else than the operator declares; the most of what is
    # not here is what they have when nothing is declared.
    sandbox_limits: Mapping[str, float] = field(metadata=rule(as_limits, ""))
    # Images that may be run as containers which somebody else than the operator names, and the one that is taken when a
    # tool names none.
    container_images: tuple[str, ...] = field(metadata=rule(as_images, ""))
    container_image: str = field(metadata=rule(as_image, ""))
    # podman or docker, by name or path, and the OCI runtime that must run containers; what there is when not set.
    container_cli: str = field(metadata=rule(as_text, ""))
    container_runtime: str = field(metadata=rule(as_text, ""))
    # Programs that may be started as MCP servers; without it none is, whatever an McpServer declares. One that somebody
    # else than the operator declares needs its whole command line here, and the variables that it sets.
    mcp_commands: tuple[str, ...] = field(metadata=rule(as_commands, ""))
    # One folder that all agents in the namespace above work on; without it each run has a folder of its own.
    workspace: Path | None = field(metadata=rule(as_path, None))
    # Where runs have folders of their own, if not in /var/tmp: programs can read the path. They are copies of what the
    # journal says: idle ones are removed.
    workspaces: Path | None = field(metadata=rule(as_path, None))
    # Folders that an agent's runs may begin with a copy of which somebody else than the operator declares.
    workspace_sources: tuple[str, ...] = field(metadata=rule(as_places, ""))
    retention_workspaces: int = field(metadata=rule(as_age, "1d"))
    # What an agent without roles may do with a tool of which no rule speaks.
    default_tool_access: Access = field(metadata=rule(as_access, "allow"))
    # The only tools that may be called at all, whatever rules and agents say; all when not set.
    allowed_tools: tuple[str, ...] | None = field(metadata=rule(as_names, None))
    # Plug-ins of installed packages that are active, by name: what is not named here is never loaded.
    plugins: tuple[str, ...] = field(metadata=rule(as_names, ""))
    # Where audit records go besides the store: file:/path, webhook:https://…#secret, otel, or what a package adds.
    audit_sinks: tuple[str, ...] = field(metadata=rule(as_names, ""))
    # How long runs and tasks that have ended are kept, and audit records; `forever` keeps them. A store file that is
    # larger than this forgets what ended first, down to an hour ago; 0 is any size.
    retention_runs: int = field(metadata=rule(as_age, "30d"))
    retention_audit: int = field(metadata=rule(as_age, "365d"))
    retention_size: int = field(metadata=rule(as_room, "10GiB"))
    # Where the server listens, its certificate, and the largest body that it reads.
    listen: str = field(metadata=rule(as_listen, "127.0.0.1:8080"))
    # How others reach the server: tools are told to push their results there.
    public_url: str | None = field(metadata=rule(as_http, None))
    tls_cert: Path | None = field(metadata=rule(as_path, None))
    tls_key: Path | None = field(metadata=rule(as_path, None))
    # Whose certificates callers must show; without it none is asked for.
    tls_client_ca: Path | None = field(metadata=rule(as_path, None))
    max_body: int = field(metadata=rule(as_size, "4MiB"))
    # The same for what is said to agents by clients of OpenAI: images and files come within it.
    max_media_body: int = field(metadata=rule(as_size, "48MiB"))
    # Limits of the server, 0 being none: requests of one caller a second and at once, wrong credentials from one
    # address a minute, connections. And the pages of other sites that may call it from a browser.
    request_rate: int = field(metadata=rule(as_count, "500"))
    request_burst: int = field(metadata=rule(as_count, "2000"))
    auth_failures: int = field(metadata=rule(as_count, "30"))
    max_connections: int = field(metadata=rule(as_count, "4096"))
    cors_origins: tuple[str, ...] = field(metadata=rule(as_origins, ""))
    # Event streams that one caller may have open at a time; 0 is any number.
    max_streams: int = field(metadata=rule(as_count, "1000"))
    # How long a session of a browser may rest, and how long it may last at all.
    session_idle: int = field(metadata=rule(as_seconds, "12h"))
    session_life: int = field(metadata=rule(as_seconds, "7d"))
    # An identity provider (OpenID Connect) that people log in with, and what this server is called there.
    oidc_issuer: str | None = field(metadata=rule(as_issuer, None))
    oidc_client_id: str | None = field(metadata=rule(as_text, None))
    oidc_client_secret: str | None = field(metadata=rule(as_text, None, sources=("environment",), secret=True))
    oidc_redirect_url: str | None = field(metadata=rule(as_http, None))
    oidc_scopes: tuple[str, ...] = field(metadata=rule(as_names, "openid, profile, email"))
    # The claims that say who somebody is and which groups they are in, and the roles that groups have.
    oidc_name_claim: str = field(metadata=rule(as_text, "preferred_username"))
    oidc_roles_claim: str = field(metadata=rule(as_text, "groups"))
    oidc_roles: tuple[str, ...] = field(metadata=rule(as_role_rules, ""))
    # Bearer tokens that the provider issued for this audience are taken too.
    oidc_audience: str | None = field(metadata=rule(as_text, None))
    # The server that commands are asked of instead of the store, as whom, and whom to trust.
    server: str | None = field(metadata=rule(as_server, None, sources=("flag", "environment")))
    token: str | None = field(metadata=rule(as_token, None, sources=("environment",), secret=True))
    token_file: Path | None = field(metadata=rule(as_path, None, sources=("flag", "environment")))
    server_ca: Path | None = field(metadata=rule(as_path, None))
    server_cert: Path | None = field(metadata=rule(as_path, None))
    server_cert_key: Path | None = field(metadata=rule(as_path, None))
    origins: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    """Worth telling: variables that look like a misspelt setting."""

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={shown!r}' for name, shown, _ in self.explain())})"

    def origin(self, name: str) -> str:
        """Returns the origin of a value, e.g. `environment FOLIOT_STORE`. Raises `KeyError` for an unknown name."""
        return self.origins[name]

    def explain(self) -> list[tuple[str, str, str]]:
        """Name, value and origin of every setting, to show to people: secrets and passwords are masked."""
        return [(name, self._shown(name, rule), self.origins[name]) for name, rule in RULES.items()]

    def _shown(self, name: str, rule: SettingRule) -> str:
        value = getattr(self, name)
        if value is None:
            return ""
        if rule.secret:
            return "" if value == () else "********"
        if isinstance(value, tuple):
            return ", ".join(cast("tuple[str, ...]", value))
        if isinstance(value, Mapping):
            return ", ".join(f"{name}={most}" for name, most in cast("Mapping[str, float]", value).items())
        return mask_password(str(value))


RULES: Final[Mapping[str, SettingRule]] = {f.name: f.metadata["rule"] for f in fields(Settings) if "rule" in f.metadata}


def load_settings(
    flags: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] = os.environ,
    context: Mapping[str, Given] | None = None,
) -> Settings:
    """All settings, from flags (by setting name, plus `config`; None is not given), environment, file and defaults.

    What a `context` of the command line gives stands between the environment and the file (see settings/contexts.py).

    Raises `UsageError` that names the flag, variable or file, and what was expected there.
    """
    flags, between = flags or {}, context or {}
    if unknown := flags.keys() - RULES.keys() - {"config"}:
        raise ValueError(f"no such setting: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def decide(name: str, *, file: Mapping[str, Given]) -> None:
        given = _typed(name, flags, environ) or between.get(name) or file.get(name) or _default(name, values)
        values[name] = None if given is None else RULES[name].parse(given)
        origins[name] = "default" if given is None else given.origin

    decide("home", file={})
    file = _read_file(values["home"], flags, environ)
    for name in RULES:
        if name not in values:
            decide(name, file=file)
    return Settings(**values, origins=origins, warnings=tuple(_misspelt(environ)))


def _typed(name: str, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Given | None:
    """Returns the value from a flag, or else the environment.

    An empty variable counts as unset, except for a secret.
    """
    rule, variable = RULES[name], PREFIX + name.upper()
    if (text := flags.get(name)) is not None:
        flag = f"flag --{name.replace('_', '-')}"
        if "flag" not in rule.sources:
            raise UsageError(f"{flag}: a secret on the command line can be seen by others", hint=f"set {variable}")
        return _filled(Given(text, flag, Path.cwd()))
    text = environ.get(variable)
    # To fall back to another key because a variable came out empty would seal secrets with the wrong one.
    if text is None or (not text.strip() and not rule.secret):
        return None
    return Given(text, f"environment {variable}", Path.cwd())


def _read_file(home: Path, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, Given]:
    """Reads the configuration file. The default one may be missing; one that was asked for may not."""
    asked = flags.get("config") or environ.get(CONFIG)
    path = as_path(Given(asked, "configuration file", Path.cwd())) if asked else home / "config.toml"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if not asked:
            return {}
        raise UsageError(f"the configuration file {path} does not exist", hint=f"check --config or {CONFIG}") from None
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    return {name: _from_file(path, name, value) for name, value in _parse_toml(path, content).items()}


def _parse_toml(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise UsageError(f"{path}: not TOML: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}", hint='a line reads: namespace = "team-a"') from None


def _from_file(path: Path, name: str, value: Any) -> Given:
    origin = f"file {path}, key {name}"
    allowed = [known for known, rule in RULES.items() if "file" in rule.sources]
    if name not in allowed:
        if name in RULES:
            raise UsageError(
                f"{origin}: cannot be set in a file", hint=f"set {PREFIX}{name.upper()} in the environment"
            )
        hint = suggestion(name, allowed, f"known are {', '.join(allowed)}", alike=VERY_ALIKE)
        raise UsageError(f"{origin}: there is no such setting", hint=hint)
    if not isinstance(value, str):
        raise UsageError(f"{origin}: expected text in quotes, found {type(value).__name__}")
    return _filled(Given(value, origin, path.parent))


def _default(name: str, values: Mapping[str, Any]) -> Given | None:
    text = RULES[name].default
    return None if text is None else Given(text.replace("{home}", str(values.get("home"))), "default", Path.cwd())


def _filled(given: Given) -> Given:
    if not given.text.strip():
        raise UsageError(f"{given.origin}: is empty", hint="give it a value, or leave it out")
    return given


def _misspelt(environ: Mapping[str, str]) -> list[str]:
    known = [PREFIX + name.upper() for name in RULES] + list(OTHER_VARIABLES)
    ours = (name for name in environ if name.startswith(PREFIX) and not name.startswith(SECRET_PREFIX))
    suspects = sorted(name for name in ours if name not in known)
    return [
        f"the environment variable {name} is not a setting and has no effect; {hint}"
        for name in suspects
        if (hint := suggestion(name, known, alike=VERY_ALIKE))
    ]
