"""The worker: a process that takes runs from the queue and does them, as many at a time as it has places (places.py).

It waits until the transport rings or it is time to look by itself, claims what the database gives it, and lets the
performer do each run as a task of its own. What it does not do: decide who gets what (store/queue/claims.py), drive a
run (the performer), renew leases (the engine's keeper does, for everything that the process drives).

What it costs the database when there is nothing to do: a look every 5 s (one query, and one for who else works), a look
for timers of tasks every 5 s (three), a heartbeat and a look for who holds runs every 10 s (one each): 1.2 queries a
second. Whether a neighbour has died it asks the kernel, every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from typing import Literal

from msgspec.structs import replace

from foliot.bus.base import Delivery, Transport
from foliot.common.cancellation import stop_tasks
from foliot.common.process import is_gone
from foliot.common.waits import Waits
from foliot.errors import FoliotError, Unavailable
from foliot.kernel.backoff import backoff
from foliot.store.base import Database
from foliot.store.incarnation import note_set_back, store_life
from foliot.store.journal.base import Lease, StoreSetBack
from foliot.store.queue.claims import Claims, claim, recall, waiting_for_others
from foliot.store.queue.placement import Offer
from foliot.store.queue.shares import AtWork, share_left
from foliot.store.queue.workers import HEARTBEAT, Beat, Phase, beat, bury, others, register
from foliot.work.tasks.base import Performer
from foliot.work.worker.places import LOOK_EVERY, Places
from foliot.work.worker.timekeeper import Timekeeper, Timers

# --- presence --------------------------------------------------------------------------------------------------------

# Being known as a worker: registering, signs of life, and seeing to what dead neighbours left behind.

log = logging.getLogger(__name__)


class Complaints:
    """Says once that the store does not answer, not at every try; and when it answers again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._troubled = False

    def trouble(self, what: str, error: Exception) -> None:
        if not isinstance(error, FoliotError):
            log.error("worker %s could not %s, which is a bug", self._name, what, exc_info=error)
        elif not self._troubled:
            self._troubled = True
            log.warning("worker %s could not %s, and goes on trying: %s", self._name, what, error.message)

    def well(self) -> None:
        if self._troubled:
            self._troubled = False
            log.warning("worker %s: the store answers again", self._name)


class Presence:
    """One worker in the list of workers. Nothing here raises because the store does not answer."""

    def __init__(
        self,
        db: Database,
        offer: Offer,
        complaints: Complaints,
        *,
        clock: Callable[[], float],
        lease_clock: Callable[[], float] | None = None,
        wall: Callable[[], float] | None = None,
        is_gone: Callable[[str | None], bool],
    ) -> None:
        self._db = db
        self.offer = offer
        self._complaints = complaints
        self._clock = clock
        self._lease_clock = lease_clock or clock
        self._wall = wall
        self._last: Beat | None = None
        self.incarnation = ""  # of the store that this worker registered with
        self.set_back = ""  # what was found, when the store is older than it was
        self._is_gone = is_gone
        self._neighbours: set[str] = set()
        self._saying = asyncio.Lock()  # what two signs of life are answered is compared in their order

    async def begin(self) -> bool:
        """Register, in place of a dead process of the same name whose runs are then free at once. False: try again."""
        try:
            self.incarnation = (await store_life(self._db)).incarnation
            self._neighbours = await others(self._db, self.offer)  # one that is dying may lose its name to this one
            freed = await register(self._db, self.offer, now=self._clock(), is_gone=self._is_gone)
        except FoliotError as error:
            self._complaints.trouble("register", error)
            return False
        self._complaints.well()
        log.info("worker %s is ready; %d runs of dead processes are free again", self.offer.name, freed)
        return True

    async def say(self, phase: Phase) -> bool:
        """A sign of life. False when another process has the name now."""
        try:
            async with self._saying:
                off = 0.0 if self._wall is None else self._wall() - self._lease_clock()
                beat_now = await beat(self._db, self.offer, now=self._clock(), phase=phase, clock_off=off)
                if beat_now is None:
                    return False
                await self._compare(beat_now)
        except FoliotError as error:
            self._complaints.trouble("send a heartbeat", error)
        return True

    async def _compare(self, found: Beat) -> None:
        """Checks that this is still the same store as the last time, and no older."""
        last, self._last = self._last, found
        if last is None or (found.incarnation == last.incarnation and found.beats > last.beats):
            return
        if found.incarnation != last.incarnation:
            self.set_back = "it is another store than before, such as one that was put back from a backup"
        else:
            self.set_back = (
                f"worker {self.offer.name} gave sign of life {last.beats}, and the store has {found.beats - 1}"
            )
        await self.note_set_back(self.set_back)

    async def note_set_back(self, what: str) -> None:
        """Keep it that the store is older than it was. What is said of it here ends the worker."""
        self.set_back = what
        try:
            await note_set_back(self._db, what, clock=self._clock)
        except FoliotError as error:
            self._complaints.trouble("note that the store went back in time", error)

    async def bury(self, look: Literal["nobody", "workers", "holders"]) -> bool:
        """Set free what dead processes of this machine held; whether there was anything.

        `look` says what the store is asked first: nothing, so that those met before are judged; who works; or also who
        holds runs under no name of a worker, which costs more with each run that is held.
        """
        try:
            if look == "holders":
                self._neighbours = await others(self._db, self.offer)
            elif look == "workers":
                self._neighbours |= await others(self._db, self.offer, holders=False)
            dead = {each for each in self._neighbours if self._is_gone(each)}
            freed = await bury(self._db, self.offer, now=self._clock(), is_gone=self._is_gone, known=dead)
        except FoliotError as error:
            self._complaints.trouble("look for dead neighbours", error)
            return False
        self._neighbours -= dead
        if freed:
            log.info("worker %s: %d runs of processes that have died are free again", self.offer.name, freed)
        return freed > 0


