"""The conditions of a script: what may stand under `when` and `match`, turned into a function of the moment."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from foliot.models.script import Condition, Moment

_Report: TypeAlias = Callable[[str, str], None]
_Test: TypeAlias = Callable[[Moment, tuple[str, ...]], bool]


def _within(text: str, words: tuple[str, ...]) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in words)


# Each takes the words in lower case; a list of words means "any of these".
_WORDS: Final[dict[str, _Test]] = {
    "input": lambda m, words: _within(m.input, words),
    "result": lambda m, words: _within(m.last_result, words),
    "system": lambda m, words: _within(m.request.system, words),
    "agent": lambda m, words: m.request.agent.lower() in words,
    "model": lambda m, words: m.request.model.lower() in words,
    "tool": lambda m, words: any(tool.name.lower() in words for tool in m.request.tools),
    "called": lambda m, words: not m.called.isdisjoint(words),
    "last_tool": lambda m, words: (result := m.result) is not None and result.name.lower() in words,
}
_OTHER: Final = ("failed", "step", "not", "any")


def read_condition(value: Any, place: str, report: _Report, *, fixed: bool = False) -> Condition:
    """All tests of the mapping `value` must hold. Mistakes go to `report`; `fixed` forbids `step` (under `match`)."""
    if not isinstance(value, dict) or not value:
        report(place, "must be a mapping of conditions, such as `input: refund` or `called: search`")
        return lambda _: False
    tests: list[Condition] = []
    for key, wanted in cast("dict[Any, Any]", value).items():
        here = f"{place}.{key}"
        if key in _WORDS:
            tests.append(_word_test(_WORDS[key], wanted, here, report))
        elif key == "failed" and isinstance(wanted, bool):
            tests.append(_failed(wanted))
        elif key == "step" and isinstance(wanted, int) and not isinstance(wanted, bool) and not fixed:
            tests.append(_step(wanted))
        elif key == "not":
            tests.append(_negation(read_condition(wanted, here, report, fixed=fixed)))
        elif key == "any" and isinstance(wanted, list):
            items = cast("list[Any]", wanted)
            choices = [read_condition(item, f"{here}[{n}]", report, fixed=fixed) for n, item in enumerate(items)]
            tests.append(_either(choices))
        else:
            report(here, _complaint(key, fixed))
    return tests[0] if len(tests) == 1 else _all(tests)


def _word_test(test: _Test, wanted: Any, place: str, report: _Report) -> Condition:
    given: list[Any] = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    if not given or not all(isinstance(word, str | int | float) and str(word).strip() for word in given):
        report(place, "must be a text or a list of texts")
        return lambda _: False
    words = tuple(str(word).lower() for word in given)
    return lambda moment: test(moment, words)


def _failed(wanted: bool) -> Condition:
    return lambda moment: ((result := moment.result) is not None and result.error is not None) is wanted


def _step(number: int) -> Condition:
    return lambda moment: moment.step == number


def _negation(test: Condition) -> Condition:
    return lambda moment: not test(moment)


def _either(tests: list[Condition]) -> Condition:
    return lambda moment: any(test(moment) for test in tests)


def _all(tests: list[Condition]) -> Condition:
    return lambda moment: all(test(moment) for test in tests)


def _complaint(key: Any, fixed: bool) -> str:
    shapes = {
        "failed": "must be true or false",
        "step": "has no meaning under `match`, which chooses for the whole run" if fixed else "must be a whole number",
        "any": "must be a list of conditions",
    }
    if key in shapes:
        return shapes[key]
    known = [*_WORDS, *_OTHER]
    close = difflib.get_close_matches(str(key), known, 1)
    return (
        f"is not a condition; did you mean `{close[0]}`?" if close else f"is not a condition; known: {', '.join(known)}"
    )
