"""Each checker of the simulator against an engine, or a store, that is broken on purpose: it must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from foliot.engine.driver.driver import Driver
from foliot.engine.driver.intake import admit_calls
from foliot.engine.driver.journal import summary_of
from foliot.engine.driver.runs import Runs
from foliot.kernel.run.actions import CallTools
from foliot.kernel.run.events import RunClaimed, RunSucceeded, ToolFinished
from foliot.store.journal.base import TERMINAL, Lease, Signal
from foliot.store.journal.memory import MemoryJournal
from simulators.engine.__main__ import play_chunk
from simulators.engine.simulation import simulate


def runs_with(driver_type: type[Driver]) -> type[Runs]:
    class BrokenRuns(Runs):
        def _driver(self, *args: Any, **kwargs: Any) -> Driver:
            driver = super()._driver(*args, **kwargs)
            driver.__class__ = driver_type
            return driver

    return BrokenRuns


def breaks(
    promise: str,
    profile: str,
    *,
    driver: type[Driver] | None = None,
    journal: Callable[[], MemoryJournal] = MemoryJournal,
    first: int = 0,
) -> bool:
    """Whether a seed is found whose history breaks this promise. `first`: one that does, where others take long."""
    for seed in range(first, first + 150):
        report = simulate(seed, profile, make_runs=runs_with(driver) if driver else Runs, journal=journal())
        if any(violation.startswith(f"{promise}: ") for violation in report.violations):
            return True
    return False


class ActsFirst(Driver):
    __slots__ = ()

    async def _start_calls(self, action: CallTools) -> None:
        admitted, refused = await admit_calls(self._tools, self.state, action)
        for fact in refused:
            self._take(fact, None)
        for intent, call in admitted:
            self._record(intent.started())
            self._calling[intent.call_id] = asyncio.create_task(self._call(intent, call, action.deadline))
        await self._write()


def test_a_tool_that_acts_before_its_start_is_durable_is_caught() -> None:
    assert breaks("nothing_acts_before_it_is_durable", "calm", driver=ActsFirst)


class WritesLate(Driver):
    __slots__ = ()

    def _has_only_facts(self) -> bool:
        return False  # or it would not come to `_write`

    async def _write(self, phase: Any = None) -> None:
        if phase is not None or not self.state.asking or self.state.spent.steps == 0:
            await super()._write(phase)


def test_a_model_that_is_shown_what_is_not_durable_is_caught() -> None:
    assert breaks("nothing_acts_before_it_is_durable", "calm", driver=WritesLate)


class Forgetful(MemoryJournal):
    """Loses the end of a journal with its holder."""

    async def claim(self, run_id: str, **kwargs: Any) -> Lease:
        lease = await super().claim(run_id, **kwargs)
        del self._runs[run_id].entries[3:]
        return lease


def test_a_finished_step_that_runs_again_is_caught() -> None:
    assert breaks("finished_work_is_not_done_again", "crashes", journal=Forgetful)


class Optimist(Driver):
    """Takes it that what a dead worker had started did not happen."""

    __slots__ = ()

    def _record(self, event: Any) -> None:
        super()._record(event)
        if isinstance(event, RunClaimed):
            for call in self.state.calls:
                call.phase = "requested" if call.phase == "unknown" else call.phase


def test_a_once_effect_that_happens_twice_is_caught() -> None:
    assert breaks("once_effects_happen_once", "crashes", driver=Optimist)


class NewKeys(Driver):
    __slots__ = ()

    async def _start_calls(self, action: CallTools) -> None:
        calls = tuple(replace(call, key=f"{call.key}#{call.attempt}") for call in action.calls)
        await super()._start_calls(replace(action, calls=calls))


def test_a_repeat_under_another_key_is_caught() -> None:
    assert breaks("repeats_keep_their_key", "crashes", driver=NewKeys)


class EndsTwice(Driver):
    __slots__ = ()

    async def _write(self, phase: Any = None) -> None:
        if phase in TERMINAL:
            self._entries.append(replace(self._entries[-1], seq=self._entries[-1].seq + 1))
            self._facts.append(self._facts[-1])
        await super()._write(phase)


def test_a_second_end_is_caught() -> None:
    assert breaks("journals_are_whole", "calm", driver=EndsTwice)


class WaitsSilently(Driver):
    __slots__ = ()

    async def _let_go(self) -> bool:
        self._entries.clear()
        self._facts.clear()
        await self._journal.append(self.lease, [], phase="waiting", summary=summary_of(self.state))
        return True


def test_a_run_that_waits_for_nobody_is_caught() -> None:
    assert breaks("someone_always_owns_the_run", "crashes", driver=WaitsSilently)


class Unfenced(MemoryJournal):
    async def append(self, lease: Lease, *args: Any, **kwargs: Any) -> None:
        held = self._runs[lease.run_id].info
        await super().append(replace(lease, epoch=held.epoch, worker=held.worker), *args, **kwargs)


def test_a_journal_without_the_fence_is_caught() -> None:
    assert breaks("only_the_holder_writes", "zombies", journal=Unfenced)


class Deaf(MemoryJournal):
    """Takes what comes behind a cancel, as long as nobody has heard of it."""

    async def signal(self, signal: Signal, **kwargs: Any) -> None:
        await super().signal(signal, **kwargs)
        self._runs[signal.run_id].cancelling = 0


def test_a_start_behind_a_cancel_is_caught() -> None:
    assert breaks("nothing_begins_behind_a_cancel", "meddling", journal=Deaf)


class LosesResults(Driver):
    __slots__ = ()

    async def _call(self, *args: Any) -> None:
        return None


def test_a_run_that_never_comes_to_rest_is_caught() -> None:
    assert breaks("every_run_comes_to_rest", "calm", driver=LosesResults)


class Embellishes(Driver):
    __slots__ = ()

    def _record(self, event: Any) -> None:
        super()._record(replace(event, output=event.output + "!") if isinstance(event, RunSucceeded) else event)


def test_a_decision_that_does_not_come_out_again_is_caught() -> None:
    assert breaks("replays_find_no_difference", "calm", driver=Embellishes)


class Breaks(Driver):
    __slots__ = ()

    def _record(self, event: Any) -> None:
        if isinstance(event, ToolFinished):
            raise KeyError("a bug")
        super()._record(event)


def test_an_engine_that_raises_what_it_should_not_is_caught() -> None:
    assert breaks("nothing_unexpected_is_raised", "calm", driver=Breaks)


class Reckless(Driver):
    __slots__ = ()

    async def may_act(self) -> bool:
        return True


def test_a_worker_that_acts_after_it_slept_past_its_lease_is_caught() -> None:
    assert breaks("finished_work_is_not_done_again", "zombies", driver=Reckless, first=13)


def test_a_failing_seed_is_reported_with_its_history_and_the_command_that_replays_it() -> None:
    report = simulate(1, "calm", make_runs=runs_with(Breaks))

    text = str(report)

    assert text.startswith("seed 1, profile calm: ")
    assert "nothing_unexpected_is_raised" in text
    assert "stored   1:run.created" in text
    assert text.endswith("replay: python -m simulators.engine --seed 1 --profile calm -v")
    assert play_chunk(simulate, range(2), "calm") == []
