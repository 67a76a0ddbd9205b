"""The laws of applying: pure functions over made-up manifests of several managers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.resources.field_owners import (
    BY_ITEM,
    ByField,
    ByItem,
    ByKey,
    Claim,
    Document,
    FieldConflict,
    Owners,
    check_manager,
    conflict_of,
    decode_owners,
    emptied,
    encode_owners,
    leaves,
    managed_fields,
    merge,
    named_by,
    rules_of,
    settle,
)
from foliot.resources.kinds import KINDS

MANAGERS = ("ann", "bob", "cli")
Held = tuple[Document | None, Owners]
NOTHING: Held = (None, {})


def agent(spec: dict[str, Any], **marks: dict[str, str]) -> Document:
    return {"kind": "Agent", "metadata": {"name": "a", "namespace": "default", **marks}, "spec": spec}


def apply(held: Held, manager: str, document: Document, *, force: bool = False) -> Held:
    """As the catalog does it: what is in the document is what the manifest says. Raises `FieldConflict`."""
    live, owners = held
    given = frozenset(leaves(document))
    merged = merge(live, document, given, owners, manager, emptied(document) - given)
    if merged.disputed and not force:
        raise conflict_of({"Agent/a": merged.disputed})
    before = leaves(live) if live is not None else {}
    return merged.document, settle(owners, before, leaves(merged.document), Claim(manager, given, "apply"))


def update(held: Held, manager: str, document: Document) -> Held:
    live, owners = held
    before = leaves(live) if live is not None else {}
    return document, settle(owners, before, leaves(document), Claim(manager))


def forced(held: Held, manager: str, document: Document) -> Held:
    return apply(held, manager, document, force=True)


TEXTS = st.sampled_from(["x", "y", "z"])
NAMES = st.sampled_from(["a", "b", "c", "d"])
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "model_ref": TEXTS,
        "prompt": TEXTS,
        "tools": st.lists(st.sampled_from(["look", "send"]), min_size=1, unique=True),
        "roles": st.lists(TEXTS, min_size=1, unique=True),
        "limits": st.dictionaries(st.sampled_from(["max_steps", "max_tokens"]), st.integers(1, 3), min_size=1),
        "output_schema": st.dictionaries(NAMES, TEXTS, min_size=1),
    },
)
MARKS = st.dictionaries(st.sampled_from(["team", "tier", "app.example/x"]), TEXTS | st.just(""), min_size=1)
MANIFESTS = st.builds(
    lambda spec, marks: agent(spec, **marks),
    SPECS,
    st.fixed_dictionaries({}, optional={"labels": MARKS, "annotations": MARKS}),
)
MOVES = st.lists(st.tuples(st.sampled_from([forced, update]), st.sampled_from(MANAGERS), MANIFESTS), max_size=5)


def play(moves: list[Any]) -> Held:
    held = NOTHING
    for act, manager, document in moves:
        held = act(held, manager, document)
    return held


def as_set(document: Document | None) -> dict[Any, str]:
    """The fields, whatever the order of items."""
    return {field: json.dumps(value) for field, value in leaves(document or agent({})).items()}


@given(MOVES, st.sampled_from(MANAGERS), MANIFESTS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_after_an_apply_everything_in_the_manifest_holds_and_is_mine(moves, me, manifest):
    document, owners = forced(play(moves), me, manifest)

    wanted = as_set(manifest)
    assert {field: as_set(document).get(field) for field in wanted} == wanted
    assert owners.get(me, frozenset()) == frozenset(wanted)


@given(MOVES, st.sampled_from(MANAGERS), MANIFESTS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_applying_twice_is_applying_once(moves, me, manifest):
    once = forced(play(moves), me, manifest)
    twice = apply(once, me, manifest)

    assert json.dumps(twice[0]) == json.dumps(once[0])
    assert twice[1] == once[1]


@given(MOVES, st.sampled_from(MANAGERS), MANIFESTS, MANIFESTS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_only_i_own_goes_when_i_leave_it_out_and_what_others_own_survives(moves, me, first, second):
    before, owned = forced(play(moves), me, first)
    after, owners = forced((before, owned), me, second)

    others = frozenset(field for name, fields in owned.items() if name != me for field in fields)
    said = leaves(second)
    for field, value in as_set(before).items():
        if field in others and field not in said:
            assert as_set(after)[field] == value
        elif field not in said:
            assert field not in as_set(after), "a field of nobody else stayed"
    assert frozenset(as_set(after)) == frozenset(field for fields in owners.values() for field in fields)


@given(MOVES, MANIFESTS, MANIFESTS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_manifests_that_agree_or_do_not_meet_commute(moves, first, second):
    held = play([move for move in moves if move[1] == "cli"])
    mine, theirs = leaves(first), leaves(second)
    if any(mine[field] != theirs[field] for field in mine.keys() & theirs.keys()):
        return
    one = forced(forced(held, "ann", first), "bob", second)
    other = forced(forced(held, "bob", second), "ann", first)

    assert as_set(one[0]) == as_set(other[0])
    assert one[1] == other[1]


@given(MOVES, st.sampled_from(MANAGERS), MANIFESTS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_dispute_is_named_and_only_then_is_force_needed(moves, me, manifest):
    held = play(moves)
    live, owners = held
    now, wanted = as_set(live), as_set(manifest)
    expected = {
        field
        for name, fields in owners.items()
        if name != me
        for field in fields
        if field in wanted and wanted[field] != now[field]
    }
    if expected:
        with pytest.raises(FieldConflict) as conflict:
            apply(held, me, manifest)
        assert len(conflict.value.details["conflicts"]) == len(expected)
    else:
        apply(held, me, manifest)
    _, after = forced(held, me, manifest)
    assert not any(after[name] & expected for name in after if name != me)


@given(MOVES)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_owners_are_read_as_they_were_written(moves):
    document, owners = play(moves)

    assert decode_owners(encode_owners(owners), leaves(document or agent({}))) == owners


def tool(after: list[str]) -> Document:
    return {"kind": "Tool", "metadata": {"name": "a", "namespace": "default"}, "spec": {"after": after}}


def test_items_of_others_keep_their_place():
    held = apply(NOTHING, "ann", tool(["look", "send"]))
    held = update(held, "edit", tool(["look", "count", "send"]))

    assert apply(held, "ann", tool(["look", "send"]))[0]["spec"]["after"] == ["look", "count", "send"]
    moved = apply(held, "ann", tool(["new", "send", "look"]))[0]["spec"]["after"]
    assert moved == ["new", "send", "look", "count"]


@pytest.mark.parametrize("made", [lambda items: agent({"tools": items}), tool])
def test_a_list_that_is_written_down_empty_stays_empty(made):
    held = update(apply(NOTHING, "ann", made(["look"])), "bob", made(["look", "send"]))
    empty = made([])
    before = leaves(held[0])

    with pytest.raises(FieldConflict, match=r'is \["look", "send"\] by bob, and \[\] here'):
        apply(held, "ann", empty)
    document, owners = forced(held, "ann", empty)

    assert before
    assert (document["spec"], owners) == ({}, {})
    assert apply((document, owners), "ann", empty)[1] == {}, "and nobody owns it"


@given(st.permutations("abcdef"), st.permutations("abcdef"), st.sets(st.sampled_from("abcdef")))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_items_of_others_stand_behind_the_same_one_as_before(live, mine, others):
    """The plain way to say it, which takes the square of their number."""
    mine = [name for name in mine if name not in others]
    expected, place = [*mine], 0
    for name in live:
        if name in mine:
            place = expected.index(name) + 1
        else:
            expected.insert(place, name)
            place += 1
    document = tool([*live])
    owners = {"bob": frozenset(("spec", "after", name) for name in others)}

    merged = merge(document, tool(mine), frozenset(leaves(tool(mine))), owners, "ann")

    assert merged.document["spec"].get("after", []) == expected


def graph(nodes: dict[str, Any]) -> Document:
    return {"kind": "AgentSystem", "metadata": {"name": "a", "namespace": "default"}, "spec": {"graph": nodes}}


def test_an_empty_entry_of_a_map_is_given_and_an_empty_field_is_not():
    document = agent({"prompt": "", "tools": [], "limits": {}, "output_schema": {}}, labels={"team": ""})

    assert leaves(document) == {("metadata", "labels", "team"): ""}
    assert {field[2:] for field in leaves(graph({"a": {}, "b": {"next": "a"}}))} == {
        ("a", ""),
        ("b", ""),
        ("b", "next"),
    }


def test_an_entry_without_parts_stays_while_somebody_declares_it():
    held = apply(NOTHING, "ann", graph({"a": {}}))
    assert held[0] == graph({"a": {}})

    both = apply(held, "bob", graph({"a": {"next": "b"}, "b": {}}))
    assert both[0] == graph({"a": {"next": "b"}, "b": {}})
    assert apply(both, "ann", graph({"a": {}})) == both
    assert apply(both, "bob", graph({"b": {}}))[0] == graph({"b": {}, "a": {}})
    assert apply(both, "ann", graph({}))[0] == both[0], "bob declares it too"
    assert apply(held, "ann", graph({}))[0]["spec"] == {}
    assert decode_owners(encode_owners(both[1]), leaves(both[0] or {})) == both[1]


def test_names_of_foliot_itself_have_no_owner_and_stay():
    own = {"foliot.dev/mcp-server": "s", "team": "x"}
    live = agent({"model_ref": "m"}, annotations=own)

    document, owners = apply(
        (live, {}), "ann", agent({"model_ref": "m"}, annotations={"foliot.dev/managed-by": "apply"})
    )

    assert document["metadata"]["annotations"] == {"foliot.dev/mcp-server": "s", "foliot.dev/managed-by": "apply"}
    assert managed_fields(owners) == [{"manager": "ann", "fields": ["/spec/model_ref"]}]


def test_a_record_that_divides_the_document_differently_still_owns_it():
    fields = leaves(agent({"tools": ["a", "b"], "output_schema": {"type": "x"}}))

    owners = decode_owners('{"ann": ["/spec/tools/a", "/spec/output_schema/type"], "bob": ["/spec/gone"]}', fields)

    assert owners == {"ann": frozenset(fields)}
    items = leaves(tool(["a", "b"]))
    assert decode_owners('{"ann": ["/spec/after"]}', items) == {"ann": frozenset(items)}


def test_a_patch_names_fields_and_all_items_of_a_list():
    fields = leaves(agent({"model_ref": "m", "tools": ["a"], "limits": {"max_steps": 1, "max_tokens": 2}}))
    items = leaves(tool(["a", "b"]))
    assert named_by({"spec": {"after": ["a"]}}, items, items) == frozenset(items)

    named = named_by({"spec": {"model_ref": "m", "tools": ["a"], "limits": {"max_steps": 1}}}, fields, fields)

    assert {field[1:] for field in named} == {("model_ref",), ("tools",), ("limits", "max_steps")}


def test_an_empty_object_in_a_patch_names_an_entry_and_nothing_in_it():
    nodes = leaves(graph({"a": {"next": "b"}, "b": {"next": "a"}}))

    assert named_by({"metadata": {}, "spec": {}}, nodes, nodes) == frozenset()
    assert named_by({"spec": {"graph": {"a": {}}}}, nodes, nodes) == {("spec", "graph", "a", "")}


def test_a_pointer_names_one_field_whatever_is_in_its_name():
    document = agent({}, labels={"app.example/na~me": "x", "app.example": "y"})
    owners = {"ann": frozenset(leaves(document))}

    assert decode_owners(encode_owners(owners), leaves(document)) == owners
    assert managed_fields(owners)[0]["fields"] == [
        "/metadata/labels/app.example",
        "/metadata/labels/app.example~1na~0me",
    ]


@pytest.mark.parametrize("name", ["", "system", "a b", "-x", "x" * 129, "a\nb"])
def test_who_cannot_be_a_manager(name):
    with pytest.raises(InvalidInput):
        check_manager(name)
    assert check_manager("ci/deploy@main") == "ci/deploy@main"


# Read by hand: none of these gives anybody a right. A list more in the rules must be looked at for that.
SHARED = {
    ("McpServer", "env"),
    ("Tool", "after"),
    ("Tool", "requires"),
    ("Tool", "requires_prior"),
    ("Tool", "resource_keys"),
    ("Worker", "capabilities.supported_models"),
}


def test_a_list_that_grants_is_one_value():
    assert set(BY_ITEM) == SHARED


def test_every_list_that_is_shared_is_one_of_its_kind():
    for kind, path in BY_ITEM:
        rule: Any = rules_of(kind).fields["spec"]
        for step in path.split("."):
            rule = rule.fields[step]
        assert isinstance(rule, ByItem), (kind, path)


def test_rules_are_read_off_every_kind():
    for kind in KINDS:
        assert isinstance(rules_of(kind).fields["spec"], ByField), kind
    assert isinstance(rules_of("AgentSystem").fields["spec"].fields["graph"], ByKey)  # type: ignore[union-attr]
    assert leaves({"kind": "Unheard", "metadata": {}, "spec": {"a": {"b": 1}}}) == {("spec", "a"): {"b": 1}}
