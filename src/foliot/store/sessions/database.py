"""Sessions in a database: who is active where, turns that begin and end, and what is said meanwhile.

A session is locked before the runs of its turns. The creation of a run begins a turn in the same transaction, and its
last event ends it: so a session never has a turn without a run, and never loses what was said between two turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec

from foliot.errors import Conflict, NotFound
from foliot.kernel.inbox import (
    CANCELLED,
    MOST_LINES,
    RESHAPED,
    Arrival,
    InboxOptions,
    Outcome,
    Waiting,
    after_turn,
    arrive,
    line_of,
    phase_of,
)
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import CancelRequested, Event, InputReceived
from foliot.kernel.run.feedback import user_message
from foliot.store.base import Database
from foliot.store.channels import deliver_answer, deliver_notice
from foliot.store.journal.base import LockingBody, Signal, TransactionBody
from foliot.store.journal.database import add_signal
from foliot.store.sessions.base import (
    NONE_DROPPED,
    ORDERED_BY,
    Dropped,
    FoundTurn,
    InboxFull,
    Input,
    InputAnswer,
    NewInput,
    NewSession,
    OwnerKind,
    Place,
    QuestionClosed,
    Said,
    Session,
    SessionArchived,
    SessionBusy,
    SessionKind,
    SessionMark,
    Turn,
)
from foliot.store.sessions.inbox_rules import AgentObject, inbox_rules, read_inbox_rules
from foliot.store.sessions.words import asked, indexed, scope_of
from foliot.store.taken import OtherWords, Taken, end_message, take_message
from foliot.store.transaction import Row, Tx, one, rows, run

_END: Final = 2**62
INTERRUPTED: Final = "interrupted by an input"
_messages = msgspec.json.Decoder(Message)


class SqlSessions:
    """The sessions of an installation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # --- sessions ------------------------------------------------------------------------------------------------

    async def create(self, new: NewSession, *, now: float) -> Session:
        """Stores a session, which is active in its place from then on. Raises `Conflict` when the id is taken."""
        return await self._db.write(_create, new, now)

    async def resolve(self, new: NewSession, *, now: float) -> tuple[Session, bool]:
        """Returns the active session of a place, or stores this one; and whether it is new."""
        return await self._db.write(_resolve, new, now)

    async def rotate(self, new: NewSession, *, now: float) -> Session:
        """Archives the active session of a place, if there is one, and stores another, in one transaction."""
        return await self._db.write(_rotate, new, now)

    async def archive(self, id: str, *, now: float) -> Session:
        """Archives a session; one that is archived stays as it is. Raises `NotFound`."""
        return await self._db.write(_archive, id, now)

    async def change(
        self,
        id: str,
        *,
        title: str | None = None,
        model: str | None = None,
        options: dict[str, Any] | None = None,
        now: float,
    ) -> Session:
        """Changes what is given of a session. Raises `NotFound`, `SessionArchived`."""
        return await self._db.write(_change, id, title, model, options, now)

    async def purge(self, *, archived_before: float, limit: int = 100) -> int:
        """Deletes sessions that were archived before a time and in which nothing goes on; how many.

        Their runs are no longer kept by them, and go when their own time has come.
        """
        gone = 0
        for row in await self._db.read("sessions_to_purge", before=archived_before, count=limit):
            with contextlib.suppress(NotFound, SessionBusy):  # somebody else was faster
                await self.delete(row["id"])
                gone += 1
        return gone

    async def search(
        self, namespace: str, text: str, *, user: str | None = None, id: str = "", limit: int = 20
    ) -> list[FoundTurn]:
        """Lists turns in which all words of a text were said, the newest first: of a namespace, a user, a session."""
        scope = scope_of("", "", id) if id else scope_of(namespace) if user is None else scope_of(namespace, user)
        if not (words := asked(text, scope)):
            return []
        found = await self._db.read(
            "session_search",
            words=words,
            namespace=namespace,
            mine=int(user is not None),
            user_name=user or "",
            id=id,
            count=limit,
        )
        return [
            FoundTurn(row["id"], row["title"], row["number"], row["run_id"], row["ended_at"] or 0.0) for row in found
        ]

    async def delete(self, id: str) -> None:
        """Deletes a session with its inputs; its runs stay. Raises `NotFound`, `SessionBusy` during a turn."""
        await self._db.write(_delete, id)

    async def invalidate(self, namespace: str, user: str, *, in_transaction: TransactionBody | None = None) -> None:
        """Marks what processes have warm for the sessions of a user as stale; their next turns are built anew."""
        await self._db.write(_invalidate, namespace, user, in_transaction)

    async def staleness(self, namespace: str, user: str) -> int:
        """Returns how often what is warm for the sessions of a user was marked as stale."""
        found = await self._db.read("session_staleness_get", namespace=namespace, user_name=user)
        return found[0]["stale"] if found else 0

    async def get(self, id: str) -> Session:
        """Raises `NotFound`."""
        found = await self._db.read("session_get", id=id)
        if not found:
            raise _missing(id)
        return _session(found[0])

    async def marks(self, ids: Iterable[str]) -> dict[str, SessionMark]:
        """Returns the marks of those of these sessions that there are: a mark changes with its session."""
        found = await self._db.read("session_marks", ids=msgspec.json.encode(sorted(ids)).decode())
        return {row["id"]: _mark(row) for row in found}

    async def active(self, place: Place) -> Session | None:
        """Returns the active session of a place."""
        found = await self._db.read("session_channel_get", **_place(place))
        return await self.get(found[0]["active"]) if found and found[0]["active"] else None

    async def list(
        self,
        namespace: str,
        *,
        agent: str = "",
        user: str = "",
        channel: str = "",
        kind: SessionKind | str = "",
        archived: bool = False,
        limit: int = 50,
        mine: bool = False,
        before: tuple[float, int] | None = None,
    ) -> list[Session]:
        """Lists sessions, the last used first; `before` is when the last one already seen was used, and its key.

        A blank `user` is anybody, unless `mine`.
        """
        # One query for each index: a text that holds for any of them would be answered by reading every session.
        given = {
            "namespace": namespace,
            "channel": channel,
            "kind": kind,
            "archived": int(archived),
            "before_at": float(_END) if before is None else before[0],
            "before_key": _END if before is None else before[1],
            "count": limit,
        }
        if user or mine:
            found = await self._db.read("session_list_of_user", user_name=user, agent=agent, **given)
        elif agent:
            found = await self._db.read("session_list_of_agent", agent=agent, **given)
        else:
            found = await self._db.read("session_list", **given)
        return [_session(row) for row in found]

    # --- turns ---------------------------------------------------------------------------------------------------

    async def turns(self, session: Session, *, limit: int = 50, before: int | None = None) -> list[Turn]:
        """Lists the turns of a session, the newest first."""
        found = await self._db.read(
            "session_turns", session=session.key, before=_END if before is None else before, count=limit
        )
        return [_turn(row) for row in found]

    async def path(self, session: Session, *, down_to: int = 0) -> frozenset[int]:
        """Returns the numbers of the newest turn, of the one that it goes on after, and so on back."""
        newest = session.turn or session.head
        found = await self._db.read("session_path", session=session.key, run_id=newest, down_to=down_to)
        return frozenset(row["number"] for row in found)

    async def turn_of(self, run_id: str) -> Turn | None:
        """Returns the turn that a run is."""
        found = await self._db.read("session_turn_of_run", run_id=run_id)
        return _turn(found[0]) if found else None

    async def unanswered(self, *, quiet_since: float, after: int = 0, limit: int = 100) -> list[tuple[int, str]]:
        """Lists sessions in which something waits to be answered and no turn is at work, by key: (key, id).

        Those in which something happened after `quiet_since` are left to whoever did that.
        """
        found = await self._db.read("sessions_unanswered", quiet_since=quiet_since, after=after, count=limit)
        return [(row["key"], row["id"]) for row in found]

    async def select(self, id: str, number: int, *, now: float) -> Session:
        """Makes a turn the head of its session: the next one goes on after it.

        Raises `NotFound`, `SessionArchived`, `SessionBusy` while a turn is at work.
        """
        return await self._db.write(_select, id, number, now)

    # --- inputs --------------------------------------------------------------------------------------------------

    async def say(
        self,
        id: str,
        new: NewInput,
        *,
        now: float,
        agent: AgentObject | None = None,
        in_transaction: TransactionBody | None = None,
    ) -> Said:
        """Stores an input, and lets the turn at work hear of it if its mode says so; `agent` as in `inbox_rules`.

        What `in_transaction` writes is stored with it; not when it was said before. Raises `NotFound`,
        `SessionArchived`, and `Conflict` when the inbox is full or the id belongs to other words.
        """
        return await self._db.write(_say, id, new, now, agent, in_transaction)

    async def waiting(self, session: Session) -> list[Input]:
        """Lists what is not answered yet, in the order of arrival."""
        found = await self._db.read("inbox_open", owner_kind="session", owner=session.key)
        return [input_of_row(row) for row in found]

    async def inputs(self, owner: int, *, kind: OwnerKind = "session", after: int = 0, limit: int = 100) -> list[Input]:
        """Lists what was said to a session or a run, by the key of its row, in the order of arrival."""
        found = await self._db.read("inbox_list", owner_kind=kind, owner=owner, after=after, count=limit)
        return [input_of_row(row) for row in found]

    async def dropped(self, session: Session, place: str) -> Dropped:
        """Returns what had to make room in one place and stands in no turn yet."""
        found = await self._db.read("inbox_dropped", owner=session.key, place=place, count=MOST_LINES)
        if not found:
            return NONE_DROPPED
        newest = tuple(input_of_row(row) for row in reversed(found))
        counted = await self._db.read("inbox_dropped_count", owner=session.key, place=place, upto=newest[-1].seq)
        return Dropped(newest, counted[0]["dropped"])

    async def check(self, session: Session, new: NewInput, *, now: float, agent: AgentObject | None = None) -> bool:
        """Raises what `say` would raise at this moment, and stores nothing; whether the input is new."""
        known = await self._db.read("inbox_by_id", owner_kind="session", owner=session.key, id=new.id)
        if known:
            said_before(input_of_row(known[0]), new)
            return False
        found = await self._db.read("inbox_waiting", owner_kind="session", owner=session.key)
        rules = await self.rules(session, agent) if found else InboxOptions()
        _check_room(session, _arriving(session, new, now), list(map(_waiting, found)), rules)
        return True

    async def rules(self, session: Session, agent: AgentObject | None = None) -> InboxOptions:
        """Returns the rules of a session's inbox at this moment; see `inbox_rules`."""
        return await read_inbox_rules(self._db, session, agent)

    async def drop_waiting(self, id: str, *, reason: str = CANCELLED) -> str:
        """Takes out what no turn has answered; returns the turn at work, blank for none. Raises `NotFound`.

        What that turn was offered and does not take goes when it ends. No turn begins with any of it from now on.
        """
        return await self._db.write(_drop_waiting, id, reason)


