"""The generated modules are what tools/generate_amqp.py writes, and agree with the errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rhizome import errors
from rhizome.amqp import spec

ROOT = Path(__file__).resolve().parents[3]
LEAVES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.AmqpError) and value.code
]


def test_generated_modules_are_up_to_date() -> None:
    script = ROOT / "tools" / "generate_amqp.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: error.__name__)
def test_error_class_has_the_code_of_the_specification(error: type[errors.AmqpError]) -> None:
    assert getattr(spec, f"REPLY_{error.name}") == error.code


def test_every_reply_code_has_an_error_class() -> None:
    codes = {value for name, value in vars(spec).items() if name.startswith("REPLY_")}
    assert codes - {spec.REPLY_SUCCESS} == {error.code for error in LEAVES}


def test_method_names_are_keyed_by_class_and_method() -> None:
    assert spec.METHOD_NAMES[spec.CODE_QUEUE_DECLARE] == "queue.declare"
    assert (spec.QUEUE << 16 | spec.QUEUE_DECLARE) == spec.CODE_QUEUE_DECLARE
    assert spec.METHOD_NAMES[10 << 16 | 42] == "connection.redirect"
    assert len(set(spec.METHOD_NAMES.values())) == len(spec.METHOD_NAMES)
