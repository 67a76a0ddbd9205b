"""Commands as people give them: put in order, checked, and made from Task resources."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from foliot.common.durations import LONGEST_SECONDS, canonical, seconds
from foliot.common.suggestions import check_word
from foliot.engine.definition.freeze import declared_policy
from foliot.engine.driver.ids import is_made
from foliot.errors import InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.execution import declares_nothing, policy_problem, strictest
from foliot.kernel.graph.plan import MOST_ATTEMPTS
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.routing import attachments_problem
from foliot.kernel.run.codec import settled
from foliot.resources.digest import canonical_json
from foliot.resources.names import check_labels
from foliot.resources.references import NAME_RULE, TAKEN_NAMES, TAKEN_RULE, is_name
from foliot.store.base import DeclaredBy, Document
from foliot.work.tasks.base import PRIORITIES, Command, Requirements, TargetKind
from foliot.work.tasks.plan import first_words

# A webhook may hand on a body of 1 MiB, and says a few words of its own.
LARGEST = 2 * 1024 * 1024
LONGEST_KEY = 255
MOST_TURNS = 100_000
# How stored keys begin that have an owner.
_OWNED = "by:"
# What may differ between two requests that are the same: who asked, by which way, and how the task is called.
_NOT_CONTENT: dict[str, Any] = {
    **dict.fromkeys(("name", "by", "idempotency_key", "trace", "template"), ""),
    "expires_at": None,
    "identity": NOBODY,
    "written": {},
}
_TEXTS = ("target", "namespace", "name", "message", "idempotency_key", "lane", "spawned_by", "parent", "user")
# What a command after a template does not simply take from one of the two.
_MERGED = frozenset(
    {
        *("target_kind", "target", "namespace", "name", "idempotency_key", "input", "labels", "template", "identity"),
        *("written", "execution_policy"),
    }
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Command)


def owned_key(owner: str, key: str) -> str | None:
    """Return a key as it is stored: that of one owner is never that of another. Keys without an owner stay plain."""
    if not key:
        return None
    if not owner and not key.startswith(_OWNED):
        return key
    return _OWNED + sha256(f"{owner}\0{key}".encode()).hexdigest()


def normalise(command: Command) -> Command:
    """Strips blanks from the texts of a command. Raises `InvalidInput` with everything that is wrong."""
    text = {name: value.strip() for name in _TEXTS if isinstance(value := getattr(command, name), str)}
    command = replace(command, **{**text, "namespace": text["namespace"] or "default"})
    check_word("target_kind", command.target_kind, get_args(TargetKind))
    check_word("priority", command.priority, PRIORITIES)
    if problems := list(_problems(command)):
        raise InvalidInput("; ".join(problems), hint="nothing was accepted")
    is_empty = command.execution_policy is not None and declares_nothing(command.execution_policy)
    return replace(command, execution_policy=None) if is_empty else command


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _problems(command: Command) -> list[str]:
    found: list[str] = []
    if not command.target:
        found.append("a task needs an agent or a system to do it")
    elif len(parts := command.target.split("/")) > 2 or not all(map(is_name, parts)):
        found.append(f"{command.target[:80]!r} cannot be the name of an agent or a system: expected {NAME_RULE}")
    if command.name and not is_name(command.name):
        found.append(f"{command.name[:80]!r} cannot be the name of a task: expected {NAME_RULE}")
    if command.name in TAKEN_NAMES:
        found.append(f"a task cannot be called {command.name!r}: {TAKEN_RULE.format(name=command.name)}")
    if not first_words(command):
        found.append("message is required")
    if len(command.message) + sum(map(len, command.input.values())) > LARGEST:
        found.append(f"message and input are larger than {LARGEST} characters")
    if command.timeout is not None and not command.timeout >= 0:
        found.append("timeout must be >= 0")
    elif command.timeout is not None and command.timeout > LONGEST_SECONDS:
        found.append(f"timeout must be <= {LONGEST_SECONDS:.0f} seconds")
    if command.max_turns < 0:
        found.append("max_turns must be >= 0")
    if command.max_turns > MOST_TURNS:
        found.append(f"max_turns must be <= {MOST_TURNS}")
    if len(command.idempotency_key) > LONGEST_KEY:
        found.append(f"idempotency_key is longer than {LONGEST_KEY} characters")
    if len(command.lane) > 63:
        found.append("lane is longer than 63 characters")
    found += [
        f"label {name!r:.80}: labels are texts without a zero among them"
        for name, value in command.labels.items()
        if not _is_text(name) or not _is_text(value)
    ]
    if wrong := attachments_problem(command.attachments):
        found.append(f"attachments: {wrong}")
    if command.execution_policy is not None and (wrong := policy_problem(command.execution_policy)) is not None:
        found.append(f"invalid policy: {wrong[1]}")
    retry = command.retry
    if not 1 <= retry.max_attempts <= MOST_ATTEMPTS:
        found.append(f"retry.max_attempts must be >= 1 and <= {MOST_ATTEMPTS}")
    for name in ("backoff", "max_backoff"):
        if not 0 <= getattr(retry, name) <= LONGEST_SECONDS:
            found.append(f"retry.{name} must be >= 0 and <= {LONGEST_SECONDS:.0f} seconds")
    return found


def content_digest(command: Command) -> str:
    """Returns the digest of the request: two commands with the same one ask for the same thing, however written."""
    return sha256(_content(command)).hexdigest()


def _content(command: Command) -> bytes:
    asked = replace(command, **_NOT_CONTENT)
    if command.identity.by:
        # Whoever acts for others asks for something else when it is for somebody else.
        asked = replace(asked, identity=Identity(command.identity.user))
    return canonical_json(msgspec.to_builtins(settled(asked)))


class ContentForm(NamedTuple):
    """The content of commands that differ in nothing but their input: the text before it, and behind it."""

    before: bytes
    behind: bytes

    def digest(self, input: dict[str, str]) -> str:
        """Returns `content_digest` of such a command with this input, which is not empty."""
        return sha256(b"%b%b%b" % (self.before, canonical_json(input), self.behind)).hexdigest()


def content_form(command: Command) -> ContentForm | None:
    """Returns the form of the content of a command; None for one without input, or whose input stands there twice."""
    before, _, behind = (content := _content(command)).partition(own := b'"input":' + canonical_json(command.input))
    is_clear = command.input and content.count(own) == 1
    return ContentForm(before + b'"input":', behind) if is_clear else None


def is_declared_by(row: Mapping[str, Any], command: Command) -> bool:
    """Whether the task of a row is the work of a Task that says `command`: its labels may have been changed since."""
    return asks_the_same(decode_command(row["command"]), command)


def asks_the_same(one: Command, other: Command) -> bool:
    """Whether two commands ask for the same, whatever their labels are and whoever asks."""
    digests = {content_digest(replace(normalise(each), labels={}, identity=NOBODY)) for each in (one, other)}
    return len(digests) == 1


def encode_command(command: Command) -> str:
    """Encodes a command for the store. The input keeps its order: agents receive it in that order."""
    return _encoder.encode(command).decode()


def decode_command(text: str) -> Command:
    """Decodes a command of the store."""
    return _decoder.decode(text)


def spec_of(command: Command) -> dict[str, Any]:
    """Returns the spec of a Task that asks for the same: the inverse of `command_of`.

    A reader of a task can post its spec under another name, and have the same done again.
    """
    retry = command.retry
    spec: dict[str, Any] = {
        command.target_kind: command.target,
        "mode": "run",
        "priority": command.priority,
        "retry": {"max_attempts": retry.max_attempts, "backoff": _text(retry.backoff)},
        "message_retry": {
            "max_attempts": retry.max_attempts,
            "backoff": _text(retry.backoff),
            "max_backoff": _text(retry.max_backoff),
            "jitter": retry.jitter,
        },
    }
    if retry.non_retryable:
        spec["message_retry"]["non_retryable"] = [*retry.non_retryable]
    for name in ("input", "lane", "max_turns"):
        if value := getattr(command, name):
            spec[name] = value
    if command.timeout is not None:
        spec["timeout"] = _text(command.timeout)
    if needs := msgspec.to_builtins(command.requirements):
        spec["requirements"] = needs
    if command.execution_policy is not None and (policy := msgspec.to_builtins(command.execution_policy)):
        spec["execution_policy"] = policy
    return spec


def _text(seconds: float) -> str:
    return canonical(f"{round(seconds * 1000)}ms")


# What the first agents of a declared Task without input are told: providers refuse a question without words.
BEGIN: Final = "Begin."


def command_of(document: Mapping[str, Any]) -> Command:
    """Converts a Task resource to a command; its name becomes the task's. Raises `InvalidInput` for its labels."""
    metadata: dict[str, Any] = document["metadata"]
    spec: dict[str, Any] = document.get("spec", {})
    retry: dict[str, Any] = {**(spec.get("retry") or {}), **_given(spec.get("message_retry"))}
    needs: dict[str, Any] = spec.get("requirements") or {}
    check_labels(metadata.get("labels") or ())
    check_labels(metadata.get("annotations") or (), what="annotation")
    check_chosen_name(metadata["name"])
    given = dict(spec.get("input") or {})
    # A template is given its input with each use of it, see `from_template`.
    needs_words = not any(given.values()) and spec.get("mode") != "template"
    return Command(
        target_kind="system" if spec.get("system") else "agent",
        target=spec.get("system") or spec.get("agent", ""),
        namespace=metadata.get("namespace", "default"),
        name=metadata["name"],
        message=BEGIN if needs_words else "",
        input=given,
        idempotency_key=spec.get("idempotency_key", ""),
        priority=spec.get("priority", "normal"),
        lane=spec.get("lane", ""),
        labels=dict(metadata.get("labels") or {}),
        max_turns=spec.get("max_turns", 0),
        timeout=_duration(spec.get("timeout")),
        requirements=Requirements(needs.get("region", ""), bool(needs.get("gpu")), needs.get("model", "")),
        retry=RetryPolicy(
            max_attempts=retry.get("max_attempts") or 1,
            backoff=_duration(retry.get("backoff")) or 0.0,
            max_backoff=_duration(retry.get("max_backoff")) or 86_400.0,
            jitter=retry.get("jitter", "full"),
            non_retryable=tuple(retry.get("non_retryable") or ()),
        ),
        execution_policy=declared_policy(spec),
    )


