"""The errors that only a server knows. They are `FoliotError`s, so that one handler reports them all."""

from __future__ import annotations

from foliot.errors import Conflict, FoliotError, InvalidInput


class Unauthenticated(FoliotError):
    """The caller is not known: no token, or a wrong, expired or revoked one. The answer does not say which."""

    code, http = "unauthenticated", 401


class BadParameter(InvalidInput):
    """A parameter or header that cannot be read: the request is wrong, and not what it is about."""

    code, http = "invalid", 400


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
