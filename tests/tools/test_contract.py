"""Contract v1: the envelopes byte by byte, and errors on their way through them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.backoff import RetryPolicy
from foliot.tools.base import (
    AuthSpec,
    ToolAnswerLost,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolRateLimited,
    ToolTimeout,
)
from foliot.tools.contract import (
    ContractAuth,
    ContractError,
    ContractRuntime,
    ContractTool,
    ContractTrace,
    ToolRequest,
    ToolResponse,
    check_request_id,
    decode_output,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    error_response,
    input_text,
    is_envelope,
    normalise_request,
    ok_response,
    request_id,
    request_of,
    response_error,
    result_of,
)
from foliot.tools.errors import error_text, is_denied, reported_error
from tests.tools.web_service import call

REQUEST = normalise_request(
    ToolRequest(request_id="r1", tool=ContractTool(name="search"), trace=ContractTrace("t1", "s1"), attempt=2)
)


class TestRequest:
    def test_blank_scalars_are_left_out_and_nested_objects_are_always_there(self) -> None:
        request = normalise_request(ToolRequest(request_id="r1", tool=ContractTool(name="search")))

        assert json.loads(encode_request(request)) == {
            "tool_contract_version": "v1",
            "request_id": "r1",
            "tool": {"name": "search", "operation": "invoke"},
            "input": {},
            "runtime": {},
            "auth": {},
            "trace": {},
            "attempt": 1,
        }

    def test_spellings_become_one(self) -> None:
        request = ToolRequest(
            tool_contract_version=" V1 ",
            request_id=" r1 ",
            task_id=" t ",
            namespace=" n ",
            agent=" a ",
            tool=ContractTool(" Search ", " INVOKE ", capabilities=(" Web", "web", ""), risk_level=" HIGH "),
            input_raw=" x ",
            runtime=ContractRuntime(mode=" External ", backoff=" 1S "),
            auth=ContractAuth(" Bearer ", scopes=("A", "a ", "b")),
            trace=ContractTrace(" t1 ", " s1 "),
            attempt=-3,
        )
        made = normalise_request(request)

        assert (made.tool_contract_version, made.request_id, made.attempt) == ("v1", "r1", 1)
        assert (made.task_id, made.namespace, made.agent, made.input_raw) == ("t", "n", "a", "x")
        assert made.tool == ContractTool("Search", "invoke", capabilities=("web",), risk_level="high")
        assert made.runtime == ContractRuntime(mode="external", backoff="1s")
        assert made.auth == ContractAuth("bearer", scopes=("a", "b"))
        assert made.trace == ContractTrace("t1", "s1")
        assert normalise_request(made) == made

    @pytest.mark.parametrize(
        ("request_", "details"),
        [
            (
                ToolRequest(tool_contract_version="v9", request_id="r", tool=ContractTool(name="t")),
                {"field": "tool_contract_version", "expected": "v1"},
            ),
            (ToolRequest(request_id=" ", tool=ContractTool(name="t")), {"field": "request_id"}),
            (ToolRequest(request_id="r", tool=ContractTool(name="\t")), {"field": "tool.name"}),
        ],
    )
    def test_a_bad_envelope_names_its_field(self, request_: ToolRequest, details: dict[str, str]) -> None:
        with pytest.raises(ToolArgumentsInvalid) as caught:
            normalise_request(request_)
        error = caught.value
        assert (error.code, error.reason, error.retryable) == ("invalid_input", "tool_invalid_input", False)
        assert error.details == details

    @pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"request_id": 1}', b"\xff\xfe", b'"v1"'])
    def test_what_is_no_request_is_refused(self, data: bytes) -> None:
        with pytest.raises(ToolArgumentsInvalid, match="not a contract v1 request"):
            decode_request(data)

    def test_the_whole_call_travels(self) -> None:
        tool = ToolDefinition(
            "search",
            version="2.0.0",
            capabilities=("Web",),
            risk="high",
            effect="idempotent",
            timeout=30.0,
            attempt_timeout=5.0,
            retry=RetryPolicy(3, 0.25, 5.0, "full"),
            auth=AuthSpec("bearer", "key", scopes=("a",)),
        )
        made = call({"q": "π", "n": 2}, attempt=2, deadline=1_700_000_000.5)

        sent = json.loads(encode_request(request_of(made, tool, mode="external", id="ext-1")))

        assert sent == {
            "tool_contract_version": "v1",
            "request_id": "ext-1",
            "task_id": "task-1",
            "namespace": "default",
            "agent": "clerk",
            "tool": {
                "name": "search",
                "operation": "invoke",
                "version": "2.0.0",
                "capabilities": ["web"],
                "risk_level": "high",
                "effect": "idempotent",
            },
            "input": {"q": "π", "n": 2},
            "input_raw": '{"q":"π","n":2}',
            "runtime": {
                "mode": "external",
                "timeout_ms": 5000,
                "max_attempts": 3,
                "backoff": "0.25s",
                "max_backoff_ms": 5000,
                "jitter": True,
            },
            "auth": {"profile": "bearer", "secret_ref": "key", "scopes": ["a"]},
            "trace": {"trace_id": "trace-1", "span_id": "call-1"},
            "attempt": 2,
            "idempotency_key": "key-1",
            "deadline_ms": 1_700_000_000_500,
        }
        assert decode_request(json.dumps(sent)).deadline_ms == 1_700_000_000_500

    def test_an_id_is_the_same_for_the_same_attempt_only(self) -> None:
        one = request_id("ext", call())
        assert one == request_id("ext", call())
        assert one.startswith("ext-search-")
        assert one.endswith("-1")
        assert len({one, request_id("ext", call(attempt=2)), request_id("ext", call(idempotency_key="k"))}) == 3

    def test_the_text_for_plain_tools(self) -> None:
        assert input_text(ToolRequest(input_raw="raw", input={"a": 1})) == "raw"
        assert input_text(ToolRequest(input_raw=" ", input={"a": 1})) == '{"a":1}'
        assert input_text(ToolRequest()) == ""


class TestResponse:
    def test_a_success_echoes_who_asked(self) -> None:
        assert json.loads(encode_response(ok_response(REQUEST, "found", duration_ms=12))) == {
            "tool_contract_version": "v1",
            "request_id": "r1",
            "status": "ok",
            "output": {"result": "found"},
            "usage": {"duration_ms": 12, "attempt": 2},
            "trace": {"trace_id": "t1", "span_id": "s1"},
        }

    @pytest.mark.parametrize(
        ("error", "status", "code", "reason", "retryable", "message"),
        [
            (ToolDenied("no"), "denied", "permission_denied", "tool_permission_denied", False, "no"),
            (ToolError("x", retryable=False), "error", "execution_failed", "tool_backend_failure", False, "x"),
            (TimeoutError(), "error", "timeout", "tool_execution_timeout", True, "the tool did not answer in time"),
            (asyncio.CancelledError(), "error", "canceled", "tool_execution_canceled", False, "the call was cancelled"),
            (ValueError("boom"), "error", "execution_failed", "tool_backend_failure", True, "boom"),
            (ValueError(" "), "error", "execution_failed", "tool_backend_failure", True, "tool execution failed"),
        ],
    )
    def test_whatever_was_raised_becomes_an_envelope(
        self, error: BaseException, status: str, code: str, reason: str, retryable: bool, message: str
    ) -> None:
        sent = json.loads(encode_response(error_response(REQUEST, error)))

        found = sent["error"]
        assert (sent["status"], found["code"], found["reason"]) == (status, code, reason)
        assert (found["retryable"], found["message"]) == (retryable, message)
        assert (sent["request_id"], sent["usage"]["attempt"], sent["trace"]["span_id"]) == ("r1", 2, "s1")

    @pytest.mark.parametrize(
        ("body", "value"),
        [
            ('{"status":"ok","output":{"result":" text "}}', "text"),
            ('{"output":{"result":"text"}}', "text"),
            ('{"status":"OK","output":{"result":[1]}}', [1]),
            ('{"status":"ok","output":{"a":1}}', {"a": 1}),
            ('{"status":"ok","output":"text","usage":null,"trace":null}', "text"),
            ('{"status":"ok"}', ""),
        ],
    )
    def test_the_result_of_a_success(self, body: str, value: Any) -> None:
        assert result_of(decode_response(body)) == value

    @pytest.mark.parametrize(
        "body", ["", "[]", "{}", "nonsense", '{"status": 1}', '{"tool_contract_version":"v2","status":"ok"}', b"\xff{"]
    )
    def test_what_is_no_response_is_a_retryable_failure(self, body: str | bytes) -> None:
        with pytest.raises(ToolError) as caught:
            decode_response(body)
        assert (caught.value.code, caught.value.retryable) == ("execution_failed", True)

    def test_a_failure_without_an_error_is_not_retried(self) -> None:
        error = response_error(ToolResponse(status="error"))
        assert error is not None
        assert (error.message, error.retryable) == ("tool response missing error envelope", False)

    def test_denied_is_denied_whatever_its_code(self) -> None:
        error = response_error(ToolResponse(status="denied", error=ContractError("own_code", "own_reason")))
        assert isinstance(error, ToolDenied)
        assert (error.status, error.code, error.reason) == ("denied", "own_code", "own_reason")

    def test_a_text_that_looks_like_a_denial_is_only_text(self) -> None:
        text = "permission denied: tool approval required: tool=x approval_pending"
        error = response_error(ToolResponse(status="error", error=ContractError(message=text, retryable=True)))
        assert error is not None
        assert (error.status, error.code, error.retryable) == ("error", "execution_failed", True)
        assert not is_denied(error)

    def test_a_code_we_know_gives_the_class_we_know(self) -> None:
        assert isinstance(reported_error(code="timeout"), ToolTimeout)
        limited = reported_error(kind="rate_limited", details={"retry_after": "7"})
        assert isinstance(limited, ToolRateLimited)
        assert limited.retry_after == 7.0
        assert reported_error(kind="nonsense").kind == "external"

    def test_details_cannot_pose_as_parameters(self) -> None:
        error = reported_error(details={"message": "m", "hint": "h", "retryable": True, " ": "x", "blank": " "})
        assert error.details == {"message": "m", "hint": "h", "retryable": "True"}
        assert (error.message, error.retryable) == ("tool execution failed", False)

    def test_other_peoples_answers_are_refused(self) -> None:
        check_request_id(ToolResponse(request_id=""), "r1")
        check_request_id(ToolResponse(request_id="r1"), "r1")
        with pytest.raises(ToolError, match="another request"):
            check_request_id(ToolResponse(request_id="r2"), "r1")

    def test_an_apis_own_status_is_no_envelope(self) -> None:
        assert not is_envelope({"status": "active"})
        assert is_envelope({"tool_contract_version": "v1"})
        assert not is_envelope(["tool_contract_version"])

    def test_only_numbered_pieces_without_status_are_output(self) -> None:
        piece = decode_output('{"tool_contract_version":"v1","seq":1,"delta":"x"}')
        assert piece is not None
        assert (piece.seq, piece.delta) == (1, "x")
        assert decode_output('{"tool_contract_version":"v1","status":"ok"}') is None
        assert decode_output('{"tool_contract_version":"v1","seq":0}') is None
        assert decode_output("nonsense") is None

    @given(
        status=st.sampled_from(["error", "denied"]),
        code=st.text(min_size=1),
        reason=st.text(min_size=1),
        retryable=st.booleans(),
        message=st.text(),
        details=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    )
    def test_an_error_survives_the_way_there_and_back(
        self, status: str, code: str, reason: str, retryable: bool, message: str, details: dict[str, str]
    ) -> None:
        error = reported_error(
            status=status, code=code, reason=reason, retryable=retryable, message=message, details=details
        )
        back = response_error(decode_response(encode_response(error_response(REQUEST, error))))

        assert back is not None
        assert (back.status, back.code, back.reason, back.retryable) == (status, error.code, error.reason, retryable)
        assert (back.message, back.details) == (error.message, error.details)
        assert error_text(back) == error_text(error)


class TestErrorText:
    def test_the_line_is_stable(self) -> None:
        error = ToolTimeout("too slow", tool="search", attempt=2)
        assert error_text(error) == (
            "tool_status=error tool_code=timeout tool_reason=tool_execution_timeout retryable=true "
            "message=too slow attempt=2 tool=search"
        )

    def test_a_blank_message_falls_back_to_the_cause_and_then_to_a_phrase(self) -> None:
        assert error_text(ToolDenied("")).endswith("retryable=false message=tool execution failed")
        error = ToolError(" ")
        error.__cause__ = OSError("disk full")
        assert error_text(error).endswith("message=disk full")

    def test_what_counts_as_denied(self) -> None:
        assert is_denied(ToolDenied("x"))
        assert is_denied(reported_error(status="denied"))
        assert is_denied(reported_error(code="permission_denied"))
        assert is_denied(reported_error(reason="tool_permission_denied"))
        assert not is_denied(reported_error(message="permission denied"))
        assert not is_denied(PermissionError("permission denied"))


def test_an_answer_of_too_many_values_is_refused_before_it_is_read() -> None:
    many = b'{"status":"ok","output":{"x":[' + b"[]," * 300_000 + b"1]}}"
    with pytest.raises(ToolAnswerLost, match="more than 250,000 values") as caught:
        decode_response(many)
    assert not caught.value.retryable
    text = b'{"status":"ok","output":{"x":"' + b"[]," * 300_000 + b'"}}'
    assert len(decode_response(text).output["x"]) == 900_000
