"""Memory: a place where agents keep what they learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from foliot.resources.base import Model, Resource, Status, both, fits, given, implies, problem, says
from foliot.resources.definitions.shapes import SecretAuth
from foliot.resources.fields import ANY_CASE, Ref
from foliot.resources.problems import Problem

_SCHEMES: Final = {"http": ("http", "https"), "pgvector": ("postgres", "postgresql")}


class MemorySpec(Model):
    """The storage of a memory."""

    rules: ClassVar = (
        implies(says("provider", "http"), fits("endpoint", r"^\s*[Hh][Tt][Tt][Pp][Ss]?://?.*[^/\s]")),
        implies(
            says("provider", "pgvector"),
            both(
                given("embedding_model"),
                fits("endpoint", r"^\s*([Pp][Oo][Ss][Tt][Gg][Rr][Ee][Ss]([Qq][Ll])?:.*[^/\s]|[^\s=]*=)"),
            ),
        ),
    )

    type: str = Field(default="", description="What it is like, for people: vector, kv.")
    provider: Annotated[Literal["in-memory", "pgvector", "http"], ANY_CASE] = Field(
        default="in-memory", description="What keeps it."
    )
    embedding_model: Ref = Field(default="", description="The ModelEndpoint that turns text into vectors.")
    endpoint: str = Field(default="", description="The URL of an http memory, the address of a pgvector database.")
    auth: SecretAuth = Field(default_factory=SecretAuth, description="The token or password to show.")

    def problems(self) -> Iterator[Problem]:
        schemes = _SCHEMES.get(self.provider)
        if schemes is None:
            return
        if not self.endpoint:
            yield problem("endpoint", message=f"{{field}} is required when spec.provider is {self.provider}")
        elif not _fits(self.endpoint, schemes):
            expected = " or ".join(f"{scheme}://…" for scheme in schemes)
            yield problem("endpoint", message=f"{{field}} must be a URL: expected {expected}", expected=expected)
        if self.provider == "pgvector" and not self.embedding_model:
            yield problem("embedding_model", message="{field} is required when spec.provider is pgvector")


def _fits(endpoint: str, schemes: tuple[str, ...]) -> bool:
    """PostgreSQL also takes `host=… dbname=…`, which has no scheme."""
    if schemes[0] == "postgres" and "=" in endpoint.split()[0] and "://" not in endpoint:
        return True
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return False
    return parts.scheme.lower() in schemes and bool(parts.netloc or parts.query or parts.path.strip("/"))


class Memory(Resource[MemorySpec, Status]):
    """A place where agents keep what they learned."""
