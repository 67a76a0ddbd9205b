"""Skills on disk: folders with a `SKILL.md`, found, read and checked.

    skills/pdf-forms/SKILL.md       front matter (name, description, …) between two lines `---`, then Markdown
    skills/pdf-forms/scripts/a.py   any other texts that the body refers to

A folder becomes the document of a Skill (`read_skill`), or findings that say for each file what is wrong with it;
nothing is skipped without a word. What is read was written by others: links are never followed, not even when they are
put there while it is read, and there are bounds on the size, the number and the depth of files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, TypeAlias, cast

from foliot.common.text import one_line
from foliot.resources.problems import Finding, Problem, Severity

SKILL_FILE: Final = "SKILL.md"
LONGEST_SKILL_NAME: Final = 64
LONGEST_DESCRIPTION: Final = 1024
LARGEST_FILE: Final = 256 * 1024
LARGEST_SKILL: Final = 512 * 1024
MOST_FILES: Final = 100
MOST_ENTRIES: Final = 1000
DEEPEST: Final = 8
LONGEST_PATH: Final = 200
STATUSES: Final = ("draft", "active", "deprecated")
NAME_RULE: Final = "1 to 64 lower-case letters and digits, with single hyphens between them"
PATH_RULE: Final = (
    "relative paths of ASCII letters, digits, '.', '_' and '-', whose parts begin with a letter, a digit or '_'"
)
SKILL_NAME: Final = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
SKILL_PATH: Final = re.compile(r"(?=.{1,200}\Z)[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*){0,8}")
SKIPPED: Final = frozenset({"node_modules", "__pycache__"})
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe is opened without waiting for its other end, and refused a moment later.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KEYS: Final = {
    "name": "name",
    "description": "description",
    "status": "status",
    "created-at": "created_at",
    "disable-model-invocation": "disable_model_invocation",
}
Read: TypeAlias = tuple[dict[str, Any] | None, list[Finding]]
SkillStatus: TypeAlias = Literal["draft", "active", "deprecated"]


def is_misnamed(document: Mapping[str, Any]) -> bool:
    """Whether a Skill has a name that no skill can have: it was stored when the name was not checked."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    called: str = spec.get("name") or document["metadata"]["name"]
    return SKILL_NAME.fullmatch(called) is None


def find_skills(root: str) -> tuple[list[str], list[Finding]]:
    """Finds the skills below a folder: folders with a `SKILL.md`, and `*.md` with front matter right in it.

    Folders whose names begin with a dot, and `node_modules`, are not entered, nor are links and folders of skills.
    """
    findings: list[Finding] = []
    found = list(_search(root, 0, [0], findings))
    return found, findings


