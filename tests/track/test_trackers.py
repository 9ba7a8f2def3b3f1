import subprocess
import sys

import pytest

from assay.errors import UserError
from assay.track.trackers import TRACKERS, TrackedRun, Trackers


def run_in(tmp_path, start_step=0):
    return TrackedRun(tmp_path, "assay", "try", {"update": {"learning_rate": 1e-5}}, start_step)


def scalars(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events, {tag: [(e.step, round(e.value, 6)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_events_are_readable(tmp_path):
    pytest.importorskip("tensorboard")
    trackers = Trackers(["tensorboard"], run_in(tmp_path), pytest.fail)
    trackers.log(1, {"reward/mean": 0.25, "update/loss": float("nan")})
    trackers.log(2, {"reward/mean": 0.5})
    trackers.summary({"after": {"greedy": {"value": 0.75}}, "name": "words are no scalars"})
    trackers.close()
    events, found = scalars(tmp_path)
    assert found["reward/mean"] == [(1, 0.25), (2, 0.5)]
    assert found["summary/after.greedy.value"] == [(0, 0.75)]
    assert "update/loss" not in found
    assert any("recipe" in tag for tag in events.Tags()["tensors"])


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path):
    pytest.importorskip("tensorboard")
    first = Trackers(["tensorboard"], run_in(tmp_path), pytest.fail)
    for step in (1, 2, 3):
        first.log(step, {"reward/mean": 0.0})
    first.close()
    again = Trackers(["tensorboard"], run_in(tmp_path, start_step=1), pytest.fail)
    again.log(2, {"reward/mean": 1.0})
    again.close()
    assert scalars(tmp_path)[1]["reward/mean"] == [(1, 0.0), (2, 1.0)]


MISSING = """
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
name = sys.argv[1]
class Absent(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == name:
            raise ModuleNotFoundError(fullname, name=fullname)
sys.meta_path.insert(0, Absent())
from assay.errors import MissingExtra
from assay.track.trackers import TrackedRun, Trackers
try:
    Trackers([name], TrackedRun(Path(sys.argv[2]), "p", "n"), print)
except MissingExtra as error:
    print(error.exit_code, error)
"""


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_tracker_that_is_not_installed_says_how_to_get_it(tmp_path, name):
    done = subprocess.run([sys.executable, "-c", MISSING, name, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 ")
    assert f"assay[{name}]" in done.stdout


def test_an_unknown_tracker_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        Trackers(["wandbb"], run_in(tmp_path), pytest.fail)


def test_a_tracker_that_fails_is_dropped_and_reported_once(tmp_path, monkeypatch):
    told = []

    class Broken:
        def __init__(self, run):
            pass

        def log(self, step, metrics):
            raise ConnectionError("server gone")

    class Fine:
        def __init__(self, run):
            pass

        def log(self, step, metrics):
            told.append(step)

    monkeypatch.setitem(TRACKERS._things, "broken", Broken)
    monkeypatch.setitem(TRACKERS._things, "fine", Fine)
    failures = []
    trackers = Trackers(["broken", "fine"], run_in(tmp_path), failures.append)
    trackers.log(1, {})
    trackers.log(2, {})
    assert failures == ["tracker broken failed and is left out: ConnectionError: server gone"]
    assert told == [1, 2]
    assert trackers.names == ("fine",)
