"""The skills that a run has: found when it begins, and part of what it is pinned to.

    the agent's   named in `spec.skills`, in its namespace        first
    the user's    Skills whose `spec.user` the run is for         second: for agents that have the tool `skills`
    built-in      named in `spec.skills`, where none is stored    last

Of two with the same name the first wins. One in quarantine is none: it is not in the prompt, and cannot be loaded.
Nor is one whose name no skill can have; both are left out with a word in `foliot why`.

The prompt has names and descriptions only; texts are loaded with the tool `skills`. All of it is in the spec of the
run, which is content by digest: every worker has it, forks and tasks have it, and a skill that is changed later changes
no run that has begun.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

import msgspec
from msgspec.structs import replace

from foliot.common.text import one_line
from foliot.engine.definition.references import list_all
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.run.spec import RunSpec
from foliot.resources.skill_files import NAME_RULE, SKILL_NAME, builtin_skills, is_misnamed
from foliot.resources.skill_trust import digest_of_skill, in_quarantine
from foliot.resources.validate import validate_document
from foliot.store.base import DeclaredBy, Document, Filter, Key, Put, ResourceStore
from foliot.tools.base import Invocation, ToolArgumentsInvalid, ToolPrecondition
from foliot.tools.builtin.skills import SKILLS_TOOL, OfferedSkill, Scope

log = logging.getLogger(__name__)

# Where the spec of a run keeps its skills, and the names of those that it would have if they were not in quarantine.
SKILLS: Final = "skills"
QUARANTINED_SKILLS: Final = "quarantined_skills"
MISNAMED_SKILLS: Final = "misnamed_skills"
MOST_SKILLS: Final = 100
# Every run of the agent stores its spec once, and every worker that drives one decodes it.
LARGEST_IN_ALL: Final = 2 * 1024 * 1024
_HEAD: Final = (
    "Skills are manuals for kinds of work. When a task fits the description of one, load it with the tool "
    f"`{SKILLS_TOOL}` before you begin, and follow it."
)


class SkillCatalog:
    """The stored skills of each namespace, read anew only when something in the store has changed."""

    def __init__(self, store: ResourceStore | None) -> None:
        self._store = store
        self._known: dict[str, tuple[int, Sequence[Document]]] = {}
        self._told: set[tuple[str, str, str]] = set()

    async def of_agent(self, names: Sequence[str], namespace: str, agent: str) -> list[OfferedSkill]:
        """Returns the skills that an agent names, without those that are left out. Raises `NotFound`."""
        found: list[OfferedSkill] = []
        missing: list[str] = []
        for name in names:
            stored = await self._stored(namespace, name)
            document = stored or builtin_skills().get(name)
            if document is None:
                missing.append(name)
            elif (offered := offered_of(document, "agent" if stored is not None else "built-in")) is not None:
                found.append(offered)
        if missing:
            raise NotFound(
                f"agent {agent!r} names skills that do not exist: {', '.join(missing)}",
                hint="`foliot apply` the folder of the skill; `foliot skills list` shows those that are there",
            )
        return found

    async def quarantined(self, names: Sequence[str], namespace: str, agent: str) -> list[str]:
        """Returns those of an agent's skills that are in quarantine, as models would call them; warns of each once."""
        found = [each for name in names if (each := await self._stored(namespace, name)) and in_quarantine(each)]
        for each in found:
            name, digest = each["metadata"]["name"], digest_of_skill(each)
            if (told := (namespace, agent, digest)) not in self._told:
                self._told.add(told)
                log.warning(
                    "agent %r does without skill/%s, which is in quarantine: read it with `foliot skills show %s`, "
                    "then `foliot skills allow %s --digest %s`", agent, name, name, name, digest,
                )  # fmt: skip
        return [each["spec"].get("name") or each["metadata"]["name"] for each in found]

    async def of_user(self, user: str, namespace: str, *, revision: int | None = None) -> list[OfferedSkill]:
        """Returns the skills of one user, by name; as of a `revision` that the caller has just looked up, if any."""
        if self._store is None or not user:
            return []
        revision = await self._store.revision() if revision is None else revision
        known = self._known.get(namespace)
        if known is None or known[0] != revision:
            self._known[namespace] = revision, await list_all(self._store, Filter("Skill", namespace))
        found = (offered_of(each, "user") for each in self._theirs(user, namespace))
        return sorted((each for each in found if each is not None), key=lambda each: each.name)

    async def misnamed(self, names: Sequence[str], namespace: str) -> list[str]:
        """Returns those of an agent's skills that have a name that no skill can have, as the store calls them."""
        return [name for name in names if (each := await self._stored(namespace, name)) and is_misnamed(each)]

    def misnamed_of_user(self, user: str, namespace: str) -> list[str]:
        """Returns those of one user's skills that have such a name; as of the last call of `of_user`."""
        return sorted(each["metadata"]["name"] for each in self._theirs(user, namespace) if is_misnamed(each))

    def _theirs(self, user: str, namespace: str) -> list[Document]:
        _, known = self._known.get(namespace, (0, ()))
        return [each for each in known if each["spec"].get("user") == user]

    async def _stored(self, namespace: str, name: str) -> Document | None:
        """Returns a Skill by its name; not that of one user, which is for that user alone."""
        if self._store is None:
            return None
        try:
            found = await self._store.get(Key("Skill", namespace, name))
        except NotFound:
            return None
        return None if found["spec"].get("user") else found


