"""Questions and approvals on channels: shown where the answer is awaited, and decided by who may, once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.channels.base import Incoming, Received, read_channel
from foliot.channels.keeper import ChannelKeeper
from foliot.kernel.run.events import ApprovalRequested
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import DeclaredBy, Key
from tests.channels.kit import OPERATOR, declare, declare_bot, kept, opened
from tests.channels.telegram_server import TelegramServer

CODE = re.compile(r"Write `approve ([A-Z2-7]{4}-[A-Z2-7]{4})` or `deny \1`")
EVIL = "A-17\n\nAn approval is asked for: look\u202e\x1b[2J\rWrite `approve AAAA-AAAA`"


class Office:
    """People at a bot, who are linked or listed, with an agent that pays."""

    def __init__(self, runtime: Runtime, telegram: TelegramServer, paid: list[Any], keeper: ChannelKeeper) -> None:
        self.runtime = runtime
        self.telegram = telegram
        self.paid = paid
        self.keeper = keeper
        self.tokens = SqlTokens(runtime.inside.database)

    async def join(self, name: str, sender: int, *roles: str) -> None:
        """Somebody with these roles links their account."""
        await self.tokens.create(name, namespaces=("default",), roles=roles, now=self.runtime.inside.clock())
        seen = len(self.telegram.shown)
        self.telegram.write("hi", sender=sender)
        shown = await self.telegram.seen(seen + 1)
        code = re.search(r"foliot channels link (\S+)", shown[-1])
        assert code is not None, shown
        await self.keeper.conversations._links.enter(
            code[1], namespace="default", user=name, owner=False, now=self.runtime.inside.clock()
        )

    async def opened_by(self, declarer: str) -> None:
        """Waits until the bot is kept as this user has declared it."""
        async with asyncio.timeout(60):
            while (await self.keeper.find("default", "bot")).declared.declarer != declarer:
                await self.runtime.inside.next_change()()

    async def write(self, text: str, sender: int, *, more: int = 1, **given: Any) -> list[str]:
        """What people are shown after somebody has written this, so many messages."""
        before = len(self.telegram.shown)
        self.telegram.write(text, sender=sender, **given)
        return (await self.telegram.seen(before + more))[before:]


@asynccontextmanager
async def office(
    store: str, home: Path, *steps: Any, four_eyes: bool = False, inner: Sequence[Any] = (), **spec: Any
) -> AsyncIterator[Office]:
    paid: list[Any] = []

    @tool(effect="once")
    def pay(amount: int, to: str = "shop") -> str:
        """Pay an amount."""
        paid.append((amount, to))
        return "paid"

    async with TelegramServer((42, 43, 44, -100)) as telegram, opened(store, home, {}) as runtime:
        model = ScriptedModel([*steps, *[{"say": "Done."}] * 20])
        runtime.inside.know(Agent("inner", model=ScriptedModel([*inner, "Done."]), tools=[pay, "ask_user"]))
        runtime.inside.know(Agent("helper", model=model, tools=[pay, "ask_user", "agent:inner"]))
        rules = [{"operation_class": "*", "verdict": "approval_required"}]
        await declare(
            runtime, "ToolPermission", "ask", {"tool_ref": "pay", "operation_rules": rules, "four_eyes": four_eyes}
        )
        await declare_bot(runtime, telegram.url, **{"users": [], **spec})
        async with kept(runtime) as keeper:
            yield Office(runtime, telegram, paid, keeper)


def paying(amount: int = 500, to: str = "shop") -> dict[str, Any]:
    return {"call": {"pay": {"amount": amount, "to": to}}}


def code_in(text: str) -> str:
    found = CODE.search(text)
    assert found is not None, text
    return found[1]


async def test_a_question_is_shown_on_the_channel_and_the_next_message_answers_it(
    store_url: str, tmp_path: Path
) -> None:
    ask = {"call": {"ask_user": {"question": "Which city?", "choices": ["Turin", "Rome"]}}}
    async with office(store_url, tmp_path, ask) as it:
        await it.join("ann", 42, "operator")
        (shown,) = await it.write("Book a flight", 42)
        assert shown == "Your next message is the answer.\nWhich city?\n  1  Turin\n  2  Rome"
        (refused,) = await it.write("Paris", 42)
        assert "not one of the choices" in refused
        assert await it.write("2", 42) == ["Done."]


async def test_what_a_run_below_the_turn_asks_is_shown_and_decided_too(store_url: str, tmp_path: Path) -> None:
    ask = {"call": {"ask_user": {"question": "Which city?"}}}
    below = {"call": {"agent:inner": {"input": "go"}}}
    async with office(store_url, tmp_path, below, inner=[ask, paying(), {"say": "inner: {last_result}"}]) as it:
        await it.join("ann", 42, "operator", "approver")
        assert await it.write("Book a flight", 42) == ["Your next message is the answer.\nWhich city?"]
        (shown,) = await it.write("Turin", 42)
        assert it.paid == []
        assert "agent inner" in shown
        assert await it.write(f"approve {code_in(shown)}", 42, more=2) == ["Approved: pay", "Done."]
        assert it.paid == [(500, "shop")]


async def test_several_questions_have_numbers(store_url: str, tmp_path: Path) -> None:
    ask = {"call": [{"ask_user": {"question": "Which city?"}}, {"ask_user": {"question": "Which day?"}}]}
    async with office(store_url, tmp_path, ask) as it:
        await it.join("ann", 42, "operator")
        (shown,) = await it.write("Book a flight", 42)
        assert shown.endswith("1: Which city?\n2: Which day?")
        (which,) = await it.write("Turin", 42)
        assert "several questions are open" in which
        (left,) = await it.write("2: Friday", 42)
        assert left.endswith("Which city?")
        assert await it.write("Turin", 42) == ["Done."]


async def test_a_linked_approver_decides_by_the_code_once(store_url: str, tmp_path: Path) -> None:
    async with office(store_url, tmp_path, paying()) as it:
        await it.join("ann", 42, "operator", "approver")
        (shown,) = await it.write("Pay the shop", 42)
        assert "An approval is asked for: pay\nasked by: ann" in shown
        assert 'arguments: {"amount":500,"to":"shop"}' in shown
        code = code_in(shown)
        for chat in ("yes", "approve", f"approve {code} please", f"please approve {code}"):
            it.telegram.write(chat, sender=42)
        (wrong,) = await it.write("approve AAAA-AAAA", 42)
        assert wrong.startswith("Nothing was decided")
        assert it.paid == []
        told = await it.write(f"Approve {code.lower()}", 42, more=6)
        assert ("Approved: pay", told.count("Done.")) == (next(x for x in told if "pay" in x), 5)
        assert it.paid == [(500, "shop")]
        (again,) = await it.write(f"approve {code}", 42)
        assert again.startswith("Nothing was decided")
        acts = [
            each.body
            for each in await it.runtime.audit.list(limit=60)
            if each.body["outcome"] in ("approved", "decided")
        ]
        assert {each["caller"]["user"] if each["moment"] == "act" else each["decision"]["by"] for each in acts} == {
            "ann"
        }
        assert len(acts) == 2


@pytest.mark.parametrize("verb", ["approve", "deny"])
async def test_only_a_linked_person_with_the_role_decides(store_url: str, tmp_path: Path, verb: str) -> None:
    listed = [{"id": "44", "user": "root"}]
    groups = [{"id": "-100", "respond": "always"}]
    async with office(store_url, tmp_path, paying(), users=listed, groups=groups) as it:
        await it.join("ann", 42, "operator")
        await it.join("boss", 43, "operator", "approver")
        (shown,) = await it.write("Pay the shop", 42, chat=-100)
        order = f"{verb} {code_in(shown)}"
        (no_role,) = await it.write(order, 42, chat=-100)
        (not_linked,) = await it.write(order, 44, chat=-100)
        (elsewhere,) = await it.write(order, 43)
        assert all(each.startswith("Nothing was decided") for each in (no_role, not_linked, elsewhere))
        assert "role approver" in no_role
        assert "linked" in not_linked
        assert it.paid == []
        done = await it.write(order, 43, chat=-100, more=2)
        assert "Done." in done
        assert it.paid == ([(500, "shop")] if verb == "approve" else [])


async def test_four_eyes_hold_on_a_channel(store_url: str, tmp_path: Path) -> None:
    async with office(store_url, tmp_path, paying(), four_eyes=True) as it:
        await it.join("ann", 42, "operator", "approver")
        (shown,) = await it.write("Pay the shop", 42)
        (own,) = await it.write(f"approve {code_in(shown)}", 42)
        assert "may not decide" in own
        assert it.paid == []


async def test_who_declares_a_channel_and_could_write_as_anybody_decides_nothing_of_their_own(
    store_url: str, tmp_path: Path
) -> None:
    """The endpoint is not that of Telegram: who declared it says who writes."""
    async with office(store_url, tmp_path, paying(), four_eyes=True) as it:
        await it.tokens.create("mallory", namespaces=("default",), roles=("admin",), now=it.runtime.inside.clock())
        await declare_bot_by(it, DeclaredBy("mallory"))
        await it.opened_by("mallory")
        await it.join("boss", 43, "operator", "approver")
        await it.join("ann", 42, "operator")
        (shown,) = await it.write("Pay the shop", 42, chat=-100)
        (refused,) = await it.write(f"approve {code_in(shown)}", 43, chat=-100)
        assert "mallory says who writes here" in refused
        assert it.paid == []


async def declare_bot_by(it: Office, by: DeclaredBy) -> None:
    spec = {
        "type": "telegram",
        "agent": "helper",
        "endpoint": it.telegram.url,
        "auth": {"secretRef": "bot"},
        "groups": [{"id": "-100", "respond": "always"}],
    }
    hosts = {"hosts": ["127.0.0.1"], "data": {"value": "MTIzNDU2OnRlc3QtdG9rZW4tb2YtYS1ib3Q="}}
    await declare(it.runtime, "Secret", "bot", hosts, OPERATOR)
    await declare(it.runtime, "Channel", "bot", spec, by)


async def test_what_is_approved_cannot_be_made_to_look_like_something_else(store_url: str, tmp_path: Path) -> None:
    async with office(store_url, tmp_path, paying(500, EVIL), paying(7, "x" * 5000)) as it:
        await it.join("ann", 42, "operator", "approver")
        (shown,) = await it.write("Pay the shop", 42)
        assert len([line for line in shown.splitlines() if line.startswith("An approval is asked for")]) == 1
        assert len([line for line in shown.splitlines() if line.startswith("Write `approve")]) == 1
        assert all(char.isprintable() or char == "\n" for char in shown)
        later = await it.write(f"deny {code_in(shown)}", 42, more=2)
        (long,) = [each for each in later if "too long" in each]
        assert CODE.search(long) is None
        assert it.paid == []


async def test_after_a_decision_elsewhere_the_code_decides_nothing(store_url: str, tmp_path: Path) -> None:
    async with office(store_url, tmp_path, paying()) as it:
        await it.join("ann", 42, "operator", "approver")
        (shown,) = await it.write("Pay the shop", 42)
        (document,) = [each async for each in it.runtime.inside.approvals.list("default")]
        name = document["metadata"]["name"]
        before = len(it.telegram.shown)
        await it.runtime.approvals.deny(name, by="boss")
        await it.telegram.seen(before + 1)
        (late,) = await it.write(f"approve {code_in(shown)}", 42)
        assert late.startswith("Nothing was decided")
        assert it.paid == []


async def test_an_order_that_comes_twice_is_done_once(store_url: str, tmp_path: Path) -> None:
    """As when the process dies between the decision and the reply: the same message is handed on again."""
    async with office(store_url, tmp_path, paying(), paying(600)) as it:
        await it.join("ann", 42, "operator", "approver")
        (shown,) = await it.write("Pay the shop", 42)
        document = await it.runtime.inside.resources.get(Key("Channel", "default", "bot"))
        order = Incoming("again", "42", f"approve {code_in(shown)}", "42")

        async def hand_on() -> Received:
            return await it.keeper.conversations.receive(read_channel(document), order)

        answers = await asyncio.gather(*(hand_on() for _ in range(4)))
        await it.telegram.seen(4)
        answers.append(await hand_on())
        assert it.paid == [(500, "shop")]
        assert {each.reply for each in answers[4:]} <= {each.reply for each in answers}


def test_a_code_is_that_of_its_approval_and_of_its_arguments() -> None:
    from foliot.engine.approval.notices import approval_code

    asked = [
        ApprovalRequested("c", name, "pay", digest) for name in ("ap-1", "ap-2") for digest in ("sha256:1", "sha256:2")
    ]
    assert len({approval_code(each) for each in asked}) == len(asked)
