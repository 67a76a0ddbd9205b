"""The folder of an agent and a user: it lasts over runs and sessions, takes what all of them change, and is theirs."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.workspaces import folders, workspaces
from foliot.engine.workspaces.folders import DELETED, UserFolders
from foliot.engine.workspaces.trees import EMPTY, WorkspaceTree
from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message, ModelRequest, ToolResult
from foliot.kernel.run.events import FolderFiles, FolderKept, ToolFinished
from foliot.store.folders import FolderKey, SqlFolders
from tests.engine.workspaces.kit import Played, created
from tests.sessions.kit import place, quiet

ANN = Identity("ann")


def results_in(messages: Iterable[Message]) -> list[str]:
    return [part.text for message in messages for part in message.parts if isinstance(part, ToolResult)]


def plays(request: ModelRequest) -> Any:
    """Does what the last message of the user says, one call after the other: `write data/a hello; read data/a`."""
    last = max(at for at, message in enumerate(request.messages) if message.role == "user")
    done = sum(message.role == "tool" for message in request.messages[last:])
    orders = [each.strip() for each in request.messages[last].text.split(";") if each.strip()]
    if done >= len(orders):
        return "; ".join(results_in(request.messages[last + 1 :]))
    name, _, rest = orders[done].partition(" ")
    path, _, content = rest.partition(" ")
    return {"call": {name: {"path": path, "content": content} if name == "write" else {"path": path} if rest else {}}}


class House:
    """A runtime with agents that write and read what they are told."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        assert rt.inside.database is not None
        self.stored = SqlFolders(rt.inside.database)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

        @tool
        async def wait(path: str = "") -> str:
            """Wait for the test.

            Args:
                path: Tells one call of a run from another.
            """
            self.reached.set()
            await self.go_on.wait()
            return "waited"

        self.wait = wait
        for name in ("helper", "other"):
            self.know(name)

    def know(self, name: str, namespace: str = "default", **spec: Any) -> Agent[Any]:
        agent = Agent(
            name,
            prompt="Do it.",
            model=ScriptedModel(plays),
            tools=["write", "read", self.wait],
            namespace=namespace,
            **spec,
        )
        self.rt.inside.know(agent)
        return agent

    async def run(self, text: str, user: str = "ann", agent: Any = "helper", **more: Any) -> Any:
        async with asyncio.timeout(60):
            return await self.rt.run(agent, text, user=user, **more)

    async def kept(self, user: str = "ann", agent: str = "helper", namespace: str = "default") -> dict[str, str]:
        """What is in a folder, by path."""
        folder = await self.stored.find(FolderKey(namespace, agent, user))
        if folder is None:
            return {}

        async def fetch(digest: str) -> bytes:
            return await self.stored.content(folder.key, digest)

        tree = await WorkspaceTree.load(fetch, folder.tree)
        return {path: (await fetch(entry.content)).decode() for path, entry in tree.walk() if entry.kind == "file"}

    async def facts(self, run_id: str, kind: type = FolderKept) -> list[Any]:
        return [event for _, event in await self.rt.inside.runs.facts(run_id) if isinstance(event, kind)]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    url = str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with Runtime(url) as opened:
        yield House(opened)


async def test_what_a_run_left_is_there_in_the_next_run_for_the_user(house: House) -> None:
    first = await house.run("write data/notes.md milk; write other.md x")
    second = await house.run("read data/notes.md; read other.md")
    assert "milk" in second.output
    assert "other.md" in second.output  # an error that names it: the rest of a workspace is the run's own
    assert await house.kept() == {"notes.md": "milk"}
    assert [each.tree for each in await house.facts(first.run_id)] == [(await house.facts(first.run_id))[0].now]
    assert await house.facts(second.run_id) == []


