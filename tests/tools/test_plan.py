"""The calls of a step run side by side where that is safe, and in the model's order where it is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.sandbox.base import WorkspaceAccess
from foliot.tools.base import ToolDefinition
from foliot.tools.fences import FenceRequest
from foliot.tools.pipeline.order import OrderedCall, check_order, check_requirements, edges, touch_each_other, waves

READ = ToolDefinition("read", effect="read", resource_keys=("file:{path}",))
WRITE = ToolDefinition("write", resource_keys=("file:{path}",))
NOTE = ToolDefinition("note")
DEPLOY = ToolDefinition("deploy", after=("build", "test"))
BUILD = ToolDefinition("build")
TEST = ToolDefinition("test", after=("build",))


def steps(*calls: tuple[ToolDefinition, dict[str, Any]]) -> list[OrderedCall]:
    return [OrderedCall(f"c{n}", definition, arguments) for n, (definition, arguments) in enumerate(calls)]


def test_calls_that_do_not_meet_run_side_by_side() -> None:
    assert waves(steps((READ, {"path": "a"}), (WRITE, {"path": "b"}), (NOTE, {}))) == [["c0", "c1", "c2"]]


def test_readers_of_one_thing_run_side_by_side_and_a_writer_waits_its_turn() -> None:
    planned = waves(steps((READ, {"path": "a"}), (READ, {"path": "a"}), (WRITE, {"path": "a"}), (READ, {"path": "a"})))

    assert planned == [["c0", "c1"], ["c2"], ["c3"]]


def test_after_orders_tools_whatever_order_the_model_wrote() -> None:
    assert waves(steps((DEPLOY, {}), (TEST, {}), (BUILD, {}))) == [["c2"], ["c1"], ["c0"]]


def test_after_a_tool_that_is_not_in_the_step_means_nothing() -> None:
    assert waves(steps((DEPLOY, {}), (NOTE, {}))) == [["c0", "c1"]]


def test_two_tools_that_are_after_each_other_keep_the_models_order() -> None:
    one, two = ToolDefinition("one", after=("two",)), ToolDefinition("two", after=("one",))

    assert waves(steps((two, {}), (one, {}))) == [["c0"], ["c1"]]


def test_a_key_whose_argument_is_missing_stands_for_everything_of_its_kind() -> None:
    assert waves(steps((WRITE, {}), (READ, {"path": "a"}), (NOTE, {}))) == [["c0", "c2"], ["c1"]]


def test_only_a_declared_order_makes_one_call_depend_on_the_other() -> None:
    found = edges(steps((BUILD, {}), (TEST, {}), (WRITE, {"path": "a"}), (WRITE, {"path": "a"})))

    assert [(edge.earlier, edge.later, edge.declared) for edge in found] == [("c0", "c1", True), ("c2", "c3", False)]


@pytest.mark.parametrize(
    "definitions",
    [
        [
            ToolDefinition("a", after=("b",)),
            ToolDefinition("b", requires_prior=("c",)),
            ToolDefinition("c", after=("a",)),
        ],
        [ToolDefinition("a", requires_prior=("a",))],
    ],
)
def test_tools_that_wait_for_each_other_for_ever_are_found(definitions) -> None:
    with pytest.raises(InvalidInput, match=" -> "):
        check_order(definitions)


def test_every_gap_in_what_tools_require_is_told_at_once() -> None:
    tools = [
        ToolDefinition("a", requires=("b", "tool:c", "capability:gpu", "secret:key")),
        ToolDefinition("b", capabilities=("gpu",)),
        ToolDefinition("d", requires=("capability:tpu",)),
    ]
    with pytest.raises(InvalidInput, match=r"a needs tool:c; d needs capability:tpu$"):
        check_requirements(tools)
    check_requirements([*tools, ToolDefinition("c", capabilities=("tpu",))])


def test_a_diamond_is_no_circle() -> None:
    check_order([DEPLOY, TEST, BUILD, ToolDefinition("all", after=("deploy", "test", "build"))])


definitions = st.builds(
    lambda name, after, keys, effect: ToolDefinition(
        name, after=tuple(after), resource_keys=tuple(keys), effect=effect
    ),
    st.sampled_from("abcd"),
    st.lists(st.sampled_from("abcd"), max_size=2),
    st.lists(st.sampled_from(["k:{x}", "k:1", "j"]), max_size=2),
    st.sampled_from(["read", "once"]),
)


@given(st.lists(st.tuples(definitions, st.sampled_from([{}, {"x": 1}, {"x": 2}])), max_size=8))
def test_every_call_is_planned_once_and_no_two_that_meet_share_a_wave(calls) -> None:
    given_ = steps(*calls)
    planned = waves(given_)
    place = {name: at for at, wave in enumerate(planned) for name in wave}

    assert sorted(place) == sorted(step.id for step in given_)
    assert all(place[edge.earlier] != place[edge.later] for edge in edges(given_))


def fenced(name: str, access: WorkspaceAccess, **declared: Any) -> ToolDefinition:
    return ToolDefinition(name, options={"sandbox": FenceRequest(workspace=access)}, **declared)


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
def test_calls_whose_fence_can_write_the_files_follow_each_other_whatever_they_declare(effect: Any) -> None:
    put = fenced("put", "read_write", effect=effect)
    look = fenced("look", "read_only", effect=effect)
    for other in (put, look, fenced("keyed", "read_write", resource_keys=("file:{path}",)), READ, WRITE):
        assert waves(steps((put, {"path": "a"}), (other, {"path": "b"}))) == [["c0"], ["c1"]]
    assert waves(steps((look, {}), (look, {}), (READ, {"path": "a"}))) == [["c0", "c1", "c2"]]
    assert waves(steps((look, {}), (WRITE, {"path": "a"}))) == [["c0"], ["c1"]]
    assert waves(steps((put, {}), (NOTE, {}), (fenced("apart", "none"), {}))) == [["c0", "c1", "c2"]]


def test_calls_without_keys_are_put_in_order_when_their_fence_shows_files() -> None:
    assert touch_each_other([NOTE, fenced("put", "read_write")])
    assert not touch_each_other([NOTE, None, fenced("apart", "none")])
