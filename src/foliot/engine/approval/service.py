"""Approvals: a stored object for each parked call, and the one decision it takes.

The journal of a run says that a call is parked and later what became of it. The ToolApproval beside it is what people
see and decide on, and it is the judge: a decision is a compare-and-set on the object, so of two at once exactly one
wins. The signal to the run only brings the news. Whoever takes the run up asks the object again (`answers`), so neither
an object that was never made nor a decision whose signal was never sent, because a process died in between, is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from foliot.common.pages import read_pages
from foliot.common.times import iso
from foliot.engine.approval.documents import (
    KIND,
    answer_of,
    check_open,
    check_voter,
    creation,
    current_digest,
    gravest,
    key_of,
    name_of,
    phase_at,
    question,
    restored,
    shown,
    shows,
)
from foliot.engine.approval.grants import People, by_name, give_standing, revoke_standing
from foliot.engine.approval.records import DecisionLog, DecisionRecord
from foliot.engine.base import Clock
from foliot.engine.driver.journal import load_run, signal
from foliot.errors import Conflict, Denied, InvalidInput, NotFound
from foliot.kernel.arguments import arguments_digest, canonical, parse_object, problem_of
from foliot.kernel.identity import Person
from foliot.kernel.run.events import ApprovalDecided, ApprovalRequested
from foliot.kernel.run.state import Call, State
from foliot.resources.validators import validator_of
from foliot.store.base import Document, Filter, Put, Requirement, ResourceStore
from foliot.store.journal.base import TERMINAL, Journal, RunInfo, Signal, TransactionBody
from foliot.tools.secrets.masking import Masker

Decision: TypeAlias = Literal["approve", "deny", "edit"]
TRIES = 20
AT_ONCE = 500
MOST_PROBLEMS = 5
# What a question says that is not told by the journal: how long it stands, and what its tool is declared to do.
_BESIDE = ("ttl", "operation_class")


class Decided(Struct, frozen=True):
    """A decision that stands. `signal` is what the run is told; it has been left for whoever drives it.

    None while more people have to approve.
    """

    document: Document
    run_id: str
    signal: Signal | None


class ApprovalService:
    """Approvals on a store. Any number of processes may use it on the same one at the same time."""

    def __init__(
        self,
        store: ResourceStore,
        journal: Journal,
        *,
        clock: Clock,
        masker: Masker | None = None,
        log: DecisionLog | None = None,
        people: People | None = None,
    ) -> None:
        """`masker` knows the secrets that this process has seen; none of them is shown to whoever decides.

        `log` keeps a record of every decision, stored together with it. `people` says who goes by which names.
        """
        self.masker = masker
        self._log = log or DecisionLog()
        self._people = people or by_name
        self._store = store
        self._journal = journal
        self._clock = clock

    # --- what the engine says ------------------------------------------------------------------------------------

    async def ask(self, state: State, asked: ApprovalRequested, classes: Iterable[str] = ()) -> None:
        """Store the object for a parked call. One that is there already stays as it is."""
        call = state.call(asked.call_id)
        if call is None or call.phase != "parked":
            return  # it was answered in the same breath, with the end of its run
        seen = shown(parse_object(call.arguments)[0] or {}, self.masker)
        document = question(state, call, asked, self._clock(), seen)
        if grave := gravest(classes):
            document["spec"]["operation_class"] = grave
        try:
            await self._store.write(creation(document))
        except Conflict:
            # Ids are made from what they are bound to: what is there is about this call, or somebody put it there.
            await self._by_journal(await self._store.get(key_of(state.spec.namespace, asked.approval_id)), state, call)

    async def withdraw(self, namespace: str, name: str, why: str) -> None:
        """The call waits no longer: nothing is left to decide. What was decided stays decided."""
        for _ in range(TRIES):
            try:
                document = await self._store.get(key_of(namespace, name))
            except NotFound:
                return
            if document["status"].get("phase") != "Pending":
                return
            status = {**document["status"], "phase": "Expired", "reason": why}
            if await self._put_status(document, status) is not None:
                return

    async def answers(self, state: State, classes: Mapping[str, Iterable[str]] | None = None) -> list[Signal]:
        """Returns the decisions about the calls that this run has parked.

        Missing ToolApproval objects are created again.
        """
        told: list[Signal] = []
        for call in state.calls:
            if not isinstance(call.awaited, ApprovalRequested):
                continue
            asked = call.awaited
            try:
                document = await self._store.get(key_of(state.spec.namespace, asked.approval_id))
            except NotFound:
                await self.ask(state, asked, (classes or {}).get(call.name, ()))
                continue
            decided = answer_of(document, await self._edited(document))
            if decided is None:
                await self._by_journal(document, state, call)
            elif _is_about(document, state, call):
                told.append(self._signal(state.run_id, decided))
        return told

    async def attend(self, state: State, worker: str) -> None:
        """Note on the open questions of a run that this process stays to hear the answers."""
        for call in state.calls:
            if not isinstance(call.awaited, ApprovalRequested):
                continue
            for _ in range(TRIES):
                document = await self._store.get(key_of(state.spec.namespace, call.awaited.approval_id))
                status = document["status"]
                if status.get("phase") != "Pending" or status.get("attended_by") == worker:
                    break
                if await self._put_status(document, {**status, "attended_by": worker}) is not None:
                    break

    # --- what people look at -------------------------------------------------------------------------------------

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        """One approval, with its phase as of now. Raises `NotFound`."""
        return self.shown(await self._store.get(key_of(namespace, name)))

    def shown(self, document: Document) -> Document:
        """Returns the document of an approval as everybody sees it: with its phase as of now."""
        phase = phase_at(document, self._clock())
        return {**document, "status": {**document["status"], "phase": phase}}

    async def _by_journal(self, document: Document, state: State, call: Call) -> Document:
        """The question as it stands, written anew if the object says something else than the journal.

        Foliot alone writes questions. Whoever changed one in the store, or took its name before it was asked, does not
        get another call decided by it than the one that the run has parked.
        """
        asked = call.approval
        assert asked is not None, "a parked call has its question"
        arguments = parse_object(call.arguments)[0] or {}
        for _ in range(TRIES):
            status = document["status"].get("phase", "Pending")
            spec, metadata = document["spec"], document["metadata"]
            new = question(state, call, asked, self._clock(), shown(arguments, self.masker))
            told = {part: value for part, value in spec.items() if part not in ("arguments", *_BESIDE)}
            wanted = {part: value for part, value in new["spec"].items() if part not in ("arguments", *_BESIDE)}
            if status != "Pending" or (told == wanted and shows(spec.get("arguments", {}), arguments)):
                return document
            new["spec"] |= {part: spec[part] for part in _BESIDE if spec.get(part)}
            version = metadata["resourceVersion"]
            try:
                written = await self._store.write([Put(new, expect=version, own=True), Put(new, only="status")])
            except Conflict:
                document = await self._store.get(key_of(metadata["namespace"], name_of(document)))
                continue
            document = written[-1].document
        raise Conflict(f"approval {name_of(document)} changes too often to be read", hint="try again", retryable=True)

    async def find(self, word: str, *, namespace: str = "default") -> Document:
        """The approval of this name, or the only one whose name begins so. Raises `NotFound`, `Conflict`."""
        try:
            return await self.get(word, namespace=namespace)
        except NotFound:
            return only_alike(word, [each async for each in self.list(namespace)] if word else [], namespace)

    async def list(self, namespace: str | None = None, *, run: str | None = None) -> AsyncIterator[Document]:
        """Approvals and standing grants by name, with their phases as of now."""
        fields = (Requirement("spec.run", "=", (run,)),) if run is not None else ()
        async for page in read_pages(self._store.list, Filter(KIND, namespace, fields=fields)):
            for document in page.items:
                yield self.shown(document)

    async def repair(self, namespace: str | None = None, *, run: str | None = None) -> None:
        """Make the objects that a crash kept from being made: of every waiting run, or of one, for each parked call."""
        if run is not None:
            waiting = await self._journal.many([run])
            await self._repair([info for info in waiting if namespace in (None, info.namespace)])
            return
        spaces = () if namespace is None else (namespace,)
        after = 0
        while page := await self._journal.asking(namespaces=spaces, after=after, limit=AT_ONCE):
            await self._repair([info for info, _ in page])
            after = page[-1][0].key

    async def _repair(self, runs: Sequence[RunInfo]) -> None:
        for info in runs:
            if cast("dict[str, Any]", info.summary.get("waiting") or {}).get("reason") == "approval":
                _, state = await load_run(self._journal, info.id)
                await self.answers(state)

    # --- what people decide --------------------------------------------------------------------------------------

    async def decide(
        self,
        name: str,
        decision: Decision,
        *,
        by: str,
        namespace: str = "default",
        comment: str = "",
        arguments: dict[str, Any] | None = None,
        digest: str = "",
        actor: str = "",
        through: Sequence[str] = (),
        in_transaction: TransactionBody | None = None,
    ) -> Decided:
        """Decide, and tell the run. `arguments` are what is run instead when the decision is "edit".

        One denial denies. Where several must approve, each approval is a vote, and an edit is the first vote for other
        arguments: those that were given before count no more. `digest` is that of the arguments which were looked at:
        it must be given where several have to approve, and where somebody has edited them.
        Masked values that were left as shown stand for the real ones. `through` is on whose word `by` is believed to be
        who decides: where four eyes are asked for, it is not the word of who asks either. `actor` is who decides in the
        name of `by`, here and below; it is recorded too. The record, and what `in_transaction` writes, are stored with
        it or not at all.
        Raises `Conflict` when it was decided before (the error says by whom and when), has expired, the run no longer
        waits for it, `by` has voted already, or the arguments are no longer those of `digest`; `Denied` when `by` is
        not one of the approvers, or is who asks; `InvalidInput` for arguments that do not fit the tool; `NotFound`.
        """
        if not by.strip():
            raise InvalidInput("a decision needs the name of who decides", hint="by is a name, such as ann")
        if (decision == "edit") != (arguments is not None):
            raise InvalidInput("arguments are given with the decision `edit`, and only with it")
        for _ in range(TRIES):
            document = await self._store.get(key_of(namespace, name))
            await self._refuse_unless_open(document)
            state, call = await self._parked(document)
            asked = call.approval
            assert asked is not None, "a parked call has its question"
            voter = await self._people(by)
            askers = await self._askers(state) if asked.four_eyes else ()
            check_voter(name, asked, askers, voter)
            for each in through if askers else ():  # of nobody known it cannot be told that they have no part
                if not each or (await self._people(each)).is_among(askers):
                    said = f"{each or 'somebody unknown'} says who writes here, and has a part in the run"
                    raise Denied(
                        f"approval {name} is not decided here: {said}",
                        hint="decide it with `foliot approvals` or over HTTP",
                    )
            proposed = document["status"].get("proposed_digest")
            if not digest and decision != "deny" and (proposed or asked.required > 1):
                raise Conflict(
                    f"approval {name} is decided with the digest of the arguments that were looked at",
                    hint=f"others have a say in them: give the digest that `foliot approvals show {name}` shows",
                )
            if digest and digest != (proposed or asked.digest):
                raise Conflict(
                    f"the arguments of approval {name} were changed meanwhile",
                    hint=f"`foliot approvals show {name}` shows what is to be decided now",
                )
            before = await self._as_it_stands(document, call)
            granted = before
            if arguments is not None:
                granted = restored(arguments, _seen(document), before)
                check_schema(state, call.name, granted)
                # Kept by its digest first: a process that dies before the run is told must not lose what was written.
                await self._journal.put_blob(canonical(granted), run_id=state.run_id)
            status = self._decision_status(document, decision, voter, comment, granted, asked.required)
            done = status["phase"] != "Pending"
            outcome = status["decision"] if done else "voted"
            record = self._log.new(outcome, by, self._clock(), actor=actor, in_transaction=in_transaction)
            written = await self._put_status(document, status, record)
            if written is not None:
                record.tell()
                return await self._tell(written, state.run_id) if done else Decided(written, state.run_id, None)
        raise Conflict(f"approval {name} changes too often to be decided", hint="try again", retryable=True)

    async def grant(
        self,
        *,
        by: str,
        tool: str,
        seconds: float,
        namespace: str = "default",
        actor: str = "",
        in_transaction: TransactionBody | None = None,
        **scope: Any,
    ) -> Document:
        """Approve in advance; see `give_standing`."""
        now = self._clock()
        record = self._log.new("granted", by, now, actor=actor, in_transaction=in_transaction)
        document = await give_standing(
            self._store,
            tool=tool,
            by=by,
            now=now,
            seconds=seconds,
            namespace=namespace,
            in_transaction=record.stored,
            **scope,
        )
        record.tell()
        return document

    async def revoke(
        self,
        name: str,
        *,
        by: str,
        namespace: str = "default",
        actor: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> Document:
        """End a standing grant; see `revoke_standing`."""
        now = self._clock()
        record = self._log.new("revoked", by, now, actor=actor, in_transaction=in_transaction)
        document = await revoke_standing(
            self._store, name, by=by, now=now, namespace=namespace, in_transaction=record.stored
        )
        record.tell()
        return document

    def _decision_status(
        self,
        document: Document,
        decision: Decision,
        voter: Person,
        comment: str,
        granted: dict[str, Any],
        required: int,
    ) -> dict[str, Any]:
        """The status with this decision in it: still "Pending" when others have to approve as well."""
        now, name, by = iso(self._clock()), name_of(document), voter.name
        status: dict[str, Any] = {**document["status"]}
        digest = arguments_digest(granted)
        as_written = digest == document["spec"]["arguments_digest"]
        voters = [by]
        if decision != "deny" and required > 1:
            votes: list[dict[str, str]] = status.get("votes", []) if digest == current_digest(document) else []
            if any(voter.goes_by(vote["by"]) for vote in votes):
                raise Conflict(f"{by} has approved {name} already: {len(votes)} of {required}")
            votes = [*votes, {"by": by, "at": now, **({"reason": comment} if comment else {})}]
            voters = [vote["by"] for vote in votes]
            status["votes"] = votes
            status.pop("proposed_digest", None)
            status.pop("edited_arguments", None)
            if not as_written:
                status |= {"proposed_digest": digest, "edited_arguments": shown(granted, self.masker)}
            if len(voters) < required:
                return status
        phase, decided = (
            ("Denied", "denied") if decision == "deny" else ("Approved", "approved" if as_written else "edited")
        )
        status |= {"phase": phase, "decision": decided, "decided_by": ", ".join(voters), "decided_at": now}
        if comment:
            status["reason"] = comment
        if phase == "Approved":
            status["granted_digest"] = digest
        if decided == "edited":
            status["edited_arguments"] = shown(granted, self.masker)
        return status

    async def _askers(self, state: State) -> set[str]:
        """Name those who ordered a run, and who told it, or a run above it, what to do: by its journal."""
        found = {*state.identity.people, *state.told_by}
        while state.created is not None and state.created.parent:
            try:
                _, state = await load_run(self._journal, state.created.parent)
            except NotFound:
                break
            found |= state.told_by
        return found - {""}

    async def _as_it_stands(self, document: Document, call: Call) -> dict[str, Any]:
        """The arguments that are decided about: what the model wrote, or what somebody put in their place."""
        proposed = document["status"].get("proposed_digest")
        text = call.arguments if not proposed else (await self._journal.get_blob(proposed)).decode()
        return parse_object(text)[0] or {}

    async def _refuse_unless_open(self, document: Document) -> None:
        try:
            check_open(document, self._clock())
        except Conflict:
            if phase_at(document, self._clock()) in ("Approved", "Denied") and document["spec"].get("run"):
                await self._tell_again(document)
            raise

    async def _parked(self, document: Document) -> tuple[State, Call]:
        """The call that the approval is about, if it still waits. Raises `Conflict`."""
        spec, name = document["spec"], name_of(document)
        if not spec.get("run"):
            raise Conflict(f"approval {name} belongs to no run", hint="it was not made by a run, and decides nothing")
        info, state = await self._run_of(document)
        call = state.call(spec["call_id"])
        if info.phase in TERMINAL or call is None or call.phase != "parked":
            what = f"has ended ({info.phase})" if info.phase in TERMINAL else "no longer waits for it"
            await self.withdraw(document["metadata"]["namespace"], name, f"the run {what}")
            raise Conflict(f"approval {name}: run {info.id} {what}")
        if not _is_of(document, state, call):
            raise Conflict(f"approval {name} is not what run {info.id} asks", hint="it decides nothing; delete it")
        if await self._by_journal(document, state, call) is not document:
            raise Conflict(
                f"approval {name} did not match the call that run {info.id} has parked: it was changed",
                hint=f"it is put right: `foliot approvals show {name}`, and decide then",
            )
        return state, call

    async def _run_of(self, document: Document) -> tuple[RunInfo, State]:
        """The run that an approval names. One of another namespace is as missing as one that never was: `NotFound`."""
        missing = NotFound(
            f"approval {name_of(document)} names a run that is not there", hint="it decides nothing; delete it"
        )
        try:
            info, state = await load_run(self._journal, document["spec"]["run"])
        except NotFound:
            raise missing from None
        if info.namespace != document["metadata"]["namespace"]:
            raise missing
        return info, state

    async def _tell(self, document: Document, run_id: str) -> Decided:
        decided = answer_of(document, await self._edited(document))
        assert decided is not None, "a decision was just written"
        message = self._signal(run_id, decided)
        await self._journal.signal(message)
        return Decided(document, run_id, message)

    async def _tell_again(self, document: Document) -> None:
        """The one who decided may have died before the run was told."""
        try:
            _, state = await self._run_of(document)
        except NotFound:
            return
        for message in await self.answers(state):
            if message.id == name_of(document):
                await self._journal.signal(message)

    # --- how it is done ------------------------------------------------------------------------------------------

    def _signal(self, run_id: str, decided: ApprovalDecided) -> Signal:
        return signal(run_id, decided, self._clock(), signal_id=decided.approval_id)

    async def _edited(self, document: Document) -> str | None:
        status = document["status"]
        if status.get("decision") != "edited":
            return None
        return (await self._journal.get_blob(status["granted_digest"])).decode()

    async def _put_status(
        self, document: Document, status: dict[str, Any], record: DecisionRecord | None = None
    ) -> Document | None:
        """The object as it is now; None when somebody else changed it meanwhile."""
        change = Put({**document, "status": status}, expect=document["metadata"]["resourceVersion"], only="status")
        try:
            (written,) = await self._store.write([change], in_transaction=None if record is None else record.stored)
        except Conflict:
            return None
        return written.document


def only_alike(word: str, approvals: Iterable[Document], namespace: str) -> Document:
    """Returns the only one of the approvals whose name begins so. Raises `NotFound`, `Conflict`."""
    alike = [each for each in approvals if word and name_of(each).startswith(word)]
    if len(alike) == 1:
        return alike[0]
    if not alike:
        raise NotFound(f"there is no approval {word!r} in namespace {namespace}", hint="`foliot approvals list`")
    names = "\n".join(name_of(each) for each in alike[:MOST_PROBLEMS])
    raise Conflict(f"several approvals begin with {word!r}:\n{names}", hint="give more of the name")


def _is_about(document: Document, state: State, call: Call) -> bool:
    """Whether the stored object is still bound to what the journal asked for."""
    spec, asked = document["spec"], call.approval
    bound = (spec.get("run"), spec.get("call_id"), spec.get("arguments_digest"))
    return asked is not None and bound == (state.run_id, call.id, asked.digest) and _is_of(document, state, call)


def _is_of(document: Document, state: State, call: Call) -> bool:
    """Whether this is the object that the journal names: by its name, in the namespace of the run."""
    where = (document["metadata"]["namespace"], name_of(document))
    return call.approval is not None and where == (state.spec.namespace, call.approval.approval_id)


def _seen(document: Document) -> dict[str, Any]:
    """The arguments as whoever edits them sees them."""
    proposed = document["status"].get("proposed_digest")
    return (document["status"].get("edited_arguments") if proposed else document["spec"].get("arguments")) or {}


def check_schema(state: State, tool: str, arguments: dict[str, Any]) -> None:
    """Raises `InvalidInput`, with every place, when the arguments do not fit the schema that the run is pinned to."""
    if problem := problem_of(arguments):
        raise InvalidInput(
            f"the arguments of {tool} cannot be judged: {problem}", hint="nothing was decided; try again"
        )
    rule = state.rules.get(tool)
    if rule is None or rule.spec.schema is None:
        return
    problems = validator_of(rule.spec.schema).problems(arguments, whole="arguments")
    if problems:
        listed = "\n".join(problems[:MOST_PROBLEMS])
        raise InvalidInput(f"the arguments do not fit {tool}:\n{listed}", hint="nothing was decided; try again")