async def test_nobody_else_has_it(house: House) -> None:
    await house.run("write data/secret ann's")
    elsewhere = house.know("helper", "north")
    for user, agent in (("bob", "helper"), ("", "helper"), ("ann", "other"), ("Ann", "helper"), ("аnn", "helper")):
        found = await house.run("read data/secret", user, agent)
        assert "ann's" not in found.output, (user, agent)
    assert "ann's" not in (await house.run("read data/secret", agent=elsewhere)).output
    await house.run("write data/secret nobody's", "")
    await house.run("write data/secret the other's", "ann", "other")
    assert await house.kept() == {"secret": "ann's"}
    assert await house.kept("") == {"secret": "nobody's"}
    assert await house.kept(agent="other") == {"secret": "the other's"}


@pytest.mark.parametrize("user", ["../ann", "a/b", "ann/../bob", ".", "..", "data", "аnn", "ann\u200b", "x" * 253])
async def test_a_name_of_a_user_is_never_a_path(house: House, user: str) -> None:
    await house.run("write data/mine ann's")
    await house.run("write data/mine theirs", user)
    assert await house.kept() == {"mine": "ann's"}
    folders = await house.stored.list("default", limit=10)
    assert {each.user for each in folders.items} <= {"ann", user}


async def test_who_acts_for_a_user_works_on_the_folder_of_that_user(house: House) -> None:
    acting = Identity("ann", by="bob", via="http")
    await house.rt.inside.run("helper", "write data/a by bob", identity=acting, check=False)
    assert await house.kept() == {"a": "by bob"}
    assert await house.kept("bob") == {}


async def test_a_session_and_the_next_one_and_a_plain_run_have_the_same_folder(house: House) -> None:
    sessions = house.rt.inside.sessions
    first = await sessions.create(place(), identity=ANN)
    await sessions.say(first.id, "write data/a one; write draft d", identity=ANN)
    await quiet(house.rt, first.id)
    await house.run("write data/b two")
    await sessions.say(first.id, "read data/b; read draft", identity=ANN)
    after = await quiet(house.rt, first.id)
    _, state = await house.rt.inside.runs.load(after.head)
    assert "two" in state.transcript[-1].text
    assert "d" in state.transcript[-1].text
    other = await sessions.create(place(channel="phone"), identity=ANN)
    await sessions.say(other.id, "read data/a; read data/b; read draft", identity=ANN)
    done = await quiet(house.rt, other.id)
    _, state = await house.rt.inside.runs.load(done.head)
    assert "one" in state.transcript[-1].text
    assert "two" in state.transcript[-1].text


async def test_a_run_without_files_reads_and_writes_nothing_of_it(house: House, monkeypatch: Any) -> None:
    await house.run("write data/a x")
    asked: list[str] = []
    database = house.rt.inside.database
    assert database is not None
    read = database.read

    async def counted(name: str, **params: Any) -> Any:
        asked.append(name)
        return await read(name, **params)

    monkeypatch.setattr(database, "read", counted)
    house.go_on.set()
    await house.run("wait")
    assert not [name for name in asked if name.startswith("folder")]
    await house.run("read data/a")
    assert [name for name in asked if name.startswith("folder")] == ["folder_get"]


async def together(house: House, first: str, second: str) -> tuple[Any, Any]:
    """Plays a run that waits after its first call while another one begins and ends."""
    house.reached.clear()
    house.go_on.clear()
    slow = asyncio.create_task(house.run(first))
    async with asyncio.timeout(60):
        await house.reached.wait()
    quick = await house.run(second)
    house.go_on.set()
    return await slow, quick


async def test_two_runs_at_once_change_different_files(house: House) -> None:
    await house.run("write data/a old; write data/d/b old")
    await together(house, "read data/a; wait; write data/a slow; write data/d/c slow", "write data/d/b quick")
    assert await house.kept() == {"a": "slow", "d/b": "quick", "d/c": "slow"}


async def test_where_both_changed_a_file_both_are_kept_and_the_journal_says_so(house: House) -> None:
    await house.run("write data/a.md old")
    order = "read data/a.md; wait; write data/a.md slow; write data/a.md slower"
    slow, _ = await together(house, order, "write data/a.md quick")
    kept = await house.kept()
    (beside,) = kept.keys() - {"a.md"}
    assert kept == {"a.md": "quick", beside: "slower"}
    assert beside.startswith("a.conflict-")
    assert beside.endswith(".md")
    first, second = await house.facts(slow.run_id)
    assert first.conflicts == second.conflicts == {"data/a.md": f"data/{beside}"}
    assert beside in str(await house.rt.runs.trace(slow.run_id))


