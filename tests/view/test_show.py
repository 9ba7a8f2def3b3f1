import io
import json
import math
from dataclasses import replace

import pytest
import rich.console
from view_helpers import group_of, write_runs

from assay.errors import UserError
from assay.loop.batch_file import read_batch, write_batch
from assay.loop.folder import RunFolder
from assay.records import Segment
from assay.track.rollouts import RolloutLog
from assay.view.show import Selection, select, show


@pytest.fixture
def runs(tmp_path):
    return write_runs(tmp_path)


def printed(run, selection=None, width=80, folder="runs"):
    terminal = rich.console.Console(width=width, file=io.StringIO(), record=True)
    show(run, selection or Selection(), terminal, folder)
    return terminal.export_text()


def chosen(runs, **options):
    rows, _ = select(runs / "try", Selection(limit=0, **options))
    return [(r.step, r.prompt_id, r.index) for r in rows]


def test_filters(runs):
    assert len(chosen(runs)) == 12
    assert {step for step, _, _ in chosen(runs, step=2)} == {2}
    assert {prompt for _, prompt, _ in chosen(runs, prompt="bb")} == {"bbb"}
    assert {(p, i) for _, p, i in chosen(runs, right=True)} == {("aaa", 0)}
    assert len(chosen(runs, right=False)) == 9
    assert {(p, i) for _, p, i in chosen(runs, outcome="verifier_error")} == {("bbb", 1)}
    assert chosen(runs, prompt="zzz") == []


def test_phases(runs):
    log = RolloutLog(runs / "try" / "rollouts")
    for phase, text in (("unused", "set aside"), ("replaced", "once more"), ("eval", "held out")):
        with pytest.raises(UserError, match=r"try: no completions "):
            chosen(runs, phase=phase)
        log.write(2, [group_of([(text, 1.0)], phase)], phase=phase)
        assert chosen(runs, phase=phase) == [(2, phase, 0)]
        assert f"step 2 · {phase} · {phase}" in printed(runs / "try", Selection(phase=phase))
    assert len(chosen(runs)) == 12
    with pytest.raises(UserError, match="no batch stopped this run"):
        chosen(runs, phase="failed")
    with pytest.raises(UserError, match=r"--phase evla: not known \(did you mean 'eval'\?\)"):
        Selection(phase="evla")


def test_the_batch_that_stopped_a_run_is_read_back_as_it_was(runs):
    group = group_of([("7", 1.0), ("x", None)], "ccc")
    segment = Segment("policy", (3, 4), (math.nan, -math.inf), (1, 1), (-0.5, math.nan))
    odd = replace(group, rollouts=(replace(group.rollouts[0], segments=(segment,)), group.rollouts[1]))
    path = RunFolder(runs / "try").failed_batch
    write_batch(path, 9, [odd])
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["step"] == 9
    step, (back,) = read_batch(path)
    assert (step, back.prompt, back.verdicts, back.rollouts[1]) == (9, odd.prompt, odd.verdicts, odd.rollouts[1])
    assert repr(back.rollouts[0].segments[0]) == repr(replace(segment, sampler_logprobs=(math.nan, math.nan)))
    assert chosen(runs, phase="failed") == [(9, "ccc", 0), (9, "ccc", 1)]
    path.write_text("[]")
    with pytest.raises(UserError, match=r"failed-batch\.json: not a batch"):
        chosen(runs, phase="failed")


def test_orders(runs):
    assert [s for s, _, _ in chosen(runs, right=True)] == [3, 2, 1]
    rewards = [r.reward for r in select(runs / "try", Selection(sort="reward", limit=0))[0]]
    assert rewards == [1.0] * 3 + [0.0] * 6 + [None] * 3
    lengths = [r.tokens for r in select(runs / "try", Selection(sort="length", limit=0))[0]]
    assert lengths == sorted(lengths, reverse=True)


def test_a_limit_reads_no_more_files_than_it_needs(runs):
    (runs / "try" / "rollouts" / "step-000001.parquet").write_bytes(b"broken")
    rows, seen = select(runs / "try", Selection(limit=5))
    assert ([r.step for r in rows], seen) == ([3, 3, 3, 3, 2], 8)
    with pytest.raises(UserError, match="step-000001"):
        select(runs / "try", Selection(limit=5, sort="length"))


def test_what_is_printed(runs):
    text = printed(runs / "try", Selection(step=2, right=True))
    for part in (
        "step 2 · aaa · mixed",
        "✓ #0 reward 1",
        "advantage +0.700",
        "2 tokens",
        "answer 7",
        "compared 7",
    ):
        assert part in text
    assert "1 of the 4 completions looked at" in text
    assert "no reward" in printed(runs / "try", Selection(outcome="verifier_error", limit=1))
    assert "none of 12" in printed(runs / "try", Selection(prompt="zzz"))
    assert "--limit N shows more" in printed(runs / "try", Selection(limit=1))


def test_completions_cannot_steer_the_terminal(runs):
    text = printed(runs / "try", Selection(step=2, prompt="aaa"))
    assert "\\x1b[2J[red]" in text.replace("\n", "")
    assert "\x1b" not in text


def test_a_run_is_found_by_name_or_path(runs):
    assert printed("try", folder=str(runs)) == printed(runs / "try")


def test_errors_say_what_is_there(runs, tmp_path):
    with pytest.raises(UserError, match=r"no run 'tri' in .*did you mean 'try'.*newest first: try"):
        printed("tri", folder=str(runs))
    with pytest.raises(UserError, match="it holds the runs try"):
        printed(runs)
    with pytest.raises(UserError, match="no runs are there"):
        printed("try", folder=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="steps 1 to 3"):
        printed(runs / "try", Selection(step=9))
    with pytest.raises(UserError, match="did you mean 'no_answer'"):
        Selection(outcome="no_anwser")
    with pytest.raises(UserError, match="did you mean 'length'"):
        Selection(sort="lenght")
    with pytest.raises(UserError, match="limit"):
        Selection(limit=-1)
    (runs / "try" / "rollouts").rename(runs / "moved")
    with pytest.raises(UserError, match=r"track\.rollouts"):
        printed(runs / "try")