async def sleep_unless(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but not on when the event is set."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


# --- worker ----------------------------------------------------------------------------------------------------------

# --- pace ------------------------------------------------------------------------------------------------------------

# When a worker looks at the queue again by itself. No clock and no I/O: told what happened, it says how long to wait.
#
# While there may be more it looks at once. When it finds nothing it waits a little longer every time, up to a bound,
# but never beyond the moment when the next run that it knows of becomes due. Where others were faster, or the database
# does not answer, it waits for a random while, so that many workers do not come back at the same moment.

# Behind the moment when something is due, so that it is due by then.
_JUST_AFTER = 0.002


class LookPace:
    """`chance` gives numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float], *, floor: float = 2.0, ceiling: float = 5.0) -> None:
        self._chance = chance
        self._floor = floor
        self._ceiling = ceiling
        self._patience = floor
        self._crowd = 0
        self._errors = 0

    def found(self, claims: Claims, now: float) -> float:
        """Seconds to wait after a look that worked."""
        self._errors = 0
        if claims.more:
            self._patience, self._crowd = self._floor, 0
            return 0.0
        if claims.leases:
            self._patience, self._crowd = self._floor, 0
        elif claims.refused.get("taken"):
            # Whoever was faster may leave some; looking at once would only get in each other's way again.
            self._crowd += 1
            return backoff(self._crowd, 0.02, self._floor, jitter="equal", share=self._chance())
        wait = self._patience
        if not claims.leases:
            self._crowd = 0
            self._patience = min(self._ceiling, self._patience * 1.5)
        if claims.next_due is not None:
            wait = min(wait, max(0.0, claims.next_due - now) + _JUST_AFTER)
        return wait

    def rung(self) -> None:
        """Shortens the pause after a ring: work is expected soon."""
        self._patience = self._floor

    def failed(self) -> float:
        """Seconds to wait after a look that the database did not answer: half a second at first, ten at most."""
        self._errors += 1
        return backoff(self._errors, 0.5, 10.0, jitter="equal", share=self._chance())


class LookRound:
    """The order of a worker's looks: from the top, and where there is more than one look sees, also all the way round.

    In turns, so that neither what is urgent nor what stands far behind has to wait for the other.
    """

    def __init__(self) -> None:
        self._place = ""
        self._from_top = True

    @property
    def place(self) -> str:
        """The place to look at now; "" is the top."""
        return "" if self._from_top else self._place

    def looked(self, claims: Claims) -> None:
        if not self._from_top:
            self._place, self._from_top = claims.cursor, True
        elif claims.cursor:
            self._place, self._from_top = self._place or claims.cursor, False
        else:
            self._place = ""


# --- worker ----------------------------------------------------------------------------------------------------------


# How often it looks whether processes beside it have died, so that what they held waits for no lease to end.
SWEEP = 1.0
# A ticket for a run that this worker may not take goes to another one after this long.
SOONEST, LATEST = 1.0, 60.0
# So much before its time a transport may return from having waited: clocks have ticks.
EARLY = 0.05


class Worker:
    """`await worker.run()` works until `drain` is called. Whoever opened the database and the transport closes them."""

    def __init__(
        self,
        db: Database,
        transport: Transport,
        performer: Performer,
        offer: Offer,
        *,
        timers: Timers | None = None,
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] | None = None,
        wall: Callable[[], float] | None = None,
        lease_seconds: float = 30.0,
        grace: float = 30.0,
        heartbeat: float = HEARTBEAT,
        sweep: float = SWEEP,
        pace: LookPace | None = None,
        is_gone: Callable[[str | None], bool] = is_gone,
        once: bool = False,
        lacking: Callable[[float], Set[str]] = lambda _: frozenset(),
        enforces: Callable[[bool], Awaitable[tuple[str, ...]]] | None = None,
        places: Places | None = None,
    ) -> None:
        """`grace` is how long runs may go on after `drain`. With `once` it ends when there is nothing to take.

        `lease_clock` is the one by which leases are judged, by default `clock`; `wall` is that of this machine, to tell
        others by how much it is off. `lacking` says what this process has not at a time: runs that it gave back for
        want of it are left to others. `enforces` says what can be enforced around programs on this machine, asked once
        unless the offer says so already: without containers, which take seconds to try, and with them by `probe`.
        `places` are by default the capacity of the offer, an exact number.
        """
        self._places = places or Places(offer.capacity)
        self._lacking = lacking
        self._enforces = enforces if offer.isolation is None else None
        self._probing: asyncio.Task[None] | None = None
        self.offer = replace(offer, capacity=self._places.limit)
        self._db = db
        self._transport = transport
        self._performer = performer
        self._timers = timers
        self._clock = clock
        self._lease_clock = lease_clock or clock
        self._lease_seconds = lease_seconds
        self._waits = Waits(lease_seconds)
        self._grace = grace
        self._heartbeat = heartbeat
        self._sweep = min(sweep, heartbeat)
        self._pace = pace or LookPace(random.random)
        self._once = once
        self._at_work: dict[asyncio.Task[None], Delivery | None] = {}
        self._namespaces: dict[asyncio.Task[None], str] = {}
        self._runs = Counter[str]()  # at work, by namespace
        self._with_programs: set[asyncio.Task[None]] = set()  # those that may start programs on this machine
        self._shared = False  # there are several namespaces
        self._short = False  # a namespace that has its share of the places wanted more at the last look
        self._receiving: asyncio.Task[Sequence[Delivery]] | None = None
        self._received = 0.0, 0.0  # since when and until when it is asked, by the loop's clock
        self._silent = False
        self._looked = False  # since it last asked who else works
        self._again = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._look_at = 0.0
        self._round = LookRound()
        # Until when the leases are of claims that may have been stored, or may yet be; and what was begun of each.
        self._unanswered: dict[float, set[str]] = {}
        self._phase: Phase = "ready"
        self._hurry = asyncio.Event()
        self._complaints = Complaints(offer.name)
        self._presence = Presence(
            db, self.offer, self._complaints, clock=clock, lease_clock=self._lease_clock, wall=wall, is_gone=is_gone
        )

    @property
    def current(self) -> int:
        """How many runs it is doing."""
        return len(self._at_work)

    @property
    def phase(self) -> Phase:
        return self._phase

    def drain(self) -> None:
        """Take no more, let what is at work go on for the grace period, then hand it back. Twice: hand back at once."""
        if self._phase == "ready":
            self._phase = "draining"
        else:
            self._hurry.set()
        self._drained.set()
        self._changed.set()

    def probe(self) -> None:
        """Try containers too, once, in the background. A run that waits for another sort of worker has it done."""
        if self._enforces is not None and self._probing is None:
            self._probing = asyncio.create_task(self._probe(self._enforces))

    async def _probe(self, enforces: Callable[[bool], Awaitable[tuple[str, ...]]]) -> None:
        self._offers(await enforces(True))
        await self._presence.say(self._phase)  # others see it, and `why` tells the truth
        self._look_again()

    def _offers(self, isolation: tuple[str, ...]) -> None:
        self.offer = self._presence.offer = replace(self.offer, isolation=isolation)

    async def run(self) -> None:
        """Work until drained. When this is cancelled, what is at work is handed back at once.

        Raises `StoreSetBack` when the store went back in time: then nothing is taken any more.
        """
        keeping: list[asyncio.Task[None]] = []
        try:
            if self._enforces is not None and self.offer.isolation is None:
                self._offers(await self._enforces(False))
            await self._register()
            keeping = [asyncio.create_task(self._keep_beating())]
            if self._timers is not None:
                timekeeper = Timekeeper(self._timers, clock=self._clock, trouble=self._complaints.trouble)
                keeping.append(asyncio.create_task(timekeeper.run()))
            if self._places.follows_load:
                keeping.append(asyncio.create_task(self._follow_load()))
            while self._phase == "ready":
                deliveries = await self._listen()
                if self._phase == "ready":
                    await self._look_unless_drained(deliveries)
                else:
                    await _each(delivery.again(delay=0.0) for delivery in deliveries)
            # Beside the rest: a store that is silent must not hold up a worker that has nothing to finish.
            keeping.append(asyncio.create_task(self._say_draining()))
            await self._finish_in_grace()
        finally:
            await self._stop(keeping)
        if self._presence.set_back:
            raise StoreSetBack(
                f"the store went back in time: {self._presence.set_back}",
                hint="see `foliot doctor`, then start the worker again; it goes on with what the store knows",
            )

    # --- waiting -------------------------------------------------------------------------------------------------

    async def _listen(self) -> Sequence[Delivery]:
        """Waits until there may be a run to take and a place for it, or until the worker is drained."""
        loop = asyncio.get_running_loop()
        while self._phase == "ready":
            free = self._places.free(len(self._at_work))
            left = self._look_at - loop.time()
            if free > 0 and left <= 0:
                return self._heard()
            if free > 0 and self._receiving is None and not self._silent:
                self._received = loop.time(), loop.time() + left
                self._receiving = asyncio.create_task(self._transport.receive(want=free, timeout=left))
            changed = asyncio.create_task(self._changed.wait())
            waits: set[asyncio.Task[object]] = {changed}  # type: ignore[arg-type]  # Task is invariant; only its end matters
            if free > 0 and self._receiving is not None:
                waits.add(self._receiving)  # type: ignore[arg-type]  # as above
            try:
                await asyncio.wait(waits, timeout=left if free > 0 else None, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            self._changed.clear()
            if free > 0 and (deliveries := self._heard()):
                return deliveries
        return self._heard()

    def _heard(self) -> Sequence[Delivery]:
        """Returns the deliveries of the transport. One that gives up before its time is left alone until the next look.

        One that had nothing to say in its time is asked again at once: looks may have moved the next one behind the end
        of that time, and until then nobody would hear a ring.
        """
        if self._receiving is None or not self._receiving.done():
            return ()
        done, self._receiving = self._receiving, None
        try:
            deliveries = done.result()
        except Exception:
            log.exception("the transport failed; the worker goes on looking by itself")
            deliveries = ()
        if deliveries:
            self._pace.rung()
        else:
            began, until = self._received
            self._silent = asyncio.get_running_loop().time() < until - min(EARLY, (until - began) / 2)
        return deliveries

    # --- taking --------------------------------------------------------------------------------------------------

    async def _look_unless_drained(self, deliveries: Sequence[Delivery]) -> None:
        """Look; but a store that is silent does not keep a worker that was told to stop, for more than a moment.

        What such a look may have claimed is free again when its lease is over, as after a crash.
        """
        looking = asyncio.create_task(self._look(deliveries))
        drained = asyncio.create_task(self._drained.wait())
        try:
            await asyncio.wait({looking, drained}, return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                await asyncio.wait({looking}, timeout=self._waits.leave)
        finally:
            await stop_tasks(drained, looking)
        if not looking.cancelled():
            looking.result()

    async def _look(self, deliveries: Sequence[Delivery]) -> None:
        self._silent = self._again = False
        self._looked = True
        was_idle = not self._at_work
        now = self._clock()
        leased = self._lease_clock()
        until = leased + self._lease_seconds
        claiming = False
        try:
            await self._take_what_was_given(leased)
            claiming = True
            want = self._places.free(len(self._at_work))
            claims = await claim(
                self._db,
                self.offer,
                want=want,
                now=now,
                until=until,
                after=self._round.place,
                lacking=self._lacking(now),
                leased=leased,
                incarnation=self._presence.incarnation,
                programs=self._places.programs(len(self._with_programs)),
                at_work=AtWork(self._runs, Counter(self._namespaces[task] for task in self._with_programs)),
                shared=self._shared,
                keep_free=self._places.follows_load,
            )
        except StoreSetBack as error:
            await self._presence.note_set_back(error.message)
            self._stop_at_once()
            wait = LATEST
        except Exception as error:
            if claiming and isinstance(error, Unavailable):
                self._unanswered[until] = set()
            wait = self._pace.failed()
            self._complaints.trouble("look at the queue", error)
            await _each(delivery.again(delay=wait) for delivery in deliveries)
        else:
            self._complaints.well()
            self._shared = claims.shared
            self._short = bool(claims.refused.get("share"))
            await self._settle(claims, deliveries)
            self._round.looked(claims)
            wait = self._pace.found(claims, now)
            if claims.refused.get("placement"):
                self.probe()
            is_probing = self._probing is not None and not self._probing.done()
            if self._once and was_idle and not claims.leases and not claims.more and not is_probing:
                self.drain()
        # What happened while this look was under way it may not have seen.
        self._look_at = 0.0 if self._again else asyncio.get_running_loop().time() + wait

    async def _take_what_was_given(self, now: float) -> None:
        """Begin with runs that an earlier look claimed and never heard of: nobody else can before their leases end.

        Looked for until then, because the claim may be stored later than its answer was given up.
        """
        for until, begun in list(self._unanswered.items()):
            if until <= now:
                del self._unanswered[until]
                continue
            at_work = {task.get_name() for task in self._at_work}
            for lease, namespace in await recall(self._db, self.offer, until=until):
                name = _name(lease)
                if name not in at_work and name not in begun:
                    log.info("run %s was claimed by a look that the store did not answer", lease.run_id)
                    self._start(lease, namespace, None, programs=True)  # what it needs is not known any more
                begun.add(name)

    def _look_again(self) -> None:
        """Makes the worker look at the queue as soon as it has a free place."""
        self._again = True
        self._look_at = 0.0
        self._changed.set()

    async def _settle(self, claims: Claims, deliveries: Sequence[Delivery]) -> None:
        """Start what was claimed. A ticket stays with its run; one for another is forgotten, or passed on."""
        tickets = {delivery.ticket.run_id: delivery for delivery in deliveries if delivery.ticket is not None}
        kept: set[int] = set()
        for run_id in claims.recovered:
            log.info("run %s is taken over: the lease of its worker ran out", run_id)
        try:
            if claims.leases:
                await self._performer.prepare(claims.leases)
        finally:  # whoever is stopped here hands them back, and does not leave them to their leases
            for lease in claims.leases:
                delivery = tickets.get(lease.run_id)
                kept.add(id(delivery))
                space = claims.namespaces[lease.run_id]
                self._start(lease, space, delivery, programs=lease.run_id in claims.programs)
        rest = [delivery for delivery in deliveries if id(delivery) not in kept]
        is_for_others = claims.refused.get("placement") or claims.refused.get("share")
        elsewhere = await self._for_others(rest) if is_for_others else set[str]()
        await _each(self._pass_on(delivery, elsewhere) for delivery in rest)

    async def _for_others(self, deliveries: Sequence[Delivery]) -> set[str]:
        """Returns the runs in these deliveries that wait for a worker of another sort, or one with room for them."""
        run_ids = [delivery.ticket.run_id for delivery in deliveries if delivery.ticket is not None]
        free = self._places.free(len(self._at_work))
        full = {space for space, own in self._runs.items() if self._short and not share_left(free, own)}
        try:
            now = self._clock()
            lacking = self._lacking(now)
            return await waiting_for_others(self._db, self.offer, run_ids, now=now, lacking=lacking, full=full)
        except FoliotError as error:
            self._complaints.trouble("look at the queue", error)
            return set()

    async def _pass_on(self, delivery: Delivery, elsewhere: Set[str]) -> None:
        """The longer a run waits already, the later: a ticket that nobody can use must not go round all the time."""
        ticket = delivery.ticket
        if ticket is None or ticket.run_id not in elsewhere:
            await delivery.done()
        else:
            await delivery.again(delay=min(max(self._clock() - ticket.due_at, SOONEST), LATEST))

    def _start(self, lease: Lease, namespace: str, delivery: Delivery | None, *, programs: bool) -> None:
        task = asyncio.create_task(self._perform(lease, delivery), name=_name(lease))
        self._at_work[task] = delivery
        self._namespaces[task] = namespace
        self._runs[namespace] += 1
        if programs:
            self._with_programs.add(task)
        task.add_done_callback(self._ended)

    async def _perform(self, lease: Lease, delivery: Delivery | None) -> None:
        try:
            await self._performer.perform(lease)
        except asyncio.CancelledError:
            if delivery is not None:
                await delivery.again(delay=0.0)
            raise
        except Exception:
            # Nobody renews its lease any more: another attempt begins when that is over, here or elsewhere.
            log.exception("run %s could not be done; it is taken up again when its lease is over", lease.run_id)
            if delivery is not None:
                await delivery.again(delay=self._lease_seconds)
        else:
            if delivery is not None:
                await delivery.done()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._at_work[task]
        self._with_programs.discard(task)
        namespace = self._namespaces.pop(task)
        self._runs[namespace] -= 1
        if not self._runs[namespace]:
            del self._runs[namespace]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a delivery could not be settled: %s", error)
        # Its end may be what others wait for: a place, room within a limit, or the next agent of its task.
        self._look_again()

    # --- what goes on beside -------------------------------------------------------------------------------------

    async def _register(self) -> None:
        while self._phase == "ready" and not await self._presence.begin():
            await sleep_unless(self._changed, self._pace.failed())
            self._changed.clear()

    async def _keep_beating(self) -> None:
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + self._heartbeat
        while True:
            await asyncio.sleep(min(self._sweep, max(0.0, beat_at - loop.time())))
            look: Literal["nobody", "workers", "holders"] = "workers" if self._looked else "nobody"
            self._looked = False
            if loop.time() >= beat_at:
                beat_at = loop.time() + self._heartbeat
                await self._beat()
                look = "holders"
            if await self._presence.bury(look):
                self._look_again()

    async def _follow_load(self) -> None:
        """Adjusts the places to how late the loop is: whatever else happens in this process waits as long."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await asyncio.sleep(LOOK_EVERY)
            late, largest = loop.time() - begun - LOOK_EVERY, max(self._runs.values(), default=0)
            if self._places.adjust(len(self._at_work), late, largest=largest, short=self._short):
                self._look_again()
            if self._places.limit != self.offer.capacity:  # `workers` and `why` show how many there are now
                self._show_places()
                await self._presence.say(self._phase)

    def _show_places(self) -> None:
        self.offer = self._presence.offer = replace(self.offer, capacity=self._places.limit)

    async def _beat(self) -> None:
        self._show_places()
        await _each(delivery.extend() for delivery in list(self._at_work.values()) if delivery is not None)
        if not await self._presence.say(self._phase) and self._phase == "ready":
            log.warning("another process took the name %s: this one finishes and ends", self.offer.name)
            self.drain()
        if self._presence.set_back:
            self._stop_at_once()

    def _stop_at_once(self) -> None:
        self.drain()
        self._hurry.set()

    # --- ending --------------------------------------------------------------------------------------------------

    async def _say_draining(self) -> None:
        await self._presence.say(self._phase)

    async def _finish_in_grace(self) -> None:
        """Let what is at work end, or wait by itself, for as long as the grace period lasts."""
        hurry = asyncio.create_task(self._hurry.wait())
        deadline = asyncio.get_running_loop().time() + self._grace
        while self._at_work and not hurry.done():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                log.info("worker %s hands back %d runs", self.offer.name, len(self._at_work))
                break
            await asyncio.wait({*self._at_work, hurry}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    async def _stop(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        """Hand back what is still at work, and say good-bye."""
        self._phase = "stopped"
        heard = self._heard()
        stopped: list[asyncio.Task[object]] = [*self._at_work, *keeping]  # type: ignore[list-item]  # Task is invariant
        if self._receiving is not None:
            stopped.append(self._receiving)  # type: ignore[arg-type]  # as above
        if self._probing is not None:
            stopped.append(self._probing)  # type: ignore[arg-type]  # as above
        await stop_tasks(*stopped, again=30.0)
        await _each(delivery.again(delay=0.0) for delivery in heard)
        with contextlib.suppress(TimeoutError):  # others see that it is gone
            async with asyncio.timeout(self._waits.leave):
                await self._presence.say("stopped")
        log.info("worker %s has stopped", self.offer.name)


def _name(lease: Lease) -> str:
    """Names one claim: an older claim of the same run must not be taken for it."""
    return f"run {lease.run_id} epoch {lease.epoch}"


async def _each(settling: Iterable[Awaitable[None]]) -> None:
    """Awaits all of them. A delivery that cannot be settled comes again, which is harmless."""
    for outcome in await asyncio.gather(*settling, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.debug("a delivery could not be settled: %s", outcome)
