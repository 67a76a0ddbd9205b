from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.execution import ExecutionPolicy, execution_class_key


def test_the_key_is_the_one_that_other_implementations_compute() -> None:
    assert execution_class_key(42, "agent-1") == "execclass_9f3f9fc1f606c8ad72c2fcfec7e93033"
    resources = ExecutionPolicy(resources={"memory": 1024, "cpu": 500})
    assert execution_class_key(42, "agent-1", None, resources) == "execclass_6148d8596d20237e29d4a97658f52809"


def test_a_number_has_one_key_whatever_its_type() -> None:
    def key(memory: object) -> str:
        return execution_class_key("default", "a", "", ExecutionPolicy(resources={"memory": memory}))

    assert key(2147483648) == key(2147483648.0) == key(2.147483648e9)
    assert key(0.5) != key(0)
    assert len({key(True), key(1), key("1")}) == 3


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_a_blank_agent_or_lane_is_no_agent_and_no_lane(blank: str | None) -> None:
    assert execution_class_key("default", blank, blank) == execution_class_key("default")
    assert execution_class_key("default", " a ") == execution_class_key("default", "a")


def test_a_blank_policy_field_is_its_default() -> None:
    blank = ExecutionPolicy(host="", security="", ask="", runtime_type="", workspace_access="")
    assert execution_class_key("default", "a", "b", blank) == execution_class_key("default", "a", "b")


@pytest.mark.parametrize(
    "other",
    [
        {"host": "node"},
        {"security": "full"},
        {"ask": "always"},
        {"runtime_type": "runc"},
        {"workspace_access": "ro"},
        {"network_enabled": False},
        {"interactive": True},
        {"resources": {"gpu": 1}},
    ],
)
def test_every_field_of_the_policy_makes_a_class_of_its_own(other: dict[str, object]) -> None:
    assert execution_class_key("default", "a", "b", ExecutionPolicy(**other)) != execution_class_key(
        "default", "a", "b"
    )


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers() | st.floats(allow_nan=False) | st.text()))
def test_the_order_of_resources_does_not_matter_and_no_value_breaks_it(resources: dict[str, object]) -> None:
    turned = dict(reversed(resources.items()))
    assert execution_class_key(1, policy=ExecutionPolicy(resources=resources)) == execution_class_key(
        1, policy=ExecutionPolicy(resources=turned)
    )
