"""Questions that runs ask people, and the one answer that each of them takes.

A question is a fact of its run's journal and nothing else: who wants to see the open ones reads what runs that wait
have asked in their last step. An answer is a signal whose id is made from the call, so of two at once the store keeps
one, and whoever gave the other is told. It waits in the store until somebody takes the run up.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct

from foliot.common.cursors import read_key, write_cursor
from foliot.common.pages import Part, read_all
from foliot.common.text import one_line, visible
from foliot.engine.approval.records import DecisionLog, DecisionRecord, call_document
from foliot.engine.driver.journal import load_run, signal
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.messages import Media
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import ApprovalRequested, QuestionAnswered, QuestionAsked, RunWaiting
from foliot.kernel.run.state import State
from foliot.store.journal.base import TERMINAL, DecidedBefore, Entry, Journal, RunInfo, Signal, TransactionBody
from foliot.tools.secrets.masking import Masker

# `2: on Friday`. A number without a mark and a blank behind it is part of an answer, such as `2 persons` and `2:30`.
_LABELLED: Final = re.compile(r"\s*#?([0-9]{1,3}|[A-Z2-7]{4})\s*[:.)]\s+(.*\S)\s*", re.DOTALL | re.IGNORECASE)
LONGEST_ANSWER: Final = 100_000
LONGEST_RESULT: Final = 1_000_000
AT_ONCE: Final = 500


class OpenQuestion(Struct, frozen=True):
    """A question that waits for its answer. `since` and `expires_at` are in seconds since 1970."""

    run_id: str
    call_id: str
    namespace: str
    agent: str
    tool: str
    question: str
    choices: tuple[str, ...] = ()
    default: str | None = None
    since: float = 0.0
    expires_at: float | None = None
    client: bool = False


def questions_of(state: State) -> list[OpenQuestion]:
    """Returns the open questions of a run."""
    return [
        _question(state.run_id, state.spec.namespace, state.spec.agent, asked, state.waiting_since)
        for call in state.calls
        if isinstance(asked := call.awaited, QuestionAsked)
    ]


def number_questions(state: State) -> dict[str, OpenQuestion]:
    """Returns the open questions of a run to people by number.

    The questions of a step keep their numbers when some of them are answered.
    """
    put = [call for call in state.calls if call.question is not None and not call.question.client]
    asked = {each.call_id: each for each in questions_of(state)}
    return {str(number): asked[call.id] for number, call in enumerate(put, 1) if call.id in asked}


def label_questions(states: Sequence[State]) -> dict[str, OpenQuestion]:
    """Returns the open questions of several runs by label: by number when one run asks, by a code when several do.

    A number would belong to another question as soon as one of the runs goes on; a code never does.
    """
    if len(states) == 1:
        return number_questions(states[0])
    asked = [each for state in states for each in number_questions(state).values()]
    return {_code(each): each for each in asked}


def _code(asked: OpenQuestion) -> str:
    named = sha256(f"{asked.run_id}\0{asked.call_id}".encode()).digest()
    return base64.b32encode(named).decode()[:4]


def list_questions(asked: Mapping[str, OpenQuestion]) -> str:
    """Shows questions with their choices, and with their labels where there are several."""
    shown: list[str] = []
    for label, each in asked.items():
        head = f"{label}: " if len(asked) > 1 else ""
        choices = (f"  {place}  {one_line(choice)}" for place, choice in enumerate(each.choices, 1))
        shown.append("\n".join((head + visible(each.question), *choices)))
    return "\n".join(shown)


def match_answer(asked: Mapping[str, OpenQuestion], text: str) -> tuple[OpenQuestion, str]:
    """Returns the question that a text answers, and the answer. Of several questions it begins with the label of one.

    Raises `Conflict` with all of them when it names none.
    """
    if len(asked) == 1:
        return next(iter(asked.values())), text
    found = _LABELLED.match(text)
    if found is None or (label := found[1].upper().lstrip("0")) not in asked:
        raise Conflict(
            f"several questions are open, and nothing was answered:\n{list_questions(asked)}",
            hint=f"begin the answer with what stands before its question, such as `{next(iter(asked))}: …`",
        )
    return asked[label], found[2]


def _questions_in(info: RunInfo, entries: Sequence[Entry]) -> list[OpenQuestion]:
    """Returns the same without a fold, for a run that waits: what it asked in its last step and nobody answered.

    `entries` are those of its events that say so (`Journal.asking`).
    """
    asked: dict[str, QuestionAsked] = {}
    since = 0.0
    for entry in entries:
        match decode(entry.data):
            case QuestionAsked() as question:
                asked[question.call_id] = question
            case QuestionAnswered(call_id=call_id):
                asked.pop(call_id, None)
            case RunWaiting():
                since = entry.at
            case ApprovalRequested():
                continue
            case _:
                asked.clear()  # the calls of the step before have their results
    return [_question(info.id, info.namespace, info.agent, each, since) for each in asked.values()]


def _question(run_id: str, namespace: str, agent: str, asked: QuestionAsked, since: float) -> OpenQuestion:
    return OpenQuestion(
        run_id,
        asked.call_id,
        namespace,
        agent,
        asked.tool,
        asked.question,
        asked.choices,
        asked.default,
        since,
        asked.expires_at,
        asked.client,
    )


def find_question(info: RunInfo, state: State, call: str | None) -> OpenQuestion:
    """The question that is meant: the only one, or that of a call by id or tool. Raises `NotFound`, `Conflict`."""
    return choose_question(info, questions_of(state) if info.phase not in TERMINAL else [], call)


def choose_question(info: RunInfo, asked: Sequence[OpenQuestion], call: str | None) -> OpenQuestion:
    """The one that is meant of those that a run asks. Raises as `find_question`."""
    if not asked:
        raise Conflict(f"run {info.id} ({info.phase}) asks nothing", hint=f"`foliot why {info.id}`")
    found = [each for each in asked if call is None or call in (each.call_id, each.tool)]
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"{each.call_id}  {each.question}" for each in asked)
    if found:
        raise Conflict(f"run {info.id} asks several questions:\n{listed}", hint="name the call that is answered")
    raise NotFound(f"run {info.id} has no call {call!r} that asks; these do:\n{listed}")


def check_answer(asked: OpenQuestion, text: str) -> str:
    """The answer as it is given to the run: for a choice also its number, or any spelling of it.

    Raises `InvalidInput` for one that is empty, too long, or not among the choices.
    """
    if not text.strip() and not asked.client:  # a tool may have nothing to say
        raise InvalidInput("the answer is empty")
    longest = LONGEST_RESULT if asked.client else LONGEST_ANSWER
    if len(text) > longest:
        raise InvalidInput(f"the answer has {len(text):,} characters, and may have {longest:,}")
    if not asked.choices:
        return text
    word = text.strip()
    if word in asked.choices:
        return word
    alike = [choice for choice in asked.choices if choice.casefold() == word.casefold()]
    if len(alike) == 1:
        return alike[0]
    if word.isdecimal() and 1 <= int(word) <= len(asked.choices):
        return asked.choices[int(word) - 1]
    listed = "\n".join(f"{number}  {choice}" for number, choice in enumerate(asked.choices, 1))
    raise InvalidInput(f"{word[:80]!r} is not one of the choices:\n{listed}", hint="nothing was answered; try again")


class PreparedAnswer(NamedTuple):
    """An answer that is not stored yet: it counts if its signal is new and its run has no more events than `seq`.

    `record` is written with it, and told afterwards.
    """

    signal: Signal
    call: str
    seq: int
    record: DecisionRecord
    body: TransactionBody | None


class Questions:
    """Answers questions on a journal. Any number of processes may do so at the same time."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Callable[[], float],
        masker: Masker | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        """`masker` hides from an answer what is known to be secret; `log` keeps a record of each."""
        self._journal = journal
        self._clock = clock
        self.masker = masker
        self._log = log or DecisionLog()

    async def open(self, namespace: str | None = None, *, run: str | None = None) -> list[OpenQuestion]:
        """Returns the open questions of all runs that wait, or of one run, the oldest question first.

        Raises `NotFound` for a `run` that there is not.
        """
        if run is not None:
            info, state = await load_run(self._journal, run)
            meant = info.phase == "waiting" and namespace in (None, info.namespace)
            return questions_of(state) if meant else []
        spaces = () if namespace is None else (namespace,)
        found = await read_all(self.page, spaces, limit=AT_ONCE)
        return sorted(found, key=lambda each: each.since)

    async def page(
        self, namespaces: Sequence[str] = (), *, cursor: str | None = None, limit: int
    ) -> Part[OpenQuestion]:
        """Returns the open questions of the next `limit` runs that wait for people, the oldest run first.

        Of some namespaces, or of all. Raises `InvalidInput` for a cursor that was not given out.
        """
        after = 0 if cursor is None else read_key(cursor, kind="question")
        runs = await self._journal.asking(namespaces=namespaces, after=after, limit=limit + 1)
        found = [each for info, entries in runs[:limit] for each in _questions_in(info, entries)]
        return Part(found, write_cursor(runs[limit - 1][0].key, kind="question") if len(runs) > limit else None)

    async def answer(
        self,
        run_id: str,
        call: str | None,
        text: str,
        *,
        by: str = "",
        actor: str = "",
        in_transaction: TransactionBody | None = None,
        files: tuple[Media, ...] = (),
    ) -> Signal:
        """Answer what a run asks; the signal that it has been left. `call` may be None when it asks one thing only.

        `actor` is who answers in the name of `by`. `files` come with the result of a client's own call. The record of
        it, and what `in_transaction` writes, are stored with it or not at all. Raises `NotFound`, `InvalidInput`, and
        `Conflict` when it asks nothing or somebody was faster.
        """
        info, state = await load_run(self._journal, run_id)
        asked = find_question(info, state, call)
        said = check_answer(asked, text)
        said = self.masker.mask(said) if self.masker is not None and not asked.choices else said
        fact = QuestionAnswered(asked.call_id, said, by, files=files if asked.client else ())
        message = signal(run_id, fact, self._clock(), signal_id=answer_id(run_id, asked.call_id))
        record = self._log.new("answered", by, self._clock(), actor=actor, in_transaction=in_transaction)
        answered = state.call(asked.call_id)
        assert answered is not None, "what is asked belongs to a call"
        body = record.body_for(call_document(state, answered, message.id))
        try:
            await self._journal.signal(message, after=state.seq, in_transaction=body)
        except DecidedBefore as error:
            winner = decode(error.winner)
            assert isinstance(winner, QuestionAnswered), "nothing else is of its type"
            who = "nobody in time" if winner.late else winner.by or "somebody"
            raise Conflict(
                f"the question of call {asked.call_id} was answered before, by {who}: {winner.answer}"
            ) from None
        record.tell()
        return message

    async def prepare(
        self, run_id: str, namespace: str, text: str, *, by: str, actor: str = ""
    ) -> PreparedAnswer | None:
        """Returns what a text answers that somebody says to a run of a namespace, or None when nothing is open.

        The question may be that of a run below it. Raises as `match_answer` and `check_answer`.
        """
        # Whoever may speak in one namespace answers nothing that is asked in another one.
        asking = [each for each in await self._journal.asking_below(run_id) if each[0].namespace == namespace]
        runs = [info.id for info, entries in asking if any(not each.client for each in _questions_in(info, entries))]
        if not runs:
            return None
        states = {id: (await load_run(self._journal, id))[1] for id in runs}
        left = {each.id for each in await self._journal.signals(runs)}
        labelled = label_questions([*states.values()])
        asked = {label: each for label, each in labelled.items() if answer_id(each.run_id, each.call_id) not in left}
        if not asked:
            return None
        meant, answer = match_answer(asked, text)
        said = check_answer(meant, answer)
        said = self.masker.mask(said) if self.masker is not None and not meant.choices else said
        state = states[meant.run_id]
        call = state.call(meant.call_id)
        assert call is not None, "what is asked belongs to a call"
        now, id = self._clock(), answer_id(meant.run_id, meant.call_id)
        message = signal(meant.run_id, QuestionAnswered(meant.call_id, said, by), now, signal_id=id)
        record = self._log.new("answered", by, now, actor=actor)
        return PreparedAnswer(
            message, meant.call_id, state.seq, record, record.body_for(call_document(state, call, id))
        )


def answer_id(run_id: str, call_id: str) -> str:
    """The same for the same call: of several answers the store keeps the first."""
    call = f"{run_id}\0{call_id}"
    return f"an-{sha256(call.encode()).hexdigest()[:20]}"
