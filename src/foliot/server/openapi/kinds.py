"""Resources, kind by kind: a route for all of them is told as one for each, with the schema of each.

A client that is generated then has `getAgent` with an Agent as its answer, and no operation that some kinds refuse.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

from foliot.resources.kinds import KINDS, Kind
from foliot.resources.schema import bundle_schema
from foliot.server.http.names import NOT_EDITED
from foliot.server.openapi.schema import ANYTHING, TEXT, Schema, listof, moved, ref, shape
from foliot.server.routes.resources import WITHOUT_STATUS

ANY_KIND: Final = "/v1/{kind}"
# What of a secret is ever shown.
_MASKED: Final = {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[*]{3}"}}


def expanded(paths: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any], Kind]]:
    """Each operation of each kind: method, path, the path of its route, the operation, and the kind."""
    for path, item in paths.items():
        if not path.startswith(ANY_KIND):
            continue
        for method, operation in item.items():
            for kind in KINDS.values():
                own = path.replace("{kind}", kind.plural)
                if method in paths.get(own, {}) or not _has(kind, method, path):
                    continue
                yield method, own, path, _of(kind, operation), kind


def _has(kind: Kind, method: str, path: str) -> bool:
    if path.endswith("/status"):
        return kind.name not in WITHOUT_STATUS
    return not (method in ("put", "patch") and kind.name in NOT_EDITED)


def _of(kind: Kind, operation: dict[str, Any]) -> dict[str, Any]:
    own = copy.deepcopy(operation)
    own["parameters"] = [each for each in own["parameters"] if each["name"] != "kind"]
    own["tags"] = [kind.plural]
    own["summary"] = f"{operation['summary']}: {kind.plural}"
    return own


def schemas() -> dict[str, Any]:
    """Returns the schemas of each kind: as it is declared (`Agent`), as a body that its path completes (`AgentBody`),
    and as it is answered (`StoredAgent`, `AgentList`).
    """
    made: dict[str, Any] = moved(bundle_schema(exact=False)["$defs"])
    for name in KINDS:
        declared: Schema = made[name]
        needed = [each for each in declared.get("allOf", []) if each != {"required": ["kind"]}]
        made[f"{name}Body"] = {**declared, "allOf": needed, "title": f"{name}Body"}
        made[f"Stored{name}"] = _stored(name, declared)
        made[f"{name}List"] = listed(f"Stored{name}")
    return made


def _stored(name: str, declared: Schema) -> Schema:
    properties = declared["properties"]
    spec = {"type": "object", "properties": {"data": _MASKED}} if name == "Secret" else properties["spec"]
    return shape(
        {
            "apiVersion": {"const": "foliot.dev/v1"},
            "kind": {"const": name},
            "metadata": ref("StoredMetadata"),
        },
        optional={"spec": spec, "status": properties.get("status", ANYTHING)},
        about=str(declared.get("description", "")),
    )


def listed(item: str) -> Schema:
    """A page of such items."""
    return shape(
        {
            "apiVersion": {"const": "foliot.dev/v1"},
            "kind": {"const": "List"},
            "metadata": shape({"resourceVersion": TEXT}),
            "items": listof(ref(item)),
        },
        optional={"continue": {"type": "string", "description": "`after` of the next page; missing on the last one."}},
        about="`metadata.resourceVersion` is where a watch takes over without a gap.",
    )