def offered_of(document: Mapping[str, Any], scope: Scope) -> OfferedSkill | None:
    """Returns a Skill as it is offered to models.

    None when it is not: in quarantine, deprecated, kept from models, or under a name that no skill can have.
    """
    spec, name = document["spec"], document["metadata"]["name"]
    called: str = spec.get("name") or name
    if in_quarantine(document) or is_misnamed(document):
        return None
    if spec.get("status") == "deprecated" or spec.get("disable_model_invocation"):
        return None
    return OfferedSkill(
        called,
        spec["description"],
        digest_of_skill(document),
        scope,
        spec.get("status", "active"),
        spec.get("body", ""),
        dict(spec.get("files") or {}),
    )


def skills_in(spec: RunSpec) -> tuple[OfferedSkill, ...]:
    """Returns the skills that a run of this spec is pinned to."""
    return msgspec.convert(spec.extra.get(SKILLS, ()), tuple[OfferedSkill, ...])


def with_skills(spec: RunSpec, skills: Iterable[OfferedSkill]) -> RunSpec:
    """The spec of a run that has these skills besides its own, which win over all but built-in ones.

    Raises `InvalidInput` for too many.
    """
    known = skills_in(spec)
    every = {each.name: each for each in known}
    for each in skills:
        if each.name not in every or (each.scope != "built-in" and every[each.name].scope == "built-in"):
            every[each.name] = each
    if tuple(every.values()) == known:
        return spec
    size = sum(each.size for each in every.values())
    if len(every) > MOST_SKILLS or size > LARGEST_IN_ALL:
        raise InvalidInput(
            f"agent {spec.agent!r} has {len(every)} skills of {size:,} bytes, and may have {MOST_SKILLS} of "
            f"{LARGEST_IN_ALL:,}",
            hint="name fewer in spec.skills",
        )
    extra = {**spec.extra, SKILLS: msgspec.to_builtins(tuple(every.values()))}
    return replace(spec, system=prompt_of(spec) + section(every.values()), extra=extra)


def quarantined_in(spec: RunSpec) -> tuple[str, ...]:
    """Returns the names of skills that were in quarantine when the run began."""
    return msgspec.convert(spec.extra.get(QUARANTINED_SKILLS, ()), tuple[str, ...])


def with_quarantined(spec: RunSpec, names: Sequence[str]) -> RunSpec:
    """The spec with the names of skills that are in quarantine: whoever asks for one is told so."""
    return replace(spec, extra={**spec.extra, QUARANTINED_SKILLS: list(names)}) if names else spec


def misnamed_in(spec: RunSpec) -> tuple[str, ...]:
    """Returns the Skills that the run was left without, because no skill can have their names."""
    return msgspec.convert(spec.extra.get(MISNAMED_SKILLS, ()), tuple[str, ...])


