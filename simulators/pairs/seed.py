"""The state from which every play begins: small, and with something for each transaction to get hold of."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from foliot.bus.local import LocalTransport
from foliot.engine.driver.ids import id_from
from foliot.kernel.messages import Message, ModelResponse, Text
from foliot.kernel.run.codec import decode, encode, type_of
from foliot.kernel.run.events import Event, InputMode, ModelResponded, RunClaimed, RunFailed, RunSucceeded, StepStarted
from foliot.kernel.run.loop import fold
from foliot.kernel.run.spec import digest as content_digest
from foliot.store.access.logins import (
    Lifetime,
    LoginPace,
    LoginSession,
    SqlLoginAttempts,
    SqlLoginFlows,
    SqlLoginSessions,
)
from foliot.store.access.request_keys import ClaimedKey, SqlRequestKeys
from foliot.store.access.tokens import SqlTokens, TokenInfo
from foliot.store.access.users import SqlUsers
from foliot.store.access.users import UserAccount as UserAccount
from foliot.store.audit.log import SqlAuditLog
from foliot.store.base import Database, Document, Put
from foliot.store.folders import FolderChange, FolderKey, change_body
from foliot.store.journal.base import Entry, Lease, LockingBody, NewRun, TransactionBody
from foliot.store.journal.chain import link_of
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.budgets import Amount, BudgetAccount, Ceiling, PaidAct, SqlBudgetLedger
from foliot.store.ledger.tool_limits import LeaseRequest, SqlLimits, ToolRate
from foliot.store.queue.limits import Limit, class_failed, set_limit
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import register
from foliot.store.resources.database import SqlResourceStore
from foliot.store.sessions.base import NewInput, NewSession, Place
from foliot.store.sessions.database import SqlSessions, begin_turn
from foliot.store.sessions.inbox_rules import AgentObject
from foliot.store.tasks import purge as purge_tasks
from foliot.store.transaction import Tx, run
from foliot.store.triggers import NewSlot, begin, decide, ensure_endpoint, take_event
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import Bundles
from foliot.work.tasks.service import TaskService
from foliot.work.tasks.settlement import TaskSettlement
from simulators.workshop.cast import Troupe

NOW: Final = 1_700_000_000.0
OLD: Final = NOW - 1_000_000.0
LEASE: Final = 30.0
NOTE: Final = "note"
ALIVE: Final = "here:1:1"
DEAD: Final = "here:2:1"
SPEC: Final = b'{"agent":"a","model":"simulated"}'
ANCIENT: Final = b'{"agent":"a","model":"ancient"}'
KEPT: Final = b"a folder that was kept"
NO_TREE: Final = "sha256:" + "0" * 64
PACE: Final = LoginPace(3, 10.0)
AGENT: Final = AgentObject({"cap": 2})
LIFE: Final = Lifetime(3600.0, 86400.0)
GRANTS: Final = {"default": ("viewer",)}
BOOKS: Final = tuple(BudgetAccount("default", f"book{number}", "2026") for number in range(3))


class NoKeys:
    """A keyring for a store without secrets."""


@dataclass
class Seed:
    """The handles of the seeded state that acts need."""

    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    account: UserAccount = field(init=False)
    session: LoginSession = field(init=False)
    token: TokenInfo = field(init=False)
    claimed: ClaimedKey = field(init=False)
    setup_token: str = ""
    endpoint: str = ""


class Tools:
    """The services of the store on one database, with a clock that stands still."""

    def __init__(self, database: Database, seed: Seed, who: str = "", now: float = NOW) -> None:
        self.db = database
        self.seed = seed
        self.who = who
        self.now = now
        self.journal = SqlJournal(database, clock=self.clock)
        self.bundles = Bundles(self.journal)
        self.transport = LocalTransport(clock=self.clock)
        self.tasks = TaskService(
            database, self.bundles, Troupe(), self.transport, clock=self.clock, new_id=self._new_id
        )
        self.ledger = SqlBudgetLedger(database)
        self.limits = SqlLimits(database)
        self.audit = SqlAuditLog(database)
        self.store = SqlResourceStore(database, _no_keyring, now=self.clock)
        self.users = SqlUsers(database)
        self.tokens = SqlTokens(database)
        self.sessions = SqlLoginSessions(database)
        self.flows = SqlLoginFlows(database)
        self.attempts = SqlLoginAttempts(database)
        self.keys = SqlRequestKeys(database)
        self.talks = SqlSessions(database)
        self._made = 0

    def clock(self) -> float:
        return self.now

    def _new_id(self, now: float) -> str:
        self._made += 1
        chance = int.from_bytes(blake2b(f"{self.who}{self._made}".encode(), digest_size=6).digest(), "big")
        return id_from(now, chance)

    def command(self, name: str, **more: Any) -> Command:
        return Command(target_kind="system", target="pipeline", name=name, message=f"do {name}", **more)

    async def claim(self, run_id: str, worker: str = ALIVE, until: float | None = None) -> Lease:
        return await self.journal.claim(
            run_id, worker=worker, now=self.now, until=self.now + LEASE if until is None else until
        )

    async def run_of(self, task: str) -> str:
        """The newest run of a task."""
        return (await self.db.read("task_runs", namespace="default", name=task))[-1]["run_id"]

    async def ending(self, lease: Lease, last: Event) -> tuple[list[Entry], TransactionBody | None]:
        """The last entries of a run, and what its task hears of it."""
        found = (await self.db.read("task_of_run", run_id=lease.run_id))[0]
        ref = await self.tasks.ref(found["namespace"], found["name"])
        settlement = TaskSettlement(ref, found["message"], self.transport, clock=self.clock)
        told = await self.journal.read(lease.run_id, limit=1)  # all that there was when it was claimed
        spec = ref.pinned.specs[(await self.journal.get(lease.run_id)).agent][2]
        facts = [(each.at, decode(each.data)) for each in told]
        said: list[Event] = [RunClaimed(1, lease.worker, lease.epoch), StepStarted(1)]
        if isinstance(last, RunSucceeded):
            said.append(ModelResponded(1, ModelResponse(Message("assistant", (Text(last.output),)))))
        said.append(last)
        state = fold(spec, lease.run_id, [*facts, *((self.now, each) for each in said)])
        entries: list[Entry] = []
        link = told[-1].link
        for seq, each in enumerate(said, len(told) + 1):
            kind, data = type_of(each), encode(each)
            link = link_of(link, seq, self.now, kind, data)
            entries.append(Entry(seq, self.now, kind, data, link))
        return entries, settlement.settle(state)

    async def end(self, lease: Lease, last: Event) -> None:
        """End a run of a task."""
        entries, in_transaction = await self.ending(lease, last)
        phase = "succeeded" if isinstance(last, RunSucceeded) else "failed"
        await self.journal.append(lease, entries, phase=phase, summary={}, in_transaction=in_transaction)


def _no_keyring() -> Any:
    return NoKeys()


def new_run(name: str, at: float, *, content: bytes = SPEC) -> NewRun:
    named = content_digest(content)
    return NewRun(id=name, namespace="default", agent="a", spec=named, created_at=at, content={named: content})


def entry(seq: int, at: float = NOW, *, size: int = 10) -> Entry:
    """An event that nobody will decode."""
    return Entry(seq, at, NOTE, b'{"type":"note","text":"' + b"x" * size + b'"}')


def offer(name: str, identity: str) -> Offer:
    return Offer(name, identity, capacity=4)


def document(kind: str, name: str, **spec: Any) -> Document:
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec}


def record(outcome: str, at: float = NOW) -> dict[str, Any]:
    """An audit entry of nobody in particular."""
    nobody = dict.fromkeys(("namespace", "agent", "tool", "run_id", "call_id"), "")
    return {**nobody, "at": at, "moment": "act", "outcome": outcome}


def ceilings(*numbers: int) -> list[Ceiling]:
    return [Ceiling(BOOKS[number], micros=100) for number in numbers]


async def sow(database: Database) -> Seed:
    """Fill an empty store, by the ways in which the product itself fills one."""
    seed = Seed()
    old = Tools(database, seed, "old", OLD)
    new = Tools(database, seed, "new", NOW)
    await _runs(old, new)
    await _tasks(old, new)
    await _accounts(new)
    await _rest(old, new)
    await _talks(old, new)
    await _folders(new)
    return seed


async def _runs(old: Tools, new: Tools) -> None:
    leases = new.seed.leases
    created = await old.journal.create(
        new_run("gone", OLD, content=ANCIENT), [entry(1, OLD)], worker=DEAD, lease_until=OLD
    )
    assert created is not None, "it was claimed from birth"
    await old.journal.append(created, [entry(2, OLD)], phase="succeeded", summary={})
    for name in ("busy", "asleep"):
        made = await new.journal.create(new_run(name, NOW), [entry(1)], worker=ALIVE, lease_until=NOW + LEASE)
        assert made is not None, "it was claimed from birth"
        leases[name] = made
    await new.journal.append(leases["asleep"], [entry(2)], phase="waiting", summary={"until": None})
    await new.journal.create(new_run("idle", NOW), [entry(1)])


async def _tasks(old: Tools, new: Tools) -> None:
    leases = new.seed.leases
    await old.tasks.accept(old.command("ancient"))
    await old.end(await old.claim(await old.run_of("ancient")), RunSucceeded("done"))
    await old.end(await old.claim(await old.run_of("ancient")), RunFailed("broken", "broken", "it broke"))
    for name in ("fresh", "held", "parked", "lapsed", "lettered", "timed"):
        more = {"timeout": 1.0} if name == "timed" else {}
        service = Tools(new.db, new.seed, name, NOW - 100) if name == "timed" else new
        await service.tasks.accept(new.command(name, **more))
    await new.tasks.accept(new.command("child", parent="held"))
    leases["held"] = await new.claim(await new.run_of("held"))
    parked = await new.claim(await new.run_of("parked"))
    await new.journal.append(parked, [entry(2)], phase="waiting", summary={"until": None})
    leases["parked"] = parked
    leases["lapsed"] = await new.claim(await new.run_of("lapsed"), DEAD, NOW - 1)
    await new.end(await new.claim(await new.run_of("lettered")), RunFailed("broken", "broken", "it broke"))


async def _folders(new: Tools) -> None:
    lease = await new.journal.create(new_run("keeper", NOW), [entry(1)], worker=ALIVE, lease_until=NOW + LEASE)
    assert lease is not None, "it was claimed from birth"
    body = folder_change("ann", "", NO_TREE, KEPT, "keeper", NOW)
    await new.journal.append(lease, [entry(2)], phase="succeeded", summary={}, in_transaction=body)


def folder_change(user: str, life: str, before: str, content: bytes, run_id: str, at: float) -> LockingBody:
    """A change that leaves this content in a folder, and nothing else."""
    named = content_digest(content)
    key, digests = FolderKey("default", "a", user), frozenset({named})
    change = FolderChange(key, life, before, named, 1, len(content), digests, {named: content}, "life", run_id)
    return change_body(change, at)


async def _accounts(new: Tools) -> None:
    held = Amount(10, 10)
    await new.ledger.reserve(PaidAct("busy", "step/1"), ceilings(0, 1), held, holder=ALIVE, now=NOW, until=NOW + 60)
    await new.ledger.reserve(PaidAct("busy", "step/2"), ceilings(1, 2), held, holder=ALIVE, now=NOW, until=NOW + 60)
    await new.ledger.reserve(PaidAct("dead", "step/1"), ceilings(0, 2), held, holder=DEAD, now=NOW, until=NOW - 1)
    await new.ledger.reserve(PaidAct("done", "step/1"), ceilings(1), held, holder=DEAD, now=NOW, until=NOW + 60)
    await new.ledger.settle(PaidAct("done", "step/1"), Amount(7, 7), now=NOW)
    wish = LeaseRequest("default/saw", ALIVE, ToolRate(5, 5.0, 5), tokens=2, most=2, number=1)
    await new.limits.ask(wish, now=NOW, lease_until=NOW + 10, place_until=NOW + 10)
    await new.limits.failed("default/lathe", most=2, now=NOW)
    await new.limits.failed("default/drill", most=1, now=NOW - 100)


async def _rest(old: Tools, new: Tools) -> None:
    seed, db = new.seed, new.db
    for each in (old, new):
        await each.audit.append([record("seeded", each.now), record("seeded", each.now)])
    await new.store.write([Put(document("Agent", "one", model="m")), Put(document("Agent", "two", model="m"))])
    await register(db, offer("w1", ALIVE), now=NOW, is_gone=_is_gone)
    await db.write(_dead_worker, NOW)
    await set_limit(db, Limit("namespace", "default", 10))
    await db.write(class_failed, "class", NOW)
    await db.write(begin, "sch", "every minute", NOW - 600, NOW - 600)
    await db.write(decide, "sch", None, [NewSlot(int((NOW - 60 * n) * 1000), "due") for n in (3, 2)], NOW)
    seed.endpoint = await db.write(ensure_endpoint, "hook", "default", "hook", "address-1", NOW)
    await db.write(take_event, "hook", {"event-1": 600.0}, NOW)
    seed.setup_token = await new.users.new_setup_token(now=NOW, seconds=600)
    await new.users.create("ann", password="hash", grants=GRANTS, now=NOW)
    account = await new.users.find("ann")
    assert account is not None, "it was just made"
    seed.account = account
    seed.session, _ = await new.sessions.begin(account, lifetime=LIFE, now=NOW)
    await old.sessions.begin_vouched("eve", GRANTS, lifetime=LIFE, now=OLD)
    seed.token, _ = await new.tokens.create("robot", namespaces=["*"], roles=["viewer"], now=NOW)
    await new.flows.begin("state", "browser", "/", now=NOW, seconds=600)
    await new.attempts.charge("ann", PACE, now=NOW)
    claimed = await new.keys.claim("ann", "key", "request", now=NOW)
    assert isinstance(claimed, ClaimedKey), "nobody else is there"
    seed.claimed = claimed
    await purge_tasks(db, 0.0, 1)


async def _talks(old: Tools, new: Tools) -> None:
    """Sessions: one that waits for a turn, one with a turn at work, one that was archived long ago."""
    talks = new.talks
    for name, tools in (("quiet", new), ("lively", new), ("archived", old)):
        await talks.create(NewSession(name, talk_place(name)), now=tools.now)
    await talks.archive("archived", now=OLD)
    await talks.say("quiet", said("first", "collect"), now=NOW, agent=AGENT)
    await talks.say("lively", said("first", "followup"), now=NOW, agent=AGENT)
    body = begin_turn(await talks.get("lively"), "turn", (1,), now=NOW, title="First")
    lease = await new.journal.create(
        new_run("turn", NOW), [entry(1)], worker=ALIVE, lease_until=NOW + LEASE, in_transaction=body
    )
    assert lease is not None, "it was claimed from birth"
    new.seed.leases["turn"] = lease
    await talks.say("lively", said("second", "steer"), now=NOW, agent=AGENT)


def talk_place(channel: str) -> Place:
    return Place("default", "a", "ann", channel)


def said(text: str, mode: InputMode) -> NewInput:
    return NewInput(text, mode, Message("user", (Text(text),)), content_digest(text.encode()))


def _is_gone(identity: str | None) -> bool:
    return identity == DEAD


def _dead_worker(now: float) -> Tx[None]:
    """A worker that has died: nobody registers one of those."""
    yield from run(
        "worker_put",
        name="w2",
        identity=DEAD,
        region="",
        gpu=0,
        models="[]",
        labels="{}",
        isolation="[]",
        capacity=1,
        now=now,
    )
