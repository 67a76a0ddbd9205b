"""Inputs to runs outside of sessions: heard while a run works, answered after that, or by a run that restarts it.

    mode            while the run works                                when it would end
    followup        waits                                              a turn of its own, oldest first
    queue           as followup
    collect         waits                                              one turn for all, after a silence
    steer           heard before the next question to the model
    steer-backlog   as steer                                           and a turn of its own
    interrupt       ends the answer and the calls under way, and is heard at once

While a run, or a run below it, asks a person something, what is said is the answer, in every mode but interrupt.
A run that has ended is restarted: another run of its agent goes on after it, with its conversation. A run that is a
turn of a session passes its inputs on to that session. Both are work in the name of the user of the run: whoever speaks
has to be this user, or to be allowed to act for them. A live run outside of sessions is steered by anybody who may
operate it, and who did is recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.common.suggestions import suggestion
from foliot.engine.approval.questions import PreparedAnswer
from foliot.engine.driver.ids import new_run_id
from foliot.engine.driver.journal import signal, storable, was_said
from foliot.engine.driver.runs import user_message
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.identity import Identity
from foliot.kernel.inbox import MODES, InboxOptions, Outcome, Waiting, arrive, mode_of, mode_problem
from foliot.kernel.messages import Media, Message
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import InputReceived
from foliot.kernel.run.spec import digest
from foliot.kernel.run.state import State
from foliot.runtime.turns import agent_object
from foliot.sessions.content import check_length
from foliot.store.journal.base import CONVERSATION_LABEL, TERMINAL, USER_LABEL, RunInfo, TransactionBody
from foliot.store.sessions.base import InputAnswer, NewInput, QuestionClosed, Said
from foliot.store.sessions.inbox_rules import rules_of
from foliot.store.sessions.run_inputs import RunInputs, RunRestarted, SaidMeanwhile, collected, restarting, run_outcome

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside

# A conversation that was restarted so often is not followed further: somebody restarts faster than one can say a word.
MOST_RESTARTS: Final = 64
# Returns the identity with which the speaker acts for a user. Raises `Denied` when they may not.
ActsFor: TypeAlias = Callable[[str], Identity]
# Of a runtime in memory: so many outcomes are kept for those who say something again.
_MOST_KEPT: Final = 1024


class RunInput(Struct, frozen=True):
    """The outcome of something that was said to a run. `run` is the one that hears it.

    `outcome` is `direct`, `queued`, `interrupted` or `restarted`; then `run` is another one, which goes on after the
    run that was meant. `arrival` is the number of the input among all that was said there. `again`: it had been said
    before under the same key, and this is what became of it then. `answered` is the call whose question it has
    answered.
    """

    run: RunInfo
    outcome: Outcome
    arrival: int
    again: bool = False
    answered: str = ""


class Inputs:
    """The inputs to the runs of one runtime."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._kept: OrderedDict[tuple[str, str], tuple[str, Outcome, str]] = OrderedDict()

    async def say(
        self,
        run_id: str,
        text: str | Message,
        *,
        mode: str = "steer",
        by: str = "",
        via: str = "python",
        key: str | None = None,
        in_transaction: TransactionBody | None = None,
        here: bool = True,
        acts_for: ActsFor | None = None,
    ) -> RunInput:
        """Says something to a run; durable on return. A blank `mode` is `followup`.

        While the run asks something it is the answer; of several questions it begins with the number of one.
        The same `key` twice is one input, and gives the same outcome. What `in_transaction` writes is stored with it;
        not `here`: the run is left to whoever resumes it. `acts_for` judges whether the speaker may act for a user;
        without it, it is the process of the operator. Raises `NotFound`, `InvalidInput` for another mode or no text,
        `Conflict` when the key belongs to other words or several things are asked and no number is given, and what
        `acts_for` raises: then nothing was stored.
        """
        word = mode_of(mode)
        if word is None:
            raise InvalidInput(mode_problem(mode), hint=suggestion(mode, MODES))
        if isinstance(text, str) and not text.strip():
            raise InvalidInput("there is nothing to say: the text is empty (message is required)")
        message = user_message(text) if isinstance(text, str) else text
        check_length(message)
        with storable(f"what is said to run {run_id}"):
            what = digest(msgspec.json.encode((word, message)))
        new = NewInput(key or new_run_id(self._inside.clock()), word, message, what, by)
        for _ in range(MOST_RESTARTS):
            try:
                return await self._say(run_id, new, _Speaker(by, via, acts_for), in_transaction, here)
            except RunRestarted as restarted:
                run_id = restarted.by
            except (SaidMeanwhile, QuestionClosed):
                pass  # the next look finds what became of it
        raise Conflict(f"run {run_id} is restarted over and over", hint="`foliot runs` lists what goes on")

    async def _say(
        self, run_id: str, new: NewInput, speaker: _Speaker, in_transaction: TransactionBody | None, here: bool
    ) -> RunInput:
        inside = self._inside
        info = await inside.runs.journal.get(run_id)
        if not inside.keeps:
            return await self._say_in_memory(info, new, speaker, here)
        if session := await inside.session_of(run_id):
            return await self._pass_on(session, info, new, speaker, in_transaction)
        if CONVERSATION_LABEL in info.labels:  # a delegate of a turn is heard by the session too
            speaker.identity(Identity(info.labels.get(USER_LABEL, "")))
        inputs = RunInputs(inside.database)
        agent = agent_object(inside, info.namespace, info.agent)
        answer = None if await inputs.arrival(info.key, new.id) else await self._answer(info, new, speaker)
        if answer is not None:
            new = replace(new, answer=InputAnswer(run_id, answer.signal, answer.seq, answer.body))
        said = await inputs.say(run_id, new, now=inside.clock(), agent=agent, in_transaction=in_transaction)
        if said.act == "start":
            return await self._restart(inputs, info, new, speaker, in_transaction)
        if said.act == "wake":
            await inside.background.wake(run_id if answer is None else answer.signal.run_id, here=here)
        became = RunInput(await inside.runs.journal.get(said.run_id or run_id), said.outcome, said.seq, said.again)
        if answer is None or said.again:
            return became
        answer.record.tell()
        return replace(became, answered=answer.call)

    async def _answer(self, info: RunInfo, new: NewInput, speaker: _Speaker) -> PreparedAnswer | None:
        """Returns what is answered by an input, if a question is open. An interrupt is never an answer."""
        if info.phase in TERMINAL or new.mode == "interrupt":
            return None
        questions = self._inside.questions
        found = await questions.prepare(info.id, info.namespace, new.message.text, by=speaker.by or speaker.via)
        if found is not None and any(isinstance(part, Media) for part in new.message.parts):
            raise InvalidInput("a question is open, and its answer is text: no file was taken")
        return found

    async def _pass_on(
        self, session: str, info: RunInfo, new: NewInput, speaker: _Speaker, in_transaction: TransactionBody | None
    ) -> RunInput:
        service = self._inside.sessions
        identity = speaker.identity(Identity((await service.store.get(session)).place.user))
        said: Said = await service.say(
            session, new.message, identity=identity, mode=new.mode, key=new.id, in_transaction=in_transaction
        )
        return RunInput(info, said.outcome, said.seq, said.again)

    async def _restart(
        self, inputs: RunInputs, info: RunInfo, new: NewInput, speaker: _Speaker, in_transaction: TransactionBody | None
    ) -> RunInput:
        """Begins the run that goes on after one that has ended, with what that one heard and did not answer."""
        inside = self._inside
        _, state = await inside.runs.load(info.id)
        assert state.created is not None, "every journal begins with it"
        identity = speaker.identity(state.created.identity)
        left = _left(info, state)
        left += await inputs.unheard(info.key) if info.phase == "failed" else []
        run_id = inside.new_run_id()
        body = restarting(info.id, info.key, new, run_id, now=inside.clock(), in_transaction=in_transaction)
        began = await inside.background.start(
            info.agent,
            [*left, new.message],
            run_id=run_id,
            namespace=info.namespace,
            labels=None,
            identity=identity,
            after=info.id,
            in_transaction=body,
        )
        return RunInput(began, "restarted", await inputs.arrival(info.key, new.id))

    async def _say_in_memory(self, info: RunInfo, new: NewInput, speaker: _Speaker, here: bool) -> RunInput:
        """The same without rows: what was said and its outcome last as long as the process."""
        inside = self._inside
        if (kept := self._kept.get((info.id, new.id))) is not None:
            if kept[0] != new.digest:
                raise Conflict(f"the input {new.id!r} was said before, in other words")
            return RunInput(await inside.runs.journal.get(kept[2]), kept[1], 0, again=True)
        if info.phase in TERMINAL:
            _, state = await inside.runs.load(info.id)
            assert state.created is not None, "every journal begins with it"
            identity = speaker.identity(state.created.identity)
            run_id = inside.new_run_id()
            began = await inside.background.start(
                info.agent,
                [*_left(info, state), new.message],
                run_id=run_id,
                namespace=info.namespace,
                labels=None,
                identity=identity,
                after=info.id,
            )
            return self._keep(info, new, RunInput(began, "restarted", 0))
        if (answer := await self._answer(info, new, speaker)) is not None:
            await inside.runs.journal.signal(answer.signal, after=answer.seq)
            await inside.background.wake(answer.signal.run_id, answer.signal, here=here)
            became = RunInput(await inside.runs.journal.get(info.id), "direct", 0, answered=answer.call)
            return self._keep(info, new, became)
        if not await was_said(inside.runs.journal, info.id, new.id):
            said = InputReceived(new.id, new.message, new.mode, new.by)
            rules = rules_of(agent_object(inside, info.namespace, info.agent))
            run_outcome(new, 1, await self._waiting(info), rules, now=inside.clock(), waits=False)
            if new.mode == "collect":
                said = collected(said, inside.clock(), rules)
            message = signal(info.id, said, inside.clock(), signal_id=new.id)
            await inside.runs.journal.signal(message)
            await inside.background.wake(info.id, message, here=here)
        turn = "waiting" if info.phase == "waiting" else "working"
        outcome = arrive(Waiting(1, new.mode, inside.clock()), (), turn, InboxOptions()).outcome
        return self._keep(info, new, RunInput(await inside.runs.journal.get(info.id), outcome, 0))

    async def _waiting(self, info: RunInfo) -> list[Waiting]:
        """Returns the inputs that a run in memory has not answered: it has heard them, or is about to."""
        runs = self._inside.runs
        driver = runs.local(info.id)
        state = driver.state if driver is not None else (await runs.load(info.id))[1]
        there = {each.input_id: each for each in state.inputs}
        for each in await runs.journal.signals([info.id]):
            if isinstance(event := decode(each.data), InputReceived):
                there[event.input_id] = event
        sizes = ((each, len(msgspec.json.encode(each.message))) for each in there.values())
        return [Waiting(n, each.mode, 0.0, offered=True, size=size) for n, (each, size) in enumerate(sizes)]

    def _keep(self, info: RunInfo, new: NewInput, became: RunInput) -> RunInput:
        self._kept[info.id, new.id] = new.digest, became.outcome, became.run.id
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return became


class _Speaker(Struct, frozen=True):
    """The speaker of an input; `acts_for` judges for whom they may act."""

    by: str
    via: str
    acts_for: ActsFor | None

    def identity(self, of: Identity) -> Identity:
        """Returns the identity of work that goes on for the user of another; raises what `acts_for` raises."""
        if self.acts_for is None:
            return Identity(of.user, self.by if self.by != of.user else "", self.via, of.ordered_by)
        return self.acts_for(of.user).also_ordered_by(*of.ordered_by)


def _left(info: RunInfo, state: State) -> list[Message]:
    """Returns what a run had heard and did not answer before it ended; whoever cancels a run wants none of it."""
    return [] if info.phase == "cancelled" else [each.message for each in sorted(state.inputs, key=_by_arrival)]


def _by_arrival(given: InputReceived) -> int:
    return given.arrival
