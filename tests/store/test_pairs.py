"""Every pair of transactions, interleaved statement by statement on two connections of a real PostgreSQL.

`make test` plays the pairs that matter; `make chaos` plays all of them and prints a table.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foliot
from foliot.store.queries import load
from foliot.store.transaction import Tx, one, run
from simulators.pairs.company import Company, company, line
from simulators.pairs.play import PairReport
from simulators.pairs.seats import Seat, name_of
from simulators.pairs.tables import all_tables, footprint

CHAOS = bool(os.environ.get("FOLIOT_CHAOS"))
SOURCE = Path(foliot.__file__).parent
_WRITES = re.compile(r"(?:db|database)\.write\(")

# Transactions that no act plays, and why.
NOT_PLAYED = {
    "store.audit.log._append_anew": "does what _append does, which is played",
    "cli.doctor.store._touch": "changes nothing",
    "work.tasks.service._ended_with_its_task": "one statement under the lock of the revision: a note that is done with",
    "store.secrets.sealing.reseal_page": "holds the lock of all resource writes, as they do, before it looks",
    "run(setting_put)": "one statement, only by the one who rotates the key",
    "run(setting_delete)": "as above",
    "run(setting_new)": "one statement: of several who note the key of a new store the first one wins",
    "store.secrets.store_key._begin": "two notes, only by the one who rotates the key",
    "store.secrets.store_key._note": "two notes, only by the one who rotates or replaces the key",
    "store.ledger.pushes._put_key": "one turn under the lock of its own row, or the first one wins",
    "store.ledger.pushes.reseal_key": "one turn under the lock of its own row",
    "store.ledger.pushes._expect": "one statement on the row of one call, which nobody else adds",
    "store.ledger.pushes._take": "one statement: of several pushes for a call the first one wins",
    "store.ledger.pushes._forget": "one statement, by whoever waited for the call",
    "store.ledger.doubts._settle": "one update under the locks of all runs asked about an effect, in the order of keys",
    "store.ledger.doubts._settle_ended": "as store.ledger.doubts._settle",
    "store.ledger.model_limits._take": "everything of a line is done under the lock of its row, and of one line only",
    "store.ledger.model_limits._settle": "as above",
    "store.ledger.model_limits._pause": "as above",
    "run(model_limit_forget)": "one statement on rows that are written anew by whoever asks next",
    "store.ledger.model_limits._leave": "one statement: places of one run, which nobody else touches",
    "many(model_call_renew)": "one process keeps rows of its own",
    "work.housekeeping._take_turn": "one turn in a period, under the lock of its own row",
    "work.housekeeping._note_size": "a note for people, by the one whose turn it is; a lost one is written next time",
}

# What can go wrong in ways that cost somebody a run, money or an answer.
MATTERS = (
    ("run.signal.held", "run.append.park-task"),
    ("run.signal.held", "run.append.end-task"),
    ("run.signal.busy", "run.append.end"),
    ("run.signal.busy", "run.append"),
    ("run.signal.busy", "run.start-below"),
    ("task.cancel", "run.append.batch"),
    ("run.create.old-content", "run.purge"),
    ("run.blob.old", "run.purge"),
    ("asset.add.old-content", "run.purge"),
    ("run.append.batch", "run.append.batch"),
    ("run.append.batch", "run.append.end-task"),
    ("run.append.batch", "run.claim.dead"),
    ("run.append.end-batch", "run.append.end-batch"),
    ("run.append.end-batch", "task.cancel"),
    ("run.append.end-batch", "worker.claim"),
    ("run.append.end-batch", "run.signal.held"),
    ("folder.change", "folder.change"),
    ("folder.change", "folder.delete"),
    ("folder.begin", "folder.begin"),
    ("folder.begin", "run.purge"),
    ("folder.change.old-content", "run.purge"),
    ("folder.lend", "folder.delete"),
    ("folder.lend", "folder.change"),
    ("run.claim", "run.claim"),
    ("run.claim.dead", "run.append"),
    ("task.requeue.ancient", "task.purge"),
    ("task.cancel", "run.append.end-task"),
    ("task.accept.same", "task.accept.same"),
    ("task.delete", "task.requeue"),
    ("budget.reserve.batch", "budget.reserve.batch"),
    ("budget.reserve.most", "budget.give-back"),
    ("budget.settle.dead", "budget.sweep"),
    ("resource.put", "resource.compact"),
    ("audit.append", "audit.prune"),
    ("user.create", "token.create"),
    ("schedule.decide", "schedule.forget"),
    ("webhook.rotate", "webhook.forget"),
    ("key.claim.broken", "key.drop"),
    ("budget.renew", "budget.sweep"),
    ("run.say.busy", "run.append.end"),
    ("run.say.same", "run.say.same"),
    ("run.restart", "run.restart"),
    ("run.restart", "run.purge"),
    ("talk.say.quiet", "talk.begin"),
    ("talk.begin", "talk.begin"),
    ("talk.begin", "talk.drop"),
    ("talk.say.lively", "talk.end"),
    ("talk.interrupt", "talk.end"),
    ("talk.rotate", "talk.say.lively"),
    ("talk.resolve", "talk.resolve"),
    ("talk.delete", "talk.begin"),
    ("talk.purge", "run.purge"),
    ("talk.say.once.quiet", "talk.say.once.lively"),
    ("talk.say.once.quiet", "talk.say.once.quiet"),
    ("talk.say.once.quiet", "message.reply"),
    ("message.begin", "message.begin"),
    ("message.reply", "message.reply"),
)
# Faults that are known and not yet repaired: remove each with its repair.
KNOWN: frozenset[tuple[str, str]] = frozenset()


def told(report: PairReport) -> str:
    shown = {each.kind: f"    {each.text}\n    in: {each.schedule}" for each in reversed(report.findings)}
    return "\n".join([line(report), *shown.values()])


# --- the catalogue -----------------------------------------------------------------------------------------------


def written_in(file: Path) -> Iterator[str]:
    """The names of the transactions that a file gives to a database."""
    module = ".".join(("foliot", *file.relative_to(SOURCE).with_suffix("").parts))

    def look(node: ast.AST, above: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            above = (*above, node.name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "write":
            holder = node.func.value
            held = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            if held.lstrip("_") in ("db", "database") and node.args and above != ("forget_old",):
                yield body_name(module, node, above)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "forget_old":
            yield f"run({ast.literal_eval(node.args[1])})"
        for child in ast.iter_child_nodes(node):
            yield from look(child, above)

    yield from look(ast.parse(file.read_text(encoding="utf-8")), ())


def body_name(module: str, call: ast.Call, above: tuple[str, ...]) -> str:
    given = call.args[0]
    if isinstance(given, ast.Call) and ast.unparse(given.func) in ("Alone", "alone_with"):
        given = given.args[-1]  # a dry run of the same body
    if isinstance(given, ast.Attribute):
        owner = getattr(importlib.import_module(module), ast.unparse(given.value).split(".")[0])
        return name_of(getattr(owner, given.attr))
    assert isinstance(given, ast.Name), f"{module}: {ast.unparse(call)}"
    value = getattr(importlib.import_module(module), given.id, None)
    if value is None and (found := imported(module, given.id)) is not None:
        value = found
    if value is None:  # a function within this one
        return ".".join((module.removeprefix("foliot."), *above, given.id))
    more = [each.value for each in call.args[1:2] if isinstance(each, ast.Constant)]
    if not more and name_of(value, ["?"]).endswith("(?)"):
        # The statement is a variable: the loop around it names all of them.
        source = inspect.getsource(importlib.import_module(module))
        names = [name for name in load() if f'"{name}"' in source]
        return f"{name_of(value, ['|'.join(sorted(names))])}"
    return name_of(value, more)


def imported(module: str, name: str) -> Any:
    """What a module imports by this name within one of its functions."""
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return getattr(importlib.import_module(node.module), alias.name)
    return None


def all_written() -> set[str]:
    found: set[str] = set()
    for file in sorted(SOURCE.rglob("*.py")):
        if "testing" not in file.relative_to(SOURCE).parts and _WRITES.search(file.read_text(encoding="utf-8")):
            found.update(written_in(file))
    return found


def test_source_is_searched_for_transactions() -> None:
    found = all_written()
    assert {"store.journal.database._signal", "work.tasks.service.TaskService._add.body", "run(token_used)"} <= found
    assert len(found) > 70


@pytest.mark.services
async def test_catalogue_is_whole(postgres_url: str) -> None:
    async with company(postgres_url) as playing:
        played = await playing.bodies()
    missing = {
        name
        for name in all_written() - played - NOT_PLAYED.keys()
        if not any(f"run({each})" in played for each in name.removeprefix("run(").removesuffix(")").split("|"))
    }
    assert not missing, f"no act of simulators.pairs.acts plays {sorted(missing)}"


def test_every_query_has_its_tables() -> None:
    assert len(all_tables()) > 30
    without = [name for name in load() if not footprint(name).tables]
    assert without == []
    assert footprint("queue_take").written == {"queue", "run"}
    assert footprint("purge_events") == ({"event"}, {"event"})
    assert footprint("feed_bounds").read == {"counter"}


# --- the harness finds what it is for ----------------------------------------------------------------------------


def _lost_update() -> Tx[int]:
    row = yield from one("attempt_get", subject="ann")
    assert row is not None
    return (yield from run("attempt_refund", subject="ann", interval=-row["busy_until"]))


def _crossed(first: str, second: str) -> Tx[None]:
    for subject in (first, second):
        yield from run("attempt_refund", subject=subject, interval=1.0)


@pytest.mark.services
async def test_faults_are_found(postgres_url: str) -> None:
    async def loses(seat: Seat, who: str) -> Any:
        return await seat.write(_lost_update)

    async def crosses(seat: Seat, who: str) -> Any:
        subjects = ("ann", "bob") if who == "a" else ("bob", "ann")
        await seat.write(_crossed, *subjects)

    async def good(seat: Seat, who: str) -> Any:
        return await seat.write(run, "attempt_refund", subject="ann", interval=1.0)

    async with company(postgres_url) as playing:
        theatre = playing.theatre
        lost = await theatre.explore(("lost", "lost"), (loses, loses), switches=2, most=50)
        assert lost.kinds == ["anomaly"], told(lost)
        await playing.stage.in_transaction("INSERT INTO seed.login_attempt (subject, busy_until) VALUES ('bob', 1)")
        crossed = await theatre.explore(("crossed", "crossed"), (crosses, crosses), switches=2, most=50)
        assert crossed.kinds == ["deadlock"], told(crossed)
        fine = await theatre.explore(("good", "good"), (good, good), switches=2, most=50)
        assert (fine.kinds, fine.serial) == ([], 2), told(fine)


# --- the pairs ---------------------------------------------------------------------------------------------------


@pytest.mark.services
async def test_pairs_that_matter(postgres_url: str) -> None:
    async with company(postgres_url) as playing:
        await _play(playing, [pair for pair in MATTERS if pair not in KNOWN], most=24)


@pytest.mark.services
@pytest.mark.skipif(not CHAOS, reason="all pairs: FOLIOT_CHAOS=1")
async def test_all_pairs(postgres_url: str) -> None:
    async with company(postgres_url) as playing:
        await _play(playing, await playing.pairs(), most=400, show=True)


async def _play(playing: Company, pairs: list[tuple[str, str]], *, most: int, show: bool = False) -> None:
    bad: list[str] = []
    for pair in pairs:
        report = await playing.explore(pair, switches=2, most=most)
        if show:
            sys.stdout.write(f"{line(report)}\n")
        if report.findings:
            bad.append(told(report))
    assert not bad, "\n".join(bad)
