"""What is missing around a run: judged once for all agents of a namespace, and never older than what was asked for."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from foliot.engine.definition import run_scope
from foliot.engine.definition.run_scope import MissingParts
from foliot.resources.references import Reference
from foliot.resources.validate import validate_document
from foliot.store.base import Delete, Document, Filter, Key, Owned, Page, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sqlite.database import SqliteDatabase

MANY = 300
HTTP = {"type": "http", "endpoint": "http://127.0.0.1:9/x", "effect": "read"}


def document(kind: str, name: str, namespace: str = "default", **spec: Any) -> Document:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    assert made is not None, problems
    return made


def tool(name: str, namespace: str = "default", **spec: Any) -> Put:
    return Put(document("Tool", name, namespace, **{**HTTP, **spec}))


def taking(*arguments: str) -> dict[str, Any]:
    return {"input_schema": {"type": "object", "properties": {name: {"type": "number"} for name in arguments}}}


def rule(name: str, about: str, when: str = "") -> Put:
    conditions = {"conditions": [{"when": when, "verdict": "deny"}]} if when else {}
    return Put(document("ToolPermission", name, tool_ref=about, **conditions))


def agent(name: str, **spec: Any) -> Document:
    return document("Agent", name, model_ref="m", **spec)


class Counted:
    """A store that counts what is looked up in it, and can hold the answer of a look back."""

    def __init__(self, store: SqlResourceStore) -> None:
        self._store = store
        self.looks = 0
        self.held: Key | None = None
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, filter: Filter, *, cursor: str | None = None) -> Page:
        self.looks += 1
        return await self._store.list(filter, cursor=cursor)

    async def owned(self, keys: Sequence[Key]) -> dict[Key, Owned]:
        self.looks += bool(keys)
        found = await self._store.owned(keys)
        if self.held in keys:
            self.held = None
            self.reached.set()
            await self.go_on.wait()
        return found


def no_keys() -> Any:
    raise AssertionError("no secret is sealed here")


@pytest.fixture
async def store(tmp_path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    counted = Counted(SqlResourceStore(database, no_keys))
    await counted.write([Put(document("ModelEndpoint", "m", provider="scripted", script="echo"))])
    yield counted
    await database.close()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was judged, and `(beside)` for each time that was beside the event loop."""
    names: list[str] = []
    judge = run_scope.judge

    def noted(documents: Sequence[Document], parts: Any) -> Any:
        names.extend(each["metadata"]["name"] for each in documents)
        if documents and threading.current_thread() is not threading.main_thread():
            names.append("(beside)")
        return judge(documents, parts)

    monkeypatch.setattr(run_scope, "judge", noted)
    return names


def rules_among(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith("rule")]


async def test_the_rules_of_a_namespace_are_judged_once_for_all_agents_and_beside_the_loop_when_many(store, judged):
    for start in range(0, MANY, 100):
        await store.write([tool(f"t{number}") for number in range(start, start + 100)])
        await store.write([rule(f"rule{number}", f"t{number}") for number in range(start, start + 100)])
    parts = MissingParts(store)

    await asyncio.gather(*(parts.around(agent(f"a{number}")) for number in range(20)))

    assert sorted(rules_among(judged)) == sorted(f"rule{number}" for number in range(MANY))
    assert judged.count("(beside)") == 1
    assert [judged.count(f"a{number}") for number in range(20)] == [1] * 20


async def test_a_change_that_concerns_nothing_here_costs_no_look(store, judged):
    agents = [agent(f"a{number}") for number in range(20)]
    await store.write([tool("pay"), rule("rule1", "pay"), rule("rule2", "nowhere")])
    parts = MissingParts(store)
    before = await asyncio.gather(*(parts.around(each) for each in agents))
    store.looks = 0
    judged.clear()

    await store.write([tool("pay", "elsewhere"), tool("other", "elsewhere")])
    await store.write([tool("pay", endpoint="http://127.0.0.1:9/y")])
    await store.write([Put(document("AgentRole", "clerk", permissions=["x"]))])

    assert await asyncio.gather(*(parts.around(each) for each in agents)) == before
    assert (store.looks, judged) == (0, [])


