"""Final answers held against a schema."""

from __future__ import annotations

import pytest

from foliot.engine.driver.intake import MOST_PROBLEMS_TOLD, check_output
from foliot.kernel.run.actions import CheckOutput
from foliot.kernel.run.events import OutputAccepted, OutputRejected

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
}


@pytest.mark.parametrize(
    "text",
    ['{"x": 1, "y": 2}', ' \n{"x": 1, "y": 2}\n', '```json\n{"x": 1, "y": 2}\n```', '```\n{"x": 1, "y": 2}```'],
)
def test_json_of_the_wanted_shape_is_accepted_also_in_a_fence(text: str) -> None:
    assert check_output(CheckOutput(text, POINT)) == OutputAccepted({"x": 1, "y": 2})


@pytest.mark.parametrize("text", ["", "no", "{", '{"x": 1', "[" * 100_000, "NaN", '"\\ud800"', "```"])
def test_what_is_not_json_is_rejected_with_a_reason(text: str) -> None:
    rejected = check_output(CheckOutput(text, POINT))
    assert isinstance(rejected, OutputRejected)
    assert rejected.reason == "schema"
    assert "not JSON" in rejected.problems[0]


def test_every_problem_is_told_with_its_place_up_to_a_bound() -> None:
    rejected = check_output(CheckOutput('{"x": "one"}', POINT))
    assert isinstance(rejected, OutputRejected)
    assert len(rejected.problems) == 2
    assert any(problem.startswith("x: ") for problem in rejected.problems)

    many = check_output(CheckOutput("[" + ",".join(["1"] * 50) + "]", {"items": {"type": "string"}}))
    assert isinstance(many, OutputRejected)
    assert len(many.problems) == MOST_PROBLEMS_TOLD
