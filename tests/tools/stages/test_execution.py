"""The execution policy of a run, held against its calls, and as the ceiling of its fences."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.kernel.execution import ExecutionPolicy
from foliot.sandbox.base import Limits
from foliot.sandbox.egress.rules import EgressRule
from foliot.tools.base import Caller, ToolDenied
from foliot.tools.builtin.shell import Bash
from foliot.tools.fences import FenceRequest, narrowed
from foliot.tools.governance.execution import Execution, ceiling_of, is_listed_command
from foliot.tools.governance.layers import ceilings_of
from foliot.tools.governance.rules import Verdict
from tests.tools.governed import call, definition, rules

FENCED = definition("convert", isolation="sandboxed")
FIXED = FenceRequest(workspace="read_write", network=(EgressRule(("*",), (443,)),), limits=Limits(memory=1 << 30))


def judged(
    tool: Any, policy: ExecutionPolicy | None, arguments: dict[str, Any] | None = None, **caller: Any
) -> Verdict:
    layer = Execution.of(tool)
    assert layer is not None
    asked = call(tool.name, arguments, caller=Caller(agent="desk", execution=policy, **caller))
    return layer(asked, rules())


@pytest.mark.parametrize(
    ("security", "ask", "listed", "outcome"),
    [
        ("deny", "off", True, "deny"),
        ("deny", "always", True, "deny"),
        ("allowlist", "off", True, "allow"),
        ("allowlist", "off", False, "deny"),
        ("allowlist", "on-miss", True, "allow"),
        ("allowlist", "on-miss", False, "ask"),
        ("allowlist", "always", True, "ask"),
        ("allowlist", "always", False, "ask"),
        ("full", "off", False, "allow"),
        ("full", "on-miss", False, "allow"),
        ("full", "always", False, "ask"),
        ("", "", False, "deny"),
        ("quarantine", "off", True, "deny"),
    ],
)
def test_who_may_run_programs_and_who_is_asked(security: str, ask: str, listed: bool, outcome: str) -> None:
    policy = ExecutionPolicy(security=security, ask=ask)
    verdict = judged(FENCED, policy, allowed_tools=("Convert",) if listed else ())
    assert (verdict.outcome, verdict.layer) == (outcome, "execution")


@pytest.mark.parametrize(
    "fields",
    [
        {"isolation": "sandboxed"},
        {"isolation": "container"},
        {"isolation": "wasm"},
        {"type": "cli"},
        {"type": "mcp"},
        {"executes": True},
    ],
)
def test_whatever_runs_programs_is_refused_where_none_may_run(fields: dict[str, Any]) -> None:
    assert judged(definition("x", **fields), ExecutionPolicy(security="deny")).outcome == "deny"


def test_a_tool_that_runs_nothing_has_no_such_layer() -> None:
    assert Execution.of(definition("refund")) is None
    assert Execution.of(definition("refund", type="http")) is None


def test_without_a_policy_nothing_is_said() -> None:
    assert judged(FENCED, None).outcome == "allow"


@pytest.mark.parametrize(
    ("access", "wanted", "outcome"),
    [
        ("none", "read_only", "deny"),
        ("ro", "read_only", "allow"),
        ("ro", "read_write", "deny"),
        ("rw", "read_write", "allow"),
        ("newer", "read_only", "deny"),
    ],
)
def test_tools_that_work_on_files_keep_to_the_access_of_the_run(access: str, wanted: Any, outcome: str) -> None:
    policy = ExecutionPolicy(security="full", workspace_access=access)
    assert judged(definition("write", workspace=wanted), policy).outcome == outcome


@pytest.mark.parametrize("runtime_type", ["gvisor", "runc", "process"])
@pytest.mark.parametrize(("isolation", "outcome"), [("sandboxed", "allow"), ("none", "deny"), ("wasm", "deny")])
def test_a_runtime_that_is_named_is_never_replaced_by_a_weaker_one(
    runtime_type: str, isolation: str, outcome: str
) -> None:
    policy = ExecutionPolicy(security="full", runtime_type=runtime_type)
    assert judged(definition("x", isolation=isolation, executes=True), policy).outcome == outcome


def test_a_gpu_is_refused_by_name() -> None:
    verdict = judged(FENCED, ExecutionPolicy(security="full", resources={"gpu": 1}))
    assert verdict.outcome == "deny"
    assert "resources.gpu is 1" in verdict.reason


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("git status", "allow"),
        ("  git log -3 --format=%H  ", "allow"),
        ("git log", "allow"),
        ("make test", "allow"),
        ("ls | wc -l", "allow"),
        ("make", "deny"),
        ("make test all", "deny"),
        ("git push", "deny"),
        ("git log; rm -rf /", "deny"),
        ("git log\nrm -rf /", "deny"),
        ("git log && rm x", "deny"),
        ("git log $(rm x)", "deny"),
        ("git log `rm x`", "deny"),
        ("git log > /workspace/x", "deny"),
        ("git log 'a b'", "deny"),
        ("PATH=/workspace git status", "deny"),
        ("git\u00a0status", "deny"),
        ("git log\trm", "deny"),
        ("git log *", "deny"),
        ("*", "deny"),
        ("ls | wc -l ; id", "deny"),
        ("", "deny"),
    ],
)
def test_a_shell_runs_the_commands_on_the_list_and_nothing_beside_them(command: str, outcome: str) -> None:
    listed = ("git status", "git log *", "make *test", "make test", "ls | wc -l", "*", "")
    policy = ExecutionPolicy(security="allowlist")
    verdict = judged(Bash.definition, policy, {"command": command}, allowed_commands=listed)
    assert verdict.outcome == outcome


def test_a_star_stands_for_one_word_and_never_for_the_program() -> None:
    assert is_listed_command("docker ps -a", ["docker * -a"])
    assert not is_listed_command("docker ps b -a", ["docker * -a"])
    assert not is_listed_command("rm x", ["* x", "*", "* *"])


def test_the_ceiling_of_a_policy_takes_away_what_it_says() -> None:
    policy = ExecutionPolicy(
        runtime_type="runc",
        workspace_access="ro",
        network_enabled=False,
        resources={"cpu": 500, "memory": 1 << 26},
    )
    left = narrowed(FIXED, [ceiling_of(policy)]).request
    assert (left.backend, left.workspace, left.network) == ("container", "read_only", ())
    assert (left.limits.memory, left.limits.cpus) == (1 << 26, 0.5)
    assert left.require == {"memory", "cpu"}


def test_a_policy_that_says_nothing_takes_nothing_away() -> None:
    assert narrowed(FIXED, [ceiling_of(ExecutionPolicy())]).request == FIXED


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"resources": {"gpu": 2}}, "resources.gpu is 2"),
        ({"runtime_type": "kata"}, "'kata' is not known"),
        ({"host": "node"}, "no host 'node'"),
    ],
)
def test_what_no_fence_can_hold_is_refused_by_name(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolDenied, match=told):
        ceiling_of(ExecutionPolicy(**policy))


class _Source:
    async def rules(self, namespace: str) -> Any:
        return rules()


async def test_the_policy_of_the_run_is_among_the_ceilings_of_its_fences() -> None:
    bounded = Caller(execution=ExecutionPolicy(network_enabled=False))
    assert await ceilings_of(_Source(), Caller()) == []  # type: ignore[arg-type]
    assert [each.rule for each in await ceilings_of(_Source(), bounded)] == ["execution_policy"]  # type: ignore[arg-type]
