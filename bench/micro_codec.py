"""Times the codec: nanoseconds per operation, best of several rounds.

python bench/micro_codec.py [--rounds 5] [--seconds 0.2] [NAME ...]

Run it with the compiled package installed, and again with RHIZOME_PURE=1, to see what compiling
gives. NAME picks operations by a part of their name.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from rhizome import errors
from rhizome.amqp import methods
from rhizome.amqp.field_table import check_table, encode_table, find_entry, raw_entries, read_table
from rhizome.amqp.frames import content_frames, reframe
from rhizome.amqp.methods import decode_method
from rhizome.amqp.properties import FLAGS_OFFSET, Properties, decode_properties, encode_header, scan
from rhizome.broker.dead_letters.dead_letter_headers import cc_keys, dead_letter
from rhizome.broker.metadata.declare_and_consume_arguments import check_queue_arguments

PUBLISH = methods.BasicPublish("exchange", "routing.key").encode()
ACK = methods.BasicAck(12345, True).encode()
DELIVER = methods.BasicDeliver("amq.ctag-1", 12345, False, "exchange", "routing.key")
ARGUMENTS: dict[str, object] = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "dlx"}
DECLARE = methods.QueueDeclare("queue", durable=True, arguments=ARGUMENTS).encode()
HEADERS: dict[str, object] = {"tenant": "a", "attempt": 3, "trace": {"id": "0af7651916cd43dd"}}
TABLE = encode_table(HEADERS)
PROPERTIES = Properties(
    content_type="application/json", headers=HEADERS, delivery_mode=2, message_id="m-12345"
)
SMALL = encode_header(100, Properties(delivery_mode=2))
LARGE = encode_header(100, PROPERTIES)
CONTENT = content_frames(1, LARGE, b"x" * 1024, 131_072)
DEAD = dead_letter(CONTENT, "exchange", ["routing.key"], "queue", "expired", 1)


def operations() -> dict[str, Callable[[], object]]:
    return {
        "decode basic.publish": lambda: decode_method(PUBLISH),
        "decode basic.ack": lambda: decode_method(ACK),
        "decode queue.declare": lambda: decode_method(DECLARE),
        "encode basic.deliver": DELIVER.encode,
        "decode table of 3": lambda: read_table(TABLE, 0),
        "encode table of 3": lambda: encode_table(HEADERS),
        "raw entries of 3": lambda: raw_entries(TABLE, 4, len(TABLE)),
        "check table of 3": lambda: check_table(TABLE, 4, len(TABLE)),
        "find last entry of 3": lambda: find_entry(TABLE, 4, len(TABLE), b"trace"),
        "scan delivery-mode": lambda: scan(SMALL, FLAGS_OFFSET, len(SMALL)),
        "scan four properties": lambda: scan(LARGE, FLAGS_OFFSET, len(LARGE)),
        "decode four properties": lambda: decode_properties(LARGE),
        "encode four properties": lambda: encode_header(100, PROPERTIES),
        "patch channel, 1 KiB": lambda: reframe(CONTENT, 7, 0),
        "reframe to 512, 1 KiB": lambda: reframe(CONTENT, 7, 512),
        "keys of CC and BCC": lambda: cc_keys(CONTENT),
        "first death": lambda: dead_letter(CONTENT, "e", ["k"], "queue", "expired", 1),
        "second death": lambda: dead_letter(DEAD, "e", ["k"], "queue", "expired", 1),
        "check arguments": lambda: check_queue_arguments("/", "q", ARGUMENTS, True, False, False),
    }


def time_one(operation: Callable[[], object], seconds: float) -> float:
    """Return nanoseconds per call over about `seconds`."""
    calls, spent = 0, 0
    batch = 100
    while spent < seconds * 1e9:
        began = time.perf_counter_ns()
        for _ in range(batch):
            operation()
        spent += time.perf_counter_ns() - began
        calls += batch
        batch = min(batch * 2, 10_000)
    return spent / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    compiled = not str(errors.__file__).endswith(".py")
    print("compiled" if compiled else "interpreted", "ns per operation, call included", sep=", ")
    for name, operation in operations().items():
        if not options.names or any(part in name for part in options.names):
            best = min(time_one(operation, options.seconds) for _ in range(options.rounds))
            print(f"{name:24} {best:9.0f}")


if __name__ == "__main__":
    main()
