"""Request bodies: manifests in JSON or YAML, or JSON of a known form. The content type is ignored."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec
import msgspec.inspect
from starlette.requests import Request
from starlette.types import Message, Receive

from foliot.common.suggestions import did_you_mean, nearest, no_such_word
from foliot.common.threads import on_thread, unhurried
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.arguments import repeated_name
from foliot.kernel.json_texts import MOST_VALUES, deeper_than, has_more_values
from foliot.resources.base import DEFAULT_NAMESPACE
from foliot.resources.kinds import KINDS, Kind
from foliot.resources.problems import ManifestError
from foliot.resources.references import NAME_RULE, is_name
from foliot.server.auth.identity import HIDDEN
from foliot.server.context import CALLER, ROLE

if TYPE_CHECKING:
    from foliot.resources.reader import Bundle, Complete, Loaded

FILE: Final = "request body"
DEEPEST: Final = 64
# A megabyte of manifests takes a second or two to read, in which others want to be answered.
LARGE: Final = 32 * 1024
T = TypeVar("T")


class UnreadableBody(ManifestError):
    """The body contains no manifest: it is empty, or neither JSON nor YAML. A manifest that breaks a rule is 422."""

    http = 400


async def manifest(request: Request, kind: Kind, namespace: str | None, name: str | None = None) -> Loaded:
    """The one resource of a body, checked and in normal form. What the path says need not be said again.

    Raises `ManifestError` with every problem, `UsageError` when body and path do not agree.
    """
    body = await request.body()
    bundle = await _read(body, namespace, partial(_completed, kind, name))
    if len(bundle.items) != 1:
        raise UsageError(f"one resource was expected, and {len(bundle.items)} came", hint="POST /v1/apply takes many")
    loaded = bundle.items[0]
    document = loaded.document
    metadata = document["metadata"]
    if document["kind"] != kind.name:
        raise UsageError(f"unsupported kind {document['kind']!r} for {kind.plural}", hint=f"it must be {kind.name}")
    if name is not None and metadata["name"] != name:
        raise UsageError(f"metadata.name {metadata['name']!r} does not match {name!r} of the path")
    if namespace is not None and metadata["namespace"] != namespace:
        said = metadata["namespace"]
        raise UsageError(f'metadata.namespace "{said}" does not match request namespace "{namespace}"')
    return loaded


async def manifests(request: Request, namespace: str | None, *, may_be_empty: bool = False) -> Bundle:
    """Every resource of a body; none of one with nothing but comments, if it may be empty. Raises `ManifestError`."""
    body = await request.body()
    if may_be_empty and all(not line or line.startswith(b"#") or line == b"---" for line in _lines(body)):
        body = b'{"kind": "List", "items": []}'
    return await _read(body, namespace)


def _lines(body: bytes) -> Iterator[bytes]:
    return (line.strip() for line in body.splitlines())


async def form(request: Request, shape: type[T]) -> T:
    """A body of JSON as a `msgspec.Struct`; an empty one is `{}`. Raises `InvalidInput`, which names the field.

    A field that the form does not have is refused: a limit that was put in the wrong place must not be left out in
    silence. Lenient are only the bodies of other people's protocols, which do not come through here: those of the
    OpenAI API (`openai/requests.py`) and of MCP (`mcp/http.py`).
    """
    body = await request.body()
    return await unhurried(len(body), _formed, body, shape)


def _formed(body: bytes, shape: type[T]) -> T:
    try:
        _refuse_unknown(refuse_repeated(body or b"{}"), shape)
        return msgspec.json.decode(body or b"{}", type=shape)
    except msgspec.ValidationError as error:
        raise _unfit(error, shape) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from None


async def form_in(request: Request, shape: type[T], asked: str | None) -> T:
    """Reads a form that may name its namespace, and lets the caller pass if they have the role of the route there.

    It is that of the query, which is `asked`, or that of the body, or `default`. Raises `UsageError` when both name
    one, and not the same; `NotFound` and `Denied` as the guard does for routes that it knows the namespace of.
    """
    said = await form(request, dict[str, Any])
    named = said.get("namespace")
    if named is None or named == "":
        named = asked or DEFAULT_NAMESPACE
    if not isinstance(named, str) or not is_name(named):
        raise UsageError(f"{str(named)[:253]!r} cannot be a namespace", hint=f"a name is {NAME_RULE}")
    if asked and named != asked:
        raise UsageError(
            f"the namespace {named!r} of the body is not {asked!r} of the request",
            hint="say it once: in the query (namespace=…), or in the body",
        )
    request.scope[CALLER].require(request.scope[ROLE], named, missing=HIDDEN)
    _refuse_unknown(said, shape)
    try:
        return msgspec.convert({**said, "namespace": named}, type=shape)
    except msgspec.ValidationError as error:
        raise _unfit(error, shape) from None


def _unfit(error: msgspec.ValidationError, shape: type[Any]) -> InvalidInput:
    """Return the error for a body that does not fit its form. A word that is none of a few names those few."""
    if found := _WORD.fullmatch(str(error)):
        form: Any = _form(shape)
        for name in found["path"].split("."):
            form = next((each.type for each in getattr(form, "fields", ()) if each.encode_name == name), None)
        if isinstance(form, msgspec.inspect.LiteralType):
            return no_such_word(found["path"], found["word"], map(str, form.values))
    return InvalidInput(f"the body cannot be used: {error}")


def refuse_repeated(body: bytes) -> Any:
    """Returns the value of a JSON body. Raises `UsageError` for one that says one name twice.

    What comes before the server may have read the other. Also for one of more than `MOST_VALUES`, before it is read;
    and what `msgspec` raises for one that is not JSON.
    """
    if has_more_values(body):
        raise UsageError(f"the body holds more than {MOST_VALUES:,} values", hint="send less at once")
    value = msgspec.json.decode(body) if body else None
    if body and (problem := repeated_name(body, value)):
        raise UsageError(f"the body cannot be used: {problem}", hint="say each name once")
    return value


def _refuse_unknown(body: Any, shape: type[Any]) -> None:
    """Raises `InvalidInput` for the first field of a body that its form does not have, however deep."""
    form = _form(shape)
    if (found := _unknown(body, form)) is None:
        return
    path, known = found
    every = {".".join(each) for each in _fields(form)}
    here = [".".join((*path[:-1], name)) for name in known]
    near = [each for each in sorted(every) if each.rpartition(".")[2] == path[-1]]
    near = near or nearest(".".join(path), here)
    shown = ".".join(path)[:200]
    hint = did_you_mean(near[0]) if near else f"it may have {', '.join(here)}" if here else "it has no fields"
    raise InvalidInput(f"the body cannot be used: it has no field {shown!r}", hint=hint, field=shown)


_form: Final = functools.cache(msgspec.inspect.type_info)
_WORD: Final = re.compile(r"Invalid enum value '(?P<word>.*)' - at `\$\.(?P<path>[\w.]+)`", re.DOTALL)


def _unknown(value: Any, form: Any) -> tuple[tuple[str, ...], list[str]] | None:
    """The way to the first field that the form does not have, and the fields that it has there."""
    match form:
        case msgspec.inspect.StructType() if isinstance(value, dict):
            types = {each.encode_name: each.type for each in form.fields}
            known = [*types, *([form.tag_field] if form.tag_field else [])]
            for name, inner in cast("dict[str, Any]", value).items():
                if name not in known:
                    return (name,), known
                if name in types and (found := _unknown(inner, types[name])):
                    return (name, *found[0]), found[1]
        case msgspec.inspect.DictType() if isinstance(value, dict):
            for name, inner in cast("dict[str, Any]", value).items():
                if found := _unknown(inner, form.value_type):
                    return (name, *found[0]), found[1]
        case msgspec.inspect.CollectionType() if isinstance(value, list):
            for index, inner in enumerate(cast("list[Any]", value)):
                if found := _unknown(inner, form.item_type):
                    return (str(index), *found[0]), found[1]
        case msgspec.inspect.UnionType():
            found = [_unknown(value, each) for each in form.types if _takes(each, value)]
            return None if not found or None in found else found[0]
        case _:
            pass
    return None


def _takes(form: Any, value: Any) -> bool:
    """Whether this part of a union is the one that a value, which fits the union, was read as."""
    match form:
        case msgspec.inspect.StructType():
            tagged = form.tag_field is not None and isinstance(value, dict)
            return isinstance(value, dict) and (not tagged or as_object(value).get(form.tag_field or "") == form.tag)
        case msgspec.inspect.DictType():
            return isinstance(value, dict)
        case msgspec.inspect.CollectionType():
            return isinstance(value, list)
        case msgspec.inspect.AnyType() | msgspec.inspect.RawType():
            return True
        case _:
            return False


def _fields(form: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The ways to all fields of a form, two levels deep: further down nobody looks for a field that is missed."""
    if isinstance(form, msgspec.inspect.UnionType):
        for each in form.types:
            yield from _fields(each, above)
    elif isinstance(form, msgspec.inspect.StructType):
        for each in form.fields:
            yield (*above, each.encode_name)
            if len(above) < 1:
                yield from _fields(each.type, (*above, each.encode_name))


