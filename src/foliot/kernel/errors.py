"""The kernel's own few errors. They mean a fault in a shell or a journal, never something a user did.

KernelError
├── IllegalEvent      this fact cannot follow those before it; nothing was changed by the refused `apply`
├── UnknownEvent      the journal was written by a newer version: it may be read, and must not be acted on
│   └── NewerEvent    its type or version has a name that this version does not know
└── Unencodable       the fact holds something that JSON cannot carry, such as half of a surrogate pair
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all."""


class IllegalEvent(KernelError):
    """This fact cannot follow those before it."""


class UnknownEvent(KernelError):
    """A type or version of event that this version does not know, or one whose data does not fit its type."""


class NewerEvent(UnknownEvent):
    """A name of a type or version that this version does not know."""


class Unencodable(KernelError):
    """The fact cannot be written as JSON."""
