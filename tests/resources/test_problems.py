from __future__ import annotations

from foliot.errors import InvalidInput
from foliot.resources.problems import Finding, ManifestError, Problem


def test_a_path_reads_like_an_expression() -> None:
    problem = Problem(("spec", "graph", "a", "edges", 0, "to"), "no such agent")
    assert problem.field == "spec.graph.a.edges[0].to"
    assert Problem(("metadata", "labels", "a b"), "x").field == 'metadata.labels["a b"]'


def test_a_finding_says_place_field_message_and_what_helps() -> None:
    finding = Finding(Problem(("spec", "x"), "wrong", "did you mean y?", "a number"), "a.yaml", 3, 7)
    assert str(finding) == "a.yaml:3:7: error: spec.x: wrong (expected a number; did you mean y?)"


def test_nothing_is_said_twice() -> None:
    problem = Problem(("spec", "mode"), 'invalid spec.mode "x": expected a or b', expected="a or b")
    assert str(problem) == 'invalid spec.mode "x": expected a or b'


def test_a_finding_without_a_place_in_the_file_names_the_file() -> None:
    assert str(Finding(Problem((), "empty", severity="warning"), "a.yaml")) == "a.yaml: warning: empty"


def test_the_error_carries_all_findings_and_sums_them_up() -> None:
    one = Finding(Problem(("kind",), "kind is required"), "a.yaml", 1, 1)
    two = Finding(Problem(("spec",), "odd", severity="warning"), "b.yaml", 1, 1)
    three = Finding(Problem(("spec",), "bad"), "b.yaml", 2, 1)

    assert ManifestError([one, two]).message == "a.yaml:1:1: error: kind is required"
    assert ManifestError([one, two, three]).message.startswith("2 errors in 2 files, the first: a.yaml:1:1")
    error = ManifestError([one, two, three])
    assert error.findings == [one, two, three]
    assert isinstance(error, InvalidInput)
    assert (error.exit_code, error.http) == (5, 422)
