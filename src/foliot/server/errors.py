"""The errors that only a server knows. They are `FoliotError`s, so that one handler reports them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound


class Unauthenticated(FoliotError):
    """The caller is not known: no token, or a wrong, expired or revoked one. The answer does not say which."""

    code, http = "unauthenticated", 401


class BadParameter(InvalidInput):
    """A parameter or header that cannot be read: the request is wrong, and not what it is about."""

    code, http = "invalid", 400


class ParameterError(NamedTuple):
    """The fault of one parameter: where it is (`path`, `query`, `header`), its name as it is sent, what it must be."""

    place: str
    name: str
    message: str


class InvalidParameters(BadParameter):
    """Parameters that are missing or out of bounds, all of them at once."""

    def __init__(self, faults: Sequence[ParameterError]) -> None:
        shown = [f"{each.place}.{each.name}: {each.message}" for each in faults[:3]]
        super().__init__("; ".join(shown))
        self.faults = tuple(faults)


class KnownFailure(FoliotError):
    """The failure of what was asked for and not of this server: its log does not tell of it."""


class ClientGone(KnownFailure):
    """The client has hung up before its answer. Only the access log has the status."""

    code, http = "client_gone", 499


class NoRoute(NotFound):
    """The path of a request is not served."""


class Malformed(InvalidInput):
    """A request that has two readings, or none: no server should guess which one was meant."""

    code, http = "malformed", 400


class TooLarge(InvalidInput):
    code, http = "too_large", 413


class HeadersTooLarge(InvalidInput):
    code, http = "headers_too_large", 431


class TooSlow(InvalidInput):
    code, http = "too_slow", 408


class TooMany(FoliotError):
    """More requests than this server takes. `retry_after` is in seconds."""

    code, http = "too_many_requests", 429
    retryable = True


class PreconditionRequired(InvalidInput):
    """An update that does not say which version it is about."""

    code, http = "precondition_required", 428


class PreconditionFailed(Conflict):
    """`If-Match` or `If-None-Match` does not hold."""

    code, http = "precondition_failed", 412


class MethodNotAllowed(InvalidInput):
    """`allow` are the methods that there are, with commas between, for the header of this name."""

    code, http = "method_not_allowed", 405
