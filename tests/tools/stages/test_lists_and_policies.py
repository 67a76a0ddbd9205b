"""Lists, categories, policies and what a run was shown: each can refuse, none can allow what another refused."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.tools.base import Caller
from foliot.tools.governance.layers import Advertised, AllowList, Policies, Profile
from tests.tools.governed import call, definition, policy, rules


@pytest.mark.parametrize(
    ("shown", "outcome"),
    [(None, "allow"), (frozenset({"refund"}), "allow"), (frozenset({"x"}), "deny"), (frozenset(), "deny")],
)
def test_a_run_calls_only_what_it_was_shown(shown, outcome: str) -> None:
    assert Advertised()(call("refund", caller=Caller(advertised=shown)), rules()).outcome == outcome


@pytest.mark.parametrize(
    ("profile", "tool", "allowed"),
    [
        (Profile(), {}, True),
        (Profile.of(["Refund"]), {}, True),
        (Profile.of([]), {}, False),
        (Profile.of(["other"]), {}, False),
        (Profile.of(categories=["network"]), {"category": "network"}, True),
        (Profile.of(categories=["network"]), {"category": "core"}, False),
        (Profile.of(categories=["uncategorised"]), {}, False),
        (Profile.of(["refund"], ["network"]), {"category": "core"}, True),
        (Profile.of(["refund"], exclude=["refund"]), {}, False),
        (Profile(max_effect="read"), {"effect": "read"}, True),
        (Profile(max_effect="read"), {"effect": "idempotent"}, False),
        (Profile(max_effect="idempotent"), {"effect": "once"}, False),
    ],
)
def test_a_profile_says_which_tools_may_be_called(profile: Profile, tool: dict[str, Any], allowed: bool) -> None:
    verdict = AllowList(definition("refund", **tool), profile)(call(), rules())

    assert verdict.outcome == ("allow" if allowed else "deny")
    if not allowed:
        assert (verdict.layer, verdict.rule) == ("allow-list", "deployment")


@pytest.mark.parametrize(
    ("spec", "tool", "outcome"),
    [
        ({"allowed_tools": ["refund"]}, {}, "allow"),
        ({"allowed_tools": ["other"]}, {}, "deny"),
        ({"allowed_tools": ["other"], "allowed_categories": ["Money"]}, {"category": "money"}, "allow"),
        ({"allowed_tools": ["other"], "ask": "on-miss"}, {}, "ask"),
        ({"ask": "always"}, {}, "ask"),
        ({"read_only": True}, {}, "deny"),
        ({"read_only": True}, {"effect": "read"}, "allow"),
        ({"allowed_tools": ["other"], "apply_mode": "scoped", "target_tasks": ["nightly"]}, {}, "allow"),
    ],
)
def test_policies_narrow_the_list(spec: dict[str, Any], tool: dict[str, Any], outcome: str) -> None:
    verdict = AllowList(definition("refund", **tool), Profile())(call(), rules(policy(**spec)))

    assert verdict.outcome == outcome


def test_a_question_of_one_policy_does_not_outweigh_the_refusal_of_another() -> None:
    found = rules(policy("a", ask="always"), policy("b", read_only=True))

    assert AllowList(definition("refund"), Profile())(call(), found).outcome == "deny"


@pytest.mark.parametrize(
    ("spec", "caller", "outcome"),
    [
        ({"blocked_tools": ["Refund"]}, {}, "deny"),
        ({"blocked_tools": ["drop"]}, {}, "allow"),
        ({"allowed_models": ["GPT-5"]}, {"model": "gpt-5"}, "allow"),
        ({"allowed_models": ["gpt-5"]}, {"model": "other"}, "deny"),
        ({"allowed_models": ["gpt-5"]}, {}, "allow"),
        ({"blocked_tools": ["refund"], "apply_mode": "scoped", "target_systems": ["Shop"]}, {"system": "shop"}, "deny"),
        ({"blocked_tools": ["refund"], "apply_mode": "scoped", "target_systems": ["Shop"]}, {"system": "x"}, "allow"),
        (
            {"blocked_tools": ["refund"], "apply_mode": "scoped", "target_tasks": ["nightly"]},
            {"task": "Nightly"},
            "deny",
        ),
        ({"blocked_tools": ["refund"], "apply_mode": "scoped"}, {}, "allow"),
    ],
)
def test_policies_by_mode_and_target(spec: dict[str, Any], caller: dict[str, str], outcome: str) -> None:
    asked = call("refund", caller=Caller(agent="desk", **caller))
    verdict = Policies(definition("refund"))(asked, rules(policy(**spec)))

    assert verdict.outcome == outcome
    if outcome == "deny":
        assert verdict.denial().details == {"layer": "policy", "rule": "AgentPolicy/house"}


def test_allowed_tools_of_an_agent_do_not_lift_a_policy() -> None:
    asked = call("refund", caller=Caller(agent="desk", allowed_tools=("refund",)))

    assert Policies(definition("refund"))(asked, rules(policy(blocked_tools=["refund"]))).outcome == "deny"


@pytest.mark.parametrize(
    ("names", "listed", "outcome"),
    [
        (("read_file", ("read",)), ["read"], "deny"),
        (("read", ("read_file",)), ["Read-File"], "deny"),
        (("db_drop", ()), ["db_*"], "deny"),
        (("db_drop", ()), ["*"], "deny"),
        (("drop_db", ()), ["db_*"], "allow"),
        (("refund", ()), ["refund@1.0"], "deny"),
    ],
    ids=["other-name", "first-name", "pattern", "everything", "no-match", "a-version-cannot-be-read"],
)
def test_a_blocked_tool_is_meant_however_it_is_spelt(names: Any, listed: list[str], outcome: str) -> None:
    name, others = names
    verdict = Policies(definition(name, other_names=others))(call(name), rules(policy(blocked_tools=listed)))

    assert verdict.outcome == outcome
