"""A TLS client that can do what Python's can't: change its key again and again."""

from __future__ import annotations

import _ssl
import ctypes
import socket
from typing import Any, Final

import pytest

KEY_UPDATE_BYTES: Final = 27
"""Of the record that announces a new key."""

VERIFY_NOTHING: Final = 0
ANSWER_WANTED: Final = 1


class KeyUpdatingClient:
    """Speaks over a socket, which may block or not."""

    def __init__(self, sock: socket.socket) -> None:
        library: Any = ctypes.CDLL(_ssl.__file__)
        if not hasattr(library, "SSL_key_update"):
            pytest.skip("the functions of OpenSSL can't be called from here")
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(library, name).restype = ctypes.c_void_p
        self._library = library
        method = ctypes.c_void_p(library.TLS_client_method())
        context = ctypes.c_void_p(library.SSL_CTX_new(method))
        self._side = ctypes.c_void_p(library.SSL_new(context))
        library.SSL_set_verify(self._side, VERIFY_NOTHING, None)
        library.SSL_set_fd(self._side, sock.fileno())
        library.SSL_set_connect_state(self._side)

    def shake_hands(self) -> bool:
        """Go on with the handshake; answers whether it is over."""
        done: int = self._library.SSL_do_handshake(self._side)
        return done == 1

    def update_key(self) -> bool:
        """Answers whether that could be sent."""
        announced: int = self._library.SSL_key_update(self._side, ANSWER_WANTED)
        return announced == 1 and self.shake_hands()

    def write(self, data: bytes) -> None:
        assert self._library.SSL_write(self._side, data, len(data)) == len(data)
