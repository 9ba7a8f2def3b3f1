"""A user's Python function as a verifier: TRL's signature or verl's, recognised by its parameters' names.

- TRL: ``f(prompts, completions, **columns) -> list[float | None]``, sync or async; sees all rollouts of a
  prompt at once.
- verl: ``compute_score(data_source, solution_str, ground_truth, extra_info)`` -> a number, or a dict with
  ``score``.

Chosen here: columns are given as the data row has them, repeated for each completion; a function that names
its parameters gets only those; the part's ``options`` are further keyword arguments. Left out: TRL's
``trainer_state`` and logging hooks, since a reward must not depend on the trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import numbers
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from assay.errors import UserError, nearest
from assay.reward.verifier import Case, Judgement, LoadedPart, Part, verifier_error

_TRL_KNOWN = ("prompts", "completions", "completion_ids")
_VERL_KNOWN = ("data_source", "solution_str", "ground_truth", "extra_info")
_SHOWN_OUTPUT = 200


def is_function(verifier: str) -> bool:
    """Does a recipe's ``verifier`` name a function in a file, and not a built-in?

    >>> is_function("rewards.py:brevity"), is_function("number")
    (True, False)
    """
    return ":" in verifier or verifier.endswith(".py")


def read_source(verifier: str) -> tuple[str, str]:
    """``path.py:name`` -> ``/absolute/path.py:name`` and the text of the file; UserError without one."""
    path, _, name = verifier.rpartition(":")
    if not path or not name.isidentifier():
        raise UserError(f"reward function {verifier!r}: write it as path/to/file.py:function")
    file = Path(path).expanduser().absolute()
    try:
        return f"{file}:{name}", file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"reward function {verifier!r}: cannot read {file}: {reason}") from None


def load_function(part: Part, modules: dict[str, types.ModuleType]) -> LoadedPart:
    """Run the function's file (once per file: ``modules`` holds those that ran) and recognise its signature.

    Raises :class:`UserError` when the file does not run, the name is missing, or the signature is neither
    TRL's nor verl's.
    """
    path, _, name = part.verifier.rpartition(":")
    if path not in modules:
        modules[path] = _run_file(path, part.source or "")
    function = getattr(modules[path], name, None)
    if function is None:
        names = [key for key, value in vars(modules[path]).items() if callable(value) and key[0] != "_"]
        raise UserError(f"reward function: {path} has no {name!r}{nearest(name, names)}")
    if not callable(function):
        raise UserError(f"reward function: {name!r} in {path} is a {type(function).__name__}, not a function")
    parameters = inspect.signature(function).parameters
    if "completions" in parameters:
        _check_options(part, parameters, _TRL_KNOWN)
        judge = partial(judge_trl, function, parameters, part.options)
        return LoadedPart(judge, per_group=True, wants_ids="completion_ids" in parameters)
    if "solution_str" in parameters and "ground_truth" in parameters:
        _check_options(part, parameters, _VERL_KNOWN)
        return LoadedPart(partial(judge_verl, function, parameters, part.options))
    raise UserError(
        f"reward function {name}({', '.join(parameters)}) in {path} has neither TRL's signature "
        "(prompts, completions, **columns) nor verl's (data_source, solution_str, ground_truth, extra_info)"
    )


def _run_file(path: str, source: str) -> types.ModuleType:
    module = types.ModuleType(f"assay_reward_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickle look modules up here
    sys.path.insert(0, str(Path(path).parent))
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except SystemExit as error:
        raise UserError(f"reward function: {path} calls exit({error.code}) when imported") from None
    except Exception as error:  # whatever a user's file raises is the user's to mend
        raise UserError(f"reward function: {path} cannot be imported: {describe_error(error, path)}") from None
    return module


def _check_options(part: Part, parameters: Mapping[str, inspect.Parameter], reserved: Sequence[str]) -> None:
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in part.options:
        if key in reserved or not (open_ended or key in parameters):
            raise UserError(f"reward function {part.verifier} takes no option {key!r}{nearest(key, parameters)}")


def judge_trl(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    options: Mapping[str, Any],
    cases: Sequence[Case],
) -> list[Judgement]:
    """Score the group; a wrong list is a ``verifier_error`` of every case, a wrong element of its own."""
    offered: dict[str, Any] = {key: [case.columns[key] for case in cases] for key in cases[0].columns}
    chat = is_conversational(cases[0])
    offered["prompts"] = [[dict(m) for m in case.messages] if chat else _plain_prompt(case) for case in cases]
    offered["completions"] = [
        [{"role": "assistant", "content": case.completion}] if chat else case.completion for case in cases
    ]
    if cases[0].token_ids:
        offered["completion_ids"] = [list(case.token_ids) for case in cases]
    returned, printed = call(function, parameters, offered | dict(options))
    if isinstance(returned, Judgement):
        return [returned] * len(cases)
    try:
        scores = list(returned)
    except TypeError:
        wrong = f"the function returned {type(returned).__name__}, not a list of numbers"
        return [verifier_error(wrong)] * len(cases)
    if len(scores) != len(cases):
        wrong = f"the function returned {len(scores)} scores for {len(cases)} completions"
        return [verifier_error(wrong)] * len(cases)
    return [judge_score(score, printed) for score in scores]


def judge_verl(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    options: Mapping[str, Any],
    cases: Sequence[Case],
) -> list[Judgement]:
    """Score each case by itself; a dict's ``pred`` is taken for the answer."""
    judgements = []
    for case in cases:
        offered = {
            "data_source": case.columns.get("data_source", ""),
            "solution_str": case.completion,
            "ground_truth": case.gold,
            "extra_info": case.columns.get("extra_info"),
        }
        returned, printed = call(function, parameters, offered | dict(options))
        if isinstance(returned, Judgement):
            judgements.append(returned)
        elif isinstance(returned, Mapping):
            if "score" not in returned:
                judgements.append(verifier_error("the function returned a dict without 'score'"))
            else:
                judgements.append(judge_score(returned["score"], printed, returned.get("pred")))
        else:
            judgements.append(judge_score(returned, printed))
    return judgements


