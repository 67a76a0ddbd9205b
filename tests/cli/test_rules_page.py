"""The example of the page on rules is applied as it stands, and the calls of its table come out as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Foliot

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.mark.parametrize(
    ("agent", "amount", "outcome"),
    [
        ("refund-desk", 20, "allowed"),
        ("refund-desk", 120, "needs an approval"),
        ("refund-desk", 900, "refused"),
        ("intern", 20, "refused"),
    ],
)
def test_the_example_is_applied_and_decides_as_the_page_says(
    foliot: Foliot, tmp_path: Path, agent: str, amount: int, outcome: str
) -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "rules.yaml").write_text(example)
    applied = foliot("apply", "-f", str(tmp_path / "rules.yaml"))
    assert applied.code == 0, applied.err
    call = ("pay_refund", "--args", f'{{"order": "A-1", "amount": {amount}}}')
    said = [re.split(r"\s{2,}", line)[1:2] for line in foliot("policy", "explain", agent, *call).out.splitlines()[1:]]
    found = {word for words in said for word in words}
    assert outcome in found if outcome != "allowed" else found == {"allowed"}, found