def _search(folder: str, depth: int, seen: list[int], findings: list[Finding]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        findings.append(_finding(folder, f"cannot be read: {_reason(error)}"))
        return
    if any(entry.name == SKILL_FILE for entry in ordered):
        yield folder
        return
    for entry in ordered:
        seen[0] += 1
        if seen[0] > 10 * MOST_ENTRIES:
            findings.append(_finding(folder, "there are too many files to look for skills", "name a smaller folder"))
            return
        if entry.name.lower() == SKILL_FILE.lower():
            findings.append(_finding(entry.path, f"a skill has its text in {SKILL_FILE}, in this spelling"))
        elif entry.name.startswith(".") or entry.name in SKIPPED:
            continue
        elif entry.is_symlink():
            if _leads_to_folder(entry):
                hint = "name it beside the others if it is meant"
                findings.append(_finding(entry.path, "a link to a folder is not followed", hint, "warning"))
        elif entry.is_dir(follow_symlinks=False):
            if depth >= DEEPEST:
                findings.append(_finding(entry.path, f"folders deeper than {DEEPEST} are not looked at"))
            else:
                yield from _search(entry.path, depth + 1, seen, findings)
        elif depth == 0 and entry.name.endswith(".md") and entry.is_file(follow_symlinks=False):
            if _has_front_matter(entry.path):
                yield entry.path
            else:
                findings.append(_finding(entry.path, "has no front matter, so it is no skill", None, "warning"))


def is_single_skill(entry: os.DirEntry[str]) -> bool:
    """Whether a Markdown file is a skill of its own: it has front matter, and is no link."""
    return entry.name.endswith(".md") and entry.is_file(follow_symlinks=False) and _has_front_matter(entry.path)


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir()
    return False


def _has_front_matter(path: str) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(5).removeprefix(b"\xef\xbb\xbf").startswith(b"---")
    return False


def read_skills(root: str) -> tuple[list[tuple[str, dict[str, Any]]], list[Finding]]:
    """Reads all skills below a folder: each with its place, as a document of kind Skill. Findings on the others."""
    places, findings = find_skills(root)
    documents: list[tuple[str, dict[str, Any]]] = []
    first: dict[str, str] = {}
    for place in places:
        document, problems = read_skill(place)
        findings += problems
        if document is None:
            continue
        name = document["metadata"]["name"]
        if (earlier := first.setdefault(name, place)) != place:
            findings.append(_finding(place, f"there is another skill {name!r} at {earlier}", "give one another name"))
            continue
        documents.append((place, document))
    if not places and not findings:
        findings.append(_finding(root, f"there is no skill in this folder: no {SKILL_FILE}"))
    return documents, findings


def read_skill(place: str) -> Read:
    """Reads one skill, a folder or a single Markdown file, as a document of kind Skill; None when it is not sound."""
    findings: list[Finding] = []
    files: dict[str, str] = {}
    single = place.endswith(".md") and not os.path.isdir(place)
    called = os.path.basename(os.path.abspath(place)).removesuffix(".md" if single else "")
    main = place if single else os.path.join(place, SKILL_FILE)
    try:
        if single:
            folder = os.open(os.path.dirname(place) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            # The folder itself may be reached by a link: who named it chose it. What is in it may not.
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return None, [_finding(place, f"cannot be read: {_reason(error)}")]
    try:
        if single:
            text = _text_of(folder, os.path.basename(place), place, findings)
            files = {} if text is None else {SKILL_FILE: text}
        else:
            _read_folder(folder, place, "", files, findings, [0], 0)
    finally:
        os.close(folder)
    if SKILL_FILE not in files:
        if not any(finding.severity == "error" for finding in findings):
            findings.append(_finding(place, f"there is no {SKILL_FILE} in this folder"))
        return None, findings
    spec = _front_matter(files.pop(SKILL_FILE), main, called, findings)
    findings += (_finding(place, problem) for problem in file_problems(files, spec.get("body", "")))
    if any(finding.severity == "error" for finding in findings):
        return None, findings
    name = spec.pop("name", called)
    if files:
        spec["files"] = files
    return {"apiVersion": "foliot.dev/v1", "kind": "Skill", "metadata": {"name": name}, "spec": spec}, findings


def file_problems(files: Mapping[str, str], body: str) -> Iterator[str]:
    """Says what is wrong with the files of a skill beyond the form of their names: two that are one, too much."""
    known: dict[str, str] = {SKILL_FILE.lower(): SKILL_FILE}
    for path in files:
        if (other := known.setdefault(path.lower(), path)) != path:
            yield f"{path} and {other} differ only in case: on some systems they are one file"
        above = path.lower()
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in known:
                yield f"{path} lies below {known[above]}, which is a file"
    if len(files) > MOST_FILES:
        yield f"there are {len(files)} files, and a skill may have {MOST_FILES}"
    sizes = {path: len(text.encode("utf-8", "surrogatepass")) for path, text in {**files, SKILL_FILE: body}.items()}
    for path, size in sizes.items():
        if size > LARGEST_FILE:
            yield f"{path} has {size:,} bytes, and a file of a skill may have {LARGEST_FILE:,}"
    if sum(sizes.values()) > LARGEST_SKILL:
        yield f"the files have {sum(sizes.values()):,} bytes in all, and a skill may have {LARGEST_SKILL:,}"


def _read_folder(
    folder: int, place: str, prefix: str, files: dict[str, str], findings: list[Finding], seen: list[int], depth: int
) -> None:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        findings.append(_finding(place, f"cannot be read: {_reason(error)}"))
        return
    for name in names:
        seen[0] += 1
        path, where = f"{prefix}{name}", os.path.join(place, prefix, name)
        if seen[0] > MOST_ENTRIES or len(files) > MOST_FILES:
            findings.append(
                _finding(place, f"there are more than {MOST_FILES} files, or {MOST_ENTRIES} entries in all")
            )
            return
        if name.startswith(".") or name in SKIPPED:
            message = "is no part of the skill: names that begin with a dot, and what programs leave, are left out"
            findings.append(_finding(where, message, None, "warning"))
            continue
        if not SKILL_PATH.fullmatch(path):
            findings.append(_finding(where, "this name cannot be that of a file of a skill", f"expected {PATH_RULE}"))
            continue
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except OSError as error:
            findings.append(_finding(where, f"cannot be read: {_reason(error)}"))
            continue
        if stat.S_ISLNK(mode):
            findings.append(
                _finding(where, "is a symbolic link, and a skill has only files of its own", "copy the file")
            )
        elif stat.S_ISDIR(mode):
            if depth >= DEEPEST:
                findings.append(_finding(where, f"is deeper than {DEEPEST} folders"))
                continue
            try:
                inner = os.open(name, _FOLDER, dir_fd=folder)
            except OSError as error:
                findings.append(_finding(where, f"cannot be read: {_reason(error)}"))
                continue
            try:
                _read_folder(inner, place, f"{path}/", files, findings, seen, depth + 1)
            finally:
                os.close(inner)
        elif not stat.S_ISREG(mode):
            findings.append(_finding(where, "is neither a file nor a folder"))
        elif (text := _text_of(folder, name, where, findings)) is not None:
            files[path] = text


def _text_of(folder: int, name: str, where: str, findings: list[Finding]) -> str | None:
    """Reads a regular file as text with plain line ends; None, and a finding, for what is none."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        link = error.errno == errno.ELOOP
        findings.append(_finding(where, "is a symbolic link" if link else f"cannot be read: {_reason(error)}"))
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            findings.append(_finding(where, "is no regular file"))
            return None
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        findings.append(_finding(where, f"has more than {LARGEST_FILE:,} bytes, which is the most for a file"))
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        findings.append(_finding(where, "is no text in UTF-8, and a skill has only texts", "name where to get it"))
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _front_matter(text: str, file: str, called: str, findings: list[Finding]) -> dict[str, Any]:
    """Splits the text of a SKILL.md into the fields of a Skill. What is wrong with it is added to `findings`."""
    head, body = split_front_matter(text)
    if head is None:
        findings.append(_finding(file, "does not begin with front matter", "write it between two lines of ---"))
        return {}
    from foliot.resources.syntax.yaml import parse_yaml  # servers read no folders, and start without it

    parsed = parse_yaml(head)
    findings += (_finding(file, f"{flaw.message} (line {flaw.line + 1})", flaw.hint) for flaw in parsed.flaws)
    given: Any = parsed.documents[0].value if parsed.documents else {}
    if not isinstance(given, dict):
        findings.append(_finding(file, "the front matter is no mapping of keys to values"))
        return {}
    spec: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", given).items():
        if (field := _KEYS.get(key)) is None:
            findings.append(_finding(file, f"{one_line(key, 40)}: this key is not used here", None, "warning"))
        else:
            spec[field] = value
    findings += (_finding(file, message, hint) for message, hint in _field_problems(spec, called))
    if isinstance(spec.get("description"), str):
        spec["description"] = spec["description"].strip()
    spec["body"] = body.strip("\n") + "\n" if body.strip() else ""
    return spec


def split_front_matter(text: str) -> tuple[str | None, str]:
    """Splits a text into its front matter and what follows; None without front matter."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        return None, text
    for at, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:at]), "\n".join(lines[at + 1 :])
    return None, text


