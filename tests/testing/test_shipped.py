"""What is installed stands on its own: it never imports the folders that stay in the repository."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAYS = {"benchmarks", "examples", "simulators", "tests"}


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_the_package_is_all_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {
        # The module that tells another project of the same import name, which must load without the package.
        "packages": ["src/foliot", "src/foliot_runtime.py"]
    }


def test_nothing_that_is_installed_imports_what_stays_in_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for name in imported(ast.parse(path.read_text()))
        if name.split(".")[0] in STAYS
    ]
    assert found == []


def test_what_is_shipped_for_tests_is_what_the_page_says() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    shipped = {path.stem for path in (ROOT / "src" / "foliot" / "testing").glob("[!_]*.py")}
    assert {f"foliot.testing.{name}" for name in shipped if f"`foliot.testing.{name}`" not in page} == set()
