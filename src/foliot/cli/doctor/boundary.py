"""Stored resources that do not work: they lack a grant, somebody who answers for them, or a part.

They stay as they are, and are refused when they are used; these looks say so before, each with what to type.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from foliot.cli.doctor.findings import Finding, Findings
from foliot.common.text import one_line
from foliot.errors import Denied
from foliot.resources.powers import declared_by_operator, spec_of
from foliot.resources.references import GRANT, Origin, ReferenceGrants, Target, foreign, refused

if TYPE_CHECKING:
    from foliot.settings.settings import Settings
    from foliot.store.base import Document, ResourceStore

AREA: Final = "boundary"
# Of more, the number is told.
SOME: Final = 20
_GRANTED: Final = ("Tool", "ModelEndpoint", "McpServer", "Memory")


async def look_at_boundary(settings: Settings, resources: ResourceStore, now: Callable[[], float]) -> Findings:
    """Hold what is stored against what is asked of it when it is used."""
    from foliot.engine.definition.references import list_all
    from foliot.store.base import Filter

    stored = await list_all(resources, Filter())
    looks: Sequence[tuple[str, str, AsyncIterator[Finding]]] = (
        ("boundary.references", "every reference to another namespace is granted there", _references(stored)),
        ("boundary.missing", "everything that is named exists", _missing(settings, resources, stored)),
        ("boundary.powers", "every resource may do what it declares", _powers(settings, stored)),
        ("boundary.standing", "every standing grant counts, or has ended", _standing(stored, now())),
        ("boundary.quarantine", "no tool of an MCP server waits to be accepted", _quarantine(resources, stored)),
    )
    for check, well, look in looks:
        count = 0
        async for finding in look:
            count += 1
            if count <= SOME:
                yield finding
        if count > SOME:
            yield Finding(AREA, check, "warning", f"and {count - SOME} more", "mend these, and look again")
        if not count:
            yield Finding(AREA, check, "ok", well)


async def _references(stored: Iterable[Document]) -> Findings:
    documents = list(stored)
    grants = ReferenceGrants(documents)
    for document in documents:
        origin = Origin(document["kind"], _space(document))
        for each in foreign(document):
            target = Target(each.kind, each.namespace, each.name)
            if grants.allow(origin, target):
                continue
            what = refused(origin, target, f"{origin.kind}/{_name(document)}", each.path)
            yield Finding(AREA, "boundary.references", "warning", what.message, _grant_line(origin, target))


async def _missing(settings: Settings, resources: ResourceStore, stored: Sequence[Document]) -> Findings:
    """Rules about tools that do not exist, agents with tools that nobody has, and the like: declared all the same."""
    from foliot.engine.definition.missing import judge_stored
    from foliot.runtime.local.groups import PluginParts

    found = await judge_stored(resources, stored, PluginParts(settings).brings)
    for document, problems in zip(stored, found, strict=True):
        for problem in problems:
            what = f"{document['kind']}/{_name(document)} in {_space(document)}: {problem}"
            yield Finding(AREA, "boundary.missing", "warning", what, "declare it, or mend the name")


async def _powers(settings: Settings, stored: Iterable[Document]) -> Findings:
    """Code, programs, addresses and secrets, of resources that the operator did not declare."""
    from foliot.engine.definition.grants import OperatorGrants as Granted
    from foliot.tools.secrets.secrets import SecretRef

    documents = list(stored)
    granted = Granted.of(settings)
    secrets = {(_space(each), _name(each)): each for each in documents if each["kind"] == "Secret"}

    async def hosts(reference: str, namespace: str) -> Sequence[str] | None:
        ref = SecretRef.parse(reference, namespace)
        secret = secrets.get((ref.namespace, ref.name))
        return None if secret is None else spec_of(secret).get("hosts", ())

    for document in documents:
        if document["kind"] not in _GRANTED or declared_by_operator(document):
            continue
        try:
            await granted.check(document, hosts)
        except Denied as denied:
            hint = f"if you answer for it: {_again(document)}; or {denied.hint}"
            yield Finding(AREA, "boundary.powers", "warning", f"{denied.message} (in {_space(document)})", hint)


async def _standing(stored: Iterable[Document], now: float) -> Findings:
    """Grants that would be in force, had they not been changed after they were given."""
    from foliot.engine.approval.documents import KIND
    from foliot.engine.approval.grants import would_stand

    for document in stored:
        if document["kind"] != KIND or not would_stand(document, now):
            continue
        spec = document["spec"]
        what = f"the standing grant {_name(document)} in {_space(document)} was changed after it was given, and allows"
        what += " nothing"
        words = ["foliot", "approvals", "grant", "-n", _space(document), "--tool", str(spec["tool"])]
        for option in ("agent", "when"):
            words += [f"--{option}", str(spec[option])] if spec.get(option) else []
        words += ["--max-uses", str(spec["max_uses"])] if spec.get("max_uses") else []
        ended = shlex.join(["foliot", "approvals", "revoke", _name(document), "-n", _space(document)])
        hint = f"{ended}; and to give it anew: {shlex.join(words)} --until DURATION"
        yield Finding(AREA, "boundary.standing", "warning", what, hint)


async def _quarantine(resources: ResourceStore, stored: Iterable[Document]) -> Findings:
    from foliot.store.resources.mcp_pins import held_tools

    for namespace in sorted({_space(document) for document in stored if document["kind"] == "McpServer"}):
        for row in await held_tools(resources, namespace):
            what = f"{one_line(row.tool)} of MCP server {row.server} in {namespace} is refused: {one_line(row.held)}"
            look = f"look at it with `foliot mcp tools {row.server} -n {namespace}`, then {one_line(row.way())}"
            yield Finding(AREA, "boundary.quarantine", "warning", what, look)


def _again(document: Document) -> str:
    """Have the operator declare what is stored."""
    kind, name, space = document["kind"].lower(), shlex.quote(_name(document)), shlex.quote(_space(document))
    return f"foliot get {kind} {name} -n {space} -o yaml | foliot apply -f -"


def _grant_line(origin: Origin, target: Target) -> str:
    """Returns a command that grants the reference, if the namespace of the resource agrees."""
    # As in the refusal: a value that was pasted in the place of a Secret's name may look like one.
    name = "NAME" if target.kind == "Secret" else target.name
    spec = {"from": [{"namespace": origin.namespace, "kind": origin.kind}], "to": [{"kind": target.kind, "name": name}]}
    made = f"to-{origin.namespace[:40]}-{sha256(_text(spec).encode()).hexdigest()[:8]}"
    document = {"kind": GRANT, "metadata": {"name": made, "namespace": target.namespace}, "spec": spec}
    return f"if {target.namespace} agrees: echo {shlex.quote(_text(document))} | foliot apply -f -"


def _text(document: Any) -> str:
    return msgspec.json.encode(document).decode()


def _name(document: Document) -> str:
    return document["metadata"]["name"]


def _space(document: Document) -> str:
    return document["metadata"].get("namespace", "default")
