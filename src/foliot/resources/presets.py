"""Presets of delegation in files: one Markdown file for each, its fields in the front matter, its prompt behind them.

    ---
    description: Reads the logs and says what went wrong.
    model: small
    tools: [read, grep]
    timeout: 10m
    ---
    Read the logs from their end …

An Agent names their folders in `spec.delegation.presets_from`. They are read with the manifest, on the machine of
whoever applies it, and become a part of the Agent: a run is pinned to them as to everything else that it says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from foliot.resources.problems import Finding, Path, Problem, manifest_error
from foliot.resources.syntax.manifest_files import shown
from foliot.resources.syntax.places import Places, UnreadableText
from foliot.resources.syntax.source_text import decode
from foliot.resources.syntax.yaml import parse_yaml
from foliot.resources.validate import validated

SUFFIX: Final = ".md"
FENCE: Final = "---"
LARGEST: Final = 256 * 1024
FOLDERS: Final = ("presets_from", "presetsFrom")
_WITHIN: Final = ("spec", "delegation", "presets", 0)
_FRONT: Final = "begin the file with a line '---', the fields, and another line '---'"


def read_presets(*folders: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the presets in folders, in rising priority: one of the same name replaces an earlier one in its place.

    Raises `ManifestError` with every problem. They are what `spec.delegation.presets` of an Agent holds.
    """
    presets, findings = presets_in([os.fspath(folder) for folder in folders])
    if findings:
        raise manifest_error(findings)
    return presets


def presets_in(folders: Sequence[str]) -> tuple[list[dict[str, Any]], list[Finding]]:
    """The presets in folders, and what is wrong with those that cannot be used."""
    found: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            findings.append(Finding(Problem((), f"the folder cannot be read: {said or error}"), shown(folder)))
            continue
        for name in names:
            if name.startswith(".") or not name.endswith(SUFFIX):
                continue
            preset, wrong = _read(folder, name)
            findings += wrong
            if preset is not None:
                found[preset["name"]] = preset
    return list(found.values()), findings


def names_folders(raw: Mapping[str, Any]) -> bool:
    """Whether a manifest names folders with presets that are to be read with it."""
    spec: object = raw.get("spec")
    declared = cast("dict[str, object]", spec).get("delegation") if isinstance(spec, dict) else None
    kind = raw.get("kind")
    named = isinstance(declared, dict) and any(key in declared for key in FOLDERS)
    return named and isinstance(kind, str) and kind.strip().lower() == "agent"


def with_presets(spec: Mapping[str, Any], folder: str) -> tuple[dict[str, Any], list[Problem], list[Finding]]:
    """The spec of an Agent with the presets that it names, which lie below the folder of its manifest.

    What the manifest itself says replaces a file of the same name. The problems are of the manifest, the findings of
    the files.
    """
    declared = cast("dict[str, Any]", spec["delegation"])
    named = next((declared[key] for key in FOLDERS if key in declared), None)
    listed = [named] if isinstance(named, str) else named
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in cast("list[object]", listed)):
        return dict(spec), [], []  # whoever validates it says so
    problems: list[Problem] = []
    folders: list[str] = []
    for index, each in enumerate(cast("list[str]", listed)):
        path: Path = ("spec", "delegation", "presets_from", *(() if isinstance(named, str) else (index,)))
        place = os.path.join(folder, each)
        if not _is_below(place, folder):
            hint = "name a folder beside the manifest, or below it"
            problems.append(Problem(path, f"the folder {each[:80]!r} does not lie below that of the manifest", hint))
        elif not os.path.isdir(place):
            problems.append(Problem(path, f"there is no folder {each[:80]!r} beside the manifest"))
        else:
            folders.append(place)
    presets, findings = presets_in(folders)
    own = declared.get("presets")
    kept = cast("list[Any]", own) if isinstance(own, list) else []
    names = {each.get("name") for each in cast("list[dict[str, Any]]", kept) if isinstance(cast("object", each), dict)}
    rest = {key: value for key, value in declared.items() if key not in (*FOLDERS, "presets")}
    # Those of the manifest first: so their places in it are still theirs.
    merged = [*kept, *(each for each in presets if each["name"] not in names)]
    if own is not None and not isinstance(own, list):
        merged = own  # whoever validates it says so
    return {**spec, "delegation": {**rest, "presets": merged}}, problems, findings


def _is_below(place: str, folder: str) -> bool:
    try:
        top = os.path.realpath(folder or ".")
        return os.path.commonpath([top, os.path.realpath(place)]) == top
    except (OSError, ValueError):
        return False


def _read(folder: str, name: str) -> tuple[dict[str, Any] | None, list[Finding]]:
    place = os.path.join(folder, name)
    file = shown(place)
    if not _is_below(place, folder):
        return None, [Finding(Problem((), "this link leads out of its folder"), file)]
    if not os.path.isfile(place):
        return None, [Finding(Problem((), "this is not a file"), file)]
    try:
        with open(place, "rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as error:
        return None, [Finding(Problem((), f"cannot be read: {error.strerror or error}"), file)]
    if len(data) > LARGEST:
        return None, [
            Finding(Problem((), f"the file has more than the {LARGEST:,} bytes that a preset may have"), file)
        ]
    try:
        text = decode(data)
    except UnreadableText as unreadable:
        flaw = unreadable.flaw
        return None, [Finding(Problem((), flaw.message, flaw.hint), file, flaw.line, flaw.column)]
    return _parsed(text.replace("\r\n", "\n"), file, name.removesuffix(SUFFIX))


def _parsed(text: str, file: str, stem: str) -> tuple[dict[str, Any] | None, list[Finding]]:
    lines = text.split("\n")
    if lines[0].rstrip() != FENCE:
        return None, [Finding(Problem((), "there is no front matter", _FRONT), file, 1, 1)]
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == FENCE), None)
    if end is None:
        return None, [Finding(Problem((), "the front matter is not closed", _FRONT), file, len(lines), 1)]
    parsed = parse_yaml("\n".join(lines[1:end]))
    if parsed.flaws:
        # The first line of the front matter is the second of the file.
        return None, [Finding(Problem((), f.message, f.hint), file, f.line + 1, f.column) for f in parsed.flaws]
    value: object = parsed.documents[0].value if parsed.documents else cast("object", {})
    if len(parsed.documents) > 1 or not isinstance(value, dict):
        return None, [Finding(Problem((), "the front matter is not a mapping of fields", _FRONT), file, 2, 1)]
    fields = cast("dict[str, Any]", value)
    preset = {"name": stem, **fields, "prompt": "\n".join(lines[end + 1 :]).strip()}
    if "prompt" in fields:
        return None, [Finding(Problem(("prompt",), "the prompt is what stands behind the front matter"), file, 2, 1)]
    raw = {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model_ref": "m", "delegation": {"presets": [preset]}}}
    _, problems = validated(raw)
    places = parsed.documents[0].places if parsed.documents else None
    return (None if problems else preset), [_placed(problem, file, places) for problem in problems]


def _placed(problem: Problem, file: str, places: Places | None) -> Finding:
    path = problem.path[len(_WITHIN) :]
    line, column = (1, 1) if places is None else places.of_key(path) if problem.at == "key" else places.of_value(path)
    message = problem.message.replace("spec.delegation.presets[0].", "")
    return Finding(replace(problem, path=path, message=message), file, line + 1, column)