async def test_two_long_names_do_not_share_the_name_of_a_conflict(house: House) -> None:
    one, two = "a" * 248 + "1.md", "a" * 248 + "2.md"
    await house.run(f"write data/{one} old; write data/{two} old")
    order = f"read data/{one}; wait; write data/{one} slow1; write data/{two} slow2"
    await together(house, order, f"write data/{one} quick1; write data/{two} quick2")
    assert sorted((await house.kept()).values()) == ["quick1", "quick2", "slow1", "slow2"]


async def test_what_others_did_to_a_conflict_is_kept_too(house: House) -> None:
    await house.run("write data/a.md old")
    slow = "read data/a.md; wait; write data/a.md slow; wait again; write data/a.md slower"
    house.reached.clear()
    house.go_on.clear()
    working = asyncio.create_task(house.run(slow))
    async with asyncio.timeout(60):
        await house.reached.wait()
    await house.run("write data/a.md quick")
    house.reached.clear()
    house.go_on.set()
    house.go_on.clear()
    async with asyncio.timeout(60):
        await house.reached.wait()
    (beside,) = (await house.kept()).keys() - {"a.md"}
    await house.run(f"write data/{beside} edited")
    house.go_on.set()
    await working
    kept = await house.kept()
    assert sorted(kept.values()) == ["edited", "quick", "slower"]
    assert kept[beside] == "edited"


async def test_the_same_change_twice_is_one(house: House) -> None:
    await house.run("write data/a old")
    slow, _ = await together(house, "read data/a; wait; write data/a new", "write data/a new")
    assert await house.kept() == {"a": "new"}
    (fact,) = await house.facts(slow.run_id)
    assert fact.conflicts == {}


async def test_many_runs_at_once_lose_nothing(house: House) -> None:
    await asyncio.gather(*(house.run(f"write data/{n} {n}; write data/d/{n} {n}") for n in range(8)))
    assert await house.kept() == {f"{d}{n}": str(n) for n in range(8) for d in ("", "d/")}


async def test_a_fork_does_not_write_twice_and_does_not_take_it_to_another_user(house: House) -> None:
    first = await house.run("write data/list milk; write data/list milk+eggs")
    forked = await house.rt.inside.fork(first.run_id, at=2, identity=ANN, check=False)
    assert forked.phase == "succeeded"
    assert await house.kept() == {"list": "milk+eggs"}
    _, state = await house.rt.inside.runs.load(forked.run_id)
    assert state.created is not None
    assert state.created.workspace is not None
    assert state.created.workspace.data is not None
    stolen = await house.rt.inside.fork(
        first.run_id, at=2, input="read data/list", identity=Identity("bob"), check=False
    )
    assert "milk" not in stolen.output
    _, state = await house.rt.inside.runs.load(stolen.run_id)
    assert state.created is not None
    assert state.created.workspace is not None
    assert state.created.workspace.data is None
    tree = await WorkspaceTree.load(house.rt.inside.runs.journal.get_blob, state.created.workspace.digest)
    assert tree.find("data") is None


async def test_a_replay_writes_nothing(house: House) -> None:
    first = await house.run("write data/list milk")
    before = await house.stored.find(FolderKey("default", "helper", "ann"))
    replayed = await house.rt.inside.replay(first.run_id)
    assert replayed.difference is None
    assert await house.stored.find(FolderKey("default", "helper", "ann")) == before


