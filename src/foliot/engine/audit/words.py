"""The words of audit records: the moments at which one is written, and what came of it.

Whoever writes a record says one of them, which the type checker sees to; whoever looks for records is told which there
are when they say another (`check_filter`). A word that is dropped here is not found any more in records of before.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from foliot.common.suggestions import check_word
from foliot.sandbox.egress.rules import Outcome as EgressOutcome
from foliot.store.audit.chain import PRUNED
from foliot.store.audit.log import AuditFilter
from foliot.tools.pipeline.record import Moment as CallMoment

# Outcomes of tool calls (`outcome_of` chooses one).
CallOutcome: TypeAlias = Literal["allowed", "asked", "denied", "refused", "ok", "failed", "unknown"]

BudgetOutcome: TypeAlias = Literal["paused", "stopped", "warned"]

# Decisions of people about calls and questions. `expired` is a question that nobody decided in time.
Decided: TypeAlias = Literal[
    "answered",
    "approved",
    "denied",
    "edited",
    "expired",
    "fail",
    "granted",
    "happened",
    "not_happened",
    "revoked",
    "run",
    "voted",
]
# Acts of callers on resources, work, sessions and accounts, in the past tense.
Act: TypeAlias = Literal[
    "accepted",
    "called",
    "channel_linked",
    "channel_unlinked",
    "created",
    "decided",
    "deleted",
    "denied",
    "fired",
    "folder_deleted",
    "granted",
    "limited",
    "logged_in",
    "logged_out",
    "login_failed",
    "mended",
    "password_change_failed",
    "password_changed",
    "password_reset",
    "purged",
    "replayed",
    "retried",
    "revoked",
    "rotated",
    "run_answered",
    "run_cancelled",
    "run_forked",
    "run_resumed",
    "run_settled",
    "run_started",
    "run_told",
    "session_archived",
    "session_branch_selected",
    "session_changed",
    "session_compacted",
    "session_created",
    "session_deleted",
    "session_regenerated",
    "session_resolved",
    "session_resumed",
    "session_rotated",
    "session_stopped",
    "session_told",
    "sessions_invalidated",
    "setup_failed",
    "setup_token_created",
    "started",
    "status_written",
    "task_accepted",
    "task_archived",
    "task_cancelled",
    "task_deleted",
    "task_requeued",
    "token_created",
    "token_revoked",
    "tried",
    "unchanged",
    "unlimited",
    "updated",
    "user_created",
    "user_disabled",
    "user_enabled",
    "user_granted",
]
MOMENTS: Final = (*get_args(CallMoment), "decided", "budget", "egress", "unfenced", "act", PRUNED)
OUTCOMES: Final = tuple(
    dict.fromkeys(
        (
            *get_args(CallOutcome),
            *get_args(Decided),
            *get_args(Act),
            *get_args(BudgetOutcome),
            *get_args(EgressOutcome),
            PRUNED,
        )
    )
)


def check_filter(wanted: AuditFilter) -> None:
    """Raise `InvalidInput` for a filter with a moment or an outcome that no record has, which names those there are."""
    if wanted.moment:
        check_word("moment", wanted.moment, MOMENTS)
    if wanted.outcome:
        check_word("outcome", wanted.outcome, OUTCOMES)
