"""Stubs say what is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import superpacket

PYTHON = Path(__file__).resolve().parents[1]


def test_stubs_are_those_of_the_module() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", PYTHON / "pyproject.toml", "superpacket._superpacket"],
        cwd=PYTHON / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_types_are_strict() -> None:
    checked = subprocess.run([sys.executable, "-m", "mypy"], cwd=PYTHON, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_everything_public_is_documented() -> None:
    for name in superpacket.__all__:
        thing = getattr(superpacket, name)
        assert name == "__version__" or (thing.__doc__ or "").strip(), name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or hasattr(value, "__get__")):
                    assert getattr(value, "__doc__", None), f"{name}.{member}"
