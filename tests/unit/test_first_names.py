"""What programs begin with is found in `rhizome` itself."""

from __future__ import annotations

import pytest

import rhizome
from rhizome import client


def test_the_first_names_are_those_of_the_client() -> None:
    assert rhizome.open_session is client.open_session
    assert rhizome.connect is client.connect


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        _ = rhizome.sesion
