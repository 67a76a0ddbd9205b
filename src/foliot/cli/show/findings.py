"""Problems in manifests, shown where they are: place, sentence, the line itself and a caret under the column.

agents/writer.yaml:7:3: error: spec.prmpt: unknown field (did you mean `prompt`?)
    7 |   prmpt: You write.
      |   ^
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foliot.cli.terminal import paint
from foliot.common.text import counted, visible

if TYPE_CHECKING:
    from foliot.resources.problems import Finding

SHOWN: Final = 100
_SECRET: Final = re.compile(r"\bkind\W{1,6}secret\b", re.IGNORECASE)


def render_findings(findings: Sequence[Finding]) -> str:
    """All findings, in the order given (by file and line as the reader gives them)."""
    _lines_of.cache_clear()
    return "\n".join(_render(finding) for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """`2 errors and 1 warning in 2 files`."""
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    counts = [counted(errors, "error")] if errors else []
    counts += [counted(warnings, "warning")] if warnings else []
    files = len({finding.file for finding in findings})
    return f"{' and '.join(counts) or 'no problems'} in {counted(files, 'file')}"


def _render(finding: Finding) -> str:
    color = "red" if finding.severity == "error" else "yellow"
    label = paint(f"{finding.severity}:", fg=color, bold=True)
    text = f"{paint(finding.place, bold=True)}: {label} {_indented(str(finding.problem))}"
    return "\n".join([text, *_excerpt(finding, color)])


def _excerpt(finding: Finding, color: str) -> list[str]:
    if finding.line is None:
        return []
    line = _line(finding)
    if line is None or not line.strip():
        return []
    number = f"{finding.line:>5}"
    line = line.replace("\t", " ")
    column = finding.column or 1
    start = max(0, column - SHOWN + 20)
    before, rest = visible(line[start : column - 1]), visible(line[max(start, column - 1) : start + SHOWN])
    rows = [f"{number} | {before}{rest}"]
    if finding.column is not None:
        rows.append(f"{' ' * len(number)} | {' ' * len(before)}{paint('^', fg=color, bold=True)}")
    return rows


def _indented(problem: str) -> str:
    """Further lines of a problem stand under its first, so that none looks like a finding of its own."""
    return visible(problem).replace("\n", "\n    ")


def _line(finding: Finding) -> str | None:
    """The line in question, unless it may hold the value of a secret: a problem is told without what was written."""
    assert finding.line is not None
    if (finding.kind or "").lower() == "secret":
        return None
    lines, mentions_secret = _lines_of(finding.file)
    if mentions_secret and finding.kind is None:
        return None
    return lines[finding.line - 1] if 0 < finding.line <= len(lines) else None


@lru_cache(maxsize=64)
def _lines_of(file: str) -> tuple[list[str], bool]:
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return [], True  # standard input, for instance
    return text.splitlines(), _SECRET.search(text) is not None
