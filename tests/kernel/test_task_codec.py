"""Facts about tasks as bytes: canonical, and decoded for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from foliot.kernel.errors import Unencodable, UnknownEvent
from foliot.kernel.graph import events as t
from foliot.kernel.graph.events import FACT_TYPES, decode_fact, encode_fact, fact_type
from tests.kernel.task_samples import TASK_GROWN, TASK_SAMPLES

# One file per type and version. Never edit one: a task somewhere holds these bytes. A new version adds a file.
GOLDEN = Path(__file__).parent / "golden_tasks"


def test_every_type_has_a_sample():
    assert {type(fact) for fact in TASK_SAMPLES} == set(FACT_TYPES)


@pytest.mark.parametrize("fact", TASK_SAMPLES, ids=fact_type)
def test_the_bytes_of_every_type_are_those_in_the_golden_file(fact: t.TaskEvent):
    golden = (GOLDEN / f"{fact.__struct_config__.tag}.json").read_bytes().rstrip(b"\n")
    assert encode_fact(fact) == golden
    assert decode_fact(golden) == fact


@pytest.mark.parametrize("fact", TASK_GROWN, ids=fact_type)
def test_the_bytes_of_fields_that_were_added_are_those_in_the_golden_file(fact: t.TaskEvent):
    golden = (GOLDEN.with_name("golden_tasks_grown") / f"{fact_type(fact)}.json").read_bytes().rstrip(b"\n")
    assert encode_fact(fact) == golden
    assert decode_fact(golden) == fact


def test_every_golden_file_is_still_read_as_its_type():
    files = sorted(GOLDEN.glob("*.json"))
    assert len(files) >= len(FACT_TYPES)
    for file in files:
        assert fact_type(decode_fact(file.read_bytes())) == file.stem.partition("@")[0]


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"message.sent@9"}',
        b'{"type":"run.created","agent":"a","spec":"s"}',
        b'{"type":"task.failed"}',
        b"\xff",
    ],
)
def test_what_a_newer_version_wrote_is_refused(data: bytes):
    with pytest.raises(UnknownEvent):
        decode_fact(data)


def test_half_a_surrogate_pair_cannot_be_written():
    with pytest.raises(Unencodable, match=r"task\.cancelled"):
        encode_fact(t.TaskCancelled("\ud800"))