def begin_turn(
    session: Session,
    run_id: str,
    inputs: Sequence[int],
    *,
    now: float,
    parent: int | None = None,
    title: str = "",
    summarised: Dropped = NONE_DROPPED,
) -> LockingBody:
    """Returns what the creation of a run that is a turn does to its session; for `Journal.create`.

    `session` is what was read when it was decided; `inputs` are the numbers of what the turn answers. Raises
    `SessionBusy` when another turn began meanwhile, or one of the inputs is taken. `parent` is the number of the turn
    that it goes on after, by default the head. A session without a title gets this one. `summarised` are inputs
    that had to make room, of which the turn has a line each.
    """

    def locks() -> Tx[None]:
        there = yield from one("session_lock", id=session.id)
        if there is None:
            raise _missing(session.id)
        if there["turn"] is not None or (there["turns"], there["head"] or "") != (session.turns, session.head):
            raise SessionBusy(f"another turn of session {session.id} began meanwhile")

    def then() -> Tx[None]:
        yield from run("session_begin_turn", key=session.key, run_id=run_id, at=now)
        above = parent
        if above is None:
            head = (yield from one("session_turn_of_run", run_id=session.head)) if session.head else None
            above = head["number"] if head is not None else 0
        yield from run(
            "session_turn_add", session=session.key, number=session.turns + 1, run_id=run_id, parent=above, at=now
        )
        for seq in inputs:
            if not (yield from _consume("session", session.key, seq, run_id)):
                raise SessionBusy(f"input {seq} of session {session.id} is answered already")
        if summarised.newest:
            last = summarised.newest[-1]
            given = {"owner": session.key, "place": last.place, "upto": last.seq, "run_id": run_id}
            if (yield from run("inbox_summarised", **given)) != summarised.count:
                raise SessionBusy(f"inputs of session {session.id} were summarised already")
        if title:
            yield from run("session_title", key=session.key, title=title)

    return LockingBody(locks, then)


