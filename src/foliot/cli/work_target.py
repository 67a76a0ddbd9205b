"""The word that names what is to be run, in every command that runs something: `run`, `chat`, `task run`.

NAME, NAMESPACE/NAME        a declared thing; with its kind before it where that is not clear: agent/NAME, system/NAME,
                            task/NAME
./team  ../team  /team      manifests, a file or a folder, which are applied first: a path begins with `.`, `/` or `~`,
~/team  team.yaml           or ends as manifests do; any other path follows `-f`
MODULE:ATTR                 an agent of a Python module    } known, and refused: this version runs neither
HOST/NAME, NAME@DIGEST      an image                       }

A file or a folder that happens to be there changes nothing: a word means the same in every folder. A word that can be
read in two ways is refused, with both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foliot.errors import NotFound, UsageError
from foliot.resources.reader import Loaded
from foliot.resources.references import is_name
from foliot.resources.syntax.manifest_files import SUFFIXES
from foliot.runtime.groups.groups import StoreGroups
from foliot.store.base import Document

KIND_WORDS: Final = {"agent": "Agent", "system": "AgentSystem", "agent-system": "AgentSystem", "task": "Task"}
_NOUNS: Final = {"Agent": "agent", "AgentSystem": "system", "Task": "task"}
_PATH_STARTS: Final = (".", "/", "~")
_IMAGE_HOST: Final = re.compile(r"localhost|[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:[0-9]+")
_DIGEST: Final = re.compile(r"[^@]+@[a-z0-9+._-]+:[0-9A-Fa-f]+")
_PYTHON: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
NO_IMAGES: Final = "This version of Foliot cannot run images."


@dataclass(frozen=True, slots=True)
class WorkTarget:
    """A declared thing, by name, or manifests, by path. A blank namespace is the one to work in; a blank kind any."""

    name: str = ""
    namespace: str = ""
    kind: str = ""
    path: str = ""

    def __str__(self) -> str:
        kind = _NOUNS[self.kind] if self.kind else ""
        return self.path or "/".join(part for part in (kind, self.namespace, self.name) if part)


@dataclass(frozen=True, slots=True)
class WorkWords:
    """The words of a command: manifests that are applied first, the declared thing that is meant, and the text."""

    files: tuple[str, ...]
    target: WorkTarget | None
    text: str | None


def parse_words(
    words: Sequence[str],
    files: tuple[str, ...],
    *,
    named: WorkTarget | None = None,
    takes_text: bool = True,
    example: str,
) -> WorkWords:
    """Tells target and text apart. The first word is the target, except that one word beside `-f` is the text.

    With a target `named` by an option one word is the text as well, unless it is a path. Raises `UsageError`.
    """
    rest = list(words)
    target = None
    if len(rest) > 1 or (rest and not (takes_text and (files or (named is not None and not _is_path(rest[0]))))):
        target = parse_work_target(rest.pop(0), example=example)
    if len(rest) > 1:
        raise UsageError(
            f"The input is one text, and here are {len(rest)}: {', '.join(repr(word) for word in rest[:4])}.",
            hint=f"Put it in quotes. {example}",
        )
    if target is not None and target.path:
        if files:
            raise UsageError(f"{target.path} is a path, and -f names others.", hint=f"Write -f {target.path} too.")
        files, target = (target.path,), None
    if target is not None and named is not None:
        raise UsageError(f"{target} and {named} are both named; the work is one's.", hint=example)
    return WorkWords(files, target or named, rest[0] if rest else None)


def parse_work_target(word: str, *, example: str) -> WorkTarget:
    """Reads a word that names what is to be run. Raises `UsageError` for one with no reading, or with two."""
    if word.startswith(_PATH_STARTS):
        return WorkTarget(path=os.path.expanduser(word))
    named = _declared(word)
    image = bool(_DIGEST.fullmatch(word)) or ("/" in word and bool(_IMAGE_HOST.fullmatch(word.partition("/")[0])))
    if _is_path(word):
        if image:
            raise _two_readings(word, f"the manifest ./{word}", f"Write `./{word}` or `-f {word}` for the manifest.")
        return WorkTarget(path=word)
    if image and named is not None:
        thing = f"{named.name} in namespace {named.namespace}"
        raise _two_readings(word, thing, f"Write `-n {named.namespace} {named.name}` for the first.")
    if image:
        raise UsageError(f"{word!r} names an image. {NO_IMAGES}", hint=f"Run what is declared. {example}")
    if named is not None:
        return named
    if _PYTHON.fullmatch(word):
        raise UsageError(
            f"{word!r} names an agent of a Python module, and commands run declared agents only.",
            hint="In Python: `Runtime().run(AGENT, INPUT)`.",
        )
    raise UsageError(
        f"{word[:200]!r} names neither something declared (NAME or NAMESPACE/NAME) nor a path.",
        hint=f"Any path can follow -f. {example}",
    )


def parse_name(word: str, *, example: str) -> WorkTarget:
    """Reads a word that can only be a declared thing, such as that of `--agent`. Raises `UsageError`."""
    named = _declared(word)
    if named is None:
        raise UsageError(f"{word[:200]!r} does not name an agent.", hint=example)
    return named


def _is_path(word: str) -> bool:
    return word.startswith(_PATH_STARTS) or word.lower().endswith(SUFFIXES)


def _declared(word: str) -> WorkTarget | None:
    first, *rest = word.split("/")
    kind = KIND_WORDS.get(first.lower(), "") if rest else ""
    names = rest if kind else [first, *rest]
    if len(names) > 2 or not all(map(is_name, names)):
        return None
    return WorkTarget(names[-1], names[0] if len(names) == 2 else "", kind)


def _two_readings(word: str, first: str, hint: str) -> UsageError:
    return UsageError(f"{word!r} can be read in two ways: {first}, or an image. {NO_IMAGES}", hint=hint)


async def find_declared(client: StoreGroups, target: WorkTarget, kinds: Sequence[str], namespace: str) -> Document:
    """Returns the declared thing that is meant: of one of `kinds`, in the namespace to work in unless it names one.

    Raises `NotFound` with near names, and `UsageError` for a name that means two things.
    """
    if target.kind and target.kind not in kinds:
        raise UsageError(
            f"{target} is a {_NOUNS[target.kind]}, and this command runs an agent.",
            hint=f"`foliot task run {target}` runs it.",
        )
    space = target.namespace or namespace
    missing: list[NotFound] = []
    found: list[Document] = []
    for kind in (target.kind,) if target.kind else kinds:
        found += await _get(client, kind, target.name, space, missing)
    if target.kind and not target.namespace:  # `agent/writer` may also be `writer` of a namespace `agent`
        word = str(target).partition("/")[0]
        for kind in kinds:
            found += await _get(client, kind, target.name, word, [])
    if len(found) > 1:
        readings = [_reading(document) for document in found]
        raise UsageError(f"{str(target)!r} can be read in two ways: {' or '.join(readings)}.", hint=_apart(found))
    if found:
        return found[0]
    error = missing[0]
    if len(missing) > 1:
        nouns = ", ".join(_NOUNS[kind] for kind in kinds[:-1])
        near = [each.hint for each in missing if each.hint and not each.hint.startswith("`")]
        error = NotFound(
            f"There is no {nouns} or {_NOUNS[kinds[-1]]} {target.name!r} in namespace {space}.",
            hint=near[0] if near else "`foliot get systems,agents` lists what there is; `-f PATH` takes manifests.",
        )
    if path := _path_of_that_name(target):
        error.hint = f"There is a {path} of that name: `-f {target}` applies it first."
    raise error


async def find_declared_beside(
    client: StoreGroups, target: WorkTarget, kinds: Sequence[str], namespace: str, loaded: Sequence[Loaded]
) -> Document:
    """`find_declared` for a name that manifests given with it do not declare, before anything of them is applied."""
    try:
        return await find_declared(client, target, kinds, namespace)
    except NotFound as error:
        if names := [name for kind, _, name in (item.key for item in loaded) if kind in kinds]:
            error.hint = f"The manifests declare: {', '.join(names)}. Nothing was applied."
        raise


def _path_of_that_name(target: WorkTarget) -> str:
    return "folder" if os.path.isdir(str(target)) else "file" if os.path.exists(str(target)) else ""


async def _get(client: StoreGroups, kind: str, name: str, namespace: str, missing: list[NotFound]) -> list[Document]:
    try:
        return [await client.resources.get(kind, name, namespace=namespace)]
    except NotFound as error:
        missing.append(error)
        return []


def _reading(document: Document) -> str:
    metadata = document["metadata"]
    return f"the {_NOUNS[document['kind']]} {metadata['name']} in namespace {metadata['namespace']}"


def _apart(found: Sequence[Document]) -> str:
    words = [f"`{_NOUNS[each['kind']]}/{each['metadata']['namespace']}/{each['metadata']['name']}`" for each in found]
    return f"Write {' or '.join(words)}."
