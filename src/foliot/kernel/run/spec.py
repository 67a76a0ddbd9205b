"""The spec that a run is pinned to: everything `decide` needs of the definitions, as one value with a digest.

A thousand runs of one agent share one `RunSpec`. The journal of each holds its digest; the value itself is stored once,
content-addressed, and handed to `fold`. So replay and resume need the journal and that blob, and never the definitions
as they are today. A field may be added with a default; a change of meaning raises `VERSION`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.errors import UnknownEvent
from foliot.kernel.messages import ModelSettings, Number, ToolSpec
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import settled

VERSION = 1

Effect: TypeAlias = Literal["read", "idempotent", "once"]
OnUnknown: TypeAlias = Literal["ask", "fail", "retry"]
Duplicates: TypeAlias = Literal["allow", "short_circuit", "deny"]


class ToolRule(Struct, frozen=True, omit_defaults=True):
    """One tool as this run may use it. `on_unknown` says what follows when a `once` call may have acted.

    `repeats`: the same call again means something else, such as a command after its files were edited. It is made
    again where `duplicates` is "short_circuit"; what may have acted is held all the same.
    """

    spec: ToolSpec
    effect: Effect = "once"
    on_unknown: OnUnknown = "ask"
    repeats: bool = False

    @property
    def name(self) -> str:
        return self.spec.name


class Contract(Struct, frozen=True, omit_defaults=True):
    """The obligations of a run with the profile `contract`: tools it must use, and texts its answer must contain.

    `required_tools` is a set: order is not part of the promise. Calling another tool is a violation. All `markers`
    must be in the final answer, as they are written. Under "observe" a violation is recorded and the run goes on.
    """

    required_tools: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    on_violation: Literal["fail", "observe"] = "fail"


class Repairs(
    Struct,
    frozen=True,
    omit_defaults=True,
    # As they were called when the first specs were stored.
    rename={"model_backoff": "model_delay", "model_max_backoff": "model_delay_max"},
):
    """How often a model is asked to put something right before the run fails.

    `calls` counts steps in a row that hold a call which cannot be run as written (unknown tool, broken JSON, arguments
    against the schema). `outputs` counts final answers sent back in one run. `model` counts failures in a row of the
    model itself, after the shell's own retries; see `model_policy`.
    """

    calls: int = 3
    outputs: int = 2
    model: int = 3
    model_backoff: Number = 2.0
    model_max_backoff: Number = 60.0

    @property
    def model_policy(self) -> RetryPolicy:
        """Returns when a model that failed is asked again."""
        return RetryPolicy(self.model + 1, self.model_backoff, self.model_max_backoff, "none")


class CompactionRules(Struct, frozen=True, omit_defaults=True):
    """The rules by which a conversation is compacted: at which size, how much of it stays, and who summarises.

    Above `max_tokens` it is done before the next question; 0: only on request, or when the provider says that it is too
    long. The last `keep_tail` messages stay. `model` is the endpoint that is asked for summaries, and `name` what its
    model is called; blank for the run's own.
    """

    max_tokens: int = 0
    keep_tail: int = 20
    model: str = ""
    name: str = ""


class RunSpec(Struct, frozen=True, omit_defaults=True):
    """`fallbacks` and `extra` are for the shell; the kernel only carries them.

    `duplicates` concerns calls with the same tool and the same arguments after an earlier success. The default allows
    them: a poll, or a second look at a file, is a repeat that is meant.
    `on_limit="finish"` asks for the last answer without tools when steps or tool calls run out. Tokens, money and
    time are hard: they always end the run. `budget_notes` tells the model with each question how many are left.
    `time_notice` is the answer of a run whose time is over, in the words that people read; blank: such a run fails.
    `compaction`: a conversation that is too long for the model is summarised, by the `compaction_rules`.
    """

    agent: str
    model: str
    namespace: str = "default"
    system: str = ""
    tools: tuple[ToolRule, ...] = ()
    settings: ModelSettings = ModelSettings()
    fallbacks: tuple[str, ...] = ()
    limits: Limits = Limits()
    repairs: Repairs = Repairs()
    contract: Contract | None = None
    duplicates: Duplicates = "allow"
    output_schema: dict[str, Any] | None = None
    tool_use_behavior: Literal["run_llm_again", "stop_on_first_tool"] = "run_llm_again"
    on_limit: Literal["fail", "finish"] = "fail"
    on_denied: Literal["tell", "fail"] = "tell"
    on_expiry: Literal["tell", "fail"] | None = None
    compaction: bool = False
    budget_notes: bool = False
    time_notice: str = ""
    extra: dict[str, Any] = {}
    v: int = VERSION
    compaction_rules: CompactionRules = CompactionRules()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RunSpec)


def encode_spec(spec: RunSpec) -> bytes:
    """Equal specs whose schemas are written in the same order give equal bytes.

    The order within schemas is content: models follow it, and a prompt cache knows a request by its bytes.
    """
    return _encoder.encode(settled(spec))


def decode_spec(data: bytes) -> RunSpec:
    """Raises `UnknownEvent` for a spec of a newer version, or for bytes that are none."""
    try:
        spec = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownEvent(f"this is not a run spec: {error}") from error
    if spec.v > VERSION:
        raise UnknownEvent(f"the run spec has version {spec.v}; this version of foliot knows up to {VERSION}")
    return spec


def digest(data: bytes) -> str:
    """The name of these bytes in the blob store, for example of `encode_spec(spec)`."""
    return f"sha256:{sha256(data).hexdigest()}"
