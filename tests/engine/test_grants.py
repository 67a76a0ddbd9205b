"""Standing grants: for whom, for how long, how often; and arguments that may be shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.approval.documents import looks_secret, restored, shown
from foliot.engine.approval.grants import StoredGrants, give_standing, revoke_standing
from foliot.errors import Conflict, InvalidInput
from foliot.resources.validate import validate_document
from foliot.store.base import Document, Put
from foliot.store.open import open_database
from foliot.store.resources.database import SqlResourceStore
from foliot.tools.secrets.masking import Masker

NOW = 1_900_000_000.0


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlResourceStore]:
    database = await open_database(str(tmp_path / "foliot.db"))
    try:
        store = SqlResourceStore(database, lambda: pytest.fail("no secret is touched"))
        rule, problems = validate_document(
            {
                "kind": "ToolPermission",
                "metadata": {"name": "pay"},
                "spec": {"operation_rules": [{"operation_class": "*", "verdict": "approval_required"}]},
            }
        )
        assert rule is not None, problems
        await store.write([Put(rule)])
        yield store
    finally:
        await database.close()


@pytest.fixture
async def runtime(store: SqlResourceStore, tmp_path: Path, clock: Clock) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db", clock=clock) as runtime:
        yield runtime


async def grant(store: SqlResourceStore, **wanted: Any) -> Document:
    return await give_standing(store, **{"tool": "pay", "by": "ann", "now": NOW, "seconds": 3600, **wanted})


async def phase_of_run(runtime: Runtime, *, amount: int = 1, agent: str = "desk") -> str:
    @tool(effect="once")
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    script = [{"call": {"pay": {"amount": amount}}}, {"say": "done"}]
    return (await runtime.run(Agent(agent, model=ScriptedModel(script), tools=[pay]), "pay")).phase


async def test_a_standing_grant_lets_calls_pass_without_a_question(runtime, store) -> None:
    assert await phase_of_run(runtime) == "waiting"
    document = await grant(store)
    assert await phase_of_run(runtime) == "succeeded"
    assert validate_document(document)[1] == []


async def test_a_standing_grant_ends(runtime, store, clock) -> None:
    await grant(store, seconds=60)
    clock.now += 59
    assert await phase_of_run(runtime) == "succeeded"
    clock.now += 1
    assert await phase_of_run(runtime) == "waiting"


async def test_a_standing_grant_is_for_one_agent_when_it_names_one(runtime, store) -> None:
    await grant(store, agent="desk")
    assert await phase_of_run(runtime, agent="desk") == "succeeded"
    assert await phase_of_run(runtime, agent="other") == "waiting"


async def test_a_standing_grant_covers_only_calls_that_fulfil_its_condition(runtime, store) -> None:
    await grant(store, when="args.amount < 10")
    assert await phase_of_run(runtime, amount=9) == "succeeded"
    assert await phase_of_run(runtime, amount=10) == "waiting"


async def test_a_revoked_grant_covers_nothing_more(runtime, store) -> None:
    name = (await grant(store))["metadata"]["name"]
    assert await phase_of_run(runtime) == "succeeded"
    ended = await revoke_standing(store, name, by="bob", now=NOW)
    assert ended["status"]["reason"] == "revoked by bob"
    assert await phase_of_run(runtime) == "waiting"
    with pytest.raises(Conflict, match="has ended already"):
        await revoke_standing(store, name, by="bob", now=NOW)


async def test_a_grant_is_used_up(runtime, store) -> None:
    name = (await grant(store, max_uses=2))["metadata"]["name"]
    phases = [await phase_of_run(runtime) for _ in range(3)]
    assert phases == ["succeeded", "succeeded", "waiting"]
    document = await runtime.inside.approvals.get(name)
    assert document["status"]["phase"] == "Expired"
    assert len(document["status"]["uses"]) == 2


async def test_calls_at_the_same_moment_never_take_more_uses_than_there_are(store, clock) -> None:
    name = (await grant(store, max_uses=3))["metadata"]["name"]
    grants = StoredGrants(store, "default", clock=clock)
    got = await asyncio.gather(*(grants.use(name, f"r{n}/c") for n in range(8)))
    assert sum(got) == 3


async def test_the_same_call_asked_again_after_a_crash_is_one_use(store, clock) -> None:
    name = (await grant(store, max_uses=1))["metadata"]["name"]
    grants = StoredGrants(store, "default", clock=clock)
    assert await grants.use(name, "r1/c1")
    assert await grants.use(name, "r1/c1")
    assert not await grants.use(name, "r1/c2")
    assert not await grants.use("sg-none", "r1/c1")


async def test_a_standing_grant_is_no_approval_of_a_call(store, clock) -> None:
    name = (await grant(store))["metadata"]["name"]
    assert not await StoredGrants(store, "default", clock=clock).check(name, "", "")


@pytest.mark.parametrize(
    "wanted", [{"seconds": 0}, {"max_uses": 0}, {"by": ""}, {"tool": " "}, {"when": "args.amount <"}, {"when": "1 + 1"}]
)
async def test_a_grant_that_makes_no_sense_is_refused(store, wanted) -> None:
    with pytest.raises(InvalidInput):
        await grant(store, **wanted)


# --- arguments as people may see them ----------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["to", "password", "apiKey", "max_tokens", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["to", "password", "accessToken", "items"]), JSON, max_size=4)


@given(ARGUMENTS)
def test_what_was_shown_and_is_given_back_is_what_it_was(arguments: dict[str, Any]) -> None:
    seen = shown(arguments)
    assert repr(restored(seen, seen, arguments)) == repr(arguments)


@given(ARGUMENTS, st.integers(100, 200))
def test_an_edit_of_one_value_changes_nothing_else(arguments: dict[str, Any], amount: int) -> None:
    seen = shown(arguments)
    assert repr(restored({**seen, "amount": amount}, seen, arguments)) == repr({**arguments, "amount": amount})


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("password", "api_key", "API-Key", "apiKey", "accessToken", "X-Auth-Token", "cvv")),
        *((name, False) for name in ("max_tokens", "key", "pinned", "tokenizer", "secretary", "amount", "")),
    ],
)
def test_a_name_gives_a_secret_away(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_known_secrets_are_masked_wherever_they_stand() -> None:
    masker = Masker()
    masker.add("s3cr3t-value")
    assert shown({"note": "use s3cr3t-value now", "n": [1, "s3cr3t-value"]}, masker) == {
        "note": "use [REDACTED] now",
        "n": [1, "[REDACTED]"],
    }


def test_a_long_text_is_cut_and_comes_back_whole() -> None:
    arguments = {"text": "x" * 50_000}
    seen = shown(arguments)
    assert len(seen["text"]) < 20_100
    assert restored(seen, seen, arguments) == arguments
