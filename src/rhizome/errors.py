"""Every exception that Rhizome raises on purpose.

    RhizomeError
      AmqpError                    a fault with an AMQP reply code
        ChannelError               closes the channel
          ContentTooLarge    311   CONTENT_TOO_LARGE
          NoRoute            312   NO_ROUTE
          NoConsumers        313   NO_CONSUMERS
          AccessRefused      403   ACCESS_REFUSED
          NotFound           404   NOT_FOUND
          ResourceLocked     405   RESOURCE_LOCKED
          PreconditionFailed 406   PRECONDITION_FAILED
        ConnectionFault            closes the connection
          ConnectionForced   320   CONNECTION_FORCED
          InvalidPath        402   INVALID_PATH
          LoginRefused       403   ACCESS_REFUSED (RabbitMQ refuses a login with the soft code)
          FrameError         501   FRAME_ERROR
          SyntaxErrorFault   502   SYNTAX_ERROR
          CommandInvalid     503   COMMAND_INVALID
          ChannelFault       504   CHANNEL_ERROR
          UnexpectedFrame    505   UNEXPECTED_FRAME
          ResourceError      506   RESOURCE_ERROR
          NotAllowed         530   NOT_ALLOWED
          NotImplementedFault 540  NOT_IMPLEMENTED
          InternalFault      541   INTERNAL_ERROR

The split follows the constants of the AMQP 0-9-1 specification: "soft" errors close a channel,
"hard" errors the connection. The classes bear the names of the reply codes, so most don't end in
Error.
"""

from typing import ClassVar, Final

REPLY_TEXT_BYTES_MAX: Final = 255
_ELLIPSIS: Final = "..."


class RhizomeError(Exception):
    """Base of all exceptions of this package."""


class AmqpError(RhizomeError):
    """A fault that is told to the peer with a reply code.

    class_id and method_id name the method that caused it (0, 0: none in particular); clients
    derive names from them. Raise one of the leaves, never this class or its two direct
    children: only leaves have a code.
    """

    code: ClassVar[int] = 0
    name: ClassVar[str] = ""

    text: str
    class_id: int
    method_id: int

    def __init__(self, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    def reply_text(self) -> str:
        """Return "NAME - text" as a close method carries it, at most 255 bytes of UTF-8.

        A longer text is cut as RabbitMQ cuts it, with three dots at the end, but never inside a
        character.
        """
        whole = f"{self.name} - {self.text}"
        data = whole.encode("utf-8", "surrogateescape")
        if len(data) <= REPLY_TEXT_BYTES_MAX:
            return whole
        cut = REPLY_TEXT_BYTES_MAX - len(_ELLIPSIS)
        while data[cut] & 0xC0 == 0x80 and cut > 0:
            cut -= 1
        return data[:cut].decode("utf-8", "surrogateescape") + _ELLIPSIS


class ChannelError(AmqpError):
    """Closes the channel that it happened on; the connection goes on."""


class ConnectionFault(AmqpError):
    """Closes the whole connection."""


class ContentTooLarge(ChannelError):
    """The content is larger than this broker accepts."""

    code: ClassVar[int] = 311
    name: ClassVar[str] = "CONTENT_TOO_LARGE"


class NoRoute(ChannelError):
    """A mandatory message reached no queue; also the reply code of basic.return."""

    code: ClassVar[int] = 312
    name: ClassVar[str] = "NO_ROUTE"


class NoConsumers(ChannelError):
    """An immediate message could not be delivered at once."""

    code: ClassVar[int] = 313
    name: ClassVar[str] = "NO_CONSUMERS"


class AccessRefused(ChannelError):
    """The user has no right to do this, or the name is reserved."""

    code: ClassVar[int] = 403
    name: ClassVar[str] = "ACCESS_REFUSED"


class NotFound(ChannelError):
    """No such exchange or queue."""

    code: ClassVar[int] = 404
    name: ClassVar[str] = "NOT_FOUND"


class ResourceLocked(ChannelError):
    """The queue belongs to another connection."""

    code: ClassVar[int] = 405
    name: ClassVar[str] = "RESOURCE_LOCKED"


class PreconditionFailed(ChannelError):
    """What was asked contradicts what exists, or an argument is wrong."""

    code: ClassVar[int] = 406
    name: ClassVar[str] = "PRECONDITION_FAILED"


class ConnectionForced(ConnectionFault):
    """An operator or the broker itself ends the connection."""

    code: ClassVar[int] = 320
    name: ClassVar[str] = "CONNECTION_FORCED"


class InvalidPath(ConnectionFault):
    """The virtual host is unknown."""

    code: ClassVar[int] = 402
    name: ClassVar[str] = "INVALID_PATH"


class LoginRefused(ConnectionFault):
    """Authentication failed. RabbitMQ tells it with the soft code 403 on the connection."""

    code: ClassVar[int] = 403
    name: ClassVar[str] = "ACCESS_REFUSED"


class FrameError(ConnectionFault):
    """The peer sent a frame that can't be one."""

    code: ClassVar[int] = 501
    name: ClassVar[str] = "FRAME_ERROR"


class SyntaxErrorFault(ConnectionFault):
    """The fields of a method or of content properties are garbled."""

    code: ClassVar[int] = 502
    name: ClassVar[str] = "SYNTAX_ERROR"


class CommandInvalid(ConnectionFault):
    """The peer sent a method that doesn't exist or doesn't belong here."""

    code: ClassVar[int] = 503
    name: ClassVar[str] = "COMMAND_INVALID"


class ChannelFault(ConnectionFault):
    """The peer used a channel that isn't open, or opened one twice."""

    code: ClassVar[int] = 504
    name: ClassVar[str] = "CHANNEL_ERROR"


class UnexpectedFrame(ConnectionFault):
    """A frame of the wrong kind, in the middle of a content for instance."""

    code: ClassVar[int] = 505
    name: ClassVar[str] = "UNEXPECTED_FRAME"


class ResourceError(ConnectionFault):
    """The broker lacks the means to go on with this connection."""

    code: ClassVar[int] = 506
    name: ClassVar[str] = "RESOURCE_ERROR"


class NotAllowed(ConnectionFault):
    """The peer broke a rule of the connection."""

    code: ClassVar[int] = 530
    name: ClassVar[str] = "NOT_ALLOWED"


class NotImplementedFault(ConnectionFault):
    """The peer asked for something that this broker doesn't do."""

    code: ClassVar[int] = 540
    name: ClassVar[str] = "NOT_IMPLEMENTED"


class InternalFault(ConnectionFault):
    """The broker failed to carry out the request for a reason of its own."""

    code: ClassVar[int] = 541
    name: ClassVar[str] = "INTERNAL_ERROR"
