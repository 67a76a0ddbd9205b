"""The schemas of resources, kind by kind."""

from __future__ import annotations

from typing import Any, Final

from foliot.resources.kinds import KINDS
from foliot.resources.schema import bundle_schema
from foliot.server.openapi.schema import ANYTHING, TEXT, Schema, listof, moved, ref, shape

# What of a secret is ever shown.
_MASKED: Final = {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[*]{3}"}}


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
