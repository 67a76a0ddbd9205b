"""What must hold before a call: the locked version, the isolation, what comes first, secrets, budgets."""

from __future__ import annotations

import pytest

from foliot.tools.base import (
    ToolIsolationMissing,
    ToolPrecondition,
    ToolSecretMissing,
    ToolVersionMismatch,
)
from foliot.tools.governance.layers import Resolve
from foliot.tools.pipeline.gates import IsolationLayer, Preconditions, SecretsGate
from tests.tools.governed import call, definition, rules


@pytest.mark.parametrize("locked", [{}, {"version": "1.2.0"}, {"version": "1.2.0", "schema_digest": "d1"}])
def test_the_tool_that_the_run_was_locked_to_is_called(locked: dict[str, str]) -> None:
    assert Resolve(definition("f", version="1.2.0"), "d1")(call("f", **locked), rules()).outcome == "allow"


@pytest.mark.parametrize("locked", [{"version": "1.1.0"}, {"version": "1.2.0", "schema_digest": "d0"}])
def test_another_version_or_another_schema_is_not_called_in_its_place(locked: dict[str, str]) -> None:
    with pytest.raises(ToolVersionMismatch) as caught:
        Resolve(definition("f", version="1.2.0"), "d1")(call("f", **locked), rules())

    assert caught.value.kind == "version_mismatch"
    assert caught.value.details["available_versions"] == ["1.2.0"]


def test_an_isolation_that_is_not_offered_is_never_replaced_by_a_weaker_one() -> None:
    wanted = definition("f", isolation="sandboxed")

    assert IsolationLayer(wanted, "sandboxed")(call("f"), rules()).outcome == "allow"
    for offered in ("none", "container"):
        with pytest.raises(ToolIsolationMissing, match="sandboxed"):
            IsolationLayer(wanted, offered)(call("f"), rules())


def test_what_a_tool_requires_must_be_there() -> None:
    tool = definition("f", requires=("g", "capability:maps"))

    assert Preconditions(tool, {"tool:g", "capability:maps"}.__contains__)(call("f"), rules()).outcome == "allow"
    with pytest.raises(ToolPrecondition, match="capability:maps") as caught:
        Preconditions(tool, {"tool:g"}.__contains__)(call("f"), rules())
    assert caught.value.details["missing"] == ["capability:maps"]


def test_what_must_have_succeeded_before_is_named() -> None:
    layer = Preconditions(definition("pay", requires_prior=("look_up", "confirm")), lambda need: True)

    assert layer(call("pay", prior=frozenset({"look_up", "confirm"})), rules()).outcome == "allow"
    with pytest.raises(ToolPrecondition, match="'confirm'") as caught:
        layer(call("pay", prior=frozenset({"look_up"})), rules())
    assert (caught.value.kind, caught.value.details["missing_prior"]) == ("precondition_failed", ["confirm"])


async def test_a_required_secret_is_asked_for_in_the_callers_namespace() -> None:
    asked: list[tuple[str, str]] = []

    async def has_secret(namespace: str, name: str) -> bool:
        asked.append((namespace, name))
        return name == "here"

    await SecretsGate(definition("f", requires=("secret:here",)), has_secret)(call("f"), rules(), ())
    with pytest.raises(ToolSecretMissing, match="gone"):
        await SecretsGate(definition("f", requires=("secret:gone",)), has_secret)(call("f"), rules(), ())
    with pytest.raises(ToolSecretMissing):
        await SecretsGate(definition("f", requires=("secret:here",)), None)(call("f"), rules(), ())
    assert asked == [("default", "here"), ("default", "gone")]
