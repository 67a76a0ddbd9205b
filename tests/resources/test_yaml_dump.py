from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources.syntax.yaml import parse_yaml, pure_python_events
from foliot.resources.syntax.yaml_text import dump_yaml, dump_yaml_all

# What YAML 1.1 or 1.2 would read as something else, and what breaks naive quoting.
TRICKY = (
    *("yes", "No", "on", "OFF", "y", "n", "null", "~", "", "true", "False", "=", "<<", ".inf", ".nan", "-"),
    *("1", "0777", "0o17", "0x1F", "1_000", "12:30:45", "1e3", "1e+16", "2024-01-01", "2001-12-14t21:59:43.10-05:00"),
    *("---", "...", "- a", "? b", ": c", "a: b", "a #b", "#a", "x:", "a\\b", "'", '"', "@a", "`a", "%a", "&a", "*a"),
    *(
        "a\n",
        "a\n\n",
        "a\n b\n",
        "\na",
        " a\nb",
        "a \nb",
        "a\n \n",
        "\ta\nb",
        "a\r\nb",
        "a\u2028b",
        "a\u0085",
        "\ufeffa",
    ),
    *(
        "30s",
        "1h30m",
        "x" * 2000,
        "é",
        "😀",
        "\x7f",
        "\ufffe",
        "tab\there",
        " lead",
        "trail ",
        "!a",
        "|",
        ">",
        "[a]",
        "{a}",
    ),
)
texts = st.one_of(
    st.sampled_from(TRICKY),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30),
    st.text(" \n\tab:#-'\"|>&*!%@`{}[],.0123", max_size=20),
)
scalars = st.one_of(texts, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none())
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=15
)
documents = st.dictionaries(texts, trees, max_size=4)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True are three things."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@given(documents)
def test_what_is_dumped_is_read_back_the_same_by_every_reader(document: dict[str, Any]):
    text = dump_yaml(document)

    for events in (None, pure_python_events):
        parsed = parse_yaml(text, **({"events": events} if events else {}))
        assert parsed.flaws == []
        assert same(parsed.documents[0].value, document)
    assert same(yaml.safe_load(text), document), "a YAML 1.1 reader sees something else"


@given(st.lists(documents.filter(bool), min_size=1, max_size=4))
def test_several_documents_stay_apart(several: list[dict[str, Any]]):
    parsed = parse_yaml(dump_yaml_all(several))

    assert same([document.value for document in parsed.documents], several)


def test_a_dump_reads_as_a_person_would_write_it():
    document = {
        "status": {"phase": "Ready"},
        "spec": {
            "prompt": "Be brief.\n\n- Name sources.\n",
            "note": "no end\nof line",
            "limits": {"max_steps": 3, "timeout": "1m30s", "max_cost_usd": 1e16, "off": False, "none": None},
            "graph": {"a": {"edges": [{"to": "b", "labels": {"on": "yes"}}, {"to": "c"}]}},
            "matrix": [[1, 2], [], [{}]],
            "schedule": "*/5 * * * *",
            "version": "1.0",
            "url": "https://example.com/a?b=c#d",
            "permission": "tool:x:invoke",
        },
        "kind": "Agent",
        "metadata": {"labels": {"team": "a b"}, "uid": "u", "name": "x", "namespace": "default"},
        "apiVersion": "foliot.dev/v1",
    }

    assert (
        dump_yaml(document)
        == """\
apiVersion: foliot.dev/v1
kind: Agent
metadata:
  name: x
  namespace: default
  labels:
    team: a b
  uid: u
spec:
  prompt: |
    Be brief.

    - Name sources.
  note: |-
    no end
    of line
  limits:
    max_steps: 3
    timeout: 1m30s
    max_cost_usd: 1.0e+16
    "off": false
    none: null
  graph:
    a:
      edges:
        - to: b
          labels:
            "on": "yes"
        - to: c
  matrix:
    - - 1
      - 2
    - []
    - - {}
  schedule: "*/5 * * * *"
  version: "1.0"
  url: https://example.com/a?b=c#d
  permission: tool:x:invoke
status:
  phase: Ready
"""
    )
