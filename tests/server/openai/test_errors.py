from __future__ import annotations

import json

import pytest

from foliot.errors import Conflict, Denied, FoliotError, InvalidInput, NotFound, SecretError, Unavailable
from foliot.kernel.messages import Usage
from foliot.server.errors import TooMany, Unauthenticated
from foliot.server.openai.errors import BadRequest, RunFailed, error_response
from foliot.server.streams.pieces import Ended


def failed(code: str, reason: str) -> RunFailed:
    return RunFailed(Ended("failed", "", None, Usage(), error="it broke", reason=reason, code=code), "r1")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("x", param="n"), 400, "invalid_request_error"),
        (InvalidInput("x"), 400, "invalid_request_error"),
        (Unauthenticated("x"), 401, "authentication_error"),
        (Denied("x"), 403, "permission_error"),
        (NotFound("x"), 404, "not_found_error"),
        (Conflict("x"), 409, "conflict_error"),
        (TooMany("x"), 429, "rate_limit_error"),
        (Unavailable("x"), 503, "server_error"),
        (failed("model", "model_failed"), 500, "server_error"),
        (failed("budget_exceeded", "cost_usd"), 429, "rate_limit_error"),
        (failed("budget_exceeded", "steps"), 500, "server_error"),
    ],
)
def test_errors_have_the_status_and_type_that_clients_know(error: FoliotError, status: int, kind: str) -> None:
    response = error_response(error)

    assert response.status_code == status
    assert json.loads(bytes(response.body))["error"]["type"] == kind


def test_only_what_another_try_can_mend_is_tried_again() -> None:
    assert error_response(failed("model", "x")).headers["x-should-retry"] == "false"
    assert error_response(Conflict("x")).headers["x-should-retry"] == "false"
    assert "x-should-retry" not in error_response(Unavailable("x")).headers
    assert error_response(Unavailable("x")).headers["retry-after"]


def test_what_concerns_only_this_machine_stays_here() -> None:
    told = json.loads(bytes(error_response(SecretError("the key at /root/key is wrong")).body))["error"]

    assert "/root" not in told["message"]
