"""`foliot loadtest` as it is typed: the load, the faults, the report, the exit code."""

from __future__ import annotations

import json

import pytest


def test_a_load_without_faults_succeeds_and_is_measured(foliot):
    said = foliot("loadtest", "--tasks", "8", "--json", "--quality-profile", "default")

    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert report["gates"] == {"passed": True, "violations": []}
    assert report["summary"]["succeeded"] == report["summary"]["created"] == report["metrics"]["terminal"] == 8
    assert report["metrics"]["success_rate"] == 1.0
    assert 0 < report["metrics"]["queue_p50_ms"] <= report["metrics"]["queue_p99_ms"]
    assert report["metrics"]["queue_p50_ms"] < report["metrics"]["duration_p50_ms"]
    assert report["metrics"]["tasks_per_second"] > 0
    assert len(report["top_slowest"]) == 5
    label = f"foliot.dev/loadtest={report['run_id']}"
    listed = foliot("task", "list", "-n", "loadtest", "--label", label, "-o", "name")
    assert len(listed.out.split()) == 8


def test_every_fault_is_injected_counted_and_survived_where_it_can_be(foliot):
    said = foliot(
        "loadtest", "--tasks", "20", "--json", "--seed", "7", "--min-takeover-events", "1",
        "--inject-invalid-system-rate", "0.1", "--inject-timeout-system-rate", "0.1",
        "--inject-expired-lease-rate", "0.2", "--inject-tool-failure-rate", "0.1",
    )  # fmt: skip

    assert said.code == 0, said.out + said.err
    summary = json.loads(said.out)["summary"]
    assert (summary["refused"], summary["injected_invalid_system"]) == (2, 2)
    assert summary["injected_timeout_system"] == summary["deadletter"] == summary["total_message_deadletters"] == 2
    assert summary["injected_expired_lease"] == summary["total_takeovers"] == 4
    assert summary["injected_tool_failure"] == 2
    assert summary["succeeded"] == 16
    assert summary["timed_out"] == summary["create_errors"] == 0


def test_a_gate_that_is_not_reached_is_told_and_gives_2(foliot):
    said = foliot("loadtest", "--tasks", "2", "--inject-timeout-system-rate", "0.5", "--min-success-rate", "0.9")

    assert said.code == 2
    assert "success_rate is 0.5, and must be at least 0.9" in said.err
    assert "MEASURED" in said.out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--tasks", "0"), 2, "--tasks"),
        (("--run-timeout", "soon"), 2, "not a length of time"),
        (("--inject-timeout-system-rate", "2"), 2, "--inject-timeout-system-rate"),
        (("--workers", "0", "--worker-ready-timeout", "100ms", "--tasks", "1"), 7, "0 of 1 workers were ready"),
    ],
)
def test_what_cannot_be_done_is_said(foliot, words, code, text):
    said = foliot("loadtest", *words)

    assert said.code == code
    assert text in said.err


def test_alertcheck_is_quiet_about_a_healthy_store_and_loud_about_a_sick_one(foliot):
    foliot("loadtest", "--tasks", "10", "--json")
    well = foliot("alertcheck", "-n", "loadtest", "--profile", "ci", "--json")
    foliot("loadtest", "--tasks", "4", "--json", "--inject-timeout-system-rate", "1")
    sick = foliot("alertcheck", "-n", "loadtest", "--profile", "ci")
    empty = foliot("alertcheck", "--json")

    assert well.code == 0, well.out
    assert json.loads(well.out)["aggregate"]["succeeded_tasks"] == 10
    assert sick.code == 2
    assert "deadletter_growth_rate" in sick.err
    assert empty.code == 1  # too few tasks to tell: no alarm
    assert json.loads(empty.out)["violations"][0]["code"] == "insufficient_sample"
