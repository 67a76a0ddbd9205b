"""Runs of one agent for the same people are one caller to the rules; nobody is taken for somebody else."""

from __future__ import annotations

from msgspec.structs import replace

from foliot.engine.driver.intake import caller_of
from foliot.kernel.identity import Identity
from foliot.kernel.run.events import RunCreated
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State

SPEC = RunSpec(agent="clerk", model="m", extra={"roles": ["reader"]})


def run(spec: RunSpec = SPEC, user: str = "ann", **created: object) -> State:
    state = State(spec, "r1")
    state.created = RunCreated("clerk", "sha256:0", identity=Identity(user, via="python"), **created)  # pyright: ignore[reportArgumentType]
    return state


def test_equal_runs_of_one_spec_have_the_very_same_caller() -> None:
    assert caller_of(run()) is caller_of(run())


def test_whatever_differs_makes_another_caller() -> None:
    first = caller_of(run())
    others = [
        caller_of(run(user="bob")),
        caller_of(run(task="t1")),
        caller_of(run(system="s1", task="t1")),
        caller_of(run(depth=1, ancestors=("boss",))),
        caller_of(run(replace(SPEC, extra={"roles": ["writer"]}))),
        caller_of(run(replace(SPEC, model="other"))),
        caller_of(run(replace(SPEC, namespace="elsewhere"))),
    ]
    assert all(other != first for other in others)
    assert (others[0].user, others[3].ancestors, others[4].roles) == ("bob", ("boss",), ("writer",))
    assert caller_of(run()) == first
