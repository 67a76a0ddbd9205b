"""Whatever is given to the reader: it answers with resources and findings, and what it accepts can be read again."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from foliot.resources.reader import Bundle, parse_text
from foliot.resources.syntax.json_nodes import parse_json
from foliot.resources.syntax.yaml import parse_yaml, pure_python_events
from foliot.resources.syntax.yaml_text import dump_yaml, dump_yaml_all
from foliot.resources.wording import as_written

MANIFESTS = [path.read_text() for path in sorted((Path(__file__).parent / "data" / "valid").iterdir())]

# Bits that mean something to a YAML parser, to be dropped anywhere.
BITS = st.sampled_from(
    (
        *("\t", "\n", " ", "---\n", "...\n", "- ", ": ", "{", "}", "[", "]", "'", '"', "#", "&a ", "*a", "!", "!!str "),
        *("|\n", "<<: ", "? ", "%YAML 1.1\n", "~", "0x", "1e9", ".nan", "\0", "\u2028", "\ufeff", "\x85", "é", "😀"),
        *("\\", "@", "`", ">-\n", "= ", "\r"),
    )
)


def check(bundle: Bundle) -> None:
    for finding in bundle.findings:
        assert finding.line is None or finding.line >= 1
        assert finding.column is None or finding.column >= 1
        assert finding.message
        str(finding).encode()
    again = parse_text(dump_yaml_all([as_written(each) for each in bundle.documents]))
    if bundle.items:
        assert again.findings == []
    assert again.documents == bundle.documents


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A good manifest with a few wounds."""
    text = draw(st.sampled_from(MANIFESTS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(BITS | st.just("")) + text[end:]
    return text


@given(st.binary(max_size=200))
@example(b"\xff\xfe\x00\x00")
@example(b"\xef\xbb\xbf")
@example(b"a: \xc2\x85b")
def test_arbitrary_bytes(data: bytes):
    check(parse_text(data))


@given(st.text(max_size=100))
@example("%YAML 99999999999999999999.1\n---\na\n")
@example('"\\U00110000"')
@example("!<\n")
@example("%TAG ! %\n---\n!a")
def test_arbitrary_text(text: str):
    check(parse_text(text))


@given(st.lists(BITS | st.text("ab", max_size=3), max_size=40).map("".join))
def test_arbitrary_heaps_of_yaml_punctuation(text: str):
    check(parse_text(text))
    for parsed in (parse_yaml(text), parse_yaml(text, events=pure_python_events), parse_json(text)):
        for flaw in parsed.flaws:
            assert flaw.line >= 1
            assert flaw.column >= 1


@given(damaged())
def test_damaged_manifests(text: str):
    check(parse_text(text))


@given(damaged())
def test_damaged_manifests_as_json_files(text: str):
    check(parse_text(text, "manifest.json"))


words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)
plain = st.recursive(
    words | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(prompt=words, value=words, settings=st.dictionaries(words, plain, max_size=3))
def test_what_is_accepted_is_the_same_after_dumping_and_reading_again(prompt: str, value: str, settings: object):
    written = {
        "apiVersion": "foliot.dev/v1",
        "kind": "Agent",
        "metadata": {"name": "a", "annotations": {"note": value}},
        "spec": {"model_ref": "m", "prompt": prompt, "model_settings": {"extra": settings}},
    }

    bundle = parse_text(dump_yaml(written))

    assert bundle.findings == []
    assert parse_text(dump_yaml(bundle.documents[0])).documents == bundle.documents
