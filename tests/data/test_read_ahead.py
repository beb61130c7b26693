"""Reading ahead gives the same values, is bounded, raises errors at their own step, and ends."""

from __future__ import annotations

import threading

import pytest

from tellapart.data.read_ahead import AHEAD, ReadAhead
from tellapart.errors import DataError


def test_the_next_step_is_read_while_this_one_computes_and_no_more() -> None:
    read: list[int] = []
    done = {step: threading.Event() for step in range(10)}

    def square(step: int) -> int:
        read.append(step)
        done[step].set()
        return step * step

    with ReadAhead(square, 2, 8) as ahead:
        assert read == [], "nothing is read before it is asked for"
        for step in range(2, 8):
            assert ahead.take(step) == step * step
            last = min(step + AHEAD, 7)
            assert done[last].wait(10), "the next step is read without being asked for"
            assert read == list(range(2, last + 1)), "and no other one"
    assert read == list(range(2, 8)), "nothing is read after the last step"


def test_an_error_is_raised_at_its_own_step_as_it_was_raised() -> None:
    raised = DataError("pictures.npy: is damaged; prepare it again")

    def read(step: int) -> int:
        if step == 2:
            raise raised
        return step

    with ReadAhead(read, 0, 5) as ahead:
        assert [ahead.take(0), ahead.take(1)] == [0, 1]
        with pytest.raises(DataError) as found:
            ahead.take(2)
    assert found.value is raised


@pytest.mark.parametrize("kind", [KeyboardInterrupt, None])
def test_the_thread_ends_with_the_block(kind: type[BaseException] | None) -> None:
    reading, free = threading.Event(), threading.Event()
    read: list[int] = []

    def slowly(step: int) -> int:
        if step == 1:
            reading.set()
            assert free.wait(10)
        read.append(step)
        return step

    def stop_at_the_first_step() -> None:
        with ReadAhead(slowly, 0, 100) as ahead:
            ahead.take(0)
            assert reading.wait(10)
            free.set()
            if kind is not None:
                raise kind

    if kind is None:
        stop_at_the_first_step()
    else:
        with pytest.raises(kind):
            stop_at_the_first_step()
    assert read == [0, 1], "what was being read is finished, nothing else begins"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_steps_are_taken_in_order() -> None:
    with ReadAhead(lambda step: step, 3, 5) as ahead:
        with pytest.raises(ValueError, match="step 4 is not the next one"):
            ahead.take(4)
        assert [ahead.take(3), ahead.take(4)] == [3, 4]
        with pytest.raises(ValueError, match="step 5 is not the next one"):
            ahead.take(5)


def test_waiting_is_counted() -> None:
    free = threading.Event()
    with ReadAhead(lambda step: free.wait(10), 0, 1) as ahead:
        threading.Timer(0.05, free.set).start()
        ahead.take(0)
        assert ahead.waited > 0
