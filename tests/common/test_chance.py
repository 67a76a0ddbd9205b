"""Random bytes that are asked for many at a time: never the same ones twice, in threads and in children too."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from foliot.common.chance import eight_bytes


def test_no_two_callers_get_the_same_bytes_in_whatever_thread() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: eight_bytes(), range(5000)))
    assert {len(each) for each in found} == {8}
    assert len(set(found)) == len(found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_does_not_go_on_with_the_bytes_of_its_parent() -> None:
    eight_bytes()  # so that there are some in store
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, eight_bytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 8) != eight_bytes()
    os.close(reading)
    os.close(writing)
