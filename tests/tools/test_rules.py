"""Rules are read strictly: what cannot be read refuses, and nothing that is added to a rule set ever widens it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foliot.engine.definition.governance import token_limits
from foliot.engine.explain.what_if import Declared
from foliot.kernel.messages import ToolResult
from foliot.tools.backends.agent import agent_definition
from foliot.tools.base import Caller, Parked, Tool
from foliot.tools.builtin.catalogue import builtin_to_judge
from foliot.tools.governance.judge import Judgement, SettledLayers, judge
from foliot.tools.governance.layers import Profile
from foliot.tools.governance.reader import read_rules
from foliot.tools.governance.rules import STRICTNESS, FixedRules, Outcome, StandingGrant, permission_token, tool_token
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Layer, Pipeline, layers_for
from tests.tools.governed import call, definition, permission, policy, role, rules


@pytest.mark.parametrize(
    ("written", "token"),
    [("Tool: Web-Search :invoke", "tool:web_search:invoke"), ("capability:a/b\\c-d", "capability:a_b_c_d")],
)
def test_permissions_are_compared_without_regard_to_spelling(written: str, token: str) -> None:
    assert permission_token(written) == token


@pytest.mark.parametrize(
    ("written", "token"),
    [(" Web-Search ", "web_search"), ("a/b c", "a_b_c"), ("_x.y:_", "x.y"), ("memory.read", "memory.read")],
)
def test_tools_are_compared_without_regard_to_spelling(written: str, token: str) -> None:
    assert tool_token(written) == token


def test_permissions_and_policies_count_in_their_own_namespace_only() -> None:
    found = rules(
        permission("refund", namespace="other"), policy("house", namespace="other"), role("clerk", namespace="other")
    )

    assert (found.permissions, found.policies) == ({}, ())
    assert found.role("clerk") is None
    assert found.role("other/clerk") is None


@pytest.mark.parametrize(
    ("giver", "given_to", "given", "there"),
    [
        ("other", {"namespace": "default"}, {"kind": "AgentRole"}, True),
        ("other", {"namespace": "default", "kind": "Agent"}, {"kind": "AgentRole", "name": "clerk"}, True),
        ("other", {"namespace": "*"}, {"kind": "AgentRole"}, True),
        ("other", {"namespace": "third"}, {"kind": "AgentRole"}, False),
        ("other", {"namespace": "default", "kind": "Tool"}, {"kind": "AgentRole"}, False),
        ("other", {"namespace": "default"}, {"kind": "AgentRole", "name": "boss"}, False),
        ("other", {"namespace": "default"}, {"kind": "Secret"}, False),
        ("third", {"namespace": "default"}, {"kind": "AgentRole"}, False),
    ],
)
def test_a_role_of_another_namespace_needs_its_grant(
    giver: str, given_to: dict[str, str], given: dict[str, str], there: bool
) -> None:
    grant = {
        "kind": "ReferenceGrant",
        "metadata": {"name": "roles", "namespace": giver},
        "spec": {"from": [given_to], "to": [given]},
    }
    found = rules(role("clerk", namespace="other"), grant)
    assert (found.role("other/clerk") is not None) is there


@pytest.mark.parametrize(
    "spec",
    [
        {"conditions": [{"when": "args.amount >", "verdict": "deny"}]},
        {"conditions": [{"when": "true", "verdict": "perhaps"}]},
        {"conditions": [{"verdict": "deny"}]},
        {"match_mode": "most"},
        {"apply_mode": "sometimes"},
        {"required_permissions": "tool:refund:invoke"},
        {"operation_rules": [{"operation_class": "read", "verdict": "maybe"}]},
        {"approval_ttl": "soon"},
    ],
)
def test_a_permission_that_cannot_be_read_refuses_its_tool_and_no_other(spec: dict[str, Any]) -> None:
    found = rules(permission("p1", tool_ref="refund", **spec))

    assert "ToolPermission/p1" in found.broken["refund"]
    assert outcome_of(definition("refund"), found) == "deny"
    assert outcome_of(definition("search"), found) == "allow"


@pytest.mark.parametrize("spec", [{"apply_mode": "always"}, {"blocked_tools": "drop"}, {"max_tokens_per_run": "many"}])
def test_a_policy_that_cannot_be_read_refuses_everything(spec: dict[str, Any]) -> None:
    found = rules(policy("house", **spec))

    assert outcome_of(definition("search"), found) == "deny"


def test_a_document_of_no_shape_at_all_refuses_everything() -> None:
    found = read_rules("default", [{"kind": "ToolPermission", "metadata": {"name": "p"}, "spec": ["?"]}])

    assert outcome_of(definition("search"), found) == "deny"


async def test_without_rules_every_namespace_has_the_default() -> None:
    found = await FixedRules(default_access="deny").rules("anywhere")

    assert outcome_of(definition("search"), found) == "deny"


def test_the_token_limits_of_all_policies_that_apply_hold() -> None:
    found = rules(
        policy("a", max_tokens_per_run=500),
        policy("b", max_tokens_per_run=200),
        policy("c", apply_mode="scoped", target_tasks=["Nightly"], max_tokens_per_run=100),
        policy("d"),
    )

    def limits(**under: str) -> list[int | None]:
        return [each.tokens for each in token_limits(found, Caller(**under))]

    assert limits() == [500, 200]
    assert limits(task="default/nightly") == limits(template="default/Nightly") == [500, 200, 100]
    assert limits(task="other/nightly") == [500, 200], "a task of the same name elsewhere is another one"


def test_a_standing_grant_covers_its_tool_its_agents_and_its_time() -> None:
    grant = StandingGrant("g1", "refund", frozenset({"desk"}), None, expires_at=100.0)

    assert grant.covers(call("Refund"), now=99.0)
    assert not grant.covers(call("refund"), now=100.0)
    assert not grant.covers(call("drop"), now=99.0)
    assert not grant.covers(call("refund", caller=Caller(agent="other")), now=99.0)


# --- nothing widens ----------------------------------------------------------------------------------------------

verdicts = st.sampled_from(["allow", "deny", "approval_required"])
conditions = st.builds(
    lambda when, verdict: {"when": when, "verdict": verdict},
    st.sampled_from(["args.n > 5", "args.n < 3", "args.missing == 1", "true", "agent == 'desk'"]),
    st.sampled_from(["deny", "approval_required"]),
)
names = st.sampled_from([f"p{n}" for n in range(8)])
permissions = st.builds(
    lambda name, classes, required, any_of, asked, agents: permission(
        name,
        tool_ref="refund",
        operation_rules=[{"operation_class": each, "verdict": verdict} for each, verdict in classes],
        required_permissions=required,
        match_mode="any" if any_of else "all",
        conditions=asked,
        apply_mode="scoped" if agents else "global",
        target_agents=agents,
    ),
    names,
    st.lists(st.tuples(st.sampled_from(["read", "write", "delete", "*"]), verdicts), max_size=3),
    st.lists(st.sampled_from(["tool:refund:invoke", "capability:money", "x"]), max_size=2, unique=True),
    st.booleans(),
    st.lists(conditions, max_size=2),
    st.sampled_from([[], ["desk"], ["other"]]),
)
policies = st.builds(
    lambda name, blocked, models, allowed, read_only, ask, where: policy(
        name,
        apply_mode=where,
        target_tasks=["nightly"],
        blocked_tools=blocked,
        allowed_models=models,
        allowed_tools=allowed,
        read_only=read_only,
        ask=ask,
    ),
    names,
    st.sampled_from([[], ["refund"], ["drop"]]),
    st.sampled_from([[], ["m"], ["other"]]),
    st.sampled_from([[], ["refund"], ["drop"]]),
    st.booleans(),
    st.sampled_from(["off", "on-miss", "always"]),
    st.sampled_from(["global", "scoped"]),
)
documents = st.lists(st.one_of(permissions, policies), max_size=6)
callers = st.builds(
    lambda roles, task, model: Caller(agent="desk", roles=roles, task=task, model=model),
    st.sampled_from([(), ("clerk",), ("clerk", "nobody")]),
    st.sampled_from(["", "nightly"]),
    st.sampled_from(["", "m"]),
)
tools = st.builds(
    lambda classes, effect, capabilities: definition(
        "refund", operation_classes=classes, effect=effect, capabilities=capabilities
    ),
    st.sampled_from([("read",), ("write", "delete"), ()]),
    st.sampled_from(["read", "once"]),
    st.sampled_from([(), ("money",)]),
)
CLERK = role("clerk", "tool:refund:invoke", "capability:money")
BROKEN = permission("broken", tool_ref="refund", match_mode="?")


def layers_of(tool, profile: Profile | None = None, built_in: Tool | None = None) -> tuple[Layer, ...]:
    return layers_for(Declared(tool, built_in), PipelineParts(profile=profile or Profile()), lambda need: False)


def judged(layers, asked, found) -> Outcome:
    return Judgement.of(judge(layers, asked, found, every=True)).outcome


def outcome_of(tool, found, caller: Caller | None = None, profile: Profile | None = None, n: int = 4) -> Outcome:
    return judged(layers_of(tool, profile), call(tool.name, {"n": n}, caller=caller), found)


@settings(max_examples=150, deadline=None)
@given(documents, tools, callers, st.integers(0, 9), st.randoms())
def test_the_order_of_rules_never_matters(declared, tool, caller, n, random) -> None:
    shuffled = list(declared)
    random.shuffle(shuffled)

    assert outcome_of(tool, rules(CLERK, *declared), caller, n=n) == outcome_of(
        tool, rules(*shuffled, CLERK), caller, n=n
    )


@settings(max_examples=150, deadline=None)
@given(documents, st.one_of(permissions, policies), tools, callers, st.integers(0, 9))
def test_another_rule_never_widens_what_rules_allow(declared, more, tool, caller, n) -> None:
    # The first permission that speaks of a tool takes the place of the default for agents with roles: that is what
    # declaring it means. From then on every further rule only narrows.
    base = [CLERK, permission("first", tool_ref="refund", operation_rules=[{"operation_class": "*"}]), *declared]
    before = outcome_of(tool, rules(*base), caller, n=n)
    after = outcome_of(tool, rules(*base, more), caller, n=n)

    assert STRICTNESS[after] >= STRICTNESS[before]


@settings(max_examples=100, deadline=None)
@given(documents, tools, callers)
def test_no_rule_lifts_what_a_broken_one_refuses(declared, tool, caller) -> None:
    assert outcome_of(tool, rules(CLERK, *declared, BROKEN), caller) == "deny"


@settings(max_examples=100, deadline=None)
@given(documents, tools, callers, st.integers(0, 9))
def test_the_list_of_the_deployment_only_narrows(declared, tool, caller, n) -> None:
    found = rules(CLERK, *declared)
    before = outcome_of(tool, found, caller, n=n)

    for profile in (
        Profile.of(["refund"]),
        Profile.of(["drop"]),
        Profile.of(exclude=["refund"]),
        Profile(max_effect="read"),
    ):
        assert STRICTNESS[outcome_of(tool, found, caller, profile, n)] >= STRICTNESS[before]


@settings(max_examples=100, deadline=None)
@given(documents, tools, callers, st.integers(0, 9))
def test_no_layer_allows_what_another_refused(declared, tool, caller, n) -> None:
    found = rules(CLERK, *declared)
    layers = layers_of(tool)
    asked = call(tool.name, {"n": n}, caller=caller)
    whole = judged(layers, asked, found)

    for layer in layers:
        assert STRICTNESS[whole] >= STRICTNESS[judged([layer], asked, found)]


# --- what is settled ---------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(documents, min_size=1, max_size=2),
    tools,
    st.lists(callers, min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 9)), min_size=2, max_size=8),
)
def test_a_layer_that_is_not_asked_again_would_say_the_same(declared, tool, asking, turns) -> None:
    """Calls of two callers with other arguments each time, under rules that change between them and back."""
    layers = layers_of(tool)
    known = SettledLayers(layers)
    found = [rules(CLERK, *each) for each in declared]
    for which, who, n in turns:
        asked = call(tool.name, {"n": n}, caller=asking[who % len(asking)])
        applied = found[which % len(found)]
        assert [each.outcome for each in known.judge(asked, applied)] == [
            each.outcome for each in judge(layers, asked, applied)
        ]


def test_only_what_the_call_itself_decides_is_asked_again() -> None:
    asked: list[str] = []

    class Heard:
        def __init__(self, layer: Layer) -> None:
            self.within, self.layer = layer, layer.layer

        def __call__(self, call, rules):
            asked.append(self.layer)
            return self.within(call, rules)

        def is_settled(self, caller, rules):
            return self.within.is_settled(caller, rules)

    tool = definition("refund", executes=True)
    known = SettledLayers([Heard(layer) for layer in layers_of(tool)])

    def heard(found, caller: Caller) -> list[str]:
        asked.clear()
        assert not known.judge(call("refund", {"n": 1}, caller=caller), found)
        return list(asked)

    caller, open_rules = Caller(agent="desk"), rules(CLERK)
    everything = heard(open_rules, caller)
    assert heard(open_rules, caller) == ["resolve", "arguments"]
    assert heard(open_rules, Caller(agent="desk")) == everything, "an equal caller is another one"
    asks_later = rules(
        CLERK, permission("p", tool_ref="refund", conditions=[{"when": "args.n > 5", "verdict": "deny"}])
    )
    assert heard(asks_later, caller) == everything
    assert heard(asks_later, caller) == ["resolve", "arguments", "conditions"]
    assert known.judge(call("refund", {"n": 6}, caller=caller), asks_later)[-1].outcome == "deny"
    told = replace(caller, told_by=("ann",))
    assert heard(open_rules, told) == heard(open_rules, told) == everything


async def test_a_rule_holds_from_the_next_call_on_for_a_caller_who_was_allowed_before() -> None:
    source = FixedRules(rules(CLERK))
    pipeline = Pipeline([Declared(definition("refund"))], PipelineParts(rules=source, clock=lambda: 0.0))
    caller = Caller(agent="desk")
    for found, allowed in (
        (rules(CLERK), True),
        (rules(CLERK, policy("house", blocked_tools=["refund"])), False),
        (rules(CLERK), True),
        (rules(CLERK, BROKEN), False),
    ):
        source._rules["default"] = found
        for _ in range(2):
            assert isinstance(await pipeline.admit(call("refund", {"n": 1}, caller=caller)), ToolResult) is not allowed


# --- through the pipeline itself ---------------------------------------------------------------------------------


async def admitted(tool, found, asked, shuffle=None) -> Outcome:
    """What the pipeline makes of a call, with its layers in whatever order."""
    pipeline = Pipeline([Declared(tool)], PipelineParts(rules=FixedRules(found), clock=lambda: 0.0))
    entry = pipeline.entry(tool.name)
    assert entry is not None
    if shuffle is not None:
        layers = list(entry.layers)
        shuffle(layers)
        entry.judge = SettledLayers(layers).judge
    outcome = await pipeline.admit(asked)
    return "ask" if isinstance(outcome, Parked) else "deny" if isinstance(outcome, ToolResult) else "allow"


@settings(max_examples=100, deadline=None)
@given(documents, tools, callers, st.integers(0, 9), st.randoms())
async def test_no_order_of_layers_changes_what_becomes_of_a_call(declared, tool, caller, n, random) -> None:
    found = rules(CLERK, *declared)
    asked = call(tool.name, {"n": n}, caller=caller)

    told = outcome_of(tool, found, caller, n=n)
    assert await admitted(tool, found, asked) == told, "what is explained is what happens"
    assert await admitted(tool, found, asked, random.shuffle) == told


@settings(max_examples=100, deadline=None)
@given(documents, callers, st.sampled_from(["delegate", "spawn_agent"]))
def test_no_way_to_an_agent_is_wider_than_its_own_name(declared, caller, way) -> None:
    """Rules about `agent:helper` hold for the tools that name it in their arguments."""
    renamed = [
        {**each, "spec": {**each["spec"], "tool_ref": "agent:helper"}} if each["kind"] == "ToolPermission" else each
        for each in declared
    ]
    found = rules(CLERK, *renamed)
    arguments = (
        {"tasks": [{"agent": "helper", "task": "go"}]} if way == "delegate" else {"agent": "helper", "prompt": "go"}
    )
    caller = replace(caller, advertised=frozenset({way, "agent:helper"}))
    tool = builtin_to_judge(way)
    assert tool is not None
    through = judged(layers_of(tool.definition, built_in=tool), call(way, arguments, caller=caller), found)
    direct = layers_of(agent_definition("helper"))
    itself = judged(direct, call("agent:helper", {"input": "go"}, caller=caller), found)
    assert STRICTNESS[through] >= STRICTNESS[itself]


@pytest.mark.parametrize(
    "spec",
    [
        {"tool_ref": "read", "operation_rules": [{"operation_class": "Write", "verdict": "deny"}]},
        {"tool_ref": "read", "apply_mode": "scoped", "target_agents": ["default/Desk"], "required_permissions": ["x"]},
        {"tool_ref": "read", "conditions": [{"when": "true", "verdict": "deny"}]},
        {"tool_ref": "read@1.0"},
        {"tool_ref": "*"},
    ],
    ids=["case-of-a-class", "agent-in-full", "condition", "version", "pattern"],
)
def test_a_permission_holds_however_it_names_what_it_is_about(spec: dict[str, Any]) -> None:
    tool = definition("read_file", other_names=("read",), operation_classes=("write",))

    assert outcome_of(tool, rules(permission("p", **spec)), Caller(agent="desk")) == "deny"
