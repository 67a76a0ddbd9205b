"""Every benchmark that names an aim says which one it missed, and its exit code does too."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
AIM = re.compile(r"\baims?\b|\bgoal\b|\btargets?\b|_?AIMS?\b|\bGOAL|\bTARGETS?\b|\bLIMIT_|\blimits?: ", re.MULTILINE)
# These name the aims of others: they start them, or count for them.
WITHOUT = {"run.py", "verdict.py", "walks.py", "compare_steps.py"}
PROGRAMS = [
    path for path in sorted(BENCHMARKS.glob("*.py")) if path.name not in WITHOUT and AIM.search(path.read_text())
]


def _is_verdict(node: ast.AST, method: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("VERDICT"), attr=attr)):
            return attr == method
    return False


def test_programs_with_aims_are_found() -> None:
    assert len(PROGRAMS) >= 25


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_that_names_an_aim_holds_figures_against_it_and_ends_by_that(program: Path) -> None:
    tree = ast.parse(program.read_text())
    assert any(_is_verdict(node, "hold") for node in ast.walk(tree)), "no figure is held against its aim"
    ends = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Return) and node.value is not None and _is_verdict(node.value, "end"))
        or (isinstance(node, ast.Call) and node.args and _is_verdict(node.args[0], "end"))
    ]
    assert ends, "what was missed is not the exit code"
    # What `main` returns becomes the exit code: a bare `main()` as a statement would drop it.
    dropped = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value) == "main()"
    ]
    assert dropped == []


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "verdict", raising=False)

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize(
    ("figure", "aim", "missed"),
    [
        (1.0, {"most": 1.0}, []),
        (1.1, {"most": 1.0}, ["it: 1.1 ms (aim: at most 1)"]),
        (0.9, {"least": 1.0}, ["it: 0.9 ms (aim: at least 1)"]),
        (float("nan"), {"most": 1.0}, ["it: nan ms (aim: at most 1)"]),
    ],
)
def test_a_verdict_names_what_was_missed(load: Any, capsys: Any, figure: float, aim: Any, missed: list[str]) -> None:
    verdict = load("verdict").Verdict()
    assert verdict.hold("another", 1.0, most=2.0)
    assert verdict.hold("it", figure, "ms", **aim) is not bool(missed)
    assert verdict.end() == len(missed)
    said = capsys.readouterr().out
    assert [line.removeprefix("MISSED ") for line in said.splitlines() if "MISSED" in line] == missed


@pytest.mark.parametrize(("wall", "code"), [(240.0, 0), (498.0, 1)])
def test_a_step_on_postgresql_that_is_slower_than_its_aim_is_missed(
    load: Any, capsys: Any, wall: float, code: int
) -> None:
    bench = load("bench_postgres")
    sides = {}
    for kind in ("sqlite", "postgres"):
        rounds = {"line": {"task": 1.0, "accept": 0.5, "work": 0.5, "server": 1.0}}
        rounds |= {"short": {"work": 0.3}, "long": {"work": 1.3}, "steps": {"cpu": 90.0, "wall": wall}}
        sides["here", kind] = SimpleNamespace(least=lambda what, name, rounds=rounds: rounds[what][name])
    counts = {"here": {"accept": {}, "work": {}}}
    bench.report(["here"], sides, counts, SimpleNamespace(tasks=1, places=1, rounds=1, level=100, texts=False))
    assert bench.VERDICT.end() == code
    assert ("MISSED postgres: step at 100 runs, wall µs: 498 (aim: at most 250)" in capsys.readouterr().out) is bool(
        code
    )


def test_the_program_that_runs_all_names_those_that_missed(tmp_path: Path) -> None:
    for name, code in (("bench_good", 0), ("bench_bad", 1)):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit({code})")
    (tmp_path / "run.py").write_text((BENCHMARKS / "run.py").read_text())
    done = subprocess.run([sys.executable, tmp_path / "run.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Missed their aim: bad" in done.stdout
