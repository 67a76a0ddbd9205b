"""Sessions for whoever has a conversation: created, found again, spoken to, searched, stopped.

Every verb asks on whose behalf it is called: what belongs to another user does not exist for the caller. `identity`
None is the process of the operator. What is said is stored first, and only then a turn begins or hears it (keeper.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast, get_args

import msgspec
from msgspec.structs import replace

from foliot.common.cursors import read_cursor, write_cursor
from foliot.common.pages import Part
from foliot.common.suggestions import check_word, suggestion
from foliot.engine.approval.questions import PreparedAnswer, Questions
from foliot.engine.base import Clock
from foliot.engine.driver.ids import new_run_id
from foliot.engine.driver.journal import Specs, signal, storable
from foliot.engine.workspaces.assets import Assets
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.identity import Identity, is_name
from foliot.kernel.inbox import MODES, mode_of, mode_problem
from foliot.kernel.messages import Media, Message
from foliot.kernel.routing import attachments_problem
from foliot.kernel.run.events import CompactionRequested
from foliot.kernel.run.spec import digest
from foliot.sessions.base import Found, TurnOptions, TurnRuns, TurnView
from foliot.sessions.checks import (
    check_options,
    check_place,
    check_session_id,
    check_texts,
    check_title,
    check_turn_options,
)
from foliot.sessions.content import ASSETS, SessionFiles, kept_message
from foliot.sessions.history import excerpt_of, messages_of_turn, question_of, said_in
from foliot.sessions.keeper import TurnKeeper
from foliot.sessions.turns import details_of, message_of, options_of, over, said_details
from foliot.store.base import Database
from foliot.store.journal.base import Journal, TransactionBody
from foliot.store.sessions.assets import SqlAssets
from foliot.store.sessions.base import (
    Input,
    InputAnswer,
    NewInput,
    NewSession,
    Place,
    QuestionClosed,
    Said,
    Session,
    SessionArchived,
    SessionBusy,
    SessionKind,
)
from foliot.store.sessions.database import SqlSessions, input_id
from foliot.store.sessions.inbox_rules import AgentObject
from foliot.store.taken import MessageKey

log = logging.getLogger(__name__)

STOPPED: Final = "stopped"
_CURSOR: Final = "sessions"
# Others may answer what a turn asks while something is said to it.
TRIES: Final = 20


class SessionService:
    """The sessions of an installation, as one process serves them."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        turns: TurnRuns,
        *,
        clock: Clock,
        new_id: Callable[[float], str] = new_run_id,
        questions: Questions | None = None,
    ) -> None:
        self._questions = questions or Questions(journal, clock=clock)
        self.store = SqlSessions(database)
        stored = SqlAssets(database)
        self.assets = Assets(journal, stored, clock=clock)
        self.files = SessionFiles(journal, self.store, stored)
        self._journal = journal
        self._specs = Specs()
        self._turns = turns
        self._clock = clock
        self._new_id = new_id
        self.keeper = TurnKeeper(self.store, turns, clock=clock, new_id=new_id, masker=self._questions.masker)

    # --- sessions ------------------------------------------------------------------------------------------------

    async def create(
        self,
        place: Place,
        *,
        identity: Identity | None,
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Creates a session, which is active in its place from then on.

        Raises `Conflict` when the id is taken, `NotFound` for an agent that is not there, or another user's place.
        """
        new = await self._new(place, identity, id, kind, title, model, options)
        return await self.store.create(new, now=self._clock())

    async def resolve(
        self,
        place: Place,
        *,
        identity: Identity | None,
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Returns the active session of a place, or creates it; of many who ask at once all get the same one."""
        new = await self._new(place, identity, id, kind, title, model, options)
        session, _ = await self.store.resolve(new, now=self._clock())
        return session

    async def rotate(
        self,
        place: Place,
        *,
        identity: Identity | None,
        id: str | None = None,
        kind: SessionKind = "chat",
        title: str = "",
        model: str = "",
        options: dict[str, Any] | None = None,
    ) -> Session:
        """Archives the active session of a place, if there is one, and creates another, in one transaction."""
        new = await self._new(place, identity, id, kind, title, model, options)
        return await self.store.rotate(new, now=self._clock())

    async def archive(self, id: str, *, identity: Identity | None, namespace: str = "") -> Session:
        """Archives a session: it takes nothing new, and answers what waits. Raises `NotFound`."""
        await self.get(id, identity=identity, namespace=namespace)
        return await self.store.archive(id, now=self._clock())

    async def active(self, place: Place, *, identity: Identity | None) -> Session | None:
        """Returns the active session of a place."""
        return await self.store.active(_own_place(place, identity))

    async def get(self, id: str, *, identity: Identity | None, namespace: str = "") -> Session:
        """Returns a session of the caller, in a namespace if one is given. Raises `NotFound` for what is not theirs."""
        if not isinstance(cast("object", id), str):
            raise InvalidInput(f"the id of a session is a text, and not {type(id).__name__}")
        session = await self.store.get(id)
        foreign = identity is not None and identity.user != session.place.user
        if foreign or (namespace and session.place.namespace != namespace):
            raise NotFound(f"there is no session {id!r}", hint="`foliot sessions` lists them")
        return session

    async def list(
        self,
        namespace: str,
        *,
        identity: Identity | None,
        agent: str = "",
        user: str = "",
        channel: str = "",
        kind: SessionKind | str = "",
        archived: bool = False,
        limit: int = 50,
        cursor: str = "",
    ) -> Part[Session]:
        """Lists sessions, the last used first; those of the caller, or of a `user` for the operator."""
        before = read_cursor(cursor, tuple[float, int], kind=_CURSOR) if cursor else None
        found = await self.store.list(
            namespace,
            agent=agent,
            user=user if identity is None else identity.user,
            mine=identity is not None,
            channel=channel,
            kind=kind,
            archived=archived,
            limit=limit + 1,
            before=before,
        )
        page = found[:limit]
        last = page[-1] if len(found) > limit else None
        return Part(page, None if last is None else write_cursor((last.active_at, last.key), kind=_CURSOR))

    async def change(
        self,
        id: str,
        *,
        identity: Identity | None,
        title: str | None = None,
        model: str | None = None,
        options: dict[str, Any] | None = None,
        namespace: str = "",
    ) -> Session:
        """Changes what is given. A turn at work keeps its model, the next one has the new. Raises `NotFound`."""
        session = await self.get(id, identity=identity, namespace=namespace)
        if model:
            await self._turns.check(session.place.namespace, session.place.agent, model)
        return await self.store.change(
            id,
            title=None if title is None else check_title(title),
            model=model,
            options=None if options is None else check_options(options),
            now=self._clock(),
        )

    async def invalidate(self, namespace: str, user: str, *, in_transaction: TransactionBody | None = None) -> None:
        """Marks what is warm for the sessions of a user as stale, in all processes; no turn at work is touched.

        The next turn of the user in each process is built anew. What `in_transaction` writes is stored with it. Raises
        `InvalidInput` for what is no name of a user.
        """
        if not is_name(user):
            raise InvalidInput(f"{user[:80]!r} cannot be the name of a user", field="user")
        await self.store.invalidate(namespace, user, in_transaction=in_transaction)

    async def delete(self, id: str, *, identity: Identity | None, namespace: str = "") -> None:
        """Deletes a session, and what was not answered. Raises `NotFound`, `SessionBusy` during a turn."""
        await self.get(id, identity=identity, namespace=namespace)
        await self.store.delete(id)

    async def search(
        self,
        namespace: str,
        text: str,
        *,
        identity: Identity | None,
        session: str | None = None,
        limit: int = 20,
    ) -> Sequence[Found]:
        """Searches what was said in the caller's sessions, the newest first."""
        if session is not None:
            await self.get(session, identity=identity, namespace=namespace)
        user = None if identity is None else identity.user
        turns = await self.store.search(namespace, text, user=user, id=session or "", limit=limit)
        found: list[Found] = []
        for turn in turns:
            with contextlib.suppress(NotFound, Conflict):  # purged meanwhile
                said = excerpt_of(await messages_of_turn(self._journal, self._specs, turn.run_id), text)
                if said is not None:
                    role, excerpt = said
                    found.append(Found(turn.session, turn.title, turn.number, turn.run_id, role, excerpt, turn.at))
        return found

    async def history(
        self,
        id: str,
        *,
        identity: Identity | None,
        before: int | None = None,
        limit: int = 50,
        namespace: str = "",
    ) -> Sequence[TurnView]:
        """Returns turns with their messages, the newest last, of all branches; `before` is the number of a turn."""
        session = await self.get(id, identity=identity, namespace=namespace)
        turns = await self.store.turns(session, limit=limit, before=before)
        infos = {info.id: info for info in await self._journal.many([turn.run_id for turn in turns])}
        current = await self.store.path(session, down_to=turns[-1].number if turns else 0)
        return [
            TurnView(
                turn.number,
                turn.run_id,
                turn.parent,
                turn.began_at,
                turn.ended_at,
                infos[turn.run_id].phase,
                await messages_of_turn(self._journal, self._specs, turn.run_id),
                turn.number in current,
            )
            for turn in reversed(turns)
            if turn.run_id in infos
        ]

    async def inputs(
        self, id: str, *, identity: Identity | None, after: int = 0, limit: int = 100, namespace: str = ""
    ) -> Sequence[Input]:
        """Returns what was said to a session, in the order of arrival, with what became of it. Raises `NotFound`."""
        session = await self.get(id, identity=identity, namespace=namespace)
        rows = await self.store.inputs(session.key, after=after, limit=limit)
        # Their words stand in the journals of the turns that have them, once.
        wanted: dict[str, dict[int, str]] = {}
        for row in rows:
            if row.message is None and row.status == "consumed":
                wanted.setdefault(row.run_id, {})[row.seq] = input_id(id, row.seq)
        said: dict[int, Message] = {}
        for run_id, numbers in wanted.items():
            with contextlib.suppress(NotFound, Conflict):  # purged meanwhile
                said |= await said_in(self._journal, run_id, numbers)
        return [replace(row, message=said.get(row.seq, row.message)) for row in rows]

    async def _new(
        self,
        place: Place,
        identity: Identity | None,
        id: str | None,
        kind: SessionKind,
        title: str,
        model: str,
        options: dict[str, Any] | None,
    ) -> NewSession:
        place = _own_place(place, identity)
        check_place(place)
        if id is not None:
            check_session_id(id)
        check_word("kind", kind, get_args(SessionKind))
        checked = check_options(options or {})
        await self._turns.check(place.namespace, place.agent, model)
        return NewSession(id or self._new_id(self._clock()), place, kind, check_title(title), model, checked)

    # --- speaking ------------------------------------------------------------------------------------------------

    async def say(
        self,
        id: str,
        message: Message | str,
        *,
        identity: Identity | None,
        mode: str = "followup",
        key: str | None = None,
        place: str = "",
        options: TurnOptions | None = None,
        details: dict[str, Any] | None = None,
        namespace: str = "",
        in_transaction: TransactionBody | None = None,
        once: MessageKey | None = None,
    ) -> Said:
        """Says something to a session; durable on return. It begins a turn, is heard by the one at work, or waits.

        While the turn at work asks something it is the answer, in every mode but `interrupt`; of several questions it
        begins with the number of one. The same `key` twice is one input, and gives the same outcome; `once` holds over
        all sessions: what was said before to another one is not said, and `session` names it. `place` is where it came
        from: inputs of two places are never answered together. When no turn can begin, `problem` says why, and it waits
        until one can. What `in_transaction` writes is stored with it.
        Raises `NotFound`, `SessionArchived`, `InvalidInput`, also for no answer to what is asked, and `Conflict` when
        the inbox is full, the key belongs to other words, or several things are asked and no number is given.
        """
        check_texts(mode=mode)
        word = mode_of(mode)
        if word is None:
            raise InvalidInput(mode_problem(mode), hint=suggestion(mode, MODES))
        said = message_of(message)
        if wrong := attachments_problem((details or {}).get("attachments") or ()):
            raise InvalidInput(wrong)
        check_texts(key=key or "", place=place)
        session = await self.get(id, identity=identity, namespace=namespace)
        if not session.turn:
            await self._turns.check_active(session.place)
        by = identity.actor if identity is not None and identity.actor != session.place.user else ""
        options = check_turn_options(options)
        kinds = [part.media_type for part in said.parts if isinstance(part, Media)]
        if kinds or options != TurnOptions():
            chosen = replace(options, model=options.model or session.model)
            await self._turns.check_turn(session.place, chosen, kinds)
        said, files, unsaved = await kept_message(said, session, self.assets)
        if files and word in ("steer", "steer-backlog"):
            word = "followup"  # files are in the folder of a turn that begins with them, not of one at work
        kept = details_of(identity, options, {**(details or {}), **({ASSETS: list(files)} if files else {})})
        with storable(f"what is said to session {id}"):
            what = digest(msgspec.json.encode((word, said, place, said_details(kept))))
        new = NewInput(key or self._new_id(self._clock()), word, said, what, by, place, kept, once)
        agent = self._turns.agent_object(session.place)
        if unsaved and await self.store.check(session, new, now=self._clock(), agent=agent):
            # Nothing is stored for words that are refused.
            for asset, content in unsaved:
                await self.assets.add(session.id, asset, content)
        outcome, asker = await self._store_input(session, new, identity, agent, in_transaction)
        if outcome.act == "start":
            return replace(outcome, problem=await self.keeper.begin_next(id, told=True))
        if outcome.act == "wake" or (outcome.run_id and not outcome.again):
            # Also one that only has to be taken up: its process may be gone.
            await self._turns.wake(asker or outcome.run_id)
        return outcome

    async def _store_input(
        self,
        session: Session,
        new: NewInput,
        identity: Identity | None,
        agent: AgentObject | None,
        in_transaction: TransactionBody | None,
    ) -> tuple[Said, str]:
        """Stores what is said: as the answer to what the turn at work asks, if it asks something, else as an input.

        Returns what became of it, and the run whose question it answers. An interrupt is never an answer. Raises as
        `say`.
        """
        for _ in range(TRIES):
            try:
                answer = await self._answer(session, new, identity)
            except (Conflict, InvalidInput):
                if await self.store.check(session, new, now=self._clock(), agent=agent):
                    raise
                answer = None  # it was said before, and was the answer then
            meant = new
            if answer is not None:
                meant = replace(new, answer=InputAnswer(session.turn, answer.signal, answer.seq, answer.body))
            try:
                said = await self.store.say(
                    session.id, meant, now=self._clock(), agent=agent, in_transaction=in_transaction
                )
            except QuestionClosed:
                session = await self.store.get(session.id)
                continue
            if answer is not None and not said.again:
                answer.record.tell()
                return replace(said, answered=answer.call), answer.signal.run_id
            return said, ""
        raise Conflict(f"session {session.id} changes too often", hint="try again", retryable=True)

    async def _answer(self, session: Session, new: NewInput, identity: Identity | None) -> PreparedAnswer | None:
        if not session.turn or new.mode == "interrupt":
            return None
        place = session.place
        text = new.message.text
        found = await self._questions.prepare(session.turn, place.namespace, text, by=place.user, actor=new.by)
        if found is not None and any(isinstance(part, Media) for part in new.message.parts):
            raise InvalidInput("a question is open, and its answer is text: no file was taken")
        return found

    async def stop(
        self,
        id: str,
        *,
        identity: Identity | None,
        drop: bool = False,
        wait: bool = True,
        namespace: str = "",
        turn: str = "",
    ) -> bool:
        """Stops the turn at work; returns when nothing of it acts any more, and whether there was one.

        What waits stays and is answered next; with `drop` it is taken out, and so is what the turn was offered and
        did not take: nothing that was said before begins a turn any more. With `turn` only this run is stopped, and no
        later one. Without `wait` it returns as soon as it is stored that the turn is to end. Raises `NotFound`, and
        `Unavailable` when it does not stop in time.
        """
        session = await self.get(id, identity=identity, namespace=namespace)
        at_work = await self.store.drop_waiting(id) if drop else session.turn
        if not at_work or turn not in ("", at_work):
            return False
        by = "" if identity is None else identity.actor
        await self._turns.cancel(at_work, by=by, reason=STOPPED, wait=wait)
        return True

    async def regenerate(
        self,
        id: str,
        *,
        identity: Identity | None,
        options: TurnOptions | None = None,
        namespace: str = "",
    ) -> Said:
        """Answers again what the newest turn has answered; the earlier answer stays as a branch of the conversation.

        The new turn has the options of the earlier one, but for those that are given here. `run_id` is the new turn.
        Raises `NotFound`, `SessionArchived`, `SessionBusy` while a turn is at work, `Conflict` when nothing was said.
        """
        session = await self.get(id, identity=identity, namespace=namespace)
        if session.archived_at is not None:
            raise SessionArchived(f"session {id} is archived", hint="begin another one")
        if session.turn:
            raise SessionBusy(f"a turn of session {id} is at work: run {session.turn}", hint="stop it first")
        head = await self.store.turn_of(session.head) if session.head else None
        if head is None:
            raise Conflict(f"nothing was said to session {id} yet", hint="say something first")
        asked = await question_of(self._journal, head.run_id)
        while asked.compacts and head.parent:
            (head,) = await self.store.turns(session, limit=1, before=head.parent + 1)
            asked = await question_of(self._journal, head.run_id)
        rows = [row for seq in asked.inputs for row in await self.store.inputs(session.key, after=seq - 1, limit=1)]
        given = check_turn_options(options)
        chosen = over(options_of(session, rows), given)
        if given != TurnOptions():
            await self._turns.check_turn(session.place, chosen, ())
        run_id = await self.keeper.begin(
            session,
            asked.messages,
            identity=asked.identity if identity is None else asked.identity.also_ordered_by(*identity.people),
            options=chosen,
            again=asked.inputs,
            after=asked.after,
            parent=head.parent,
            instead=head.run_id,
        )
        return Said(asked.inputs[-1] if asked.inputs else 0, "direct", run_id=run_id)

    async def compact(self, id: str, *, identity: Identity | None, namespace: str = "") -> Said:
        """Compacts the conversation of a session: its older messages are sent as a summary, and stay readable.

        The turn at work does so before its next question. Otherwise it is a turn of its own, which answers nothing and
        whose output says what came of it. `run_id` is that turn. Raises `NotFound`, `SessionArchived`, `SessionBusy`
        when a turn began or ended just now, `Conflict` when there is nothing yet that a summary could replace.
        """
        session = await self.get(id, identity=identity, namespace=namespace)
        if session.archived_at is not None:
            raise SessionArchived(f"session {id} is archived", hint="begin another one")
        by = identity.actor if identity is not None else ""
        if session.turn:
            try:
                await self._journal.signal(signal(session.turn, CompactionRequested(by), self._clock()))
            except Conflict:
                raise SessionBusy(f"a turn of session {id} is about to end", hint="try again") from None
            await self._turns.wake(session.turn)
            return Said(0, "queued", run_id=session.turn)
        if not session.head:
            raise Conflict(f"nothing was said to session {id} yet", hint="say something first")
        await self._turns.check_compaction(session.place, session.head)
        spoke = Identity(session.place.user, by=by if by != session.place.user else "")
        spoke = spoke if identity is None else spoke.also_ordered_by(*identity.ordered_by)
        run_id = await self.keeper.begin(
            session,
            (),
            identity=spoke if identity is None else replace(spoke, via=identity.via),
            options=TurnOptions(model=session.model),
            compacts=True,
        )
        return Said(0, "direct", run_id=run_id)

    async def select_branch(self, id: str, turn: int, *, identity: Identity | None, namespace: str = "") -> Session:
        """Goes on after this turn from now on: what is said next continues its branch; the others stay readable.

        Raises `NotFound`, `SessionArchived`, `SessionBusy` while a turn is at work.
        """
        await self.get(id, identity=identity, namespace=namespace)
        return await self.store.select(id, turn, now=self._clock())

    async def close(self) -> None:
        """Begins no more turns."""
        await self.keeper.close()


def _own_place(place: Place, identity: Identity | None) -> Place:
    """The place of the caller. Raises `NotFound` for that of another user."""
    if identity is None or place.user == identity.user:
        return place
    if place.user:
        raise NotFound(f"there is no session of user {place.user!r} here", hint="leave the user out for your own")
    return replace(place, user=identity.user)
