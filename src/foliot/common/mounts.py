"""Places inside a sandbox, and which of them a mount may have: said when it is declared and again when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

WORKSPACE: Final = "/workspace"
# The program that sets up the last wall and becomes the one that was asked for.
LAUNCHER: Final = "/.foliot-start"

# The folders of the machine's system. They are shown as they are, so there is no place in them for anything else.
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Places that no mount may cover, and those that none may lie in. What Foliot shows inside is in /opt/foliot-NAME.
_OWN: Final = frozenset({"/", "/tmp", "/etc", "/run", "/opt"})
_OWN_BELOW: Final = (
    *(f"{each}/" for each in (WORKSPACE, LAUNCHER, "/proc", "/dev", "/sys", *SYSTEM)),
    "/run/foliot",
    "/opt/foliot-",
)


def target_problems(targets: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields which targets of mounts are refused, with the reason.

    None covers what belongs to the sandbox or lies in another one: whoever makes the place of a mount inside another
    follows the links that are there, and those are not ours.
    """
    taken: list[str] = []
    for index, given in sorted(enumerate(targets), key=lambda each: each[1]):
        target = f"/{given.strip('/')}"
        if target in _OWN or f"{target}/".startswith(_OWN_BELOW):
            yield index, f"{given} belongs to the sandbox"
        for other in taken:
            if f"{target}/".startswith(f"{other}/") or f"{other}/".startswith(f"{target}/"):
                yield index, f"{given} and {other} lie in one another"
                break
        taken.append(target)
