"""`foliot explain`: the fields of a kind, read from its JSON Schema, so that it cannot be out of date."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import click

from foliot.cli import complete
from foliot.cli.show.output import as_yaml, word_of
from foliot.cli.terminal import out, paint
from foliot.common.suggestions import suggestion
from foliot.errors import UsageError
from foliot.resources.kinds import KINDS, find_kind

Schema: TypeAlias = Mapping[str, Any]


@click.command()
@click.argument("path", metavar="KIND[.field…]", required=False, shell_complete=complete.kinds)
@click.option("-r", "--recursive", is_flag=True, help="All fields below, as a tree.")
@click.option("--defaults", metavar="KEY", help="The default configuration of an agent of this name with a runner.")
def explain(path: str | None, recursive: bool, defaults: str | None) -> None:
    """Show the fields of a kind: types, defaults, allowed values, meaning.

    \b
    foliot explain agent
    foliot explain agent.spec.limits
    foliot explain tool --recursive
    foliot explain agent --defaults coder
    """
    if defaults is not None:
        if path is None or find_kind(path).name != "Agent":
            hint = f"`foliot explain agent --defaults {defaults}`"
            raise UsageError("--defaults shows those of an agent.", hint=hint)
        from foliot.engine.runners.profile import default_agent_config

        out(as_yaml([default_agent_config(defaults)]))
        return
    if path is None:
        out(_kinds())
        return
    from foliot.resources.schema import preferred_schema

    word, *fields = path.split(".")
    kind = find_kind(word)
    root = preferred_schema(kind.name)
    node = SchemaNode("", root, root)
    for depth, field in enumerate(fields):
        node = node.child(field, where=".".join([kind.name, *fields[:depth]]))
    out(_page(kind.name, fields, node, recursive=recursive))


def _kinds() -> str:
    lines = [f"  {paint(kind.plural.ljust(18), bold=True)}{kind.name}" for kind in KINDS.values()]
    return "\n".join(["Kinds:", *lines, "", "`foliot explain KIND` shows the fields of one."])


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One place in a schema. `root` holds the definitions that references point into."""

    name: str
    schema: Schema
    root: Schema
    required: bool = False

    def resolved(self) -> Schema:
        """Returns the schema without references, alternatives with null, and wrappers of one; outer descriptions and
        defaults win.
        """
        schema = self.schema
        outer: dict[str, Any] = {}
        while True:
            outer = {**{k: v for k, v in schema.items() if k in ("description", "default", "examples")}, **outer}
            if "$ref" in schema:
                schema = self._definition(schema)
                continue
            choices = [each for each in _list(schema, "anyOf") if each.get("type") != "null"]
            if len(choices) == 1 and "properties" not in schema:
                schema = choices[0]
                continue
            return {**schema, **outer}

    def children(self) -> list[SchemaNode]:
        """The fields of an object, or of the objects that a list or a map holds."""
        schema = self.container()
        needed = _required(schema)
        properties: Schema = schema.get("properties", {})
        return [SchemaNode(name, each, self.root, name in needed) for name, each in properties.items()]

    def container(self) -> Schema:
        schema = self.resolved()
        inner = schema.get("items") or schema.get("additionalProperties")
        if "properties" not in schema:
            for each in _list(schema, "anyOf"):
                found = SchemaNode("", each, self.root).container()
                if found.get("properties"):
                    return found
            if isinstance(inner, Mapping):
                return SchemaNode("", cast("Schema", inner), self.root).container()
        return schema

    def child(self, name: str, *, where: str) -> SchemaNode:
        """Raises `UsageError` that names the fields there are."""
        name = name.removesuffix("[]")
        children = self.children()
        for each in children:
            if name.replace("_", "").lower() == each.name.replace("_", "").lower():
                return each
        schema = self.resolved()
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping) and "properties" not in schema:
            return SchemaNode(name, cast("Schema", extra), self.root)  # any key of a map
        if not children:
            raise UsageError(f"{where} is {self.type()} and has no fields.")

        names = [each.name for each in children]
        hint = suggestion(name, names, f"Its fields: {', '.join(names)}")
        raise UsageError(f"{where} has no field {name!r}.", hint=hint)

    def type(self) -> str:
        return _type(self.resolved(), self.root)

    def descriptions(self) -> list[str]:
        """The descriptions of the field, and of the type it holds."""
        texts = [str(self.schema.get("description") or "")]
        if "$ref" in self.schema:
            texts.append(str(self._definition(self.schema).get("description") or ""))
        elif isinstance(items := self.resolved().get("items") or self.resolved().get("additionalProperties"), Mapping):
            texts += SchemaNode("", cast("Schema", items), self.root).descriptions()
        return [each for each in texts if each and not any(other != each and each in other for other in texts)]

    def _definition(self, schema: Schema) -> Schema:
        return cast("Schema", self.root["$defs"][str(schema["$ref"]).rpartition("/")[2]])

    def facts(self) -> list[str]:
        """The other facts about the field, each as a short phrase."""
        schema = self.resolved()
        facts = ["required"] if self.required else []
        if schema.get("default") not in (None, "", [], {}):
            facts.append(f"default {_value(schema['default'])}")
        bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        facts += [f"{sign} {schema[key]}" for key, sign in bounds if key in schema]
        if schema.get("enum"):
            facts.append("one of " + ", ".join(_value(each) for each in schema["enum"]))
        elif schema.get("examples"):
            facts.append("such as " + ", ".join(_value(each) for each in schema["examples"][:3]))
        return facts