def check_chosen_name(name: str) -> None:
    """Raises `InvalidInput` for the name of a task that a caller cannot choose: somebody's conversation goes by it."""
    if is_made(name):
        raise InvalidInput(
            f"{name[:80]!r} cannot be chosen as the name of a task",
            hint="names of this form are made by the server; choose another one",
        )


def from_template(template: Document, given: Command, *, by_operator: bool = False) -> Command:
    """A command after a Task of mode `template`; what `given` says wins, and inputs and labels are put together.

    `by_operator`: a trigger gives it, which the operator declared. Raises `InvalidInput` when the resource is no
    template.
    """
    name = template["metadata"]["name"]
    if template.get("spec", {}).get("mode") != "template":
        raise InvalidInput(f'task template "{name}" must set spec.mode=template')
    base = command_of(template)
    input = {**base.input, **given.input}
    if given.execution_policy is not None and (wrong := policy_problem(given.execution_policy)) is not None:
        raise InvalidInput(f"invalid policy: {wrong[1]}", hint="nothing was accepted")
    default = Command(target_kind=base.target_kind, target="")
    chosen = {
        field: value
        for field in Command.__struct_fields__
        if field not in _MERGED and (value := getattr(given, field)) != getattr(default, field)
    }
    if not chosen.get("message") and not any(input.values()):
        chosen["message"] = BEGIN
    return replace(
        base,
        **chosen,
        name=given.name,
        template=f"{base.namespace}/{name}",
        idempotency_key=given.idempotency_key,
        input=input,
        labels={**base.labels, **given.labels},
        # What a template declares can be narrowed by who uses it, and not widened.
        execution_policy=strictest(base.execution_policy, given.execution_policy),
        identity=ordered_after(given.acts_as, template, by_operator=by_operator),
    )


def ordered_after(identity: Identity, template: Document, *, by_operator: bool = False) -> Identity:
    """The identity of work after a template: its declarer has ordered it as well.

    What a trigger of the operator does after somebody else's template it does with their rights, or whoever may write
    templates would have work done as the operator.
    """
    declarer = DeclaredBy.of(template)
    if by_operator and declarer.user and not declarer.operator:
        return replace(identity, user=declarer.user, ordered_by=()).also_ordered_by(identity.user, *identity.ordered_by)
    return identity.also_ordered_by(declarer.user)


def _given(part: dict[str, Any] | None) -> dict[str, Any]:
    """Drops members that were left to the default."""
    return {name: value for name, value in (part or {}).items() if value}


def _duration(text: str | None) -> float | None:
    return None if not text else seconds(text)
