"""Every error a user of Foliot can meet, as one tree.

    FoliotError
    ├── InvalidInput            what was given cannot be used as it stands
    │   ├── ManifestError       … in a manifest: carries every problem with its place
    │   ├── InvalidDefinition   … in something that was declared: an edited text, the function of a tool
    │   ├── UsageError          … on the command line or in a setting
    │   └── NotHere             … by this process, which lacks a module or a tool; another one may have it
    ├── NotFound                the thing that was named is not there
    ├── Conflict                it changed meanwhile, or is there already
    ├── Gone                    it was there, and is no longer kept (a watch position that was compacted)
    ├── Denied                  a rule says no
    ├── SecretError             a secret cannot be sealed or opened; never carries the value
    │   └── SecretMissing       … what a resource names is not there, or may not be sent where it says: for its author
    └── Unavailable             a part that is needed does not answer; trying again may help
        ├── ReadTooLong         … there is too much to look through: asking for less helps
        └── TooManyReads        … others look through much at the moment: asking later helps

Those that belong to a room are exported from `foliot`: `ManifestError`, `RunTaken`, `RunFailedError`, `InUse`,
`FieldConflict`, `Held`, `ToolError`, `ModelError`.

`code` is for programs and never changes; the message is for people and says what happened, where, and what to do.
`exit_code` and `http` are how the command line and the server report it: no caller ever reads the text to decide.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FoliotError(Exception):
    """Base of all. `details` are facts for programs; `hint` is the next thing to try, for people."""

    code: ClassVar[str] = "internal"
    http: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details
        if retryable is not None:
            self.retryable = retryable


class InvalidInput(FoliotError):
    code, http, exit_code = "invalid", 422, 5


class UsageError(InvalidInput):
    code, http, exit_code = "usage", 400, 2


class InvalidDefinition(InvalidInput):
    """A declared resource is wrong, not the command line: their exit codes differ."""


class NotHere(InvalidInput):
    """`lacks` in the details is what this process has not, in words such as `module desk`. No run ends by it."""

    code = "not_here"


class NotFound(FoliotError):
    code, http, exit_code = "not_found", 404, 3


class Conflict(FoliotError):
    code, http, exit_code = "conflict", 409, 4


class OutcomeUnknown(Conflict):
    """The same request came before, and whether it was done then is not known."""

    code = "outcome_unknown"


class Gone(FoliotError):
    code, http, exit_code = "gone", 410, 4


class Denied(FoliotError):
    code, http, exit_code = "denied", 403, 6


class InactiveAgent(Denied):
    """An agent that is declared with `active: false` was given new work."""

    code = "inactive_agent"


class SecretError(FoliotError):
    code, http, exit_code = "secret", 500, 6


class SecretMissing(SecretError):
    """A declared secret is missing. The definition is at fault, not this machine, so callers may see the message."""

    code, http = "secret_missing", 422


class Unavailable(FoliotError):
    code, http, exit_code = "unavailable", 503, 7
    retryable = True


class ReadTooLong(Unavailable):
    """A read was stopped at its deadline. The same again would take as long."""

    code = "read_too_long"
    retryable = False

    @classmethod
    def of(cls, query: str, seconds: float) -> ReadTooLong:
        """The error for a query of the store, by its name."""
        return cls(
            f"the store has too much to look through: {query} was stopped after {seconds:.1f} s",
            hint="ask for less: name a namespace, an agent, a phase or a label, or a smaller page",
            query=query,
        )


class TooManyReads(Unavailable):
    """A long read was not begun: others of its kind had all places, for as long as it could wait for one."""

    code = "too_many_reads"

    @classmethod
    def of(cls, query: str, seconds: float) -> TooManyReads:
        """The error for a query of the store, by its name."""
        return cls(
            f"the store is busy with other long reads: {query} could not begin within {seconds:.1f} s",
            hint="try again in a moment; lists that name a namespace, an agent or a phase leave more room to others",
            query=query,
        )