def _list(schema: Schema, key: str) -> list[Schema]:
    return cast("list[Schema]", schema.get(key) or [])


def _required(schema: Schema) -> set[str]:
    """Names under `required`, also inside `allOf` and its alternatives of spelling."""
    names = set(cast("list[str]", schema.get("required") or []))
    for each in _list(schema, "allOf"):
        names |= _required(each)
        for choice in _list(each, "anyOf"):
            names |= _required(choice)
    return names


def _type(schema: Schema, root: Schema) -> str:
    if schema.get("enum") or "const" in schema:
        return "string"
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return f"[]{SchemaNode('', cast('Schema', items), root).type()}" if isinstance(items, Mapping) else "[]any"
    if kind == "object":
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping) and "properties" not in schema:
            return f"map of {SchemaNode('', cast('Schema', extra), root).type()}"
        return "object"
    if isinstance(kind, str):
        return kind
    choices = [SchemaNode("", each, root).type() for each in _list(schema, "anyOf") if each.get("type") != "null"]
    return " or ".join(dict.fromkeys(choices)) or "any"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _page(kind: str, fields: Sequence[str], node: SchemaNode, *, recursive: bool) -> str:
    title = ".".join([kind, *fields])
    lines = [f"{paint(title, bold=True)}  <{node.type()}>"]
    lines += [f"  {fact}" for fact in node.facts()]
    for text in node.descriptions():
        lines += ["", *_wrapped(text, 2)]
    children = node.children()
    if children:
        lines += ["", "Fields:", *(_tree(children, 2) if recursive else _fields(children))]
    deeper = next((each.name for each in reversed(children) if each.children() and each.name != "status"), None)
    if deeper and not recursive:
        lines += ["", f"`foliot explain {'.'.join([word_of(kind), *fields, deeper])}` goes on; --recursive shows all."]
    return "\n".join(lines)


def _fields(children: Sequence[SchemaNode]) -> list[str]:
    lines: list[str] = []
    for each in children:
        lines.append(f"  {paint(each.name, bold=True)}  <{each.type()}>{_aside(each)}")
        lines += _wrapped(str(each.resolved().get("description") or ""), 6)
    return lines


def _aside(node: SchemaNode) -> str:
    facts = node.facts()
    return f"  {'; '.join(facts)}" if facts else ""


def _tree(children: Sequence[SchemaNode], indent: int) -> list[str]:
    lines: list[str] = []
    for each in children:
        lines.append(f"{' ' * indent}{paint(each.name, bold=True)}  <{each.type()}>{_aside(each)}")
        lines += _wrapped(str(each.resolved().get("description") or ""), indent + 4)
        if indent < 20:
            lines += _tree(each.children(), indent + 2)
    return lines


def _wrapped(text: str, indent: int) -> list[str]:
    if not text.strip():
        return []
    pad = " " * indent
    return click.wrap_text(" ".join(text.split()), 78, pad, pad).splitlines()
