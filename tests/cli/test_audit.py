"""`foliot audit`: look at the records of calls, add them up, and find what was changed."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Foliot

DESK = """\
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - call: {dump: {obj: "hello", api_key: "k-123"}}
    - call: {wipe: {obj: all}}
    - say: done
---
kind: Tool
metadata: {name: dump}
spec:
  type: function
  function: audited_tools:dump
  input_schema: {type: object}
---
kind: Tool
metadata: {name: wipe}
spec:
  type: function
  function: audited_tools:dump
  input_schema: {type: object}
---
kind: ToolPermission
metadata: {name: no-wiping}
spec: {tool_ref: wipe, required_permissions: ["tool:wipe:invoke"]}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: brain, tools: [dump, wipe]}
"""


@pytest.fixture
def desk(foliot: Foliot, tmp_path: Path) -> Path:
    (tmp_path / "audited_tools.py").write_text("def dump(obj, api_key=''):\n    return f'got {obj}'\n")
    path = tmp_path / "desk.yaml"
    path.write_text(DESK)
    said = foliot("run", path, "go", "--id", "run-1")
    assert said.code == 0, said.err
    return tmp_path / "home" / "foliot.db"


def test_records_tell_who_called_what_and_by_which_rule(foliot: Foliot, desk: Path) -> None:
    said = foliot("audit", "list")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split() == ["NUMBER", "TIME", "AGENT", "ABOUT", "OUTCOME", "BY", "RUN", "CALL"]
    assert len(lines) == 3
    assert "denied" in lines[1]
    assert "ToolPermission/no-wiping" in lines[1]


def test_a_wide_list_has_the_moment_and_what_was_said(foliot: Foliot, desk: Path) -> None:
    heading, denied, _ = foliot("audit", "list", "-o", "wide").out.splitlines()
    assert heading.split()[-4:] == ["NAMESPACE", "MOMENT", "USER", "MESSAGE"]
    assert denied[heading.index("MOMENT") :].startswith("refused")
    assert "tool:wipe:invoke" in denied[heading.index("MESSAGE") :]


def test_filters_narrow_the_list(foliot: Foliot, desk: Path) -> None:
    found = json.loads(foliot("audit", "list", "--tool", "dump", "--outcome", "ok", "-o", "json").out)
    assert [each["tool"] for each in found] == ["dump"]
    assert found[0]["arguments"]["api_key"] == "[REDACTED]"
    assert json.loads(foliot("audit", "list", "--run", "run-2", "-o", "json").out) == []
    assert json.loads(foliot("audit", "list", "--agent", "desk", "--since", "1h", "--limit", "1", "-o", "json").out)


def test_one_record_is_shown_whole(foliot: Foliot, desk: Path) -> None:
    shown = json.loads(foliot("audit", "show", "1", "-o", "json").out)
    assert shown["metering"]["bytes_out"] == len("got hello")
    assert len(shown["hash"]) == 64
    assert "tool: dump" in foliot("audit", "show", "1").out
    assert foliot("audit", "show", "99").code == 3


def test_totals_are_added_up_by_what_one_asks_for(foliot: Foliot, desk: Path) -> None:
    by_tool = {each["name"]: each for each in json.loads(foliot("audit", "summary", "-o", "json").out)}
    assert (by_tool["dump"]["calls"], by_tool["dump"]["refused"]) == (1, 0)
    assert (by_tool["wipe"]["calls"], by_tool["wipe"]["refused"]) == (0, 1)
    heading, row = foliot("audit", "summary", "--by", "agent").out.splitlines()
    assert heading.split()[-2:] == ["TOKENS", "COST"]
    assert (row.split()[0], row.split()[-1]) == ("desk", "$0")
    assert foliot("audit", "summary", "--by", "day").code == 0


def test_an_untouched_log_holds_and_prints_its_head(foliot: Foliot, desk: Path) -> None:
    said = foliot("audit", "verify")
    assert said.code == 0
    assert "2 records hold." in said.out
    head = said.out.split("head: ")[1].strip()
    assert foliot("audit", "verify", "--head", head).code == 0


def test_a_changed_record_is_found_and_its_place_told(foliot: Foliot, desk: Path) -> None:
    connection = apsw.Connection(str(desk))
    with connection:
        connection.execute("UPDATE audit SET data = replace(data, 'hello', 'adieu') WHERE seq = 1")
    connection.close()
    said = foliot("audit", "verify")
    assert said.code == 1
    assert "broken at record 1 (edited)" in said.out
    assert json.loads(foliot("audit", "verify", "-o", "json").out)["broken"]["seq"] == 1


def test_what_is_no_head_or_age_is_refused(foliot: Foliot) -> None:
    assert foliot("audit", "verify", "--head", "nonsense").code == 2
    assert foliot("audit", "list", "--since", "yesterday").code == 2
    assert "90s" in foliot("audit", "list", "--since", "90").err
    assert foliot("audit", "list", "--outcome", "faild").code == 2
    assert foliot("audit", "list", "--until", "2020-01-31", "-o", "json").out.strip() == "[]"


def test_an_empty_log_says_so(foliot: Foliot) -> None:
    assert foliot("audit", "list").code == 0
    assert "0 records hold." in foliot("audit", "verify").out


def test_old_records_are_forgotten_on_request_and_the_log_still_holds(foliot: Foliot, desk: Path) -> None:
    assert foliot("audit", "prune", "--before", "1d", "-y").err == "No audit record is that old.\n"
    head = foliot("audit", "verify").out.splitlines()[1].removeprefix("head: ")

    said = foliot("audit", "prune", "--before", "0s", "--yes")

    assert said.code == 0, said.err
    assert f"forgotten, up to {head}" in said.out
    verified = foliot("audit", "verify", "--head", head)
    assert verified.code == 0
    assert "1 record holds." in verified.out
    assert f"Records up to {head.partition(':')[0]} were pruned." in verified.out
    assert [record["outcome"] for record in json.loads(foliot("audit", "list", "-A", "-o", "json").out)] == ["pruned"]
    assert foliot("audit", "summary", "-A").code == 0


@pytest.mark.parametrize("when", ["yesterday", "", "2026-13-45", "2026", "1.5", "1763424000000", "2099-01-01"])
def test_what_is_no_time_is_refused(foliot: Foliot, desk: Path, when: str) -> None:
    said = foliot("audit", "prune", "--before", when, "-y")
    assert said.code == 2
    assert "Traceback" not in said.err
    assert "pruned" not in foliot("audit", "list", "-A", "-o", "json").out


def test_pruning_asks_first(foliot: Foliot, desk: Path) -> None:
    said = foliot("audit", "prune", "--before", "2020-01-01T00:00:00Z")
    assert said.code != 0
    assert "2020-01-01" in said.err
    assert "pruned" not in foliot("audit", "list", "-A", "-o", "json").out
