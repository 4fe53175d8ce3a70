"""Refusals of the HTTP API, worded and numbered as RabbitMQ's management API does it.

Each becomes an answer {"error": ..., "reason": ...} with its status. A missing right is a 401
there, not a 403, and clients test for that.
"""

from __future__ import annotations

from typing import ClassVar

from rhizome.errors import RhizomeError


class ApiError(RhizomeError):
    """A request that is answered with an error. Raise one of the leaves."""

    status: ClassVar[int] = 500
    error: ClassVar[str] = "internal_error"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadRequest(ApiError):
    """The request makes no sense, or contradicts what exists."""

    status: ClassVar[int] = 400
    error: ClassVar[str] = "bad_request"


class PageOutOfRange(ApiError):
    """A page that the list doesn't have."""

    status: ClassVar[int] = 400
    error: ClassVar[str] = "page_out_of_range"


class NotAuthorised(ApiError):
    """The caller may not do this."""

    status: ClassVar[int] = 401
    error: ClassVar[str] = "not_authorised"


class LoginFailed(NotAuthorised):
    """The caller has not shown who they are. RabbitMQ spells this one in American English."""

    error: ClassVar[str] = "not_authorized"

    def __init__(self, reason: str = "Login failed") -> None:
        super().__init__(reason)


class Forbidden(ApiError):
    """A page of another site asked the user's browser to do this."""

    status: ClassVar[int] = 403
    error: ClassVar[str] = "forbidden"


class ObjectNotFound(ApiError):
    """There is no such object, or no such path."""

    status: ClassVar[int] = 404
    error: ClassVar[str] = "Object Not Found"

    def __init__(self, reason: str = "Not Found") -> None:
        super().__init__(reason)


class MethodNotAllowed(ApiError):
    """The path is right and the method is not."""

    status: ClassVar[int] = 405
    error: ClassVar[str] = "Method Not Allowed"


class Conflict(ApiError):
    """The request does not fit the current state."""

    status: ClassVar[int] = 409
    error: ClassVar[str] = "conflict"


class TooLarge(ApiError):
    """The request's body is longer than its kind may be."""

    status: ClassVar[int] = 413
    error: ClassVar[str] = "payload_too_large"


class Unavailable(ApiError):
    """The broker can't do this now."""

    status: ClassVar[int] = 503
    error: ClassVar[str] = "service_unavailable"
