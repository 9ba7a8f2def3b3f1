"""The verifiers that are compared, each in a child process: lines of cases in, lines of verdicts out.

A peer's scorer is loaded from its own file, out of a wheel unpacked aside, without installing the rest of the peer.
``python benchmarks/verifier_sides.py SIDE [FOLDER]`` serves one side until its input ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Judge = Callable[[Mapping[str, Any]], float | None]
"""A case (kind, gold, completion, tests) -> its reward, ``None`` for no verdict."""


def assay(folder: Path) -> Judge:
    """This project's verifier of the case's kind."""
    from assay.reward.line import read_line
    from assay.reward.verifier import verifiers

    def judge(row: Mapping[str, Any]) -> float | None:
        line = read_line(row, "case")
        return verifiers[line.verifier](line.options)(line.case).score

    return judge


def math_verify(folder: Path) -> Judge:
    """math-verify as its README calls it."""
    from math_verify import parse, verify

    return lambda row: float(verify(parse(f"${row['gold']}$"), parse(row["completion"])))


def trl(folder: Path) -> Judge:
    """TRL's accuracy_reward."""
    package, tools = types.ModuleType("trl"), types.ModuleType("trl.import_utils")
    package.__path__ = [str(folder / "trl")]
    tools.is_math_verify_available = lambda: True  # type: ignore[attr-defined]
    sys.modules |= {"trl": package, "trl.import_utils": tools, "trl.rewards": types.ModuleType("trl.rewards")}
    module = _load("trl.rewards.accuracy_rewards", folder / "trl" / "rewards" / "accuracy_rewards.py")
    return lambda row: module.accuracy_reward([[{"content": row["completion"]}]], [row["gold"]])[0]


def verl_math(folder: Path) -> Judge:
    """verl's scorer of MATH."""
    module = _load("verl_math", folder / "verl" / "utils" / "reward_score" / "math_reward.py")
    return lambda row: float(module.compute_score(row["completion"], row["gold"]))


def verl_dapo(folder: Path) -> Judge:
    """verl's scorer of DAPO, which reads ``Answer:`` or, here, the box."""
    module = _load("verl_dapo", folder / "verl" / "utils" / "reward_score" / "math_dapo.py")
    return lambda row: float(module.compute_score(row["completion"], row["gold"], strict_box_verify=True)["acc"])


def verl_gsm8k(method: str) -> Callable[[Path], Judge]:
    """verl's scorer of GSM8K, strict or flexible."""

    def load(folder: Path) -> Judge:
        module = _load("verl_gsm8k", folder / "verl" / "utils" / "reward_score" / "gsm8k.py")
        return lambda row: float(module.compute_score(row["completion"], row["gold"], method=method))

    return load


def _load(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


SIDES: Mapping[str, Callable[[Path], Judge]] = {
    "assay": assay,
    "math-verify": math_verify,
    "trl": trl,
    "verl math_reward": verl_math,
    "verl math_dapo": verl_dapo,
    "verl gsm8k strict": verl_gsm8k("strict"),
    "verl gsm8k flexible": verl_gsm8k("flexible"),
}


def main() -> None:
    """Answer each line with ``{"reward": ..., "seconds": ...}``; what a scorer raises is no verdict."""
    sys.set_int_max_str_digits(0)
    judge = SIDES[sys.argv[1]](Path(sys.argv[2]))
    out = sys.stdout
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        row, began = json.loads(line), time.perf_counter()
        reward, fault = None, ""
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                reward = judge(row)
            except Exception as error:  # a peer's scorer may raise anything
                fault = type(error).__name__
        seconds = time.perf_counter() - began
        print(json.dumps({"reward": reward, "seconds": seconds, "fault": fault}), file=out, flush=True)


if __name__ == "__main__":
    main()
