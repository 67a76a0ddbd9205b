"""From a request to what it names: a kind by its plural, a namespace, a page of a list."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Final

from starlette.requests import Request

from foliot.common.times import MOMENT_FORMS
from foliot.errors import InvalidInput
from foliot.resources.kinds import Kind
from foliot.server.auth.guard import DEFAULT
from foliot.server.context import Services
from foliot.server.cursors import is_sealed
from foliot.server.errors import BadParameter
from foliot.server.http.parameters import Header, Path, Query
from foliot.server.http.routing import PLURALS
from foliot.server.resources import Conditions
from foliot.store.base import Filter, Key, Requirement, ResourceStore
from foliot.store.resources import cursors
from foliot.store.resources.documents import key_text
from foliot.store.resources.selectors import parse_fields, parse_labels

MOST: Final = 1000
DEFAULT_PAGE: Final = 500

KindName = Annotated[str, Path(alias="kind", description="The plural of a kind.", values=(*PLURALS,))]
# What the store can keep as a name. What names should look like is for the resources to say.
NAME: Final = r"^[^/\x00-\x1f\x7f]*$"
# Namespaces are names of resources, or empty: a misspelt one is refused, and not an empty list.
SPACE: Final = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"
Name = Annotated[str, Path(min_length=1, max_length=253, pattern=NAME, description="The name of the resource.")]
Namespace = Annotated[
    str | None,
    Query(
        max_length=253, pattern=SPACE, description="The namespace; for lists, all that the caller can see without it."
    ),
]


def clamped(limit: int) -> int:
    """Clients ask for 0 or for a million when they mean all: a page is as long as pages can be."""
    return limit if 1 <= limit <= MOST else MOST


Limit = Annotated[
    int, Query(change=clamped, description=f"Items of a page. More than {MOST}, or less than 1, are {MOST}.")
]
After = Annotated[
    str | None,
    Query(
        max_length=1500, description="`continue` of the page before; or the name of its last item, where that is clear."
    ),
]
Continue = Annotated[
    str | None, Query(alias="continue", max_length=1500, description="`continue` of the page before; nothing else.")
]
MOMENT: Final = f"A time: {MOMENT_FORMS}."
CreatedAfter = Annotated[float | None, Query(moment=True, description=f"Only what was created then or later. {MOMENT}")]
CreatedBefore = Annotated[
    float | None, Query(moment=True, description=f"Only what was created then or earlier. {MOMENT}")
]
Labels = Annotated[str | None, Query(description="Such as `app=web,tier!=test,env in (a,b),!legacy`.")]
Fields = Annotated[str | None, Query(description="Such as `status.phase=Ready`.")]
DryRun = Annotated[str | None, Query(alias="dryRun", description="`true` or `All`: check everything, write nothing.")]
Force = Annotated[str | None, Query(description="`true`: delete it although tasks that have not ended use it.")]
FieldManager = Annotated[str | None, Query(description="Who sets the fields, by a name of their choice.")]
AllowMissing = Annotated[
    str | None, Query(description="`true`: take what names something that does not exist, with a warning.")
]
ForceConflicts = Annotated[str | None, Query(description="`true`: take over fields that other managers own.")]
TakeOver = Annotated[str | None, Query(description="`true`: declare all of it, also what somebody else put there.")]
ManagedFields = Annotated[str | None, Query(description="`true`: with `metadata.managedFields`, who owns which field.")]
IfMatch = Annotated[str | None, Header(description="The version that must be the current one; `*` for any.")]
IdempotencyKey = Annotated[
    str | None, Header(max_length=255, description="A second request with the same key finds the task of the first.")
]
IfNoneMatch = Annotated[str | None, Header(description="`*`: only when it is not there. A version: only when changed.")]


def kind_at(plural: str) -> Kind:
    """Return the kind whose resources are below a path. The router lets no other word through."""
    return PLURALS[plural]


def space(namespace: str | None) -> str:
    """The namespace of something that is named."""
    return namespace or DEFAULT


def wanted(kind: str | None, namespace: str | None, labels: str | None, fields: str | None) -> Filter:
    """Raises `BadParameter` for a selector that cannot be read."""
    with parameters():
        return Filter(
            kind, namespace or None, parse_labels(labels or ""), parse_fields(fields or "", (kind,) if kind else ())
        )


@contextmanager
def parameters() -> Generator[None]:
    """Reports invalid input raised inside as a wrong parameter: 400."""
    try:
        yield
    except InvalidInput as error:
        if error.http != InvalidInput.http:
            raise
        raise BadParameter(error.message, hint=error.hint) from None


def conditions(match: str | None, none_match: str | None, dry_run: str | None) -> Conditions:
    """The preconditions of a write."""
    return Conditions(unquoted(match), unquoted(none_match), dry=is_dry(dry_run))


def unquoted(tag: str | None) -> str | None:
    """The version in an entity tag."""
    if tag is None:
        return None
    return tag.strip().removeprefix("W/").strip('"') or None


def is_dry(given: str | None) -> bool:
    match (given or "").strip().lower():
        case "" | "false" | "none" | "0":
            return False
        case "true" | "all" | "server" | "1":
            return True
        case _:
            raise BadParameter(f"dryRun: {given!r} cannot be used", hint="true or false")


def is_true(given: str | None, name: str) -> bool:
    """Whether a parameter that is true or false is true. Raises `BadParameter`."""
    match (given or "").strip().lower():
        case "" | "false" | "0":
            return False
        case "true" | "1":
            return True
        case _:
            raise BadParameter(f"{name}: {given!r} cannot be used", hint="true or false")


def one_key(header: str | None, body: str) -> str:
    """Return the idempotency key of a request. Raises `BadParameter` when header and body have different ones."""
    if header and body and header != body:
        raise BadParameter("Idempotency-Key is not the idempotency_key of the body", hint="give one of them")
    return header or body


def last_event(request: Request, position: str | None) -> str | None:
    """Returns the position from which a stream continues: a reconnecting client's header, else the address."""
    return request.headers.get("last-event-id") or position or None


# --- paging ----------------------------------------------------------------------------------------------------------

# Where a page of resources begins: behind a cursor that was given out, or behind the name of the last item seen.

CURSOR_HINT: Final = "send `continue` of the page before"


async def place_of(services: Services, filter: Filter, after: str | None) -> str | None:
    """The cursor for what a client says it has seen; None for the beginning.

    A name is taken where a cursor is, because that is what older clients remember of a page. Without a namespace it
    must be the name of one resource alone: lists are ordered by namespace first. Raises `BadParameter`.
    """
    if not after or is_sealed(after) or filter.kind is None:
        return await services.cursors.open(after)
    given, _, name = after.rpartition("/")
    store = services.resources
    space = given or filter.namespace or await _space_of(store, filter, name)
    return cursors.issue(cursors.CursorPlace(key_text(Key(filter.kind, space, name)), await store.revision()), filter)


async def _space_of(store: ResourceStore, filter: Filter, name: str) -> str:
    named = Requirement("metadata.name", "=", (name,))
    page = await store.list(Filter(filter.kind, None, fields=(*filter.fields, named)), limit=2)
    if len(page.items) != 1:
        how = "no resource is" if not page.items else "resources of several namespaces are"
        raise BadParameter(f"after: {how} called {name[:60]!r}", hint=f"{CURSOR_HINT}, or namespace/name")
    return page.items[0]["metadata"]["namespace"]