async def mapping(request: Request) -> dict[str, Any]:
    """A body that is a JSON object. Raises `InvalidInput`, `UsageError`."""
    value = await form(request, dict[str, Any])
    if deeper_than(value, DEEPEST):
        raise UsageError("the body is nested too deeply", hint=f"at most {DEEPEST} levels")
    return value


async def patch_of(request: Request, kind: Kind) -> dict[str, Any]:
    """Read a part of a resource of this kind: where text is expected, 2.10 means these four characters."""
    value = await mapping(request)
    body = await request.body()
    if len(body) < LARGE:
        return _as_written(body, kind, value)
    return await on_thread(_as_written, body, kind, value)


def _as_written(body: bytes, kind: Kind, value: dict[str, Any]) -> dict[str, Any]:
    from foliot.resources.syntax.json_nodes import parse_json
    from foliot.resources.syntax.loose_texts import with_source_texts

    parsed = parse_json(body.decode())
    if parsed.flaws:  # a limit of manifests: what cannot be kept as it was written is not taken
        raise InvalidInput(f"the body cannot be used: {parsed.flaws[0].message}", hint=parsed.flaws[0].hint)
    return with_source_texts(kind.model(), value, parsed.documents[0].places.found[0]) if parsed.documents else value


def check_place(metadata: dict[str, Any], namespace: str, name: str) -> None:
    """Raise `UsageError` when a body says that it is about something else than its path and query."""
    for field, own in (("namespace", namespace), ("name", name)):
        said = metadata.get(field)
        if said is not None and said != "" and said != own:
            raise UsageError(f"metadata.{field} {str(said)[:253]!r} does not match {own!r} of the request")


