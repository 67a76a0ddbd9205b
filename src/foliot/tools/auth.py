"""How a tool's server is told who calls: the one place where a secret becomes a header.

    profile                     secret                               header
    bearer                      a token                              Authorization: Bearer …
    api_key_header              a key                                the header that `header_name` names
    basic                       user:password                        Authorization: Basic …
    oauth2_client_credentials   the keys client_id, client_secret    Authorization: Bearer … (fetched, `oauth.py`)

`environment` is the same for tools that run in a sandbox and take variables instead of headers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from foliot.tools.base import AuthSpec, ToolPolicyInvalid, ToolSecretMissing
from foliot.tools.masking import Masker
from foliot.tools.oauth import TokenCache
from foliot.tools.secrets import DEFAULT_KEY, Secrets

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_FOR_KEYS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """What to send with one call. `renewable`: a refusal may mean only that the token has ended."""

    profile: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    client_id: str = ""
    token: str = field(default="", repr=False)

    @property
    def renewable(self) -> bool:
        return bool(self.token)


class ToolAuth:
    """Makes credentials for calls. Nothing is kept between calls but access tokens."""

    def __init__(self, secrets: Secrets, tokens: TokenCache | None = None) -> None:
        self._secrets = secrets
        self._tokens = tokens

    @property
    def masker(self) -> Masker:
        return self._secrets.masker

    async def credentials(self, auth: AuthSpec | None, *, namespace: str, tool: str, by: str = "Tool") -> Credentials:
        """What to send, for a resource of the kind `by`.

        Raises `ToolSecretMissing`, `ToolPolicyInvalid` when the declaration cannot be carried out.
        """
        if auth is None or not (auth.profile or auth.secret_ref):
            return Credentials()
        if not auth.secret_ref:
            raise ToolPolicyInvalid(f"the auth of tool {tool!r} names no secret", tool=tool)
        match auth.profile or "bearer":
            case "oauth2_client_credentials":
                return await self._client_credentials(auth, namespace, tool, by)
            case "bearer":
                return _bearer(await self._value(auth, auth.secret_ref, namespace, tool, by))
            case "api_key_header":
                name = auth.header_name.strip()
                if not _HEADER.fullmatch(name) or name.lower() in _NOT_FOR_KEYS:
                    raise ToolPolicyInvalid(f"the auth of tool {tool!r} needs the name of a header", tool=tool)
                value = await self._value(auth, auth.secret_ref, namespace, tool, by)
                environment = {"TOOL_AUTH_HEADER_NAME": name, "TOOL_AUTH_HEADER_VALUE": value}
                return Credentials("api_key_header", {name: value}, environment)
            case "basic":
                return self._basic(await self._value(auth, auth.secret_ref, namespace, tool, by), tool)
            case other:  # pyright: ignore[reportUnnecessaryComparison] - a definition may come from unchecked code
                raise ToolPolicyInvalid(f"tool {tool!r} has an unknown auth profile {other!r}", tool=tool)

    def evict(self, auth: AuthSpec | None, used: Credentials) -> None:
        """The server refused these: the next call fetches a new token."""
        if self._tokens is not None and auth is not None and used.renewable:
            self._tokens.evict(auth.token_url, used.client_id, auth.scopes, token=used.token)

    async def _client_credentials(self, auth: AuthSpec, namespace: str, tool: str, by: str) -> Credentials:
        path, _, key = auth.secret_ref.partition(":")
        if key and key != DEFAULT_KEY:
            raise ToolPolicyInvalid(
                f"the secret of tool {tool!r} names one key, and OAuth needs two: client_id and client_secret",
                hint="name the secret without a key",
                tool=tool,
            )
        if not auth.token_url or self._tokens is None:
            what = "no tokenURL" if not auth.token_url else "nobody to fetch tokens"
            raise ToolPolicyInvalid(f"the auth of tool {tool!r} has {what}", tool=tool)
        client_id = await self._value(auth, f"{path}:client_id", namespace, tool, by)
        client_secret = await self._value(auth, f"{path}:client_secret", namespace, tool, by)
        token = await self._tokens.token(auth.token_url, client_id, client_secret, auth.scopes)
        made = _bearer(_one_line(token, tool))
        return Credentials(auth.profile, made.headers, made.environment, client_id, token)

    def _basic(self, value: str, tool: str) -> Credentials:
        if ":" not in value:
            raise ToolPolicyInvalid(
                f"the secret of tool {tool!r} has no colon", hint="basic auth needs user:password", tool=tool
            )
        encoded = base64.b64encode(value.encode()).decode()
        self.masker.add(encoded, value.partition(":")[2])
        return Credentials("basic", {"Authorization": f"Basic {encoded}"}, {"TOOL_AUTH_BASIC": encoded})

    async def _value(self, auth: AuthSpec, ref: str, namespace: str, tool: str, by: str) -> str:
        value = await self._secrets.value(ref, namespace=namespace, tool=tool, hosts=auth.hosts, by=by)
        return _one_line(value, tool)


def _bearer(token: str) -> Credentials:
    return Credentials("bearer", {"Authorization": f"Bearer {token}"}, {"TOOL_AUTH_BEARER": token})


def _one_line(value: str, tool: str) -> str:
    """A line break would end the header and begin another of the writer's choice."""
    if not value.isprintable():
        raise ToolSecretMissing(f"the secret of tool {tool!r} has line breaks or control characters in it")
    return value