def end_turn(
    session_id: str, run_id: str, taken: Sequence[str], *, now: float, texts: Sequence[str] = (), finished: bool = True
) -> LockingBody:
    """Returns what the end of a run that is a turn does to its session; for the append of its last event.

    `taken` are the ids of the inputs that entered its transcript. What it was offered besides waits again. `texts` are
    what was said in it, for searches. One that is not `finished` takes no answer out of the conversation: when it was
    to answer again what a finished turn has answered, that one stays the head.
    """

    def locks() -> Tx[None]:
        yield from rows("session_lock", id=session_id)

    def then() -> Tx[None]:
        there = yield from one("session_get", id=session_id)
        if there is None or there["turn"] != run_id:
            return  # the session was deleted
        offered = [each for each in (yield from open_inputs("session", there["key"])) if each.offered]
        by_id = {input_id(session_id, each.seq): each.seq for each in offered}
        heard = frozenset(by_id[each] for each in taken if each in by_id)
        # Whatever people said while it worked stays in the conversation.
        kept = not finished and not heard and (yield from _answered_before(there["head"], run_id))
        yield from run(
            "session_end_turn", key=there["key"], run_id=run_id, head=there["head"] if kept else run_id, at=now
        )
        yield from run("session_turn_end", run_id=run_id, at=now)
        if texts:
            yield from _index(_session(there), run_id, texts)
        after = after_turn(offered, heard)
        for seq in after.answered:
            yield from _consume("session", there["key"], seq, run_id, steered=True)
        for seq in after.dropped:
            yield from _drop(there["key"], seq, CANCELLED)
        yield from deliver_answer(run_id, there["namespace"], now)
        for each in after.back:
            yield from run(
                "inbox_back", owner_kind="session", owner=there["key"], seq=each.seq, steered=int(each.steered)
            )

    return LockingBody(locks, then)


