"""Files that messages name: each question is looked at only as far as it is new, and no file is missed."""

from __future__ import annotations

import pytest

from foliot.engine.driver.attachments import PlainMessages
from foliot.kernel.messages import Media, Message, Text

PLAIN = tuple(Message("user", (Text(f"number {number}"),)) for number in range(4))
FILE = Message("user", (Text("see"), Media("image/png", blob="sha256:1")))


def test_messages_without_files_stay_plain_while_they_grow() -> None:
    plain = PlainMessages()
    assert all(plain.are(PLAIN[:count]) for count in range(len(PLAIN) + 1))


@pytest.mark.parametrize("place", range(4))
def test_a_file_is_found_in_whichever_message_it_takes_the_place_of(place: int) -> None:
    plain = PlainMessages()
    assert plain.are(PLAIN)
    changed = (*PLAIN[:place], FILE, *PLAIN[place + 1 :])

    assert not plain.are(changed)
    assert not plain.are((*changed, PLAIN[0]))
    assert plain.are(PLAIN)


def test_a_file_at_the_end_is_found_each_time_it_is_asked_about() -> None:
    plain = PlainMessages()
    assert plain.are(PLAIN)
    for more in range(3):
        assert not plain.are((*PLAIN, FILE, *PLAIN[:more]))


def test_a_shorter_conversation_is_looked_at_anew() -> None:
    plain = PlainMessages()
    assert plain.are(PLAIN)
    assert not plain.are((FILE, *PLAIN[2:]))
