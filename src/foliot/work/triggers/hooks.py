"""Hooks: work that follows from changes of files below a folder, and of sources that report theirs.

A folder is looked at again and again. What differs from what was seen before is an event:

    fs.create    a file is there that was not                 fires at once
    fs.write     its size or its time has changed             fires when it has been quiet for two seconds
    fs.delete    a file is gone                               fires at once

What was seen is stored, and only after its event has fired. An event has an id that comes from the file, and its firing
a key that comes from the event: whoever dies in between fires again, and finds what was made before. So changes while
no process looked are found, and none fires twice. One process at a time looks at a folder (`ChannelReaders`).

An event that can never fire is counted as failed, with the reason, and those after it fire.

Links are not followed, and only plain files count. How many there may be is bounded. Whoever can write into a folder
chooses names: in what is said to a session they stand quoted on one line, whatever they contain.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from foliot.errors import Conflict, Denied, FoliotError, InvalidInput, NotFound, Unavailable
from foliot.kernel.identity import Identity
from foliot.kernel.routing import Provenance, bounded_key
from foliot.resources.paths import fill
from foliot.resources.references import Origin, qualified
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, DeclaredBy, Document, Key, Put, ResourceStore
from foliot.store.channels import ChannelReaders
from foliot.store.sessions.base import InboxFull
from foliot.work.tasks.base import Command, Tasks
from foliot.work.triggers.declared import FollowedResources
from foliot.work.triggers.session_orders import SessionPosts, session_order
from foliot.work.triggers.webhook import storable

log = logging.getLogger(__name__)

KIND: Final = "TaskHook"
LABEL: Final = "foliot.dev/task-hook"
LOOK_EVERY: Final = 1.0
DEBOUNCE: Final = 2.0
LEASE: Final = 30.0
MOST_FILES: Final = 10_000
DEEPEST: Final = 32
MOST_ITEMS: Final = 10_000
_LABEL_LENGTH: Final = 63
_NAME_LENGTH: Final = 40
_LONGEST_FAILURE: Final = 500

EventType: TypeAlias = Literal["fs.create", "fs.write", "fs.delete", "source.change"]
Seen: TypeAlias = dict[str, tuple[int, int, int]]
"""Paths below a folder to (inode, size, time of change in nanoseconds)."""


class FolderCheck(Protocol):
    """Whether a hook may watch its folder; see `OperatorGrants.check_watched`."""

    def __call__(self, document: Document) -> None:
        """Raises `Denied`."""
        ...


class Hook(Struct, frozen=True):
    """A TaskHook with every default filled in."""

    uid: str
    key: Key
    ref: str
    session: dict[str, Any] | None
    path: str
    source: str
    events: tuple[EventType, ...]
    input: dict[str, str]
    suspend: bool
    generation: int
    declared_by: DeclaredBy


class HookEvent(Struct, frozen=True):
    """A change. `id` is the same for the same change, whoever finds it."""

    type: EventType
    path: str
    id: str
    source: str = ""
    items: tuple[str, ...] = ()


def read_hook(document: Document) -> Hook:
    """Raises `KeyError`, `ValueError` for a document that no version of Foliot would have stored so."""
    metadata, spec = document["metadata"], document["spec"]
    key = Key(document["kind"], metadata["namespace"], metadata["name"])
    ref: str = spec.get("task_ref", "")
    return Hook(
        uid=metadata["uid"],
        key=key,
        ref=qualified(ref, key.namespace) if ref else "",
        session=spec.get("session"),
        path=spec.get("path", ""),
        source=spec.get("source", ""),
        events=tuple(spec["events"]),
        input=dict(spec.get("input") or {}),
        suspend=spec.get("suspend", False),
        generation=metadata["generation"],
        declared_by=DeclaredBy.of(document),
    )


# --- folders -----------------------------------------------------------------------------------------------------


def look_at(folder: str) -> Seen:
    """Returns the plain files below a folder. Raises `NotFound` where it is not, `InvalidInput` for too many.

    Names that are no text are shown with their bytes escaped.
    """
    seen: Seen = {}
    if not os.path.isdir(folder):
        raise NotFound(f"the folder {folder} is not here")
    waiting = [("", 0)]
    while waiting:
        below, depth = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(folder, below)))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # it went meanwhile, or is not ours to see
        for entry in entries:
            path = os.path.join(below, entry.name)
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(about.st_mode) and depth < DEEPEST:
                waiting.append((path, depth + 1))
            elif stat.S_ISREG(about.st_mode):
                seen[_shown(path)] = (about.st_ino, about.st_size, about.st_mtime_ns)
            if len(seen) > MOST_FILES:
                raise InvalidInput(f"the folder {folder} has more than {MOST_FILES} files", hint="watch a part of it")
    return seen


def _shown(path: str) -> str:
    return storable(os.fsencode(path).decode("utf-8", "backslashreplace"))


class SeenFolder(Struct, frozen=True):
    """The files of a folder as they were when nothing more was to be done about them."""

    path: str
    files: Seen


class FolderChanges:
    """The changes of one folder since what was seen, with writes held back until they are quiet. Pure but for time."""

    def __init__(self, seen: Seen, clock: Callable[[], float]) -> None:
        self.seen = seen
        self._clock = clock
        self._written: dict[str, tuple[tuple[int, int, int], float]] = {}

    def compare(self, now_seen: Seen) -> list[HookEvent]:
        """Returns the events that fire now. Nothing counts as seen before `done` says so."""
        events: list[HookEvent] = []
        for path in sorted(now_seen.keys() - self.seen.keys()):
            events.append(_event("fs.create", path, now_seen[path]))
        for path in sorted(self.seen.keys() - now_seen.keys()):
            events.append(_event("fs.delete", path, self.seen[path]))
        for path in sorted(self.seen.keys() & now_seen.keys()):
            about = now_seen[path]
            if about == self.seen[path]:
                self._written.pop(path, None)
                continue
            last, since = self._written.get(path, (None, 0.0))
            if last != about:
                self._written[path] = (about, self._clock())
            elif self._clock() - since >= DEBOUNCE:
                events.append(_event("fs.write", path, about))
        return events

    def done(self, event: HookEvent, now_seen: Seen) -> None:
        """Takes an event that has fired for seen."""
        self._written.pop(event.path, None)
        if event.type == "fs.delete":
            self.seen.pop(event.path, None)
        else:
            self.seen[event.path] = now_seen[event.path]


def _event(type: EventType, path: str, about: tuple[int, int, int]) -> HookEvent:
    text = "\n".join((type, path, *map(str, about)))
    return HookEvent(type, path, hashlib.sha256(text.encode()).hexdigest()[:32])


def source_event(hook: Hook, path: str, integration: str, items: Iterable[str], new_items_hash: str = "") -> HookEvent:
    """Returns the event of a source that reports changed items.

    Raises `InvalidInput` for too many of them, and for a report that could not be told from the next one: without a
    path, or with neither items nor their hash.
    """
    distinct, new_items_hash = sorted({each.strip() for each in items if each.strip()}), new_items_hash.strip()
    if not path.strip():
        raise InvalidInput("path: a source says where its items changed", hint="such as /mail")
    if not distinct and not new_items_hash:
        raise InvalidInput(
            "items: this report says of no item that it changed, so it could not be told from the next one",
            hint="give the ids of the changed items in items, or new_items_hash",
        )
    if len(distinct) > MOST_ITEMS:
        raise InvalidInput(f"at most {MOST_ITEMS} items are reported at once, and these are {len(distinct)}")
    given = new_items_hash or hashlib.sha1("\n".join(distinct).encode()).hexdigest()
    return HookEvent("source.change", storable(path), f"source:{path}:{integration}:{given}", hook.source)


# --- firing ------------------------------------------------------------------------------------------------------


class HookFiring:
    """Has the work of an event done, once however often it is asked."""

    def __init__(self, database: Database, tasks: Tasks, posts: SessionPosts | None) -> None:
        self._tasks = tasks
        self._posts = posts
        self._tokens = SqlTokens(database)

    async def fire(self, hook: Hook, event: HookEvent) -> str:
        """Makes the task of an event, or says it to its session; the id of the task, or of the session.

        Raises what making it does, and `Denied` when whoever declared the hook may do nothing any more.
        """
        if why := await self._tokens.withdrawn(hook.declared_by.user):
            raise Denied(f"{why}, and declared this hook: somebody else has to declare it anew")
        key = bounded_key(f"hook:{hook.uid}:", event.id)
        values = _values(hook, event, quoted=hook.session is not None)

        def value_of(hole: str) -> str:
            return values.get(hole, hole)

        # Nothing in here depends on the moment: a second try is the same request.
        attachment = {"type": "hook_event", "event": event.type, "path": event.path, "event_id": event.id}
        provenance = Provenance("filesystem_hook" if hook.path else "source_hook", correlation_id=event.id)
        if hook.session is not None:
            if self._posts is None:
                raise Unavailable("this process says nothing to sessions: `foliot up` does")
            order = session_order(
                hook.session,
                namespace=hook.key.namespace,
                declarer=hook.declared_by,
                via=f"hook:{hook.key.name}",
                key=key,
                value_of=value_of,
                provenance=provenance,
                attachments=(attachment,),
            )
            return await self._posts.post(order)
        command = Command(
            target_kind="agent",  # the template says which
            target="",
            namespace=hook.key.namespace,
            name=f"{hook.key.name[:_NAME_LENGTH]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}",
            input={
                "hook_event": event.type,
                "hook_path": event.path,
                **{name: fill(text, value_of) for name, text in hook.input.items()},
            },
            idempotency_key=key,
            labels={
                LABEL: hook.key.name[:_LABEL_LENGTH].rstrip("-_."),
                f"{LABEL}-uid": hook.uid,
                "foliot.dev/label": f"Hook {one_line(hook.path or hook.source)}",
            },
            spawned_by=f"hook:{hook.uid}",
            by=f"hook:{hook.key.namespace}/{hook.key.name}",
            identity=Identity(hook.declared_by.user, via=f"hook:{hook.key.name}"),
            attachments=(attachment,),
        )
        origin = Origin(KIND, hook.key.namespace)
        try:
            accepted = await self._tasks.accept_template(
                hook.ref, command, origin=origin, by_operator=hook.declared_by.operator
            )
        except Conflict:
            # Made before, and the template was changed since.
            made = await self._tasks.get(hook.ref.partition("/")[0], command.name)
            if made.spawned_by != command.spawned_by:
                raise
            return made.id
        return accepted.task.id


def one_line(text: str) -> str:
    """Returns a text with everything escaped that cannot be printed, as JSON escapes it."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def quoted_name(text: str) -> str:
    """Returns a text that somebody else chose as one quoted word on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{one_line(escaped)}"'


def _values(hook: Hook, event: HookEvent, *, quoted: bool) -> Mapping[str, str]:
    return {
        "event": event.type,
        "event_id": one_line(event.id),
        "path": quoted_name(event.path) if quoted else one_line(event.path),
        "hook": hook.key.name,
        "namespace": hook.key.namespace,
        "source": event.source,
    }


# --- watching ----------------------------------------------------------------------------------------------------


class HookWatcher:
    """`run` watches the folders of all hooks until it is cancelled; `tick` looks at them once."""

    def __init__(
        self,
        database: Database,
        store: ResourceStore,
        tasks: Tasks,
        posts: SessionPosts | None,
        *,
        holder: str,
        check: FolderCheck,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._holder = holder
        self._check = check
        self._clock = clock
        self._readers = ChannelReaders(database)
        self._firing = HookFiring(database, tasks, posts)
        self._followed = FollowedResources(database, store, KIND)
        self._folders: dict[str, FolderChanges] = {}
        self._until: dict[str, float] = {}

    async def run(self) -> None:
        """Watches folders until cancelled. A store that does not answer is waited for."""
        while True:
            try:
                await self.tick()
            except FoliotError as error:
                log.warning("hooks are looked at again: %s", error.message)
            await asyncio.sleep(LOOK_EVERY)

    async def tick(self) -> None:
        """Looks at all folders, and fires what is due. What is wrong with one hook concerns no other."""
        for uid in await self._followed.look():
            self._folders.pop(uid, None)
            self._until.pop(uid, None)
            if uid not in self._followed.documents:
                await self._readers.forget(uid)
        for document in list(self._followed.documents.values()):
            try:
                hook = read_hook(document)
                if hook.path:
                    await self._attend(hook, document)
            except FoliotError as error:
                if error.retryable:
                    log.warning("hook %s is looked at again: %s", document["metadata"]["name"], error.message)
                else:
                    await self._show(document, error=error.message)
            except Exception:  # one that nobody can read must not stop the others
                log.exception("hook %s cannot be dealt with", document["metadata"]["name"])

    async def _attend(self, hook: Hook, document: Document) -> None:
        self._check(_really(document))
        now_seen = await asyncio.to_thread(look_at, hook.path)  # before it is claimed: who has no folder claims none
        changes = await self._held(hook, now_seen)
        if changes is None:
            return
        await self._show(document)
        for event in changes.compare(now_seen):
            made = failure = ""
            if event.type in hook.events and not hook.suspend:
                try:
                    made = await self._firing.fire(hook, event)
                except (InvalidInput, Conflict) as error:
                    if error.retryable or isinstance(error, InboxFull):
                        raise  # it fires later
                    failure = f"{event.type} {quoted_name(event.path)}: {error.message}"
                    log.warning("hook %s passes an event that cannot fire: %s", hook.key.name, failure)
            changes.done(event, now_seen)
            if not await self._seen(hook, changes.seen):
                self._folders.pop(hook.uid, None)
                return  # somebody else looks by now
            if made or failure:
                await self._show(document, event=event, made=made, failure=failure)

    async def _held(self, hook: Hook, now_seen: Seen) -> FolderChanges | None:
        """The changes of a folder, if this process looks after it; None when another does."""
        now = self._clock()
        held, until = self._folders.get(hook.uid), self._until.get(hook.uid, 0.0)
        if now < until:
            return held
        place = await self._readers.claim(hook.uid, self._holder, now=now, lease=LEASE)
        self._until[hook.uid] = now + LEASE / 3  # who has it keeps it, who has it not asks again
        if place is None:
            self._folders.pop(hook.uid, None)
            return None
        if held is not None:
            return held
        known = msgspec.json.decode(place, type=SeenFolder) if place else None
        if known is None or known.path != hook.path:  # what is there when the hook begins is no change
            known = SeenFolder(hook.path, dict(now_seen))
            await self._seen(hook, now_seen)
        changes = self._folders[hook.uid] = FolderChanges(known.files, self._clock)
        return changes

    async def _seen(self, hook: Hook, seen: Seen) -> bool:
        place = msgspec.json.encode(SeenFolder(hook.path, seen)).decode()
        return await self._readers.move(hook.uid, self._holder, place)

    async def _show(
        self,
        document: Document,
        *,
        error: str = "",
        event: HookEvent | None = None,
        made: str = "",
        failure: str = "",
    ) -> None:
        document = self._followed.documents.get(document["metadata"]["uid"], document)
        before: dict[str, Any] = document.get("status") or {}
        wanted = {
            **before,
            "phase": "Error" if error else "Suspended" if document["spec"].get("suspend") else "Ready",
            "lastError": error,
            "observedGeneration": document["metadata"]["generation"],
        }
        if failure:
            wanted["failedCount"] = before.get("failedCount", 0) + 1
            wanted["lastFailure"] = failure[:_LONGEST_FAILURE]
        elif event is not None:
            wanted["lastEvent"] = event.id
            wanted["lastEventTime"] = f"{datetime.fromtimestamp(int(self._clock()), UTC):%Y-%m-%dT%H:%M:%SZ}"
            wanted["lastTriggeredTask"] = made if document["spec"].get("task_ref") else ""
        wanted = {name: value for name, value in wanted.items() if value not in ("", None)}
        if wanted == before:
            return
        try:
            (written,) = await self._store.write([Put({**document, "status": wanted}, only="status")])
        except NotFound:  # deleted meanwhile
            return
        self._followed.documents[document["metadata"]["uid"]] = written.document


def _really(document: Document) -> Document:
    """The hook with the folder that its path really leads to: a link on the way is held against the same grants."""
    path = os.path.realpath(document["spec"]["path"])
    return {**document, "spec": {**document["spec"], "path": path}}
