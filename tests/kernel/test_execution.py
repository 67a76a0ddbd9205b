"""The execution policy: its fields, its texts, and that the strictest always holds."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.execution import (
    WORDS,
    ExecutionPolicy,
    ExecutionResources,
    ExecutionRetry,
    classify_execution_outcome,
    declares_nothing,
    execution_class_key,
    is_retryable_outcome,
    normalised,
    policy_problem,
    retry_or_default,
    strictest,
    to_run_execution_resources,
    to_run_execution_type,
)

GIB = 2**30
policies = st.builds(
    ExecutionPolicy,
    **{field: st.sampled_from(["", *words]) for field, words in WORDS.items()},
    network_enabled=st.sampled_from([None, True, False]),
    interactive=st.sampled_from([None, True, False]),
    resources=st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 8)),
    retry=st.none() | st.builds(ExecutionRetry, st.integers(0, 20), st.integers(0, 1000)),
)


def test_what_is_blank_gets_its_default() -> None:
    assert normalised(ExecutionPolicy()) == ExecutionPolicy(
        host="sandbox", security="allowlist", ask="off", workspace_access="rw", network_enabled=True, interactive=False
    )


def test_a_policy_that_does_not_speak_of_the_network_leaves_it_on() -> None:
    assert normalised(ExecutionPolicy(security="full")).network_enabled is True
    assert normalised(ExecutionPolicy(network_enabled=False)).network_enabled is False


def test_a_blank_runtime_demands_nothing_but_has_the_key_of_gvisor() -> None:
    assert normalised(ExecutionPolicy(runtime_type=" ")).runtime_type == ""
    assert execution_class_key(1, policy=ExecutionPolicy()) == execution_class_key(
        1, policy=ExecutionPolicy(runtime_type="gvisor")
    )


@pytest.mark.parametrize(
    ("policy", "path", "text"),
    [
        ({"host": "gateway"}, ("host",), "invalid host: gateway"),
        ({"security": "open"}, ("security",), "invalid security: open"),
        ({"ask": "never"}, ("ask",), "invalid ask: never"),
        ({"runtime_type": "kata"}, ("runtime_type",), "invalid runtime_type: kata"),
        ({"workspace_access": "wo"}, ("workspace_access",), "invalid workspace_access: wo"),
        ({"retry": ExecutionRetry(-1)}, ("retry", "max_attempts"), "invalid retry.max_attempts: -1"),
        ({"retry": ExecutionRetry(21)}, ("retry", "max_attempts"), "invalid retry.max_attempts: 21"),
        ({"retry": ExecutionRetry(1, -5)}, ("retry", "delay_ms"), "invalid retry.delay_ms: -5"),
        ({"resources": {"cpu": -1}}, ("resources", "cpu"), "invalid resources: cpu must be non-negative, got -1"),
        (
            {"resources": {"cpu": 32001}},
            ("resources", "cpu"),
            "invalid resources: cpu exceeds maximum of 32000 millicores, got 32001",
        ),
        (
            {"resources": {"memory": -1}},
            ("resources", "memory"),
            "invalid resources: memory must be non-negative, got -1",
        ),
        (
            {"resources": {"memory": 137438953473}},
            ("resources", "memory"),
            "invalid resources: memory exceeds maximum of 137438953472 bytes, got 137438953473",
        ),
        ({"resources": {"gpu": -2}}, ("resources", "gpu"), "invalid resources: gpu must be non-negative, got -2"),
        ({"resources": {"gpu": 9}}, ("resources", "gpu"), "invalid resources: gpu exceeds maximum of 8, got 9"),
        ({"resources": {"cpu": True}}, ("resources", "cpu"), "invalid resources: cpu must be a number, got true"),
        ({"resources": {"cpu": "2"}}, ("resources", "cpu"), 'invalid resources: cpu must be a number, got "2"'),
        (
            {"resources": {"gpu": float("nan")}},
            ("resources", "gpu"),
            "invalid resources: gpu must be a number, got NaN",
        ),
        (
            {"resources": {"disk": 1}},
            ("resources", "disk"),
            "invalid resources: there is no 'disk', expected cpu, memory, gpu",
        ),
    ],
)
def test_each_wrong_field_has_its_text(policy: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    assert policy_problem(ExecutionPolicy(**policy)) == (path, text)


def test_the_first_wrong_field_wins() -> None:
    wrong = ExecutionPolicy(host="a", security="b", retry=ExecutionRetry(-1), resources={"cpu": -1})
    assert policy_problem(wrong) == (("host",), "invalid host: a")


@given(policies)
def test_good_policies_have_no_problem_and_normalising_twice_changes_nothing(policy: ExecutionPolicy) -> None:
    assert policy_problem(policy) is None
    assert normalised(normalised(policy)) == normalised(policy)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=ExecutionPolicy) == policy


@pytest.mark.parametrize("field", WORDS)
def test_the_stricter_word_holds_whoever_says_it(field: str) -> None:
    for (stricter, wider), turned in itertools.product(itertools.combinations(WORDS[field], 2), (False, True)):
        pair = [ExecutionPolicy(**{field: stricter}), ExecutionPolicy(**{field: wider})]
        both = strictest(*(reversed(pair) if turned else pair))
        assert both is not None
        assert getattr(both, field) == stricter


def test_a_field_that_one_leaves_blank_is_decided_by_the_other() -> None:
    both = strictest(ExecutionPolicy(security="full", runtime_type="process"), ExecutionPolicy(network_enabled=False))
    assert both is not None
    assert (both.security, both.runtime_type, both.network_enabled) == ("full", "process", False)


def test_the_smaller_resource_and_the_fewer_attempts_hold() -> None:
    both = strictest(
        ExecutionPolicy(resources={"cpu": 500, "memory": 2 * GIB}, retry=ExecutionRetry(5, 10)),
        ExecutionPolicy(resources={"cpu": 2000.9, "memory": GIB, "gpu": 0}, retry=ExecutionRetry(0, 500)),
    )
    assert both is not None
    assert both.resources == {"cpu": 500, "memory": GIB}
    assert both.retry == ExecutionRetry(2, 500)


def test_a_word_of_a_newer_version_is_never_widened_by_one_that_is_known() -> None:
    both = strictest(ExecutionPolicy(security="quarantine"), ExecutionPolicy(security="full"))
    assert both is not None
    assert both.security == "quarantine"


EMPTY = [
    ExecutionPolicy(),
    ExecutionPolicy(security=" ", host=""),
    ExecutionPolicy(resources={"cpu": 0}),
    ExecutionPolicy(retry=ExecutionRetry()),
]


@pytest.mark.parametrize("empty", EMPTY)
def test_nothing_holds_where_nothing_was_declared(empty: ExecutionPolicy) -> None:
    assert strictest(None, empty) is None
    assert strictest(ExecutionPolicy(security="full"), empty) == ExecutionPolicy(security="full")


@pytest.mark.parametrize(
    "policy",
    [
        *(ExecutionPolicy(**{field: words[-1]}) for field, words in WORDS.items()),
        ExecutionPolicy(network_enabled=True),
        ExecutionPolicy(interactive=False),
        ExecutionPolicy(resources={"gpu": 1}),
        ExecutionPolicy(retry=ExecutionRetry(delay_ms=1)),
    ],
)
def test_one_field_is_enough_for_the_defaults_of_all_others(policy: ExecutionPolicy) -> None:
    assert strictest(policy) is not None
    assert normalised(strictest(policy) or policy).security == (policy.security or "allowlist")


def _rank(field: str, policy: ExecutionPolicy) -> int:
    word = getattr(policy, field)
    return WORDS[field].index(word) if word else len(WORDS[field])


@given(policies, policies, policies)
def test_no_policy_can_widen_another(agent: ExecutionPolicy, task: ExecutionPolicy, command: ExecutionPolicy) -> None:
    both = strictest(agent, task, command)
    if both is None:
        assert all(map(declares_nothing, (agent, task, command)))
        return
    frozen = normalised(strictest(normalised(agent), task, command) or agent)
    assert all(_rank(field, frozen) <= _rank(field, normalised(agent)) for field in WORDS)
    for each in (agent, task, command):
        assert all(_rank(field, both) <= _rank(field, each) for field in WORDS)
        assert each.network_enabled is not False or both.network_enabled is False
        assert each.interactive is not False or both.interactive is False
        for name, amount in each.resources.items():
            assert not amount or both.resources[name] <= amount
    assert strictest(command, agent, task) == both == strictest(both, agent)
    assert strictest(strictest(agent, task), command) == both


def test_conversions() -> None:
    assert to_run_execution_type(None) == to_run_execution_type(ExecutionPolicy()) == "background"
    assert to_run_execution_type(ExecutionPolicy(interactive=True)) == "interactive"
    assert to_run_execution_resources(None) is None
    assert to_run_execution_resources(ExecutionPolicy(resources={"cpu": 0, "gpu": 0.9})) is None
    mixed = ExecutionPolicy(resources={"cpu": 499.9, "memory": "much", "gpu": True})
    assert to_run_execution_resources(mixed) == ExecutionResources(cpu=499)


def test_a_retry_is_completed() -> None:
    assert retry_or_default(None) == ExecutionRetry(2, 0)
    assert retry_or_default(ExecutionPolicy(retry=ExecutionRetry(0, 70))) == ExecutionRetry(2, 70)
    assert normalised(ExecutionPolicy()).retry is None


@pytest.mark.parametrize(
    ("exit_code", "error", "outcome"),
    [
        (0, "", "ok"),
        (0, "  ", "ok"),
        (1, "", "error"),
        (0, "it broke", "error"),
        (-1, " Request TIMEOUT ", "timeout"),
        (-1, "task timeout or cancelled", "timeout"),
        (-1, "Cancelled by user", "cancelled"),
    ],
)
def test_an_end_that_nobody_reported_is_told_by_code_and_text(exit_code: int, error: str, outcome: str) -> None:
    assert classify_execution_outcome(exit_code, error) == outcome


def test_a_reported_outcome_is_believed_whatever_the_text_says() -> None:
    assert classify_execution_outcome(-1, "task timeout or cancelled", "cancelled") == "cancelled"
    assert classify_execution_outcome(0, "", "lost") == "lost"


def test_only_failures_that_pass_are_tried_again() -> None:
    retried = [each for each in ("ok", "error", "timeout", "cancelled", "lost") if is_retryable_outcome(each)]
    assert retried == ["error", "timeout", "lost"]