def with_misnamed(spec: RunSpec, names: Sequence[str]) -> RunSpec:
    """The spec with Skills that were left out of it, because no skill can have their names."""
    every = list(dict.fromkeys((*misnamed_in(spec), *names)))
    return replace(spec, extra={**spec.extra, MISNAMED_SKILLS: every}) if names else spec


def prompt_of(spec: RunSpec) -> str:
    """Returns the prompt of a spec without what it says of skills."""
    return spec.system.removesuffix(section(skills_in(spec)))


def with_prompt(spec: RunSpec, prompt: str) -> RunSpec:
    """The spec with another prompt, and with what it says of skills."""
    return replace(spec, system=prompt + section(skills_in(spec)))


def without_skills(spec: RunSpec) -> RunSpec:
    """The spec without its skills: of a run that has lost the tool to load them with."""
    known = skills_in(spec)
    if not known:
        return spec
    extra = {name: value for name, value in spec.extra.items() if name != SKILLS}
    return replace(spec, system=prompt_of(spec), extra=extra)


def section(skills: Iterable[OfferedSkill]) -> str:
    """Returns what the prompt says of skills: names and descriptions, in which nothing can end the list early."""
    listed = list(skills)
    if not listed:
        return ""
    lines = ["\n\n" + _HEAD, "<available_skills>"]
    for each in listed:
        status = "" if each.status == "active" else f"<status>{each.status}</status>"
        described = escape(one_line(each.description))
        lines.append(f"<skill><name>{each.name}</name>{status}<description>{described}</description></skill>")
    return "\n".join([*lines, "</available_skills>"])


class StoredDrafts:
    """`SkillDrafts` in the store: Skills of one user each, with the run that wrote them as their origin.

    They are declared by that user and never by the operator, and say nothing of what is allowed: so they are in
    quarantine, and a change puts them back there. What somebody else declared is not touched.
    """

    def __init__(self, store: ResourceStore) -> None:
        self._store = store

    async def write(self, call: Invocation, name: str, changes: Mapping[str, Any], *, new: bool) -> str:
        """Stores or changes a draft; see `SkillDrafts`."""
        user = call.caller.user
        if not user:
            raise ToolPrecondition("draft_skill: this run is for no user, so the skill would belong to no one")
        if not SKILL_NAME.fullmatch(name):
            raise ToolArgumentsInvalid(f"draft_skill: name: expected {NAME_RULE}", field="name")
        key = Key("Skill", call.caller.namespace, draft_name(name, user))
        try:
            known: Document | None = await self._store.get(key)
        except NotFound:
            known = None
        if known is not None and (known["spec"].get("user") != user or not known["spec"].get("origin")):
            raise ToolPrecondition(f"draft_skill: {name!r} is taken by a skill that no agent wrote")
        if (known is None) != new and not (new and known is not None and _says(known, changes)):
            why = "there is such a draft already: patch it" if new else "there is no such draft of yours: create it"
            raise ToolPrecondition(f"draft_skill: {name!r}: {why}")
        before = {} if known is None else {k: v for k, v in known["spec"].items() if k != "allow"}
        spec = {**before, **changes, "name": name, "user": user, "origin": f"run {call.run_id}"}
        raw = {"kind": "Skill", "metadata": {"name": key.name, "namespace": key.namespace}, "spec": spec}
        document, problems = validate_document(raw)
        if document is None:
            raise ToolArgumentsInvalid(f"draft_skill: {problems[0]}", field=problems[0].field.removeprefix("spec."))
        if known is not None and _says(known, changes):
            return digest_of_skill(known)
        expect = "absent" if known is None else str(known["metadata"]["resourceVersion"])
        try:
            await self._store.write([Put(document, expect=expect)], by=DeclaredBy(user))
        except Conflict as error:
            raise ToolPrecondition(f"draft_skill: {name!r} was changed meanwhile: {error.message}") from error
        return digest_of_skill(document)


def draft_name(name: str, user: str) -> str:
    """Returns what the Skill of a draft is called: the same for one user, another one for everybody else."""
    return f"{name}-{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"


def _says(document: Document, changes: Mapping[str, Any]) -> bool:
    return all(document["spec"].get(field) == value for field, value in changes.items())
