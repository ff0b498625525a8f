"""A short soak in the suite; `make soak` makes the long one."""

from tests.decoding.drafters import one_thread
from tests.hostile.soak import Soak


def test_answers_stay_exact_and_nothing_is_left_behind() -> None:
    with one_thread():
        told = Soak(seed=1).run(60)
    assert told.requests == 60
    assert {"length", "stop_token", "cancelled"} <= set(told.finished)