def tell_of_wait(turn: str, namespace: str, key: str, text: str, *, now: float) -> TransactionBody:
    """Returns what is stored when a turn, or a run below it, waits for somebody: a notice for who gets its answer.

    A run of another `namespace` than the session's tells nobody: what it asks is decided there.
    """

    def body() -> Tx[None]:
        there = yield from one("session_of_turn", run_id=turn)
        if there is not None and there["namespace"] == namespace:
            yield from deliver_notice(turn, key, namespace, text, now)

    return body


def _answered_before(head: str | None, run_id: str) -> Tx[bool]:
    """Whether a turn was to answer again what the branch of the head has answered: it goes on after an earlier one."""
    before = (yield from one("session_turn_of_run", run_id=head)) if head else None
    turn = yield from one("session_turn_of_run", run_id=run_id)
    if before is None or turn is None or before["number"] == turn["parent"]:
        return False
    ended = yield from one("run_get", id=head)
    return ended is not None and ended["phase"] == "succeeded"


def _index(session: Session, run_id: str, texts: Sequence[str]) -> Tx[None]:
    turn = yield from one("session_turn_of_run", run_id=run_id)
    if turn is not None:
        place = session.place
        scopes = scope_of(place.namespace), scope_of(place.namespace, place.user), scope_of("", "", session.id)
        yield from run("session_words_add", key=turn["key"], words=indexed(texts, scopes))


