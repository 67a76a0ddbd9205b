"""Approvals that are decided on a channel: by a code that was shown in the same chat, and by nothing else.

Who decides has linked their account, has the role approver at that moment, and is held to what holds over HTTP: the
approvers, four eyes, the digest of the arguments that were shown, one decision.
"""

from __future__ import annotations

from typing import Final, Literal, cast

from foliot.channels.base import DeclaredChannel
from foliot.engine.approval.notices import approval_code, approval_codes, notice_key, open_approvals
from foliot.engine.audit.entry import act_entry
from foliot.kernel.routing import Address
from foliot.kernel.run.events import ApprovalRequested
from foliot.resources.definitions.channel import TELEGRAM
from foliot.runtime.inside import Inside
from foliot.store.access.tokens import SqlTokens
from foliot.store.audit.log import append_records
from foliot.store.channel_links import StoredLink
from foliot.store.channels import Outbox
from foliot.store.transaction import Tx

AT_ONCE: Final = 100
NOT_LINKED: Final = "Nothing was decided: it takes a linked account (`foliot channels link`)."
NOT_APPROVER: Final = "Nothing was decided: your account does not have the role approver."
UNKNOWN: Final = "Nothing was decided: no approval with this code was shown here, or it was decided before."


class ApprovalDesk:
    """Decides approvals for people on channels."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._tokens = SqlTokens(inside.database)
        self._outbox = Outbox(inside.database)

    async def decide(
        self, channel: DeclaredChannel, link: StoredLink | None, address: Address, verb: str, code: str
    ) -> str:
        """Decides the approval that a code names; what came of it, in words for who has written it.

        Raises `Conflict`, `Denied` as `ApprovalService.decide`.
        """
        if link is None:
            return NOT_LINKED
        inside, user, space = self._inside, link.shown.user, channel.namespace
        if not link.owner and not await self._tokens.holds(user, "approver", space, now=inside.clock()):
            return NOT_APPROVER
        asked = await self._find(space, address, code)
        if asked is None:
            return UNKNOWN
        entry = act_entry(user, "channel", "decided", "ToolApproval", space, asked.approval_id, channel=channel.name)

        def record() -> Tx[None]:
            yield from append_records([entry])

        decided = await inside.approvals.decide(
            asked.approval_id,
            cast("Literal['approve', 'deny']", verb),
            by=user,
            namespace=space,
            comment=f"on channel {channel.name}",
            digest=asked.digest,
            through=() if _is_vouched(channel) else channel.vouching,
            in_transaction=record,
        )
        if decided.signal is None:
            return "Your approval counts. More people have to approve."
        await inside.background.wake(decided.run_id, decided.signal)
        return f"{'Approved' if verb == 'approve' else 'Denied'}: {asked.tool}"

    async def _find(self, namespace: str, address: Address, code: str) -> ApprovalRequested | None:
        """Returns what is asked under a code, if it was shown in this chat."""
        journal, after = self._inside.runs.journal, 0
        while page := await journal.asking(namespaces=(namespace,), after=after, limit=AT_ONCE):
            after = page[-1][0].key
            for info, entries in page:
                if code not in approval_codes(entries):
                    continue
                _, state = await self._inside.runs.load(info.id)
                asked = next((each for _, each in open_approvals(state) if approval_code(each) == code), None)
                if asked is not None and state.waiting is not None:
                    shown = await self._outbox.of_run(notice_key(state))
                    target = address.target_in(namespace)
                    return asked if any(each.target == target and each.state != "failed" for each in shown) else None
        return None


def _is_vouched(channel: DeclaredChannel) -> bool:
    """Whether the platform says who writes, or the operator of the installation, who has set the key too."""
    return not channel.vouching or (channel.type == "telegram" and channel.endpoint == TELEGRAM)
