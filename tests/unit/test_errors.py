"""The texts that errors put on the wire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rhizome.errors import ChannelError, ConnectionFault, LoginRefused, NotFound, ResourceLocked


def test_reply_text_is_name_and_text() -> None:
    error = NotFound("no queue 'q' in vhost '/'", 50, 10)
    assert error.reply_text() == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert (error.code, error.class_id, error.method_id) == (404, 50, 10)
    assert str(error) == "no queue 'q' in vhost '/'"


def test_soft_errors_close_channels_and_hard_ones_connections() -> None:
    assert isinstance(NotFound("x"), ChannelError)
    refused = LoginRefused("x")
    assert isinstance(refused, ConnectionFault)
    assert refused.reply_text() == "ACCESS_REFUSED - x"


def test_long_reply_text_is_cut_as_rabbitmq_cuts_it() -> None:
    name = "q" * 40
    text = (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match "
        "that of the original declaration."
    )
    reply = ResourceLocked(text, 50, 10).reply_text()
    assert len(reply) == 255
    assert reply == ("RESOURCE_LOCKED - " + text)[:252] + "..."


@given(st.text(max_size=300))
def test_reply_text_fits_a_short_string(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    data = NotFound(text).reply_text().encode()
    assert len(data) <= 255
    data.decode()