def input_id(session_id: str, seq: int) -> str:
    """Returns the id under which a turn hears of an input."""
    return f"{session_id}/{seq}"


# --- transactions ------------------------------------------------------------------------------------------------


def _create(new: NewSession, now: float) -> Tx[Session]:
    yield from _lock_place(new.place)
    return (yield from _add(new, now))


def _resolve(new: NewSession, now: float) -> Tx[tuple[Session, bool]]:
    active = yield from _lock_place(new.place)
    there = (yield from one("session_get", id=active)) if active else None
    if there is not None and there["archived_at"] is None:
        return _session(there), False
    return (yield from _add(new, now)), True


def _rotate(new: NewSession, now: float) -> Tx[Session]:
    active = yield from _lock_place(new.place)
    there = (yield from one("session_lock", id=active)) if active else None
    if there is not None:
        yield from run("session_archive", key=there["key"], at=now)
    return (yield from _add(new, now))


def _archive(id: str, now: float) -> Tx[Session]:
    there = yield from one("session_get", id=id)
    if there is None:
        raise _missing(id)
    place = _session(there).place
    active = yield from _lock_place(place)
    there = yield from one("session_lock", id=id)
    if there is None:
        raise _missing(id)
    yield from run("session_archive", key=there["key"], at=now)
    if active == id:
        yield from run("session_channel_set", active=None, **_place(place))
    return (yield from _again(id))


def _change(id: str, title: str | None, model: str | None, options: dict[str, Any] | None, now: float) -> Tx[Session]:
    there = yield from _locked(id)
    yield from run(
        "session_set",
        key=there.key,
        title=there.title if title is None else title,
        model=there.model if model is None else model,
        options=msgspec.json.encode(there.options if options is None else options).decode(),
        active_at=now,
    )
    return (yield from _again(id))


def _invalidate(namespace: str, user: str, in_transaction: TransactionBody | None) -> Tx[None]:
    yield from run("session_staleness_add", namespace=namespace, user_name=user)
    if in_transaction is not None:
        yield from in_transaction()


def _delete(id: str) -> Tx[None]:
    there = yield from one("session_get", id=id)
    if there is None:
        raise _missing(id)
    place = _session(there).place
    active = yield from _lock_place(place)
    locked = yield from one("session_lock", id=id)
    if locked is None:
        raise _missing(id)
    if locked["turn"] is not None:
        raise SessionBusy(f"a turn of session {id} is at work: run {locked['turn']}", hint="stop it first")
    if active == id:
        yield from run("session_channel_set", active=None, **_place(place))
    yield from run("inbox_clear", owner_kind="session", owner=locked["key"])
    yield from run("session_words_delete", key=locked["key"])
    yield from run("session_turns_delete", key=locked["key"])
    yield from run("asset_drop", session=locked["key"])
    yield from run("session_delete", key=locked["key"])


def _select(id: str, number: int, now: float) -> Tx[Session]:
    there = yield from _locked(id)
    if there.turn:
        raise SessionBusy(f"a turn of session {id} is at work: run {there.turn}", hint="wait for its end, or stop it")
    turn = yield from one("session_turn_get", session=there.key, number=number)
    if turn is None:
        raise NotFound(f"session {id} has no turn {number}", hint="the history of the session numbers them")
    yield from run("session_select", key=there.key, run_id=turn["run_id"], at=now)
    return (yield from _again(id))


