"""Credentials that are more than a key: AWS access keys, which sign each request, and Google's, which buy tokens.

The key of an endpoint (its Secret) may be such a document, as JSON, where the provider's file names the kind:

    aws      {"access_key_id": …, "secret_access_key": …, "session_token": …, "region": …}
    google   a service account's key file, or the file that `gcloud auth application-default login` writes

`found` makes the same document of what the providers' own tools find in the environment and in their files, for a model
that is named as `provider:model`. Neither a document nor a token that was bought with it is ever put into an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from weakref import WeakKeyDictionary

from foliot.errors import InvalidInput
from foliot.models.base import ModelAuthError, ModelGarbage

Post: TypeAlias = Callable[[str, bytes, Mapping[str, str]], Awaitable[tuple[int, bytes]]]
"""Sends bytes to an address of the credentials, the way that the endpoint's own requests go; status and body."""
_TOKENS_AT: Final = "https://oauth2.googleapis.com/token"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_ASSERTED: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
# A token is replaced so long before it ends, or at half its life when it is shorter than twice that.
_BEFORE: Final = 300.0
_REGION: Final = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d+)\.")


class ModelCredentials(Protocol):
    """Shows who asks, anew for each request. `shown` is the secret part of what was shown last."""

    shown: str

    async def headers(self, url: str, body: bytes, content_type: str, post: Post) -> Mapping[str, str]:
        """The headers that show it. Raises a `ModelError`."""
        ...

    def refused(self) -> bool:
        """Take note that they were not accepted. Whether others can be had, so that asking again makes sense."""
        ...


def read_credentials(
    kind: str, service: str, document: str, base_url: str, *, clock: Callable[[], float] = time.time
) -> ModelCredentials | None:
    """The credentials in the key of an endpoint; None for a plain key. Raises `InvalidInput`."""
    if not kind or not document.startswith("{"):
        return None
    try:
        given = cast("dict[str, Any]", json.loads(document))
    except ValueError:
        raise InvalidInput("the key of the endpoint is no JSON, though it begins like that") from None
    if kind == "aws":
        return AwsSignature(given, service, base_url, clock=clock)
    return GoogleTokens(given, clock=clock)


# --- AWS -----------------------------------------------------------------------------------------------------------


