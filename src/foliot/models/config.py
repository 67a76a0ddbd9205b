"""The configuration of a gateway, read once and never changed.

Built by the registry from a `ModelEndpoint` and its secret; read by every gateway. The key is a plain string because
it must be put on the wire, but it never shows in a `repr`, and neither do extra headers, which often carry one too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from foliot.common.waits import Waits
from foliot.errors import InvalidInput
from foliot.models.profiles import ModelProfile, profile_document, profile_of

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientTimeout
    from yarl import URL

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `idle` is the longest silence inside a stream; `total` bounds the whole call, however slow the drip.

    In a stream `total` is the longest time without anything of the answer: a healthy one may take as long as it likes.
    """

    connect: float = Waits().answer  # that of the lease, where an endpoint does not say
    idle: float = 300.0
    total: float = 600.0


class WayOut(Protocol):
    """Posts to addresses that somebody else than the operator chose: checked, pinned, without redirects or proxy."""

    async def post(
        self, url: URL, *, data: bytes, headers: Mapping[str, str], timeout: ClientTimeout
    ) -> ClientResponse: ...


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """One endpoint. `model` is used when a request names none; `options` are the provider's own switches.

    Option names are compared in lower case without surrounding blanks. Raises `InvalidInput` for a base URL that is
    not http(s) or holds a query, and for a key or header that cannot stand in an HTTP header.
    """

    provider: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeouts: Timeouts = field(default_factory=Timeouts)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    proxy: str | None = field(default=None, repr=False)
    max_response_bytes: int = 32 * 1024 * 1024
    way_out: WayOut | None = field(default=None, repr=False)
    waits: Waits = field(default_factory=Waits)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "base_url", self.base_url.strip().rstrip("/"))
        put(self, "api_key", _on_one_line(self.api_key.strip()))
        put(self, "options", {str(name).strip().lower(): value for name, value in self.options.items()})
        if self.base_url:
            self._check_address()
        if self.proxy and not is_web_address(self.proxy):
            raise InvalidInput(
                f"the proxy of model provider {self.provider!r} is not an http or https address",
                hint="give it with its scheme, for example http://proxy.example.com:3128",
            )
        if not _fits_header(self.api_key):
            raise InvalidInput(
                f"the API key of model provider {self.provider!r} has characters that a header cannot carry",
                hint="check that the secret holds one line of plain text and nothing else",
            )
        for name, value in self.headers.items():
            if not _fits_header(name) or not _fits_header(value):
                raise InvalidInput(f"header {name!r} of model provider {self.provider!r} is not one line of plain text")

    def _check_address(self) -> None:
        """The address itself is not in the errors: it may hold a password."""
        whose = f"the base URL of model provider {self.provider!r}"
        if not is_web_address(self.base_url):
            raise InvalidInput(
                f"{whose} is not an http or https address",
                hint="give it with its scheme, for example https://api.example.com/v1",
            )
        if "?" in self.base_url or "#" in self.base_url:
            raise InvalidInput(
                f"{whose} has something behind its path, which would end up in the middle of every address",
                hint="leave out everything from the ? on; Azure's api-version is the option api_version",
            )

    def text(self, option: str, default: str = "") -> str:
        """An option as text; blank counts as absent."""
        value = self.options.get(option)
        return default if value is None or str(value).strip() == "" else str(value).strip()

    def choice(self, option: str, allowed: tuple[str, ...], default: str) -> str:
        """An option that is one of a few words."""
        value = self.text(option, default).lower()
        if value not in allowed:
            raise self._bad(option, f"one of {', '.join(allowed)}")
        return value

    def flag(self, option: str, default: bool) -> bool:
        value = self.options.get(option)
        if isinstance(value, bool):
            return value
        word = self.text(option).lower()
        if not word:
            return default
        if word not in _TRUE | _FALSE:
            raise self._bad(option, "true or false")
        return word in _TRUE

    def integer(self, option: str, default: int) -> int:
        """A positive whole number; zero and below mean the default."""
        word = self.text(option)
        if not word:
            return default
        try:
            value = int(word)
        except ValueError:
            raise self._bad(option, "a whole number") from None
        return value if value > 0 else default

    def mapping(self, option: str) -> Mapping[str, Any]:
        """An option that is a mapping; empty when it is not given."""
        value = self.options.get(option)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._bad(option, "a mapping")
        return cast("Mapping[str, Any]", value)

    def profiles(self, family: str) -> Callable[[str], ModelProfile]:
        """The profiles of models at this endpoint, with what its option `profile` adds.

        `family` is the provider whose file counts where this one has none. Raises `InvalidInput`.
        """
        provider = self.provider.strip().lower()
        whose = provider if profile_document(provider) else family
        added = self.mapping("profile")
        profile_of(whose, self.model, added)  # a mistake in it is told now

        @cache
        def profile(model: str) -> ModelProfile:
            return profile_of(whose, model, added)

        return profile

    def _bad(self, option: str, wanted: str) -> InvalidInput:
        return InvalidInput(
            f"option {option!r} of model provider {self.provider!r} must be {wanted}",
            hint="correct the endpoint's options",
        )


def _on_one_line(key: str) -> str:
    """The key as it is; credentials that are JSON, which files have on many lines, on one."""
    if not key.startswith("{"):
        return key
    try:
        return json.dumps(json.loads(key))
    except ValueError:
        return key


def is_web_address(url: str) -> bool:
    """Can this be asked over HTTP?"""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # a port that is no number, an open bracket
        return False


def _fits_header(value: str) -> bool:
    return value.isprintable() and value.isascii()