def _say(
    id: str, new: NewInput, now: float, agent: AgentObject | None, in_transaction: TransactionBody | None = None
) -> Tx[Said]:
    taken = (yield from take_message(new.once, id, now)) if new.once is not None else None
    if taken is not None and taken.target != id:
        return _said_elsewhere(taken)
    there = yield from one("session_lock", id=id)
    if there is None:
        raise _missing(id)
    session = _session(there)
    if (known := (yield from one("inbox_by_id", owner_kind="session", owner=session.key, id=new.id))) is not None:
        before = input_of_row(known)
        if taken is not None:  # by the id of the message it is the same, whatever has changed in how it is said
            new = msgspec.structs.replace(new, digest=before.digest)
        elif new.once is not None:
            yield from end_message(new.once, before.seq, before.outcome)
        return _said_again(session, before, new)
    if taken is not None:
        return _said_elsewhere(taken)
    if new.answer is not None:
        return (yield from _answer(session, new, new.answer, now, in_transaction))
    waiting = yield from open_inputs("session", session.key)
    rules = (yield from inbox_rules(session, agent)) if waiting else InboxOptions()
    arriving = _arriving(session, new, now)
    _check_room(session, arriving, waiting, rules)
    turn = (yield from one("run_get", id=session.turn)) if session.turn else None
    phase = phase_of(session.turn, waiting, for_person=turn is not None and turn["phase"] == "waiting")
    arrival, seq = arrive(arriving, waiting, phase, rules), arriving.seq
    if new.once is not None:
        yield from end_message(new.once, seq, arrival.outcome)
    yield from run("session_arrived", key=session.key, arrivals=seq, at=now)
    yield from add_input("session", session.key, seq, new, arrival, now, session.turn)
    for dropped in arrival.dropped:
        yield from _drop(session.key, dropped, RESHAPED, summarize=rules.drop == "summarize")
    said = Said(seq, arrival.outcome, run_id=session.turn, dropped=arrival.dropped)
    heard: Event | None = None
    if arrival.act == "start":
        said = msgspec.structs.replace(said, act="start")
    elif arrival.act == "offer":
        # A turn only hears it: what is to be answered as well has a turn of its own afterwards.
        others = tuple(new.details.get(ORDERED_BY, ()))
        heard = InputReceived(input_id(id, seq), new.message, "steer", new.by, seq, others)
    elif arrival.act == "stop":
        heard = CancelRequested(by=new.by, reason=INTERRUPTED)
    if heard is not None:
        yield from add_signal(Signal(input_id(id, seq), session.turn, now, type_of(heard), encode(heard)))
        said = msgspec.structs.replace(said, act="wake")
    if in_transaction is not None:
        yield from in_transaction()
    return said


def _answer(
    session: Session, new: NewInput, answer: InputAnswer, now: float, in_transaction: TransactionBody | None
) -> Tx[Said]:
    """Stores an input that answers a question of the turn at work. Raises `QuestionClosed` when it no longer does."""
    if session.archived_at is not None:
        raise _archived(session.id)
    if session.turn != answer.turn:
        raise QuestionClosed(f"the turn of session {session.id} that asked is over")
    yield from answer_question(answer)
    seq = session.arrivals + 1
    if new.once is not None:
        yield from end_message(new.once, seq, "direct")
    yield from run("session_arrived", key=session.key, arrivals=seq, at=now)
    yield from add_input("session", session.key, seq, new, Arrival("direct", "offer"), now, session.turn, heard=True)
    if in_transaction is not None:
        yield from in_transaction()
    return Said(seq, "direct", act="wake", run_id=session.turn)