class AwsSignature:
    """Signs requests by AWS Signature Version 4. Raises `InvalidInput` when the key or the region is missing."""

    def __init__(
        self, given: Mapping[str, Any], service: str, base_url: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._key_id, self._secret = _text(given, "access_key_id"), _text(given, "secret_access_key")
        self._token = self.shown = str(given.get("session_token") or "")
        in_host = _REGION.search(f".{urlsplit(base_url).hostname}.")
        self._region = str(given.get("region") or (in_host[1] if in_host else ""))
        self._service = service
        self._clock = clock
        if not self._region:
            raise InvalidInput(
                "requests to AWS are signed for a region, and none is known",
                hint='add "region" to the credentials, or use an address that names it',
            )

    async def headers(self, url: str, body: bytes, content_type: str, post: Post) -> Mapping[str, str]:
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
        shown = {"content-type": content_type, "host": _host(url), "x-amz-date": now}
        if self._token:
            shown["x-amz-security-token"] = self._token
        shown["Authorization"] = self.signature("POST", url, shown, body)
        return {name: value for name, value in shown.items() if name not in ("host", "content-type")}

    def signature(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> str:
        """The value of the header Authorization. `headers` are all signed; `x-amz-date` is among them."""
        parts = urlsplit(url)
        now = headers["x-amz-date"]
        names = ";".join(sorted(headers))
        query = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in parse_qsl(parts.query, True))
        canonical = "\n".join(
            (
                method,
                quote(parts.path or "/", safe="/-_.~"),  # what is encoded already is encoded once more
                "&".join(f"{name}={value}" for name, value in query),
                *(f"{name}:{' '.join(headers[name].split())}" for name in sorted(headers)),
                "",
                names,
                hashlib.sha256(body).hexdigest(),
            )
        )
        scope = f"{now[:8]}/{self._region}/{self._service}/aws4_request"
        signed = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self._secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        proof = hmac.digest(key, signed.encode(), "sha256").hex()
        return f"AWS4-HMAC-SHA256 Credential={self._key_id}/{scope}, SignedHeaders={names}, Signature={proof}"

    def refused(self) -> bool:
        return False  # whoever gave them may have others: the endpoint's key is looked up once more


def _host(url: str) -> str:
    """The host as the header has it: with the port, unless it is the usual one."""
    parts = urlsplit(url)
    usual = {"https": ":443", "http": ":80"}.get(parts.scheme, "")
    return parts.netloc.rpartition("@")[2].removesuffix(usual)


# --- Google --------------------------------------------------------------------------------------------------------


class GoogleTokens:
    """Buys access tokens and keeps each until shortly before it ends. Raises `InvalidInput` for what buys none."""

    def __init__(self, given: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._given = given
        self._kind = str(given.get("type") or "")
        self._at = str(given.get("token_uri") or _TOKENS_AT)
        self.shown = ""
        self._ends = self._renew_at = 0.0
        self._buying: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._key: Any = None
        where = urlsplit(self._at)
        if where.scheme != "https" and where.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise InvalidInput("the token_uri of Google's credentials is no https address")
        if self._kind == "service_account":
            _text(given, "client_email")
            self._key = _private_key(_text(given, "private_key"))
        elif self._kind == "authorized_user":
            for name in ("client_id", "client_secret", "refresh_token"):
                _text(given, name)
        else:
            raise InvalidInput(
                f"Google's credentials of the type {self._kind[:40]!r} are not used here",
                hint="give the key file of a service account, or what `gcloud auth application-default login` writes",
            )

    async def headers(self, url: str, body: bytes, content_type: str, post: Post) -> Mapping[str, str]:
        if self._clock() >= self._renew_at:
            async with self._buying.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if self._clock() >= self._renew_at:  # unless another request bought one meanwhile
                    await self._renew(post)
        shown = {"Authorization": f"Bearer {self.shown}"}
        if project := self._given.get("quota_project_id"):
            shown["x-goog-user-project"] = str(project)
        return shown

    def refused(self) -> bool:
        had, self._renew_at, self._ends = bool(self.shown), 0.0, 0.0
        return had

    async def _renew(self, post: Post) -> None:
        try:
            token, seconds = await self._bought(post)
        except Exception:
            if self._clock() < self._ends:
                return  # the old one is still good; the next request tries again
            raise
        now = self._clock()
        self.shown, self._ends = token, now + seconds
        self._renew_at = now + max(seconds - _BEFORE, seconds / 2)

    async def _bought(self, post: Post) -> tuple[str, float]:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        status, raw = await post(self._at, urlencode(self._asked()).encode(), form)
        try:
            said: Any = json.loads(raw)
        except ValueError:
            said = {}
        fields = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        if status >= 400:
            # The code alone: what else is said there may repeat what was sent.
            code = re.sub(r"[^a-z_]", "", str(fields.get("error", ""))[:40])
            words = f"no access token was given for Google's credentials ({status}{', ' if code else ''}{code})"
            if status >= 500 or status == 429:
                raise ModelGarbage(words)
            raise ModelAuthError(words, status=status, hint="check the key, and the clock of this machine")
        token, seconds = fields.get("access_token"), fields.get("expires_in", 3600)
        if not isinstance(token, str) or not token.isprintable() or not isinstance(seconds, (int, float)):
            raise ModelGarbage("the answer for Google's credentials holds no access token")
        return token, max(0.0, float(seconds))

    def _asked(self) -> dict[str, str]:
        if self._kind == "authorized_user":
            named = {name: str(self._given[name]) for name in ("client_id", "client_secret", "refresh_token")}
            return {"grant_type": "refresh_token", **named}
        now = int(self._clock())
        head = {"alg": "RS256", "typ": "JWT", "kid": str(self._given.get("private_key_id", ""))}
        # It is meant for Google, wherever it is sent: so has it the official library.
        audience = {"aud": _TOKENS_AT, "scope": _SCOPE}
        claims = {"iss": self._given["client_email"], **audience, "iat": now, "exp": now + 3600}
        signed = f"{_encoded(head)}.{_encoded(claims)}"
        return {"grant_type": _ASSERTED, "assertion": f"{signed}.{_base64(self._key(signed.encode()))}"}


def _private_key(pem: str) -> Callable[[bytes], bytes]:
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem.encode(), None)
    except Exception:  # whatever it says, it may say of the key
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise InvalidInput("the private_key of Google's credentials is no RSA key in PEM")
    return lambda data: key.sign(data, PKCS1v15(), SHA256())


def _encoded(value: Mapping[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(f"the credentials of the endpoint have no {name}")
    return value.strip() if name != "private_key" else value


# --- where their own tools look -------------------------------------------------------------------------------------


def found(kind: str, environ: Mapping[str, str]) -> str:
    """The document of the credentials that the provider's own tools would use; "" when there are none."""
    if kind == "aws":
        return _aws_found(environ)
    return _google_found(environ) if kind == "google" else ""


def _aws_found(environ: Mapping[str, str]) -> str:
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    names = ("access_key_id", "secret_access_key", "session_token")
    given = {name: environ.get(f"AWS_{name.upper()}", "").strip() for name in names}
    if not given["access_key_id"] or not given["secret_access_key"]:
        where = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or _home(environ) / ".aws" / "credentials")
        file = ConfigParser(interpolation=None)
        try:
            file.read_string(where.read_text("utf-8"))
            section = file[environ.get("AWS_PROFILE") or "default"]
        except (OSError, UnicodeDecodeError, ConfigError, KeyError):
            return ""
        given = {name: section.get(f"aws_{name}", "").strip() for name in names}
        if not given["access_key_id"] or not given["secret_access_key"]:
            return ""
    return json.dumps({**given, "region": region})


def _google_found(environ: Mapping[str, str]) -> str:
    said = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "").strip()
    config = Path(environ.get("CLOUDSDK_CONFIG") or _home(environ) / ".config" / "gcloud")
    try:
        text = Path(said or config / "application_default_credentials.json").read_text("utf-8").strip()
        return json.dumps(json.loads(text))
    except (OSError, ValueError):
        return ""


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "/nonexistent")
