"""Parts that several kinds share: how to prove who one is, how often one may call, how to try again, money."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from foliot.resources import amounts as money
from foliot.resources.base import Model, given, implies, problem, says
from foliot.resources.fields import (
    ANY_CASE,
    MARK_EXACT,
    Attempts,
    Duration,
    ExactList,
    LooseWord,
    Name,
    Positive,
    RawText,
    SecretRef,
    Timeout,
    Url,
    refusal,
)
from foliot.resources.problems import Problem

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# What can pass by itself. Other kinds of failure need the attention of the model or of a person.
RetryKind: TypeAlias = Annotated[Literal["timeout", "external", "network", "rate_limited", "internal"], ANY_CASE]
Jitter: TypeAlias = Annotated[Literal["none", "full", "equal"], ANY_CASE]
OperationClass: TypeAlias = Annotated[Literal["read", "write", "delete", "admin"], ANY_CASE]


def _header_name(value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise refusal("{field} is not the name of an HTTP header", expected="a name such as X-Api-Key")
    return value


def _decimal(value: Any) -> Any:
    """A number in decimal notation: 0.00001 is a price, and prints as 1e-05."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return format(Decimal(str(value)), "f") if is_number else value


def _amount(value: str) -> str:
    try:
        micros = money.micros_of_text(value)
    except ValueError as error:
        raise refusal(f'invalid {{field}} "{value[:40]}": {error}', expected='dollars such as "25.00"') from None
    return money.dollars(micros)


_DOLLARS_SCHEMA: Final = {
    "type": ["string", "number"],
    "pattern": r"^\s*\+?([0-9]+(\.[0-9]{0,6}0*)?|\.[0-9]{1,6}0*)([eE]\+?[0-9])?\s*$",
    "minimum": 0,
    "maximum": 1_000_000_000,
    MARK_EXACT: {"multipleOf": 0.000_001},
}
HeaderName: TypeAlias = Annotated[
    str,
    AfterValidator(_header_name),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*$"}),
]
Dollars: TypeAlias = Annotated[
    str,
    BeforeValidator(_decimal),
    AfterValidator(_amount),
    WithJsonSchema({**_DOLLARS_SCHEMA, "examples": ["25.00", 0.5]}),
]


class SessionDelivery(Model):
    """The place that an answer is delivered to."""

    required: ClassVar = {"channel": ""}

    channel: Name = Field(default="", description="The Channel of this namespace that delivers it.")
    recipient: LooseWord = Field(default="", description="Whom it is delivered to there, e.g. the id of a chat.")


class SessionTarget(Model):
    """A session that something is said to: one agent, one user and one channel have one that is active."""

    required: ClassVar = {"agent": "", "message": ""}

    agent: Name = Field(default="", description="The Agent whose session it is.")
    user: str = Field(default="", description="The user whose session it is; the declarer's when not given.")
    channel: str = Field(default="", description="The channel of the session, such as main.")
    session_mode: Annotated[Literal["reuse", "new"], ANY_CASE] = Field(
        default="reuse", description="Say it to the active session, or begin another one each time."
    )
    message: RawText = Field(default="", description="What is said. Placeholders such as {{ slot }} are filled in.")
    deliver: SessionDelivery | None = Field(
        default=None, description="Where the answer is delivered to; it stays in the session when not given."
    )


class SecretAuth(Model):
    """A secret to show."""

    secret_ref: SecretRef = Field(
        default="", serialization_alias="secretRef", description="The Secret: [namespace/]name[:key], key `value`."
    )


class ToolAuth(Model):
    """How a tool or a tool server is told who calls."""

    rules: ClassVar = (
        implies(given("profile"), given("secret_ref")),
        implies(says("profile", "api_key_header"), given("header_name")),
        implies(says("profile", "oauth2_client_credentials"), given("token_url")),
    )

    profile: (
        Annotated[
            Literal["bearer", "api_key_header", "basic", "oauth2_client_credentials"],
            ANY_CASE,
        ]
        | None
    ) = Field(default=None, description="How the secret is shown; `bearer` when only a secret is given.")
    secret_ref: SecretRef = Field(
        default="", serialization_alias="secretRef", description="The Secret: [namespace/]name[:key], key `value`."
    )
    header_name: HeaderName = Field(
        default="", serialization_alias="headerName", description="The header of an api_key_header."
    )
    token_url: Url = Field(
        default="", serialization_alias="tokenURL", description="Where oauth2_client_credentials gets its token."
    )
    scopes: ExactList = Field(default_factory=list[str], description="The scopes to ask for with OAuth 2.")

    def complete(self) -> None:
        if self.secret_ref and self.profile is None:
            self.profile = "bearer"

    def problems(self) -> Iterator[Problem]:
        if self.profile is None:
            return
        if not self.secret_ref:
            yield problem("secretRef", message="{field} is required when auth.profile is set")
        if self.profile == "api_key_header" and not self.header_name:
            yield problem("headerName", message="{field} is required when auth.profile is api_key_header")
        if self.profile == "oauth2_client_credentials" and not self.token_url:
            yield problem("tokenURL", message="{field} is required when auth.profile is oauth2_client_credentials")


class RateLimit(Model):
    """How often something may be called. Calls above the limit wait."""

    rules: ClassVar = (implies(given("burst"), given("requests")),)

    requests: Positive | None = Field(default=None, description="Calls in each period.")
    per: Timeout = Field(default="1m", description="The period.")
    burst: Positive | None = Field(default=None, description="Calls that may come at once; as many as requests.")
    concurrency: Positive | None = Field(default=None, description="Calls that may be under way at the same time.")

    def problems(self) -> Iterator[Problem]:
        if self.burst is not None and self.requests is None:
            yield problem("requests", message="{field} is required when burst is set")


class CallRetry(Model):
    """The retry rule of calls: after `backoff`, twice as long each time, at most `max_backoff`."""

    max_attempts: Attempts = Field(default=1, description="Attempts in all; 1 means no retry.")
    backoff: Duration = Field(default="0s", description="The wait before the second attempt.")
    max_backoff: Duration = Field(default="30s", description="The longest wait.")
    jitter: Jitter = Field(default="none", description="How much of the wait is left to chance.")
    retry_on_kinds: list[RetryKind] | None = Field(
        default=None,
        description="Only after failures of these kinds; all of them when it is not given, none when it is empty.",
    )

    def complete(self) -> None:
        self.max_attempts = self.max_attempts or 1