def answer_question(answer: InputAnswer) -> Tx[None]:
    """Stores the answer to a question, with its record. Raises `QuestionClosed` when the question is not open."""
    first = yield from add_signal(answer.signal)
    asker = yield from one("run_get", id=answer.signal.run_id)
    fence = (yield from one("run_fence", key=asker["key"])) if asker is not None else None
    if not first or fence is None or fence["last_seq"] != answer.seq:
        raise QuestionClosed(f"the question of run {answer.signal.run_id} was answered meanwhile")
    if answer.record is not None:
        yield from answer.record()


def _drop(owner: int, seq: int, reason: str, *, summarize: bool = False) -> Tx[None]:
    """Takes an input of a session out; `summarize` keeps the line of it that stands before the next turn."""
    line: bytes | None = None
    if summarize:
        row = yield from one("inbox_message", owner=owner, seq=seq)
        if row is not None and row["message"] is not None:
            line = msgspec.json.encode(user_message(line_of(_messages.decode(row["message"]))))
    yield from run("inbox_drop", owner=owner, seq=seq, reason=reason, line=line)


def said_before(known: Input, new: NewInput) -> Said:
    """Returns what became of an input that is said again. Raises `Conflict` when it was said in other words."""
    if known.digest != _short(new.digest):
        raise OtherWords(
            f"the input {new.id!r} was said before, in other words", hint="give each input a key of its own"
        )
    return Said(known.seq, known.outcome, run_id=known.run_id, again=True)


def _short(digest: str) -> str:
    """Returns as much of a digest as tells the words of one input from others: 128 bits."""
    return digest.removeprefix("sha256:")[:32]


def _said_again(session: Session, known: Input, new: NewInput) -> Said:
    """Returns what became of an input, and what is left to do: whoever stored it may have died before doing it."""
    said = said_before(known, new)
    if known.status not in ("pending", "offered"):
        return said
    return msgspec.structs.replace(said, act="wake" if session.turn else "start", run_id=session.turn)


def _said_elsewhere(taken: Taken) -> Said:
    return Said(taken.seq, cast("Outcome", taken.outcome), again=True, session=taken.target)


def _arriving(session: Session, new: NewInput, now: float) -> Waiting:
    return Waiting(session.arrivals + 1, new.mode, now, new.place, size=len(msgspec.json.encode(new.message)))


def _check_room(session: Session, arriving: Waiting, waiting: Sequence[Waiting], options: InboxOptions) -> None:
    """Raises what keeps a session from taking an input: that does not depend on its turn."""
    if session.archived_at is not None:
        raise _archived(session.id)
    if refused := arrive(arriving, waiting, "working", options).refused:
        raise InboxFull(refused, hint="wait for the turn at work to end, or stop it")


def add_input(
    kind: OwnerKind,
    owner: int,
    seq: int,
    new: NewInput,
    arrival: Arrival,
    now: float,
    run_id: str,
    *,
    heard: bool = False,
) -> Tx[None]:
    """Stores the row of an input. The row of its owner is locked by now, and gave it the number.

    `run_id` is the run at work: the row names it if the run hears of the input, or is to end by it. One that it has
    `heard` waits for nothing more.
    """
    offered = arrival.act == "offer"
    yield from run(
        "inbox_add",
        owner_kind=kind,
        owner=owner,
        seq=seq,
        id=new.id,
        mode=new.mode,
        message=msgspec.json.encode(new.message),
        digest=_short(new.digest),
        by_name=new.by,
        place=new.place,
        details=msgspec.json.encode(new.details).decode(),
        status="consumed" if heard else "offered" if offered else "pending",
        outcome=arrival.outcome,
        run_id=run_id if arrival.act in ("offer", "stop") else None,
        at=now,
    )


def _drop_waiting(id: str, reason: str) -> Tx[str]:
    there = yield from one("session_lock", id=id)
    if there is None:
        raise _missing(id)
    yield from run("inbox_drop_pending", owner=there["key"], reason=reason)
    # It may be in the conversation of the turn by now: the end of the turn decides.
    yield from run("inbox_cancel_offered", owner=there["key"], reason=reason)
    yield from run("inbox_forget_dropped", owner=there["key"])
    return there["turn"] or ""