def _field_problems(spec: dict[str, Any], called: str) -> Iterator[tuple[str, str | None]]:
    name = spec.get("name", called)
    if not isinstance(name, str) or not SKILL_NAME.fullmatch(name):
        yield f"name: {one_line(str(name), 80)!r} cannot be the name of a skill", f"expected {NAME_RULE}"
    elif name != called:
        yield (
            f"name: the skill calls itself {name!r}, and its folder or file is called {one_line(called, 80)!r}",
            ("give both the same name"),
        )
    description = spec.get("description")
    if not isinstance(description, str) or not description.strip():
        yield "description: it is required, because it is all that a model sees before it loads the skill", None
    elif len(description) > LONGEST_DESCRIPTION:
        yield f"description: {len(description):,} characters, and there may be {LONGEST_DESCRIPTION:,}", None
    if "status" in spec and spec["status"] not in STATUSES:
        yield f"status: {one_line(str(spec['status']), 40)!r} is no status", f"expected {', '.join(STATUSES)}"
    if "disable_model_invocation" in spec and not isinstance(spec["disable_model_invocation"], bool):
        yield "disable-model-invocation: expected true or false", None
    if "created_at" in spec and not is_time(spec["created_at"]):
        yield "created-at: expected a time such as 2026-01-31T12:00:00Z", None


def is_time(value: object) -> bool:
    """Whether this is a time in RFC 3339."""
    if not isinstance(value, str) or not re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", value, re.ASCII
    ):
        return False
    try:
        datetime.fromisoformat(re.sub(r"\.\d+", "", value))
    except ValueError:
        return False
    return True


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _finding(file: str, message: str, hint: str | None = None, severity: Severity = "error") -> Finding:
    shown = file.encode("utf-8", "backslashreplace").decode()
    return Finding(Problem((), message, hint, severity=severity), one_line(shown))


@cache
def builtin_skills() -> Mapping[str, dict[str, Any]]:
    """Returns the skills that come with Foliot, by name."""
    documents, findings = read_skills(os.path.join(os.path.dirname(__file__), "builtin_skills"))
    assert not findings, "the skills of the package are sound"
    return {document["metadata"]["name"]: document for _, document in documents}