async def test_an_answer_that_is_asked_for_again_does_not_write_twice(house: House) -> None:
    sessions = house.rt.inside.sessions
    await house.run("write data/list bread")
    session = await sessions.create(place(), identity=ANN)
    await sessions.say(session.id, "read data/list; write data/list bread+milk", identity=ANN)
    await quiet(house.rt, session.id)
    await house.run("write data/mean while")
    await sessions.regenerate(session.id, identity=ANN)
    after = await quiet(house.rt, session.id)
    _, state = await house.rt.inside.runs.load(after.head)
    assert "milk" not in results_in(state.transcript)[0]  # it began with the files of its own past
    assert await house.kept() == {"list": "bread+milk", "mean": "while"}


async def test_what_is_deleted_stays_deleted_also_for_a_run_that_had_begun_with_it(house: House) -> None:
    await house.run("write data/a old; write data/b old")
    house.reached.clear()
    slow = asyncio.create_task(house.run("read data/a; wait; write data/a new; read data/b"))
    async with asyncio.timeout(60):
        await house.reached.wait()
    await house.stored.delete(FolderKey("default", "helper", "ann"))
    house.go_on.set()
    done = await slow
    assert "old" in done.output  # its own files are whole
    assert [each.refused for each in await house.facts(done.run_id)] == [DELETED]
    assert await house.kept() == {}
    assert "old" not in (await house.run("read data/b")).output


async def test_content_stays_as_long_as_the_folder_and_goes_with_it(house: House) -> None:
    await house.run("write data/a long-lived")
    journal = house.rt.inside.runs.journal
    folder = await house.stored.find(FolderKey("default", "helper", "ann"))
    assert folder is not None
    later = house.rt.inside.clock() + 1000
    while await journal.purge(ended_before=later):
        pass
    assert await house.kept() == {"a": "long-lived"}
    assert "long-lived" in (await house.run("read data/a")).output
    await house.stored.delete(folder.key)
    while await journal.purge(ended_before=house.rt.inside.clock() + 1000):
        pass
    with pytest.raises(Exception, match="no stored content"):
        await journal.get_blob(folder.tree)


async def test_a_folder_has_a_bound_which_only_what_is_merged_can_pass(house: House) -> None:
    small = house.know("small", workspace={"quota": 100})
    await house.run("write data/seed x", agent=small)
    house.reached.clear()
    slow = asyncio.create_task(house.run(f"read data/seed; wait; write data/a {'a' * 60}", agent=small))
    async with asyncio.timeout(60):
        await house.reached.wait()
    await house.run(f"write data/b {'b' * 60}", agent=small)
    house.go_on.set()
    done = await slow
    (fact,) = await house.facts(done.run_id)
    assert "may have" in fact.refused
    assert (await house.kept(agent="small")).keys() == {"seed", "b"}


async def test_an_agent_that_another_one_calls_keeps_a_folder_of_its_own_for_the_same_user(house: House) -> None:
    def leads(request: ModelRequest) -> Any:
        results = results_in(request.messages)
        if not results:
            return {"call": {"write": {"path": "data/plan", "content": "boss's"}}}
        if len(results) == 1:
            return {"call": {"agent:other": {"input": "read data/plan; write data/own other's"}}}
        return results[-1]

    tools = ["write", "agent:other"]
    boss = Agent("boss", prompt="Lead.", model=ScriptedModel(leads), tools=tools)
    house.rt.inside.know(boss)
    done = await house.run("go", agent=boss)
    assert "boss's" not in done.output
    assert await house.kept(agent="boss") == {"plan": "boss's"}
    assert await house.kept(agent="other") == {"own": "other's"}


async def test_an_agent_can_keep_no_folder(house: House) -> None:
    alone = house.know("alone", workspace={"data": "none"})
    await house.run("write data/a x", agent=alone)
    assert "x" not in (await house.run("read data/a", agent=alone)).output.split()
    assert await house.kept(agent="alone") == {}


