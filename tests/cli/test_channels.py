"""`foliot channels` lists channels and deliveries, and says what is wrong with a name or a state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEAM = """\
apiVersion: foliot.dev/v1
kind: Channel
metadata: {name: desk}
spec:
  type: webhook
  agent: helper
  endpoint: https://desk.example/answers
  auth: {secretRef: desk}
"""


def furnish(folder: Path) -> None:
    (folder / "team.yaml").write_text(TEAM)


def test_channels_are_listed(applied: Any) -> None:
    assert "desk" in applied("channels", "list").out
    assert json.loads(applied("channels", "deliveries", "desk", "-o", "json").out) == []


def test_what_does_not_exist_is_named(applied: Any) -> None:
    missing = applied("channels", "deliveries", "desc")
    assert missing.code != 0
    assert "There is no channel 'desc'" in missing.err
    assert "desk" in missing.err
    wrong = applied("channels", "deliveries", "desk", "--state", "faild")
    assert wrong.code != 0
    assert "failed" in wrong.err
    none = applied("channels", "retry", "desk", "17")
    assert "there is no delivery 17 of channel 'desk' that failed" in none.err


def test_a_field_in_the_singular_is_taken_for_the_list_beside_it(foliot: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(f"{TEAM}  user: []\n")
    said = foliot("validate", "-f", tmp_path / "bad.yaml")
    assert "did you mean users?" in said.out + said.err
