"""Threads that keep nothing from ending, and that hold up nobody else when they are stuck."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading

import pytest

from foliot.common.threads import KEPT_IDLE, LeavingExecutor, ToldToEnd, begin, on_thread

variable = contextvars.ContextVar("variable", default="nothing")


async def test_a_function_is_called_on_a_thread_with_the_context_of_who_asks() -> None:
    variable.set("something")

    assert await on_thread(lambda a, b=0: (a, b, variable.get()), 1, b=2) == (1, 2, "something")
    assert await on_thread(threading.get_ident) != threading.get_ident()


async def test_what_a_function_raises_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        await on_thread(lambda: 1 // 0)


async def test_threads_are_used_again() -> None:
    used = {await on_thread(threading.get_ident) for _ in range(200)}

    assert len(used) <= 2 * KEPT_IDLE


async def test_stuck_threads_do_not_keep_others_from_getting_one() -> None:
    release = threading.Event()
    stuck = [begin(release.wait, 60) for _ in range(4 * KEPT_IDLE)]

    assert await on_thread(lambda: "at once") == "at once"

    release.set()
    await asyncio.gather(*(job.future for job in stuck))


async def test_a_function_that_computes_for_ever_ends_when_it_is_told_to() -> None:
    started = threading.Event()

    def compute() -> None:
        started.set()
        while True:
            pass

    job = begin(compute)
    await on_thread(started.wait, 30)
    job.tell_to_end()

    with pytest.raises(ToldToEnd):
        await job.future
    assert job.over


async def test_a_function_that_blocks_is_not_over_until_it_has_ended() -> None:
    lock, after, ended = threading.Lock(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    threads: list[int] = []

    def block() -> None:
        threads.append(threading.get_ident())
        lock.acquire()
        after.set()

    lock.acquire()
    job = begin(block)
    while not threads or sys._current_frames()[threads[0]].f_lineno != block.__code__.co_firstlineno + 2:
        await asyncio.sleep(0)  # until it is in the line that blocks, which no exception ends
    job.future.cancel()
    job.tell_to_end()
    assert not await job.ends_within(0.01)
    assert job.when_over(lambda: loop.call_soon_threadsafe(ended.set) and None)

    lock.release()
    await asyncio.wait_for(ended.wait(), 60)
    assert job.over
    assert not after.is_set()  # it ended at the next instruction
    assert not job.when_over(lambda: None)


async def test_telling_a_function_to_end_in_the_moment_it_ends_hits_no_other() -> None:
    """The exception that comes too late must not be raised in what the thread does next."""
    for _ in range(300):
        job = begin(lambda: None)
        job.tell_to_end()
        assert await asyncio.gather(*(on_thread(lambda: 7) for _ in range(2))) == [7, 7]
        with_error = await asyncio.gather(job.future, return_exceptions=True)
        assert with_error == [None] or isinstance(with_error[0], ToldToEnd)


async def test_an_executor_that_is_shut_down_waits_for_nobody_who_is_stuck(monkeypatch) -> None:
    monkeypatch.setattr("foliot.common.threads.LEAVE_WITHIN", 0.01)
    release = threading.Event()
    executor = LeavingExecutor()
    stuck = executor.submit(release.wait, 60)
    assert executor.submit(lambda: 3).result(30) == 3

    executor.shutdown()

    assert not stuck.done()
    release.set()
    assert stuck.result(30)


PROGRAM = """
import asyncio, sys, time
from foliot.common.cancellation import ending_alone
from foliot.common.threads import begin

async def deaf():
    while True:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            pass

async def main():
    begin(time.sleep, 1e6)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 1e6)
    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    print("done", flush=True)

import foliot.common.cancellation, foliot.common.threads
foliot.common.cancellation.LEAVE_WITHIN = foliot.common.threads.LEAVE_WITHIN = 0.05
asyncio.run(ending_alone(main()))
"""


def test_a_program_ends_although_threads_and_tasks_of_it_never_do() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


FORKING = """
import asyncio, os
from foliot.common.threads import on_thread

def ask():
    return asyncio.run(asyncio.wait_for(on_thread(lambda: 7), 60))

assert ask() == 7
child = os.fork()
if child == 0:
    os._exit(ask())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_gives_its_work_to_threads_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=110, check=False)

    assert done.stdout == "7\n", done.stderr
