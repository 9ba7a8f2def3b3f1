import pytest

from assay.track.phases import Phases


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_seconds_accumulate_and_take_resets():
    clock = Clock()
    phases = Phases(clock=clock)
    for _ in range(2):
        with phases("generate"):
            clock.now += 2
    with phases("update"):
        clock.now += 5
    clock.now += 1
    assert phases.take() == {"time/generate": 4.0, "time/update": 5.0, "time/step": 10.0}
    clock.now += 3
    assert phases.take() == {"time/step": 3.0}


def test_a_phase_open_several_times_counts_each_second_once():
    clock = Clock()
    phases = Phases(clock=clock)
    one, other = phases("score"), phases("score")
    one.__enter__()
    clock.now += 1
    other.__enter__()
    clock.now += 1
    one.__exit__(None, None, None)
    clock.now += 1
    other.__exit__(None, None, None)
    assert phases.take()["time/score"] == 3.0


def test_time_counts_when_the_block_raises():
    clock = Clock()
    phases = Phases(clock=clock)

    def fail():
        with phases("update"):
            clock.now += 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert phases.take()["time/update"] == 2.0


def test_on_enter_hears_every_phase_and_may_stop_it():
    heard = []

    def listen(name):
        heard.append(name)
        if name == "checkpoint":
            raise KeyboardInterrupt

    phases = Phases(on_enter=listen)
    with phases("generate"), phases("score"):
        pass
    with pytest.raises(KeyboardInterrupt), phases("checkpoint"):
        heard.append("never")
    assert heard == ["generate", "score", "checkpoint"]
    assert "time/checkpoint" not in phases.take()


def test_an_explicit_step_phase_wins():
    clock = Clock()
    phases = Phases(clock=clock)
    clock.now += 1
    with phases("step"):
        clock.now += 2
    assert phases.take() == {"time/step": 2.0}
