import json

from assay.records import Group, Prompt, Rollout, Segment, Verdict
from assay.track.metrics import MetricsLog
from assay.track.rollouts import RolloutLog

BOMB = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</pre></style>\x1b[2J[red]"


def group_of(answers, prompt_id="p1", admission=0, gold="7", question="What is 3 + 4?"):
    """A group of ``(text, reward or None)``."""
    prompt = Prompt(prompt_id, ({"role": "user", "content": question},), question, (1, 2), {"answer": gold})
    rollouts, verdicts = [], []
    for index, (text, reward) in enumerate(answers):
        n = len(text) + 1
        segment = Segment("policy", tuple(range(n)), (-0.5,) * n, (index,) * n)
        rollouts.append(Rollout(prompt_id, index, (segment,), "stop", text))
        outcome = "verifier_error" if reward is None else "scored"
        verdicts.append(Verdict(reward, outcome, {"number": reward}, text or None, 0.1, f"compared {text}", reward))
    return Group(prompt, tuple(rollouts), tuple(verdicts), admission)


def metrics_of(step):
    return {
        "reward/mean": step / 10,
        "group/all_fail": 0.5,
        "group/mixed": 0.25,
        "group/all_pass": 0.25,
        "rollout/tokens_mean_correct": 20.0 + step,
        "rollout/tokens_mean_wrong": 25.0,
        "update/entropy": 1.0 / step,
        "update/ratio_max": 1.0,
        "update/clip_low_share": 0.0,
        "update/clip_high_share": 0.0,
        "time/generate": 5.0,
        "time/update": 4.0,
        "time/step": 10.0,
    }


def write_runs(tmp_path):
    """A folder with one run of three steps, ``try``, whose every word is hostile where it can be."""
    run = tmp_path / "runs" / "try"
    metrics, evals, rollouts = (
        MetricsLog(run / "metrics.jsonl"),
        MetricsLog(run / "evals.jsonl"),
        RolloutLog(run / "rollouts"),
    )
    evals.append(0, {"eval/greedy": 0.25, "eval/greedy_low": 0.2, "eval/greedy_high": 0.3})
    for step in (1, 2, 3):
        metrics.append(step, metrics_of(step))
        batch = [
            group_of([("7", 1.0), (BOMB, 0.0)], "aaa", 2 * step, gold=BOMB, question=BOMB),
            group_of([("x" * step, 0.0), ("", None)], "bbb", 2 * step + 1),
        ]
        rollouts.write(step, batch, [[0.7, -0.7], [0.0, 0.0]])
    evals.append(3, {"eval/greedy": 0.75, "eval/greedy_low": 0.7, "eval/greedy_high": 0.8})
    estimate = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 100}
    summary = {
        "before": {"greedy": estimate, "mean_at_8": estimate},
        "after": {"greedy": {**estimate, "value": 0.75, "low": 0.7, "high": 0.8}, BOMB: estimate},
        "seconds": {"generate": 15.0, "update": 12.0, "step": 30.0, BOMB: 1.0},
        "tokens": {"generated": 1234},
        "steps": 3,
    }
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "recipe.yaml").write_text(json.dumps({"model": {"path": BOMB}, "run": {"steps": 3}, BOMB: BOMB}))
    return tmp_path / "runs"
