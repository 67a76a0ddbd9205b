"""Events as bytes: in the order of what they hold, and decoded for ever."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.errors import Unencodable, UnknownEvent
from foliot.kernel.graph.plan import Edge, Node, Plan, encode_plan
from foliot.kernel.messages import ModelSettings
from foliot.kernel.run import events as e
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import EVENT_TYPES, Codec, Opaque, decode, encode, read, type_of
from foliot.kernel.run.folds import FOLDS
from foliot.kernel.run.rules import LEGAL
from foliot.kernel.run.spec import VERSION, Contract, Repairs, RunSpec, decode_spec, digest, encode_spec
from tests.kernel.play import spec
from tests.kernel.samples import GROWN, SAMPLES

# One file per type and version. Never edit one: a journal somewhere holds these bytes. A new version adds a file.
GOLDEN = Path(__file__).parent / "golden"


def test_every_type_has_a_sample_a_rule_and_a_fold():
    assert {type(event) for event in SAMPLES} == set(EVENT_TYPES)
    assert set(LEGAL) == set(EVENT_TYPES)
    assert set(FOLDS) == set(EVENT_TYPES)


@pytest.mark.parametrize("event", SAMPLES, ids=type_of)
def test_the_bytes_of_every_type_are_those_in_the_golden_file(event: e.Event):
    golden = (GOLDEN / f"{event.__struct_config__.tag}.json").read_bytes().rstrip(b"\n")
    assert encode(event) == golden
    assert decode(golden) == event


@pytest.mark.parametrize("event", GROWN, ids=type_of)
def test_the_bytes_of_fields_that_were_added_are_those_in_the_golden_file(event: e.Event):
    before = sum(type(each) is type(event) for each in GROWN[: GROWN.index(event)])  # a type may grow more than once
    name = f"{type_of(event)}.{before + 1}.json" if before else f"{type_of(event)}.json"
    golden = (GOLDEN.with_name("golden_grown") / name).read_bytes().rstrip(b"\n")
    assert encode(event) == golden
    assert decode(golden) == event


def test_every_golden_file_is_still_read_as_its_type():
    files = sorted(GOLDEN.glob("*.json"))
    assert len(files) >= len(EVENT_TYPES)
    for file in files:
        assert type_of(decode(file.read_bytes())) == file.stem.partition("@")[0]


@pytest.mark.parametrize("event", SAMPLES, ids=type_of)
def test_encoding_and_decoding_are_each_others_inverse(event: e.Event):
    data = encode(event)
    assert decode(data) == event
    assert encode(decode(data)) == data


def test_what_a_model_wrote_keeps_its_order():
    """Asked for its reasoning before its answer, a model must find it there in every later request."""
    value = {"reasoning": "…", "answer": {"y": 1, "x": 2}}
    kept = decode(encode(e.OutputAccepted(value)))
    assert isinstance(kept, e.OutputAccepted)
    assert msgspec.json.encode(kept.value) == msgspec.json.encode(value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_any_json_value_survives(value: object):
    data = encode(e.OutputAccepted(value))
    assert decode(data) == e.OutputAccepted(value)
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"tool.finished@9","result":{}}',
        b'{"type":"brand.new"}',
        b'{"type":"step.started","step":"one"}',
        b"{",
        b"\xff",
    ],
)
def test_what_a_newer_version_wrote_is_refused_but_can_be_shown(data: bytes):
    with pytest.raises(UnknownEvent):
        decode(data)
    assert isinstance(read(data), Opaque)


def test_what_is_known_is_read_as_itself():
    assert read(encode(e.RunResumed("x"))) == e.RunResumed("x")
    assert read(b'{"type":"brand.new","x":1}') == Opaque("brand.new", {"type": "brand.new", "x": 1})


def test_half_a_surrogate_pair_cannot_be_written():
    with pytest.raises(Unencodable, match=r"run\.cancelled"):
        encode(e.RunCancelled("\ud800"))


def test_whole_numbers_stay_whole():
    """An `until` of 5 that came back as 5.0 would make other bytes of the facts that are decided from it."""
    event = e.RunWaiting("approval", "person", until=5)
    assert encode(decode(encode(event))) == encode(event)
    one = spec(limits=Limits(max_seconds=60, max_cost_usd=1), settings=ModelSettings(temperature=1))
    assert encode_spec(decode_spec(encode_spec(one))) == encode_spec(one)


# --- how a type gets a second and a third version


class First(Struct, frozen=True, tag="door.opened", omit_defaults=True):
    who: str


class Second(Struct, frozen=True, tag="door.opened@2", omit_defaults=True):
    names: tuple[str, ...]


class Third(Struct, frozen=True, tag="door.opened@3", omit_defaults=True):
    names: tuple[str, ...]
    door: str


def test_retired_versions_are_turned_into_the_newest():
    codec = Codec((Third,), {First: lambda old: Second((old.who,)), Second: lambda old: Third(old.names, "front")})
    assert codec.decode(b'{"type":"door.opened","who":"ann"}') == Third(("ann",), "front")
    assert codec.decode(b'{"type":"door.opened@2","names":["a","b"]}') == Third(("a", "b"), "front")
    assert codec.encode(Third(("a",), "back")) == b'{"type":"door.opened@3","names":["a"],"door":"back"}'
    assert type_of(Third((), "")) == "door.opened"


# --- the spec of a run


def test_a_spec_survives_with_the_order_of_its_schemas():
    """The order is what a model sees: specs that differ in it are told apart, or one would be run as the other."""
    one = spec(contract=Contract(("look",)), output_schema={"reasoning": 1, "answer": 2})
    two = spec(contract=Contract(("look",)), output_schema={"answer": 2, "reasoning": 1})
    kept = decode_spec(encode_spec(one))
    assert kept == one
    assert list(kept.output_schema or ()) == ["reasoning", "answer"]
    assert digest(encode_spec(one)) != digest(encode_spec(two))


def test_a_default_that_was_spelled_out_changes_no_digest():
    """msgspec leaves out what is the default object; equal ones would make other bytes of the same definition."""
    spelled = spec(
        limits=Limits(max_steps=int("10"), parallel_tools=8),
        repairs=Repairs(calls=3, model_backoff=float("2"), model_max_backoff=60),
        settings=ModelSettings(stop=(), extra={}),
        namespace="".join(("def", "ault")),
    )
    assert encode_spec(spelled) == encode_spec(spec())
    assert encode_spec(spec(limits=Limits(max_steps=11))) != encode_spec(spec())
    plan = Plan("default/t", {"a": Node((Edge("b", when=None),))}, ("a",))
    spelled_out = replace(plan, retry=RetryPolicy(jitter="".join(("fu", "ll"))), max_messages=int("500"))
    assert encode_plan(spelled_out) == encode_plan(plan)


def test_a_spec_of_a_newer_version_is_refused():
    newer = msgspec.structs.replace(spec(), v=VERSION + 1)
    with pytest.raises(UnknownEvent, match="version"):
        decode_spec(encode_spec(newer))
    with pytest.raises(UnknownEvent, match="not a run spec"):
        decode_spec(b"[]")


def test_the_smallest_spec_can_be_read():
    assert decode_spec(b'{"agent":"a","model":"m"}') == RunSpec("a", "m")
