"""Every setting, in one frozen object that knows where each value came from.

A value is looked for in this order: a flag, the environment (`FOLIOT_<NAME>`), the configuration file
(`<home>/config.toml`, or the file that `FOLIOT_CONFIG` names), the default. Read once at the start of a process and
passed down; nothing below this module looks at the environment for a setting.

A new setting is one line in `Settings`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, cast

from foliot.errors import UsageError
from foliot.setting_values import (
    Access,
    Given,
    LogFormat,
    LogLevel,
    Pairs,
    Rule,
    as_access,
    as_age,
    as_commands,
    as_count,
    as_hosts,
    as_http,
    as_issuer,
    as_level,
    as_listen,
    as_log_format,
    as_modules,
    as_names,
    as_namespace,
    as_nats,
    as_origins,
    as_pairs,
    as_path,
    as_role_rules,
    as_room,
    as_seconds,
    as_server,
    as_size,
    as_store,
    as_stream,
    as_subject,
    as_subject_patterns,
    as_text,
    as_token,
    mask_password,
    rule,
)

PREFIX: Final = "FOLIOT_"
CONFIG: Final = "FOLIOT_CONFIG"
# What begins like this is a secret for tools and models, unless it is a setting: see tools/secrets.py.
SECRET_PREFIX: Final = "FOLIOT_SECRET_"
# Read elsewhere: they steer a tool, not the system.
OTHER_VARIABLES: Final = (CONFIG, "FOLIOT_CONTEXT", "FOLIOT_DEBUG", "FOLIOT_TEST_POSTGRES_URL", "FOLIOT_TEST_NATS_URL")


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """What one process was told. Make it with `load_settings`."""

    home: Path = field(metadata=rule(as_path, "~/.foliot", sources=("flag", "environment")))
    store: str = field(metadata=rule(as_store, "{home}/foliot.db"))
    # How long a starting process waits for a store that is away; by default a service for ever, a command a moment.
    store_wait: int | None = field(metadata=rule(as_seconds, None))
    # How long a run stays with a process that is not heard of. Every wait for an answer is a part of it: see waits.py.
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
    # Programs that may be started as MCP servers; without it none is, whatever an McpServer declares. One that somebody
    # else than the operator declares needs its whole command line here, and the variables that it sets.
    mcp_commands: tuple[str, ...] = field(metadata=rule(as_commands, ""))
    # The folder that file tools of agents in the namespace above may use; without it they have none.
    workspace: Path | None = field(metadata=rule(as_path, None))
    # What an agent without roles may do with a tool of which no rule speaks.
    default_tool_access: Access = field(metadata=rule(as_access, "allow"))
    # The only tools that may be called at all, whatever rules and agents say; all when not set.
    allowed_tools: tuple[str, ...] | None = field(metadata=rule(as_names, None))
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
        """Where a value came from, e.g. `environment FOLIOT_STORE`. Raises `KeyError` for an unknown name."""
        return self.origins[name]

    def explain(self) -> list[tuple[str, str, str]]:
        """Name, value and origin of every setting, to show to people: secrets and passwords are masked."""
        return [(name, self._shown(name, rule), self.origins[name]) for name, rule in RULES.items()]

    def _shown(self, name: str, rule: Rule) -> str:
        value = getattr(self, name)
        if value is None:
            return ""
        if rule.secret:
            return "" if value == () else "********"
        if isinstance(value, tuple):
            return ", ".join(cast("tuple[str, ...]", value))
        return mask_password(str(value))


RULES: Final[Mapping[str, Rule]] = {f.name: f.metadata["rule"] for f in fields(Settings) if "rule" in f.metadata}


def load_settings(
    flags: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] = os.environ,
    context: Mapping[str, Given] | None = None,
) -> Settings:
    """All settings, from flags (by setting name, plus `config`; None is not given), environment, file and defaults.

    What a `context` of the command line gives stands between the environment and the file (see contexts.py).

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
    """What a flag or else the environment says. An empty variable counts as unset, except for a secret."""
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
    """What the configuration file says. The default one may be missing; one that was asked for may not."""
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
        near = _closest(name, allowed)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(allowed)}"
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
        f"the environment variable {name} is not a setting and has no effect; did you mean {near}?"
        for name in suspects
        if (near := _closest(name, known))
    ]


def _closest(word: str, known: list[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.75)), None)
