"""No message ever repeats a value that may be secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.resources.checks import check_references
from foliot.resources.definitions.secret import Secret, SecretSpec
from foliot.resources.validate import validate_document

CANARY = "hunter2!canary"


def document(kind: str, spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "it"}, "spec": spec}


@pytest.mark.parametrize(
    "raw",
    [
        document("Secret", CANARY),
        document("Secret", [CANARY]),
        document("Secret", {"data": CANARY}),
        document("Secret", {"data": {"k": CANARY}}),
        document("Secret", {"data": {"k": [CANARY]}}),
        document("Secret", {"data": {"k": {"deep": CANARY}}}),
        document("Secret", {"data": {"bad key": CANARY}}),
        document("Secret", {"data": {"k": CANARY + "\0"}}),
        document("Secret", {"data": {"k": CANARY + "\ud800"}}),
        document("Secret", {"data": {"k": CANARY.encode()}}),
        document("Secret", {"stringData": {"k": [CANARY]}}),
        document("Secret", {"stringData": CANARY}),
        document("Secret", {"password": CANARY}),
        document("Secret", {"string_data": {"k": CANARY}, "stringData": {"k": CANARY}}),
        document("Tool", {"auth": {"secretRef": CANARY}}),
        document("Tool", {"auth": {"token": CANARY}}),
        document("Tool", {"auth": CANARY}),
        document("Tool", {"auth": {"tokenURL": CANARY}}),
        document("Tool", {"endpoint": f"ftp://user:{CANARY}@host"}),
        document("ModelEndpoint", {"default_model": "m", "base_url": f"user:{CANARY}@host"}),
        document("ModelEndpoint", {"default_model": "m", "auth": {"secretRef": CANARY}}),
        document("ModelEndpoint", {"default_model": "m", "options": {"api_key": [CANARY]}}),
        document("Memory", {"provider": "http", "endpoint": f"user:{CANARY}"}),
        document("McpServer", {"transport": "stdio", "command": "x", "env": [{"name": "A", "value": [CANARY]}]}),
        document(
            "McpServer",
            {"transport": "stdio", "command": "x", "env": [{"name": "1", "value": CANARY, "secretRef": "s"}]},
        ),
        document("TaskWebhook", {"task_ref": "t", "auth": {"secret_ref": CANARY}}),
    ],
)
def test_a_refusal_does_not_repeat_what_may_be_secret(raw: dict[str, Any]) -> None:
    accepted, problems = validate_document(raw)
    assert accepted is None
    assert problems
    for problem in problems:
        assert CANARY not in str(problem)
        assert CANARY not in repr(problem)


@pytest.mark.parametrize(
    "raw",
    [
        document("Tool", {"endpoint": f"https://user:{CANARY}@host/"}),
        document("ModelEndpoint", {"default_model": "m", "options": {"api_key": CANARY}}),
        document("Memory", {"provider": "http", "endpoint": f"https://user:{CANARY}@host/"}),
        document("McpServer", {"transport": "stdio", "command": "x", "env": [{"name": "A_KEY", "value": CANARY}]}),
        document("Agent", {"model_ref": "m", "prompt": f"Use sk-proj-{'a' * 20}{CANARY}"}),
    ],
)
def test_a_password_in_clear_is_a_warning_that_does_not_repeat_it(raw: dict[str, Any]) -> None:
    accepted, _ = validate_document(raw)
    assert accepted is not None
    problems = [problem for _, problem in check_references([accepted], lambda *key: True)]
    assert any("in clear" in problem.message for problem in problems)
    assert CANARY not in repr(problems)


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(st.sampled_from(["k", "bad key", ""]), st.text(min_size=12, max_size=30), min_size=1),
    st.sampled_from(["data", "stringData"]),
)
def test_no_text_given_as_a_secret_comes_back_in_a_message(values: dict[str, str], field: str) -> None:
    _, problems = validate_document(document("Secret", {field: values}))
    for problem in problems:
        assert not any(value in str(problem) for value in values.values())


def test_a_model_of_a_secret_does_not_show_its_values() -> None:
    secret = Secret.model_validate(document("Secret", {"stringData": {"k": CANARY}}))
    encoded = secret.spec.data["k"]
    assert CANARY not in repr(secret)
    assert encoded not in repr(secret)
    with pytest.raises(ValueError, match="must be valid base64") as caught:
        SecretSpec.model_validate({"data": {"k": CANARY}})
    assert CANARY not in str(caught.value)


def test_the_placeholder_of_a_masked_value_is_accepted_and_kept() -> None:
    accepted, problems = validate_document(document("Secret", {"data": {"k": "***"}}))
    assert problems == []
    assert accepted is not None
    assert accepted["spec"] == {"data": {"k": "***"}}