def as_object(value: Any) -> dict[str, Any]:
    """A value that should be a JSON object; an empty one when it is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that repeats a body which was read already, and then continues."""
    first = True

    async def received() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return received


async def _read(body: bytes, namespace: str | None, complete: Complete | None = None) -> Bundle:
    """The manifests of a body. `complete` adds what the request says of them beside its body."""
    return (
        _parsed(body, namespace, complete) if len(body) < LARGE else await on_thread(_parsed, body, namespace, complete)
    )


def _parsed(body: bytes, namespace: str | None, complete: Complete | None) -> Bundle:
    from foliot.resources.reader import parse_text  # reads YAML too: loaded with the first manifest

    bundle = parse_text(body, FILE, namespace=namespace, complete=complete)
    errors = bundle.errors
    if errors and not bundle.items and all(not each.problem.path and each.kind is None for each in errors):
        raise UnreadableBody(bundle.findings)
    bundle.raise_for_errors()
    return bundle


def _completed(kind: Kind, name: str | None, raw: dict[str, Any]) -> dict[str, Any]:
    """Completes a JSON body with the kind and the name that the path gives."""
    said = raw.get("kind") or kind.name
    if said != kind.name and said in KINDS:  # before its own rules are looked at, which are beside the point
        raise UsageError(
            f"unsupported kind {said!r} for {kind.plural}: /v1/{kind.plural} takes the kind {kind.name}",
            hint=f"POST it to /v1/{KINDS[said].plural}, or several kinds at once to /v1/apply",
        )
    if not raw.get("kind"):
        raw = {**raw, "kind": kind.name}
    metadata: Any = raw.get("metadata")
    if name is not None and (metadata is None or isinstance(metadata, dict)):
        raw = {**raw, "metadata": {"name": name, **(metadata or {})}}
    return raw