async def test_a_change_judges_only_what_it_concerns_and_once_for_all(store, judged):
    agents = [agent(f"a{number}") for number in range(20)]
    await store.write([tool("pay"), tool("look")])
    await store.write([rule(f"rule{number}", "look") for number in range(50)])
    await store.write([rule("rule-pay", "pay")])
    parts = MissingParts(store)
    await asyncio.gather(*(parts.around(each) for each in agents))
    judged.clear()

    await store.write([Delete(Key("Tool", "default", "pay"))])

    told = await asyncio.gather(*(parts.around(each) for each in agents))
    assert judged == ["rule-pay"]
    assert all("rule-pay" in text for (text,) in told)


@pytest.mark.parametrize("about", ["pay-now", "pay_now", "Pay-Now"])
async def test_a_rule_is_judged_again_when_the_tool_of_its_condition_changes(store, judged, about):
    await store.write([tool("pay-now", **taking("amount")), tool("look")])
    await store.write([rule("rule-pay", about, "args.amount > 5.0"), rule("rule-look", "look", "args.depth > 5.0")])
    parts, clerk = MissingParts(store), agent("clerk")
    assert await parts.around(clerk) == ()

    judged.clear()
    await store.write([tool("pay-now", **taking("total"))])
    (text,) = await parts.around(clerk)
    assert "rule-pay" in text
    assert "amount" in text
    assert rules_among(judged) == ["rule-pay"]

    await store.write([tool("pay-now", **taking("total", "amount"))])
    assert await parts.around(clerk) == ()


async def test_an_agent_is_judged_again_when_its_tool_has_another_version(store, judged):
    clerk = agent("clerk", tools=["pay@1.0.0"])
    await store.write([tool("pay", version="1.0.0")])
    parts = MissingParts(store)
    assert await parts.around(clerk) == ()
    await store.write([tool("pay", version="2.0.0")])
    (text,) = await parts.around(clerk)
    assert "has version 2.0.0" in text
    await store.write([tool("pay", version="1.0.0")])
    assert await parts.around(clerk) == ()


@pytest.mark.parametrize("again", [False, True])
async def test_what_was_looked_up_before_a_change_is_not_kept_after_it(store, again):
    """One coroutine has looked, the part comes, another one hears of it, and the first stores what it has found."""
    desk = agent("desk", tools=["refund"])
    parts = MissingParts(store)
    if again:
        await parts.around(desk)
        await store.write([Put(document("ModelEndpoint", "m", provider="scripted", script=[{"say": "x"}]))])
    store.held = Key("Tool", "default", "refund")
    late = asyncio.create_task(parts.around(desk))
    async with asyncio.timeout(60):
        await store.reached.wait()

        await store.write([tool("refund")])
        await parts.around(agent("second"))
        store.go_on.set()
        await late

    assert await parts.around(desk) == ()


async def test_rules_that_were_looked_up_before_a_change_are_not_kept_after_it(store):
    await store.write([rule("rule1", "refund")])
    parts = MissingParts(store)
    store.held = Key("Tool", "default", "refund")
    late = asyncio.create_task(parts.around(agent("desk")))
    async with asyncio.timeout(60):
        await store.reached.wait()
        await store.write([tool("refund")])
        store.go_on.set()
        await late
    assert await parts.around(agent("desk")) == ()


async def test_a_part_that_comes_between_two_looks_is_there_and_never_what_was_meant(store):
    await store.write([rule("rule1", "refund")])
    store.held = Key("Tool", "default", "refund")
    late = asyncio.create_task(MissingParts(store).around(agent("desk", tools=["refund"])))
    async with asyncio.timeout(60):
        await store.reached.wait()
        await store.write([tool("refund")])
        store.go_on.set()
        assert not [text for text in await late if "did you mean refund?" in text]