def call(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], offered: Mapping[str, Any]
) -> tuple[Any, str]:
    """Call with what the function takes, await if needed; its value (or a Judgement of failure) and output.

    What it prints is caught: its last words go into the verdict's message.
    """
    kinds = {name: p.kind for name, p in parameters.items()}
    open_ended = inspect.Parameter.VAR_KEYWORD in kinds.values()
    given = {key: value for key, value in offered.items() if open_ended or key in parameters}
    lacking = [
        name
        for name, p in parameters.items()
        if name not in given and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if lacking:
        columns = ", ".join(key for key in offered if key not in (*_TRL_KNOWN, *_VERL_KNOWN))
        wrong = f"the function needs {lacking[0]!r}{nearest(lacking[0], offered)}, the data has: {columns}"
        return verifier_error(wrong), ""
    positional = [given.pop(name) for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            value = function(*positional, **given)
            if inspect.isawaitable(value):
                value = asyncio.run(_wait(value))
    except (Exception, SystemExit) as error:  # whatever a user's function raises becomes a verdict
        where = inspect.getfile(function) if inspect.isfunction(function) else ""
        return verifier_error(describe_error(error, where)), ""
    printed = output.getvalue().strip()
    return value, f"printed: {printed[-_SHOWN_OUTPUT:]}" if printed else ""


async def _wait(value: Any) -> Any:
    return await value


def judge_score(score: Any, message: str = "", answer: Any = None) -> Judgement:
    """One returned score as a judgement: a finite number is one, ``None`` is unavailable, all else is an
    error.

    >>> judge_score(None).outcome, judge_score(float("nan")).message, judge_score("1").message
    ('unavailable', 'the function returned nan', "the function returned '1' (str), not a number")
    """
    if score is None:
        return Judgement(None, "unavailable", None, "function returned None")
    if not isinstance(score, numbers.Real) and callable(getattr(score, "item", None)):
        try:
            score = score.item()  # a numpy or torch scalar
        except (ValueError, RuntimeError) as error:
            return verifier_error(f"the function returned a {type(score).__name__}: {error}")
    if not isinstance(score, numbers.Real):
        return verifier_error(f"the function returned {repr(score)[:60]} ({type(score).__name__}), not a number")
    value = float(score)
    if not abs(value) < float("inf"):
        return verifier_error(f"the function returned {value}")
    return Judgement(value, "scored", None if answer is None else str(answer), message)


def is_conversational(case: Case) -> bool:
    """Was the prompt given as messages, not as text?

    By the row's own columns where they tell: a list of messages, or a text that the user message begins with.
    """
    if any(_are_messages(value) for value in case.columns.values()):
        return True
    asked = _plain_prompt(case)
    texts = [case.prompt, *(value for value in case.columns.values() if isinstance(value, str) and value)]
    return bool(case.messages) and not any(text and asked.startswith(text) for text in texts)


def _are_messages(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], Mapping) and "role" in value[0]


def _plain_prompt(case: Case) -> str:
    asked = [str(message.get("content")) for message in case.messages if message.get("role") == "user"]
    return asked[-1] if asked else case.prompt


def describe_error(error: BaseException, path: str = "") -> str:
    """An exception in one line: type, message, and the last line of ``path`` that it passed through."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}{f' (line {line})' if line else ''}"
