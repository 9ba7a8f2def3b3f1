import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError, UserError
from assay.track.glossary import GLOSSARY
from assay.track.metrics import MetricsLog, read_metrics

NAMES = [m.name for m in GLOSSARY if not m.is_pattern]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats(allow_nan=False, allow_infinity=False)), max_size=6))
def test_floats_come_back_bit_for_bit(tmp_path_factory, rows):
    log = MetricsLog(tmp_path_factory.mktemp("run") / "metrics.jsonl")
    for step, row in enumerate(rows, start=1):
        log.append(step, row)
    assert log.read() == [{"step": i, **row} for i, row in enumerate(rows, start=1)]


def test_what_is_not_finite_is_null_and_any_reader_can_read_it(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"update/loss": math.nan, "update/grad_norm": math.inf, "update/entropy": None})
    line = (tmp_path / "metrics.jsonl").read_text()

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse)["update/loss"] is None
    row = log.read()[0]
    assert all(math.isnan(row[name]) for name in ("update/loss", "update/grad_norm", "update/entropy"))


def test_numpy_numbers_are_numbers(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"reward/mean": np.float32(0.5), "group/count": np.int64(16), "rollout/retried": 3})
    assert log.read() == [{"step": 1, "reward/mean": 0.5, "group/count": 16.0, "rollout/retried": 3}]


def test_unknown_names_are_refused_and_nothing_is_written(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(AssayError, match=r"update/los'.*did you mean 'update/loss'"):
        log.append(1, {"reward/mean": 0.5, "update/los": 0.0})
    assert log.read() == []


def test_truncate_after_keeps_earlier_lines_byte_for_byte(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        log.append(step, {"reward/mean": step / 7})
    whole = log.path.read_bytes()
    log.truncate_after(3)
    assert log.path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    log.append(4, {"reward/mean": 4 / 7})
    log.append(5, {"reward/mean": 5 / 7})
    assert log.path.read_bytes() == whole
    log.truncate_after(0)
    assert log.read() == []
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_step_before_the_last_is_refused(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(5, {})
    with pytest.raises(ValueError, match="truncate_after"):
        MetricsLog(log.path).append(4, {})


@pytest.mark.parametrize("torn", [b'{"step": 3, "rew', b'{"step": 3}', b"\x00\x00\x00"])
def test_a_torn_last_line_is_cut_off(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(1, {"reward/mean": 0.1})
    log.append(2, {"reward/mean": 0.2})
    with open(path, "ab") as file:
        file.write(torn)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    resumed = MetricsLog(path)
    resumed.append(3, {"reward/mean": 0.3})
    assert [row["step"] for row in resumed.read()] == [1, 2, 3]
    resumed.truncate_after(1)
    assert [row["step"] for row in read_metrics(path)] == [1]


def test_a_broken_line_in_the_middle_names_its_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, row 2"):
        read_metrics(path)


def test_a_missing_file_is_an_empty_log(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "run").write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"run\.folder"):
        MetricsLog(tmp_path / "run" / "metrics.jsonl")


WRITER = """
import sys
from pathlib import Path
from assay.track.metrics import MetricsLog
log = MetricsLog(Path(sys.argv[1]))
step = 0
while step < 10**6:
    step += 1
    log.append(step, {"reward/mean": step / 3, "update/loss": 1e-9 * step})
    if step == 200:
        print("ready", flush=True)
"""


def test_a_log_killed_while_writing_is_whole_up_to_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        os.kill(writer.pid, signal.SIGKILL)
    rows = MetricsLog(path).read()
    assert len(rows) >= 200
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["reward/mean"] == len(rows) / 3
