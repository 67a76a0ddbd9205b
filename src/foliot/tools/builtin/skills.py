"""Skills for agents: list those that a run has, load their texts, lay their files into the workspace, draft new ones.

What can be loaded is what the run was pinned to when it began. A path is looked up in the files of a skill and never
opened on a disk, so there is nothing that it could lead out of. Scripts of a skill are texts like any other: they run
only by the tools that the agent has, in the fences of those.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias
from xml.sax.saxutils import quoteattr

from msgspec import Struct

from foliot.common.suggestions import suggestion
from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition
from foliot.tools.builtin.arguments import object_schema, optional, optional_text, required_text, text
from foliot.tools.builtin.results import ToolNothingThere
from foliot.tools.builtin.workspace import FileSource, Workspace
from foliot.tools.pipeline.running import blocking

SKILLS_TOOL: Final = "skills"
SKILL_FILE: Final = "SKILL.md"
# Where the files of a skill are laid in a workspace.
LAID: Final = ".agents/skills"
LONGEST_DRAFT: Final = 64 * 1024
Scope: TypeAlias = Literal["agent", "user", "built-in"]


class OfferedSkill(Struct, frozen=True, omit_defaults=True):
    """A skill as a run has it. `digest` is that of what was allowed; `files` are texts by path."""

    name: str
    description: str
    digest: str
    scope: Scope = "agent"
    status: str = "active"
    body: str = ""
    files: dict[str, str] = {}

    @property
    def size(self) -> int:
        texts = (self.name, self.description, self.body, *self.files, *self.files.values())
        return sum(len(each.encode("utf-8", "surrogatepass")) for each in texts)

    def text_at(self, path: str) -> str | None:
        return self.body if path == SKILL_FILE else self.files.get(path)


class OfferedSkills:
    """A tool on the skills of a run. `offered` is set for the run that it is made for; without a run there are none."""

    def __init__(self) -> None:
        self.offered: Sequence[OfferedSkill] = ()
        self.quarantined: Sequence[str] = ()  # names only

    def named(self, call: Invocation) -> OfferedSkill:
        """Returns the skill that a call names. Raises `ToolNothingThere`, `ToolArgumentsInvalid`."""
        name = required_text(call, "name")
        for each in self.offered:
            if each.name == name:
                return each
        if name in self.quarantined:
            raise ToolNothingThere(
                f"{call.tool}: the skill {name[:80]!r} is in quarantine: nobody may read it until a person allows it",
                hint="do the work without it, and say so",
            )
        known = [each.name for each in self.offered]
        listed = f"there are: {', '.join(known)}" if known else "you have none"
        raise ToolNothingThere(f"{call.tool}: there is no skill {name[:80]!r}", hint=suggestion(name, known, listed))


class SkillsTool(OfferedSkills):
    """The tool `skills`: names and texts of skills."""

    definition = ToolDefinition(
        name=SKILLS_TOOL,
        description=(
            "Your skills, which are manuals for kinds of work. `list` names them; `load` returns the text of one, or "
            "that of the file at `path` that it refers to."
        ),
        schema=object_schema(
            {
                "action": {"type": "string", "enum": ["list", "load"], "description": "What to do."},
                "name": optional("string", "The skill to load."),
                "path": optional("string", f"The file of the skill to load; {SKILL_FILE} when not given."),
            },
            ["action"],
        ),
        effect="read",
        category="core",
        breaker=False,
    )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        action = required_text(call, "action")
        if action == "list":
            return {"skills": [_listed(each) for each in self.offered]}
        if action != "load":
            raise ToolArgumentsInvalid("skills: action must be list or load", field="action")
        skill = self.named(call)
        path = posixpath.normpath(optional_text(call, "path") or SKILL_FILE)
        found = skill.text_at(path)
        if found is None:
            known = [SKILL_FILE, *sorted(skill.files)]
            hint = suggestion(path, known, f"it has: {', '.join(known)}")
            raise ToolNothingThere(f"skills: {skill.name} has no file {path[:200]!r}", hint=hint)
        return f"<skill_content name={quoteattr(skill.name)} path={quoteattr(path)}>\n{found}\n</skill_content>"


class UnpackSkill(OfferedSkills):
    """The tool `unpack_skill`: the files of a skill, for tools that work on the workspace."""

    def __init__(self, files: FileSource) -> None:
        super().__init__()
        self._files = files
        self.definition = ToolDefinition(
            name="unpack_skill",
            description=(
                f"Writes all files of one of your skills into the workspace, below {LAID}, where your other tools can "
                "use them."
            ),
            schema=object_schema({"name": text("The skill.", minLength=1)}, ["name"]),
            effect="idempotent",
            repeats=True,
            category="core",
            breaker=False,
            workspace="read_write",
            resource_keys=("file:*",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        skill = self.named(call)
        texts = {SKILL_FILE: skill.body, **skill.files}
        place = f"{LAID}/{skill.name}"
        async with self._files.writing(call) as workspace:
            await blocking(call, self, _lay, workspace, place, texts)
        return {"folder": place, "files": sorted(texts)}


def _lay(workspace: Workspace, place: str, texts: Mapping[str, str]) -> None:
    for path, content in texts.items():
        workspace.replace_file(f"{place}/{path}", content.encode("utf-8", "surrogatepass"))


def _listed(skill: OfferedSkill) -> dict[str, Any]:
    return {
        "name": skill.name,
        "description": skill.description,
        "status": skill.status,
        "scope": skill.scope,
        "files": sorted(skill.files),
    }


class SkillDrafts(Protocol):
    """The place of skills that agents write. All of them are in quarantine until a person has allowed them."""

    async def write(self, call: Invocation, name: str, changes: Mapping[str, Any], *, new: bool) -> str:
        """Stores a draft for the user that the run is for, or changes his; returns its digest.

        Raises `ToolPrecondition` when a new one is there already, or one to be changed is not; `ToolArgumentsInvalid`
        for what no skill may say.
        """
        ...


class DraftSkill:
    """The tool `draft_skill`: agents that may, write down what they have learned."""

    def __init__(self, drafts: SkillDrafts) -> None:
        self._drafts = drafts
        self.definition = ToolDefinition(
            name="draft_skill",
            description=(
                "Writes down how a kind of work is done, as a skill for later: `create` a draft, `patch` one of yours, "
                "or `deprecate` it. It is not offered before a person has read and allowed it."
            ),
            schema=object_schema(
                {
                    "action": {
                        "type": "string",
                        "enum": ["create", "patch", "deprecate"],
                        "description": "What to do.",
                    },
                    "name": text("Lower-case letters and digits, with single hyphens.", minLength=1, maxLength=64),
                    "description": optional("string", "What it is for and when it is needed.", maxLength=1024),
                    "body": optional("string", "The manual, in Markdown.", maxLength=LONGEST_DRAFT),
                    "files": {
                        "type": ["object", "null"],
                        "additionalProperties": {"type": "string", "maxLength": LONGEST_DRAFT},
                        "maxProperties": 20,
                        "description": "Other texts that the body refers to, by path.",
                    },
                },
                ["action", "name"],
            ),
            effect="idempotent",
            repeats=True,
            category="core",
            resource_keys=("skill:{name}",),
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        action, name = required_text(call, "action"), required_text(call, "name")
        given = {field: call.arguments.get(field) for field in ("description", "body", "files")}
        changes = {field: value for field, value in given.items() if value is not None}
        if action == "create":
            for field in ("description", "body"):
                required_text(call, field)
            changes["status"] = "draft"
        elif action == "deprecate":
            changes = {"status": "deprecated"}
        elif action != "patch" or not changes:
            raise ToolArgumentsInvalid("draft_skill: there is nothing to change", field="action")
        digest = await self._drafts.write(call, name, changes, new=action == "create")
        return {"name": name, "digest": digest, "state": "in quarantine until a person allows it"}