def _consume(kind: OwnerKind, owner: int, seq: int, run_id: str, *, steered: bool = False) -> Tx[bool]:
    given = {"owner_kind": kind, "owner": owner, "seq": seq, "run_id": run_id, "steered": int(steered)}
    return bool((yield from run("inbox_consume", **given)))


def open_inputs(kind: OwnerKind, owner: int) -> Tx[list[Waiting]]:
    """Returns what is not answered yet, as far as the rules need it: without the messages."""
    return [_waiting(row) for row in (yield from rows("inbox_waiting", owner_kind=kind, owner=owner))]


def _lock_place(place: Place) -> Tx[str]:
    """Locks the row of a place, and returns its active session; blank for none."""
    yield from run("session_channel_add", **_place(place))
    row = yield from one("session_channel_lock", **_place(place))
    assert row is not None, "rows of places are never deleted"
    return row["active"] or ""


def _add(new: NewSession, now: float) -> Tx[Session]:
    row = yield from one(
        "session_add",
        id=new.id,
        kind=new.kind,
        title=new.title,
        model=new.model,
        options=msgspec.json.encode(new.options).decode(),
        at=now,
        **_place(new.place),
    )
    if row is None:
        raise Conflict(f"the session id {new.id!r} is taken", hint="choose another id")
    yield from run("session_channel_set", active=new.id, **_place(new.place))
    return (yield from _again(new.id))


def _locked(id: str) -> Tx[Session]:
    row = yield from one("session_lock", id=id)
    if row is None:
        raise _missing(id)
    if row["archived_at"] is not None:
        raise _archived(id)
    return _session(row)


def _again(id: str) -> Tx[Session]:
    row = yield from one("session_get", id=id)
    assert row is not None, "it is locked, or was just made"
    return _session(row)


def _missing(id: str) -> NotFound:
    error = NotFound(f"there is no session {id!r}", hint="`foliot sessions` lists them")
    error.details["session"] = id
    return error


def _archived(id: str) -> SessionArchived:
    return SessionArchived(f"session {id} is archived", hint="begin another one")


def _place(place: Place) -> dict[str, str]:
    return {
        "namespace": place.namespace,
        "agent": place.agent,
        "user_name": place.user,
        "channel": place.channel,
    }


def _session(row: Row) -> Session:
    return Session(
        row["key"],
        row["id"],
        Place(row["namespace"], row["agent"], row["user_name"], row["channel"]),
        row["kind"],
        row["title"],
        row["model"],
        msgspec.json.decode(row["options"]),
        row["created_at"],
        row["active_at"],
        row["archived_at"],
        row["head"] or "",
        row["turn"] or "",
        row["turns"],
        row["arrivals"],
    )


def _mark(row: Row) -> SessionMark:
    return SessionMark(row["head"] or "", row["turn"] or "", row["turns"], row["arrivals"], row["active_at"])


def _turn(row: Row) -> Turn:
    return Turn(row["number"], row["run_id"], row["parent"], row["began_at"], row["ended_at"])


def _waiting(row: Row) -> Waiting:
    offered, mode = row["status"] == "offered", row["mode"]
    return Waiting(
        row["seq"],
        mode,
        row["at"],
        row["place"],
        offered,
        bool(row["steered"]),
        stops=(row["run_id"] or "") if mode == "interrupt" else "",
        cancelled=offered and row["reason"] == CANCELLED,
        size=row["size"],
    )


def input_of_row(row: Row) -> Input:
    message = row["message"]
    return Input(
        row["seq"],
        row["id"],
        row["mode"],
        None if message is None else _messages.decode(message),
        row["digest"],
        row["by_name"],
        row["place"],
        msgspec.json.decode(row["details"]),
        row["status"],
        bool(row["steered"]),
        row["outcome"],
        row["reason"],
        row["run_id"] or "",
        row["at"],
    )
