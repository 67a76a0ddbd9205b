"""Hints for misspelt words, numbers with their nouns, and lengths of time as text."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foliot
from foliot.common.durations import age, canonical, duration, seconds
from foliot.common.suggestions import did_you_mean, nearest, read_phases, suggestion
from foliot.common.text import counted
from foliot.errors import InvalidInput
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES

WORDS = st.text(string.ascii_letters + string.digits + "_-.", min_size=1, max_size=20)


@given(st.lists(WORDS, max_size=12), WORDS, st.integers(1, 4))
def test_a_hint_names_only_known_words_once_each_and_no_more_than_asked_for(
    known: list[str], word: str, most: int
) -> None:
    found = nearest(word, known, most=most)

    assert len(found) <= most
    assert set(found) <= set(known)
    assert len({each.lower() for each in found}) == len(found)


@given(st.lists(WORDS, max_size=12), WORDS)
def test_a_word_in_another_case_is_always_found(known: list[str], word: str) -> None:
    assert nearest(word.swapcase(), [word, *known])[0].lower() == word.lower()


@given(WORDS.filter(lambda word: len(word) >= 4), st.data())
def test_two_neighbours_that_were_swapped_are_found(word: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(word) - 2))
    slip = word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    assert suggestion(slip, [word]) == f"did you mean {word}?"


def test_without_a_like_word_the_hint_is_the_other_one() -> None:
    assert suggestion("zzz", ["agent"], "known: agent") == "known: agent"
    assert suggestion("zzz", ["agent"]) is None
    assert did_you_mean("a", "b") == "did you mean a or b?"


def test_a_huge_word_is_not_compared() -> None:
    assert nearest("a" * 1_000_000, ["a" * 1_000_000]) == []


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1204, "1,204 tasks"), (-1, "-1 tasks")]
)
def test_a_noun_agrees_with_its_number(count: int, text: str) -> None:
    assert counted(count, "task") == text


def test_a_verb_agrees_with_its_number() -> None:
    assert [counted(n, "run waits", "runs wait") for n in (1, 2)] == ["1 run waits", "2 runs wait"]


@given(st.floats(0, 1e9, allow_nan=False))
def test_a_measured_length_reads_back_to_what_is_shown_of_it(length: float) -> None:
    shown = duration(length)

    # What is cut: half a millisecond, half of a tenth, half a second, a minute, an hour.
    cut = ((0.1, 0.0006), (60, 0.06), (3600, 0.6), (86400, 60.6), (2e9, 3600.6))
    lost = next(lost for below, lost in cut if length < below)
    assert abs(seconds(shown) - length) <= lost
    canonical(shown)  # the grammar of manifests reads it


@given(st.integers(0, 10**9))
def test_an_age_is_one_number_and_one_unit_and_at_most_a_third_is_cut(length: int) -> None:
    shown = age(length)

    assert shown[:-1].isdecimal()
    assert shown[-1] in "smhd"
    assert length * 2 / 3 <= seconds(shown) <= length


def test_no_other_module_compares_words_or_words_the_hint() -> None:
    root = Path(foliot.__file__).parent
    others: list[str] = []
    for path in root.rglob("*.py"):
        if path.relative_to(root).as_posix() == "common/suggestions.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            matches = isinstance(node, (ast.Name, ast.Attribute)) and "get_close_matches" in ast.unparse(node)
            words = (
                isinstance(node, ast.JoinedStr)
                and isinstance(node.values[0], ast.Constant)
                and "id you mean" in str(node.values[0].value)
            )
            if matches or words:
                others.append(f"{path.relative_to(root)}:{node.lineno}")

    assert others == []


@pytest.mark.parametrize(("stored", "shown"), API_PHASES.items())
def test_a_filter_takes_the_word_that_documents_show_and_the_one_that_is_stored(stored: str, shown: str) -> None:
    for word in (stored, shown, stored.upper(), shown.lower(), stored.replace("_", "-")):
        assert read_phases([word], TASK_PHASES, API_PHASES) == (stored,)
        assert read_phases(f" {word},, {word}", TASK_PHASES, API_PHASES) == (stored, stored)


@pytest.mark.parametrize("word", ["", "sucess", "Pending,Running", 3, None])
def test_a_filter_refuses_another_word_and_names_those_that_there_are(word: object) -> None:
    with pytest.raises(InvalidInput, match="not one of DeadLetter, Pending, WaitingApproval, cancelled, dead_lettered"):
        read_phases([word], TASK_PHASES, API_PHASES)


def test_a_filter_that_names_nothing_chooses_nothing() -> None:
    assert read_phases("", TASK_PHASES, API_PHASES) == read_phases(" , ", TASK_PHASES) == read_phases((), TASK_PHASES)
    with pytest.raises(InvalidInput, match="not one of"):
        read_phases("Pending", TASK_PHASES)
