"""Kernels are compiled where they can be, and everything works where they cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

from assay.doctor import kernels as reported
from assay.kernels import build as building
from assay.kernels.build import Unavailable, build, why_not
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
        ("cc -Drintf=missing", "undefined reference to `missing'"),
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
