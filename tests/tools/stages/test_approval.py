"""A question is bound to its call and its arguments, and only the answer to that question lets the call pass."""

from __future__ import annotations

import pytest

from foliot.kernel.arguments import arguments_digest
from foliot.tools.base import ApprovalNeeded, ToolDenied
from foliot.tools.governance.cel import Expression
from foliot.tools.governance.rules import Rules, StandingGrant, Verdict
from foliot.tools.pipeline.gates import Approval, approval_id_of
from tests.tools.governed import FakeTime, call, rules

ASK = Verdict("ask", "conditions", "it is a lot", "ToolPermission/refund", {}, ("ana", "bob"), 60.0)
ID = approval_id_of("r1", "c1")


class Stored:
    """Grants as a store would keep them: approval id to (call, digest)."""

    def __init__(self, **grants: tuple[str, str]) -> None:
        self.grants = grants
        self.used: list[tuple[str, str]] = []
        self.uses_left = 1

    async def check(self, approval_id: str, call_id: str, digest: str) -> bool:
        return self.grants.get(approval_id) == (call_id, digest)

    async def use(self, grant_id: str, call: str) -> bool:
        self.used.append((grant_id, call))
        self.uses_left -= 1
        return self.uses_left >= 0


async def question_of(asked, found=None, asks=(ASK,), grants=None):
    with pytest.raises(ApprovalNeeded) as caught:
        await Approval(grants, FakeTime(1000.0))(asked, found or rules(), asks)
    return caught.value.parked


async def test_who_is_not_asked_for_passes() -> None:
    await Approval(None, FakeTime())(call("refund"), rules(), ())


async def test_the_question_names_call_arguments_reasons_approvers_and_its_end() -> None:
    other = Verdict("ask", "permissions", "it writes", "ToolPermission/w", {}, ("bob", "cleo"), 30.0)

    parked = await question_of(call("refund", {"b": 1, "a": [2]}), asks=(ASK, other))

    assert parked.approval_id == ID
    assert parked.digest == arguments_digest({"a": [2], "b": 1})
    assert "it is a lot" in parked.reason
    assert "it writes" in parked.reason
    assert parked.approvers == ("bob",)
    assert parked.expires_at == 1030.0


async def test_rules_that_agree_on_no_approver_refuse() -> None:
    other = Verdict("ask", "permissions", "it writes", "ToolPermission/w", {}, ("cleo",))

    with pytest.raises(ToolDenied, match="nobody may approve"):
        await Approval(None, FakeTime())(call("refund"), rules(), (ASK, other))


def test_the_same_arguments_have_the_same_digest_and_others_another() -> None:
    assert arguments_digest({"a": 1, "b": {"x": 1, "y": 2}}) == arguments_digest({"b": {"y": 2, "x": 1}, "a": 1})
    assert len({arguments_digest(each) for each in ({}, {"a": 1}, {"a": "1"}, {"a": [1]}, {"b": 1})}) == 5


def test_two_calls_of_one_step_are_two_questions() -> None:
    assert len({approval_id_of("r1", "c1"), approval_id_of("r1", "c2"), approval_id_of("r2", "c1")}) == 3


async def test_a_stored_grant_for_this_call_and_these_arguments_lets_it_pass() -> None:
    asked = call("refund", {"amount": 600}, grant=ID)
    gate = Approval(Stored(**{ID: ("c1", arguments_digest({"amount": 600}))}), FakeTime())

    await gate(asked, rules(), (ASK,))
    await gate(asked, rules(), (ASK,))  # after a crash the same call is asked about again


@pytest.mark.parametrize(
    "asked",
    [
        call("refund", {"amount": 601}, grant=ID),
        call("refund", {"amount": 600}, call_id="c2", grant=ID),
        call("refund", {"amount": 600}, run_id="r2", grant=ID),
        call("refund", {"amount": 600}, grant="ap-forged"),
    ],
)
async def test_a_grant_for_anything_else_is_refused_and_not_asked_again(asked) -> None:
    gate = Approval(Stored(**{ID: ("c1", arguments_digest({"amount": 600}))}), FakeTime())

    with pytest.raises(ToolDenied, match="does not cover") as caught:
        await gate(asked, rules(), (ASK,))
    assert caught.value.details["layer"] == "approval"


async def test_without_a_store_the_journal_of_the_run_is_the_record() -> None:
    await Approval(None, FakeTime())(call("refund", grant=ID), rules(), (ASK,))
    with pytest.raises(ToolDenied):
        await Approval(None, FakeTime())(call("refund", grant="ap-other"), rules(), (ASK,))


async def test_a_standing_grant_answers_before_anybody_asks_as_often_as_it_may_be_used() -> None:
    standing = Rules(grants=(StandingGrant("sg1", "refund", None, Expression("args.amount < 700.0"), 2000.0, "ana"),))
    stored = Stored()
    gate = Approval(stored, FakeTime(1000.0))

    await gate(call("refund", {"amount": 600}), standing, (ASK,))
    assert [grant for grant, _ in stored.used] == ["sg1"]
    await question_of(call("refund", {"amount": 600}), standing, grants=stored)  # used up
    await question_of(call("refund", {"amount": 900}), standing)  # its condition does not hold
    await question_of(call("refund", {}), standing)  # its condition cannot be evaluated


async def test_a_standing_grant_ends() -> None:
    standing = Rules(grants=(StandingGrant("sg1", "refund", None, None, 999.0),))

    await question_of(call("refund"), standing)