async def crashed_after(house: House, kind: type, text: str) -> str:
    """Plays a run whose process dies right after an event of this type became durable."""
    run_id = house.rt.inside.new_run_id()
    journal = house.rt.inside.runs.journal
    append: Callable[..., Any] = journal.append

    class Died(BaseException):
        pass

    def dies(lease: Any, entries: Any, **more: Any) -> Any:
        async def both() -> None:
            await append(lease, entries, **more)
            if any(entry.type == kind.__struct_config__.tag for entry in entries):
                raise Died

        return both()

    house.rt.inside.runs.journal.append = dies  # type: ignore[method-assign]
    try:
        with pytest.raises(Died):
            await house.run(text, run_id=run_id)
    finally:
        del house.rt.inside.runs.journal.append
    house.rt.inside.runs._is_gone = lambda worker: True  # type: ignore[assignment]
    return run_id


@pytest.mark.parametrize("kind", [ToolFinished, FolderKept])
async def test_a_run_that_died_is_gone_on_with_and_its_change_is_there_once(house: House, kind: type) -> None:
    run_id = await crashed_after(house, kind, "write data/a once; write data/b twice")
    await house.run("write data/c meanwhile")
    await house.rt.inside.resume(run_id)
    assert await house.kept() == {"a": "once", "b": "twice", "c": "meanwhile"}
    facts = await house.facts(run_id)
    assert len(facts) == 2
    assert not any(fact.conflicts or fact.refused for fact in facts)


# --- what calls can do to the folder on disk -------------------------------------------------------------------------


@pytest.fixture
async def played(tmp_path: Path) -> AsyncIterator[Played]:
    """A run for ann whose calls work on a real folder, and hers in it."""
    async with Runtime(str(tmp_path / "foliot.db")) as rt:
        house = House(rt)
        await house.run("write data/kept ann's", agent=house.know("clerk"))
        journal = rt.inside.runs.journal
        await created(journal)
        folders = UserFolders(journal, house.stored, clock=rt.inside.clock)
        workspaces = RunWorkspaces(journal, tmp_path / "w", folders=folders)
        yield Played(workspaces, user="ann")
        await workspaces.close()


def data_of(run: Played) -> FolderFiles:
    assert run.at is not None
    assert run.at.data is not None
    return run.at.data


async def test_the_folder_is_laid_into_the_workspace_before_the_first_call_sees_it(played: Played) -> None:
    await played.call(lambda folder: (folder / "data/kept").read_text() == "ann's" or pytest.fail("it is not there"))
    assert data_of(played).now == data_of(played).begun


@pytest.mark.parametrize("target", ["/etc", "..", "../../..", "elsewhere", "/proc/self/cwd"])
async def test_a_link_in_the_place_of_the_folder_changes_nothing_of_it(played: Played, target: str) -> None:
    def swaps(folder: Path) -> None:
        shutil.rmtree(folder / "data")
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere/secret").write_text("not ann's")
        (folder / "data").symlink_to(target)

    await played.call(swaps)
    assert data_of(played).now == data_of(played).begun
    await played.call(lambda folder: (folder / "data").unlink())
    assert data_of(played).now == EMPTY  # it was deleted, by name


async def test_links_in_the_folder_stay_links_and_nothing_behind_them_is_read(played: Played, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    def links(folder: Path) -> None:
        (folder / "data/soft").symlink_to(secret)
        (folder / "data/up").symlink_to("../../../secret")
        os.link(secret, folder / "data/hard")

    files = await played.call(links)
    assert any("hard" in name for name in files.left_out)
    journal = played.workspaces._journal
    tree = await WorkspaceTree.load(journal.get_blob, data_of(played).now)
    assert {path: entry.kind for path, entry in tree.walk()} == {"kept": "file", "soft": "link", "up": "link"}


async def test_a_folder_that_is_deleted_in_a_call_is_empty_and_one_in_a_read_only_call_is_whole(played: Played) -> None:
    await played.call(lambda folder: shutil.rmtree(folder / "data"))
    assert (data_of(played).now, data_of(played).files) == (EMPTY, 0)
    seen = await played.seen()
    assert "data/kept" not in seen


def test_a_folder_may_hold_what_a_call_may_leave() -> None:
    """Otherwise a call succeeds, and what it left is refused when nobody hears of it any more."""
    assert folders.QUOTA >= workspaces.QUOTA
    assert folders.MOST_FILES >= workspaces.MOST_FILES
