from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.store.base import Filter, Requirement
from foliot.store.resources.selectors import field_text, matches, parse_fields, parse_labels

DOCUMENT: dict[str, Any] = {
    "kind": "Agent",
    "metadata": {"name": "a", "namespace": "default", "labels": {"app": "web"}},
    "spec": {"on": True, "count": 3, "none": None, "list": ["x", {"y": "z"}]},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("   ", ()),
        ("a=b", (Requirement("a", "=", ("b",)),)),
        (" a == b ", (Requirement("a", "=", ("b",)),)),
        ("a!=b", (Requirement("a", "!=", ("b",)),)),
        ("a=", (Requirement("a", "=", ("",)),)),
        ("a in (x, y ,z)", (Requirement("a", "in", ("x", "y", "z")),)),
        ("a notin(x)", (Requirement("a", "notin", ("x",)),)),
        ("a", (Requirement("a", "exists"),)),
        ("! a", (Requirement("a", "absent"),)),
        ("in", (Requirement("in", "exists"),)),
        (
            "example.com/app=web,!old,tier in (a,b),x",
            (
                Requirement("example.com/app", "=", ("web",)),
                Requirement("old", "absent"),
                Requirement("tier", "in", ("a", "b")),
                Requirement("x", "exists"),
            ),
        ),
    ],
)
def test_selectors_are_read(text: str, expected: tuple[Requirement, ...]) -> None:
    assert parse_labels(text) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("=b", "'=b'"),
        ("a=b,", "''"),
        ("a=b,,c", "',c'"),
        ("a in x", "'a in x'"),
        ("a in (x", "'a in (x'"),
        ("a b", "'a b'"),
        ("a=b=c", "'a=b=c'"),
        ("-a", "'-a'"),
        ("a in ()", "'a'"),
        ("!a=b", "'!a=b'"),
    ],
)
def test_a_bad_clause_is_shown(text: str, shown: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_labels(text)
    assert shown in caught.value.message
    assert caught.value.hint


def test_a_field_path_must_start_somewhere_real() -> None:
    assert parse_fields("status.phase!=Ready") == (Requirement("status.phase", "!=", ("Ready",)),)
    with pytest.raises(InvalidInput, match=r"'phase', which no resource has"):
        parse_fields("phase=Ready")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "a"),
        ("spec.on", "true"),
        ("spec.count", "3"),
        ("spec.none", None),
        ("spec.list", None),
        ("spec.list.0", "x"),
        ("spec.list.1.y", "z"),
        ("spec.list.9", None),
        ("spec.count.deep", None),
        ("status.phase", None),
    ],
)
def test_fields_are_read_as_text(path: str, expected: str | None) -> None:
    assert field_text(DOCUMENT, path) == expected


def test_a_filter_is_held_against_every_part() -> None:
    assert matches(DOCUMENT, Filter("Agent", "default", parse_labels("app=web"), parse_fields("spec.on=true")))
    assert not matches(DOCUMENT, Filter("Tool"))
    assert not matches(DOCUMENT, Filter(namespace="other"))
    assert not matches(DOCUMENT, Filter(labels=parse_labels("app=db")))
    assert not matches(DOCUMENT, Filter(fields=parse_fields("spec.on=false")))
    assert matches(DOCUMENT, Filter(fields=parse_fields("status.phase!=Ready,spec.none notin (a)")))


@given(st.text() | st.text(alphabet="ab=!,() in"))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        requirements = parse_labels(text)
    except InvalidInput:
        return
    assert all(requirement.key for requirement in requirements)


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9./-]{0,8}[a-z0-9])?", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9._-]{0,8}", fullmatch=True)


def written(requirement: Requirement) -> str:
    match requirement.op:
        case "exists":
            return requirement.key
        case "absent":
            return "!" + requirement.key
        case "=" | "!=":
            return f"{requirement.key}{requirement.op}{requirement.values[0]}"
        case op:
            return f"{requirement.key} {op} ({','.join(requirement.values)})"


REQUIREMENTS = st.one_of(
    st.builds(Requirement, NAMES, st.sampled_from(("exists", "absent"))),
    st.builds(Requirement, NAMES, st.sampled_from(("=", "!=")), st.tuples(VALUES)),
    st.builds(
        Requirement,
        NAMES,
        st.sampled_from(("in", "notin")),
        st.lists(VALUES.filter(bool), min_size=1, max_size=3).map(tuple),
    ),
)


@given(st.lists(REQUIREMENTS, max_size=4))
def test_what_is_written_is_what_is_read(requirements: list[Requirement]) -> None:
    assert parse_labels(",".join(map(written, requirements))) == tuple(requirements)
