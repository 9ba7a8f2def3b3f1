"""Kernels are compiled where they can be, and everything works where they cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer
from torch import Tensor

from assay.doctor import kernels as reported
from assay.kernels import build as building
from assay.kernels.attention import AttentionKernels
from assay.kernels.build import Unavailable, addresses, build, why_not
from assay.kernels.decode import DecodeKernels
from assay.policy.logprobs import make_scorer
from assay.rollout.native import NativeEngine
from assay.rollout.sampling import draw_kernel


@pytest.fixture(autouse=True)
def built_anew() -> Iterator[None]:
    build.cache_clear()
    yield
    build.cache_clear()


def path() -> str:
    return NativeEngine(tiny_model(), tiny_tokenizer()).path


def test_there_is_a_compiler_here() -> None:
    """Else the tests of kernels would test nothing."""
    assert why_not() is None
    assert path() == "native, fused products, compiled kernels"
    assert reported().state == "good"


def test_what_is_built_is_left_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building.tempfile, "tempdir", str(tmp_path))
    build("draw", BFLOAT16=0, BLOCK=64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("no-such-compiler", "no C compiler (no-such-compiler): install gcc, or name one in CC"),
        ("false", "false fails: it says nothing"),
        ("cc -include /no/such/header.h", "No such file or directory"),
        ("cc -Dsqrtf=missing", "undefined reference to `missing'"),
    ],
)
def test_without_a_compiler_that_works_torch_does_it(
    compiler: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level(logging.INFO, "assay"), pytest.raises(Unavailable) as raised:
        build("decode", BFLOAT16=0, WIDTH=16, GROUP=2)
    assert reason in str(raised.value)
    with caplog.at_level(logging.INFO, "assay"):
        assert path() == "native, fused products"
    assert reason in caplog.text


def test_the_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    finding = reported()
    assert finding.state == "absent"
    assert "install gcc" in finding.text
    assert draw_kernel(torch.float32) is None


def test_kernels_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "cc -Dsqrtf=cbrtf")
    assert path() == "native, fused products"
    assert "decoding does not use compiled kernels" in caplog.text


def test_they_can_be_turned_off() -> None:
    engine = NativeEngine(tiny_model(), tiny_tokenizer(), compiled=False)
    assert engine.path == "native, fused products"


def test_kernels_that_refuse_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As where a family's rotary positions are of other shapes than its heads."""

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("not these")

    monkeypatch.setattr(DecodeKernels, "attend", refuse)
    assert path() == "native, fused products"
    assert "ValueError: not these" in caplog.text


@pytest.mark.parametrize("family", ["llama", "olmo2", "qwen3", "gemma3"])
def test_families_are_compiled_in_bfloat16_too(family: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = NativeEngine(tiny_model(family, dtype=torch.bfloat16), tiny_tokenizer())
    assert engine.path == "native, fused products, compiled kernels"
    assert caplog.text == ""


def test_an_update_whose_kernels_compute_something_else_does_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The attention in float32 is right, the one in bfloat16, in which the update works, is not."""
    pull = AttentionKernels.forward

    def twice(self: AttentionKernels, query: Tensor, *others: Any, **more: Any) -> tuple[Tensor, Tensor]:
        mixed, normaliser = pull(self, query, *others, **more)
        return mixed * (2 if query.dtype == torch.bfloat16 else 1), normaliser

    monkeypatch.setattr(AttentionKernels, "forward", twice)
    settings = {"temperature": 1.0, "chunk": 16, "device": torch.device("cpu")}
    sharp = tiny_model(sharpness=30.0)
    assert make_scorer(sharp, compute_dtype="float32", **settings).ragged == "compiled"
    assert make_scorer(sharp, compute_dtype="bfloat16", **settings).ragged == "trees"
    assert "the update does not use compiled kernels" in caplog.text


def test_what_is_not_laid_out_for_a_kernel_is_refused() -> None:
    whole = torch.zeros(4, 6)
    assert addresses(torch.float32, whole) == (whole.data_ptr(),)
    for wrong in (whole.t(), whole.double(), whole[:, :3]):
        with pytest.raises(ValueError, match="a kernel takes contiguous"):
            addresses(torch.float32, wrong)
