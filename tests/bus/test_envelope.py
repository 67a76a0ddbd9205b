from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foliot.bus.base import Ticket
from foliot.bus.envelope import Undecodable, decode, encode, subject_for, subject_token

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,10}[a-z0-9])?", fullmatch=True)
tickets = st.builds(
    Ticket,
    id=words.filter(bool),
    run_id=words,
    namespace=names,
    agent=names,
    task=words,
    message_id=words,
    attempt=st.integers(1, 1000),
    due_at=st.floats(0, 1e11),
    system=words,
    sender=words,
    branch=words,
    parent_branch=words,
    parent_id=words,
    kind=st.sampled_from(["task_start", "task_handoff"]),
    payload=words,
)


@given(tickets)
def test_a_ticket_survives_the_wire(ticket: Ticket) -> None:
    assume(ticket.message_id != ticket.id)
    assert decode(encode(ticket, now=0.0, largest=100_000)) == ticket


def test_every_field_of_the_message_is_there_under_its_name() -> None:
    ticket = Ticket(
        id="run-7:2",
        run_id="run-7",
        namespace="team",
        agent="Writer",
        task="report",
        message_id="team/report/a002/h001/planner/writer",
        attempt=2,
        system="newsroom",
        sender="planner",
        branch="b001.002",
        parent_branch="b001",
        parent_id="team/report/a002/h000/system/planner",
        payload="Write it.",
    )
    assert json.loads(encode(ticket, now=86_400.5, largest=100_000)) == {
        "message_id": "team/report/a002/h001/planner/writer",
        "idempotency_key": "run-7:2",
        "task_id": "team/report",
        "attempt": 2,
        "system": "newsroom",
        "namespace": "team",
        "from_agent": "planner",
        "to_agent": "Writer",
        "branch_id": "b001.002",
        "parent_branch_id": "b001",
        "type": "task_handoff",
        "payload": "Write it.",
        "timestamp": "1970-01-02T00:00:00.500000Z",
        "trace_id": "team/report/a002",
        "parent_id": "team/report/a002/h000/system/planner",
        "run_id": "run-7",
    }


def test_blank_fields_are_left_out_and_a_blank_namespace_is_the_default() -> None:
    told = json.loads(encode(Ticket("t", "r", " ", "clerk", attempt=0), now=0.0, largest=100_000))
    assert told == {
        "message_id": "t",
        "idempotency_key": "t",
        "attempt": 1,
        "namespace": "default",
        "to_agent": "clerk",
        "type": "task_handoff",
        "timestamp": "1970-01-01T00:00:00Z",
        "run_id": "r",
    }


def test_a_payload_that_is_too_large_stays_in_the_database() -> None:
    ticket = Ticket("t", "r", "team", "clerk", payload="x" * 5000)
    data = encode(ticket, now=0.0, largest=4000)
    assert len(data) < 4000
    assert decode(data) == Ticket("t", "r", "team", "clerk")


def test_a_message_of_another_program_needs_to_name_its_receiver_only() -> None:
    assert decode(b'{"to_agent":" clerk ","message_id":"m","unknown":1}') == Ticket("m", "", "default", "clerk")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff", b'{"to_agent":1}', b'{"to_agent":" "}', b"{}", b"[" * 100_000]
)
def test_what_is_no_message_is_said_to_be_none_without_quoting_it(data: bytes) -> None:
    with pytest.raises(Undecodable, match="not an envelope"):
        decode(data)


@pytest.mark.parametrize(
    ("text", "token"),
    [("Team", "team"), (" a.b c>d*e/f:g ", "a_b_c_d_e_f_g"), ("", "default"), ("  ", "default"), ("a\tb\x00", "a_b_")],
)
def test_a_name_becomes_one_token_of_a_subject(text: str, token: str) -> None:
    assert subject_token(text) == token


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_name_widens_or_divides_a_subject(namespace: str, agent: str) -> None:
    subject = subject_for("p.q", namespace, agent)
    assert subject.count(".") == 4
    assert not set(subject) & set(" >*\t\n\r")
