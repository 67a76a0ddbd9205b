"""Problems of a document and their places: the words in which every check reports.

A `Problem` knows its place inside one document; a `Finding` is a problem whose document was read from a file. Nothing
here ever carries a secret value: checks on secrets say what is wrong, never what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from foliot.common.text import counted
from foliot.errors import InvalidInput

Severity: TypeAlias = Literal["error", "warning"]
Path: TypeAlias = tuple[str | int, ...]


def render_path(path: Path) -> str:
    """`spec.graph.a.edges[0].to`; a key that is not a plain word is shown as `labels["a b"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step and all(character.isalnum() or character in "_-/" for character in step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `path` is in the spelling of the input, so that it can be located there.

    `expected` says what would be right; `hint` what was probably meant or what to do. `at` is what of the field to
    point to: its value, or its key when the field itself should not be there. `missing`: it names something that is not
    there, which may be taken all the same (see catalog/checks.py).
    """

    path: Path
    message: str
    hint: str | None = None
    expected: str | None = None
    severity: Severity = "error"
    at: Literal["value", "key"] = "value"
    missing: bool = False

    @property
    def field(self) -> str:
        return render_path(self.path)

    def __str__(self) -> str:
        """The message with its field in front and what helps behind, each said once."""
        field = self.field
        text = self.message if not field or field in self.message else f"{field}: {self.message}"
        extra: list[str] = []
        if self.expected and self.expected not in self.message:
            extra.append(f"expected {self.expected}")
        if self.hint:
            extra.append(self.hint)
        return f"{text} ({'; '.join(extra)})" if extra else text


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a file. Lines and columns count from 1; `kind` and `name` are the resource's, when known."""

    problem: Problem
    file: str
    line: int | None = None
    column: int | None = None
    kind: str | None = None
    name: str | None = None

    @property
    def severity(self) -> Severity:
        return self.problem.severity

    @property
    def message(self) -> str:
        return self.problem.message

    @property
    def field(self) -> str:
        return self.problem.field

    @property
    def place(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.problem}"


NO_SUCH_FILE: Final = "there is no such file or directory"


class ManifestError(InvalidInput):
    """Manifests that cannot be used as they stand. `findings` holds every problem found, warnings included."""

    code = "invalid_manifest"

    def __init__(self, findings: Sequence[Finding], *, hint: str | None = None) -> None:
        self.findings = list(findings)
        super().__init__(_summary(self.findings), hint=hint)


class FilesMissing(ManifestError):
    """The only problem is that named files do not exist."""

    exit_code = 3


def manifest_error(findings: Sequence[Finding]) -> ManifestError:
    """Return the error for findings with errors among them: of its own kind if only files are missing."""
    missing = all(finding.message == NO_SUCH_FILE for finding in findings if finding.severity == "error")
    return (FilesMissing if missing else ManifestError)(findings)


def _summary(findings: Sequence[Finding]) -> str:
    errors = [finding for finding in findings if finding.severity == "error"]
    files = {finding.file for finding in errors}
    if len(errors) == 1:
        return str(errors[0])
    place = next(iter(files)) if len(files) == 1 else counted(len(files), "file")
    return f"{counted(len(errors), 'error')} in {place}" + (f", the first: {errors[0]}" if errors else "")