async def test_a_part_that_python_gives_later_is_not_missing_any_more(store):
    await store.write([rule("rule1", "refund")])
    given: set[str] = set()

    async def brings(reference: Reference) -> bool:
        return reference.name in given

    helpers: dict[str, Document] = {}
    parts = MissingParts(store, brings, lambda namespace, name: helpers.get(name), lambda: len(given) + len(helpers))
    boss = agent("boss", tools=["agent:aide"])
    assert len(await parts.around(boss)) == 2
    given |= {"refund", "aide"}
    helpers["aide"] = agent("aide", tools=["lookup"])
    (told,) = await parts.around(boss)
    assert "lookup" in told
    helpers["aide"] = agent("aide")
    assert await parts.around(boss) == ()


async def test_another_agent_of_the_same_name_is_looked_at_by_itself(store):
    parts = MissingParts(store)
    assert await parts.around(agent("desk")) == ()
    assert len(await parts.around(agent("desk", tools=["refund"]))) == 1


async def test_of_many_the_number_is_told_and_those_of_the_agent_come_first(store):
    await store.write([rule(f"rule{number}", "nowhere") for number in range(30)])
    told = await MissingParts(store).around(agent("desk", tools=["refund"]))
    assert (len(told), told[-1]) == (run_scope.MOST_TOLD + 1, "and 11 more")
    assert told[0].startswith("Agent/desk: ")


NAMES = ("pay", "look", "Web-Search", "web_search", "files--read", "files--write", "Files__Write")


def some_change(chance: random.Random) -> Put | Delete:
    name, space = chance.choice(NAMES), chance.choice(("default", "default", "other"))
    match chance.randrange(12):
        case 0 | 1:
            schema = taking(*chance.sample(("amount", "total"), k=chance.randrange(1, 3)))
            return tool(
                name,
                space,
                endpoint=f"http://127.0.0.1:9/{chance.random()}",
                version=chance.choice(("1.0.0", "2.0.0")),
                **schema,
            )
        case 2:
            return Delete(Key("Tool", space, name), expect="any")
        case 3:
            return rule(
                f"rule{chance.randrange(4)}", name, chance.choice(("", "args.amount > 5.0", "args.total > 5.0"))
            )
        case 4:
            return Delete(Key("ToolPermission", "default", f"rule{chance.randrange(4)}"), expect="any")
        case 5:
            status = {"lastSyncedAt": "2026-01-01T00:00:00Z", "discoveredTools": [{"tool": "files--read"}]}
            server = document("McpServer", "files", transport="http", endpoint="http://127.0.0.1:9")
            return Put({**server, "status": status if chance.random() < 0.5 else {}})
        case 6:
            return Delete(Key(chance.choice(("McpServer", "Agent")), "default", "files"), expect="any")
        case 7 | 8:
            return Put(document("AgentRole", "payer", "other", permissions=[f"tool:{name}:invoke", "tol:pay:invoke"]))
        case 9:
            to = {"kind": "AgentRole", "name": chance.choice(("payer", "clerk"))}
            sides = {"from": [{"kind": "Agent", "namespace": "default"}], "to": [to]}
            return Put(document("ReferenceGrant", "lent", "other", **sides))
        case 10:
            return Delete(Key("ReferenceGrant", "other", "lent"), expect="any")
        case _:
            return Put(agent("helper", tools=[f"{name}{chance.choice(('', '@1'))}"]))


@pytest.mark.parametrize("seed", range(8))
async def test_who_follows_the_changes_says_what_who_looks_anew_says(store, seed):
    chance = random.Random(seed)
    boss = agent("boss", tools=["agent:helper", chance.choice(NAMES)], roles=["other/payer"])
    parts = MissingParts(store)
    for _ in range(40):
        for _ in range(chance.randrange(1, 4)):
            change = some_change(chance)
            if isinstance(change, Delete) and not await store.owned([change.key]):
                continue
            await store.write([change])
        assert sorted(await parts.around(boss)) == sorted(await MissingParts(store).around(boss))
