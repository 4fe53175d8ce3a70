"""Writes src/rhizome/amqp/spec.py and src/rhizome/amqp/methods.py from the facts of AMQP 0-9-1.

    python tools/generate_amqp.py            write both files
    python tools/generate_amqp.py --check    exit with 1 if they aren't what would be written

The facts are in METHODS below: one line per method, with the ids and fields of the AMQP 0-9-1
specification, RabbitMQ's extensions of it, and what Rhizome says to clients that ask for it:
connection.redirect of AMQP 0-9, and a class of its own (docs/client/protocol.md). A field is
name:type, with =default where zero isn't the natural one; names that begin with a dash are
reserved: they travel as zero and nobody sees them. Deeper indented lines go on with the fields of
the line before.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "rhizome" / "amqp"
REGENERATE = "python tools/generate_amqp.py"
LINE_MAX = 100

CONSTANTS = """
FRAME_METHOD 1
FRAME_HEADER 2
FRAME_BODY 3
FRAME_HEARTBEAT 8
FRAME_END 0xCE
FRAME_MIN_SIZE 4096
FRAME_OVERHEAD 8
FRAME_HEADER_SIZE 7
PORT 5672
PORT_TLS 5671
REPLY_SUCCESS 200
REPLY_CONTENT_TOO_LARGE 311
REPLY_NO_ROUTE 312
REPLY_NO_CONSUMERS 313
REPLY_CONNECTION_FORCED 320
REPLY_INVALID_PATH 402
REPLY_ACCESS_REFUSED 403
REPLY_NOT_FOUND 404
REPLY_RESOURCE_LOCKED 405
REPLY_PRECONDITION_FAILED 406
REPLY_FRAME_ERROR 501
REPLY_SYNTAX_ERROR 502
REPLY_COMMAND_INVALID 503
REPLY_CHANNEL_ERROR 504
REPLY_UNEXPECTED_FRAME 505
REPLY_RESOURCE_ERROR 506
REPLY_NOT_ALLOWED 530
REPLY_NOT_IMPLEMENTED 540
REPLY_INTERNAL_ERROR 541
"""

METHODS = """
connection 10
  start 10: version_major:octet version_minor:octet=9 server_properties:table
      mechanisms:longstr=PLAIN locales:longstr=en_US
  start-ok 11: client_properties:table mechanism:shortstr=PLAIN response:longstr
      locale:shortstr=en_US
  secure 20: challenge:longstr
  secure-ok 21: response:longstr
  tune 30: channel_max:short frame_max:long heartbeat:short
  tune-ok 31: channel_max:short frame_max:long heartbeat:short
  open 40: virtual_host:shortstr=/ -capabilities:shortstr -insist:bit
  open-ok 41: known_hosts:shortstr
  redirect 42: host:shortstr known_hosts:shortstr
  close 50: reply_code:short reply_text:shortstr class_id:short method_id:short
  close-ok 51:
  blocked 60: reason:shortstr
  unblocked 61:
  update-secret 70: new_secret:longstr reason:shortstr
  update-secret-ok 71:
channel 20
  open 10: -out_of_band:shortstr
  open-ok 11: -channel_id:longstr
  flow 20: active:bit
  flow-ok 21: active:bit
  close 40: reply_code:short reply_text:shortstr class_id:short method_id:short
  close-ok 41:
exchange 40
  declare 10: -ticket:short exchange:shortstr type:shortstr=direct passive:bit durable:bit
      auto_delete:bit internal:bit no_wait:bit arguments:table
  declare-ok 11:
  delete 20: -ticket:short exchange:shortstr if_unused:bit no_wait:bit
  delete-ok 21:
  bind 30: -ticket:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit
      arguments:table
  bind-ok 31:
  unbind 40: -ticket:short destination:shortstr source:shortstr routing_key:shortstr
      no_wait:bit arguments:table
  unbind-ok 51:
queue 50
  declare 10: -ticket:short queue:shortstr passive:bit durable:bit exclusive:bit
      auto_delete:bit no_wait:bit arguments:table
  declare-ok 11: queue:shortstr message_count:long consumer_count:long
  bind 20: -ticket:short queue:shortstr exchange:shortstr routing_key:shortstr no_wait:bit
      arguments:table
  bind-ok 21:
  purge 30: -ticket:short queue:shortstr no_wait:bit
  purge-ok 31: message_count:long
  delete 40: -ticket:short queue:shortstr if_unused:bit if_empty:bit no_wait:bit
  delete-ok 41: message_count:long
  unbind 50: -ticket:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table
  unbind-ok 51:
basic 60
  qos 10: prefetch_size:long prefetch_count:short global_:bit
  qos-ok 11:
  consume 20: -ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit
      exclusive:bit no_wait:bit arguments:table
  consume-ok 21: consumer_tag:shortstr
  cancel 30: consumer_tag:shortstr no_wait:bit
  cancel-ok 31: consumer_tag:shortstr
  publish 40: -ticket:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit
  return 50: reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
  deliver 60: consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr
      routing_key:shortstr
  get 70: -ticket:short queue:shortstr no_ack:bit
  get-ok 71: delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
      message_count:long
  get-empty 72: -cluster_id:shortstr
  ack 80: delivery_tag:longlong multiple:bit
  reject 90: delivery_tag:longlong requeue:bit=1
  recover-async 100: requeue:bit
  recover 110: requeue:bit
  recover-ok 111:
  nack 120: delivery_tag:longlong multiple:bit requeue:bit=1
confirm 85
  select 10: no_wait:bit
  select-ok 11:
  level 20: delivery_tag:longlong level:octet
tx 90
  select 10:
  select-ok 11:
  commit 20:
  commit-ok 21:
  rollback 30:
  rollback-ok 31:
session 61697
  failover-map 10: version:longlong entries:table
  move 20: host:shortstr known_hosts:shortstr
  message 30: queue_id:longlong epoch:long index:longlong
  resume 40: entries:longstr
  resume-ok 41: first_tag:longlong
  resumed 50:
  sync 60:
  sync-ok 61:
"""

WITH_CONTENT = ("basic.publish", "basic.return", "basic.deliver", "basic.get-ok")


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    default: str

    @property
    def reserved(self) -> bool:
        return self.name.startswith("-")


@dataclass(frozen=True)
class MethodFact:
    class_name: str
    class_id: int
    name: str
    method_id: int
    fields: tuple[Field, ...]

    @property
    def full_name(self) -> str:
        return f"{self.class_name}.{self.name}"

    @property
    def constant(self) -> str:
        return f"{self.class_name}_{self.name}".replace("-", "_").upper()

    @property
    def python_name(self) -> str:
        words = [self.class_name, *self.name.split("-")]
        return "".join(word.capitalize() for word in words)

    @property
    def reader(self) -> str:
        return "_read_" + self.constant.lower()

    @property
    def visible(self) -> list[Field]:
        return [field for field in self.fields if not field.reserved]


def parse_field(text: str) -> Field:
    name, _, rest = text.partition(":")
    kind, _, default = rest.partition("=")
    assert kind in ANNOTATION, f"unknown type in {text!r}"
    return Field(name, kind, default)


def parse_methods(text: str) -> list[MethodFact]:
    facts = []
    class_name, class_id = "", 0
    for line in text.replace("\n      ", " ").strip().splitlines():
        if not line.startswith(" "):
            class_name, number = line.split()
            class_id = int(number)
            continue
        head, _, tail = line.strip().partition(":")
        name, number = head.split()
        fields = tuple(parse_field(field) for field in tail.split())
        facts.append(MethodFact(class_name, class_id, name, int(number), fields))
    return facts


ANNOTATION = {
    "octet": "i64",
    "short": "i64",
    "long": "i64",
    "longlong": "i64",
    "bit": "bool",
    "shortstr": "str",
    "longstr": "bytes",
    "table": "dict[str, object]",
}
WRITE = {
    "octet": "put_u8(w, {})",
    "short": "put_u16(w, {})",
    "long": "put_u32(w, {})",
    "longlong": "put_u64(w, {})",
    "shortstr": "put_shortstr(w, {})",
    "longstr": "put_longstr(w, {})",
    "table": "put_table(w, {})",
}
ZERO = {"shortstr": '""', "longstr": 'b""', "bit": "False"}


def default_of(field: Field) -> str:
    if field.kind == "table":
        return "None"
    if field.kind == "bit":
        return str(field.default == "1")
    if field.kind == "shortstr":
        return f'"{field.default}"'
    if field.kind == "longstr":
        return f'b"{field.default}"'
    return field.default or "0"


def fold(indent: str, opening: str, items: list[str], closing: str) -> list[str]:
    """Return a bracketed list as the formatter would lay it out."""
    one_line = indent + opening + ", ".join(items) + closing
    if len(one_line) <= LINE_MAX:
        return [one_line]
    inner = indent + "    " + ", ".join(items)
    if len(inner) <= LINE_MAX and not opening.startswith("def"):
        return [indent + opening, inner, indent + closing]
    lines = [f"{indent}    {item}," for item in items]
    return [indent + opening, *[line + shadowing(line) for line in lines], indent + closing]


def shadowing(line: str) -> str:
    """Return what the linter wants to read where a field is named like a builtin."""
    return "  # noqa: A002" if line.strip().startswith("type:") else ""


def constructor_lines(fact: MethodFact) -> list[str]:
    if not fact.visible:
        return []
    parameters = ["self"]
    body = []
    for field in fact.visible:
        kind = ANNOTATION[field.kind] + (" | None" if field.kind == "table" else "")
        parameters.append(f"{field.name}: {kind} = {default_of(field)}")
        # A new table for each method: a shared default could be changed through any of them.
        empty = f"{{}} if {field.name} is None else " if field.kind == "table" else ""
        body.append(f"        self.{field.name} = {empty}{field.name}")
    return ["", *fold("    ", "def __init__(", parameters, ") -> None:"), *body]


def bit_runs(fields: tuple[Field, ...]) -> list[list[Field]]:
    """Group consecutive bits: they share an octet, the first one lowest (section 4.2.5.2)."""
    runs: list[list[Field]] = []
    for field in fields:
        if field.kind == "bit" and runs and runs[-1][0].kind == "bit":
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def write_lines(run: list[Field]) -> list[str]:
    if run[0].kind != "bit":
        field = run[0]
        value = ZERO.get(field.kind, "0") if field.reserved else f"self.{field.name}"
        return ["        " + WRITE[field.kind].format(value)]
    bits = [
        f"({1 << place} if self.{field.name} else 0)"
        for place, field in enumerate(run)
        if not field.reserved
    ]
    if not bits:
        return ["        w.append(0)"]
    if len(bits) == 1:
        return [f"        w.append({bits[0][1:-1]})"]
    one_line = f"        w.append({' | '.join(bits)})"
    if len(one_line) <= LINE_MAX:
        return [one_line]
    joined = "            " + " | ".join(bits)
    if len(joined) <= LINE_MAX:
        return ["        w.append(", joined, "        )"]
    lines = ["            " + ("| " if place else "") + bit for place, bit in enumerate(bits)]
    return ["        w.append(", *lines, "        )"]


def class_lines(fact: MethodFact) -> list[str]:
    code = f"spec.CODE_{fact.constant}"
    lines = ["@final", f"class {fact.python_name}(Method):", f'    """{fact.full_name}."""', ""]
    lines += [f"    {field.name}: {ANNOTATION[field.kind]}" for field in fact.visible]
    lines += constructor_lines(fact)
    lines += [""] if fact.visible else []
    lines += ["    def code(self) -> i64:", f"        return {code}", ""]
    lines += ["    def encode(self) -> bytes:", "        w = BytesWriter()"]
    lines += [f"        put_u32(w, {code})"]
    for run in bit_runs(fact.fields):
        lines += write_lines(run)
    return [*lines, "        return w.getvalue()"]


def reader_lines(fact: MethodFact) -> list[str]:
    lines = [f"def {fact.reader}(r: FieldReader) -> {fact.python_name}:"]
    values = []
    for run in bit_runs(fact.fields):
        seen = [field for field in run if not field.reserved]
        if run[0].kind != "bit":
            read = f"r.{run[0].kind}()"
            local = "type_" if run[0].name == "type" else run[0].name
            lines.append(f"    {local} = {read}" if seen else f"    {read}")
            values += [local for field in seen]
        else:
            lines.append("    bits = r.octet()" if seen else "    r.octet()")
            places = enumerate(run)
            values += [f"bits & {1 << n} != 0" for n, field in places if not field.reserved]
    return [*lines, *fold("    ", f"return {fact.python_name}(", values, ")")]


def dispatch_lines(facts: list[MethodFact]) -> list[str]:
    lines = []
    for class_name in dict.fromkeys(fact.class_name for fact in facts):
        lines += [
            "",
            "",
            f"def _dispatch_{class_name}(code: i64, r: FieldReader) -> Method | None:",
        ]
        for fact in facts:
            if fact.class_name == class_name:
                lines += [f"    if code == spec.CODE_{fact.constant}:"]
                call = f"{fact.reader}(r)" if fact.fields else f"{fact.python_name}()"
                lines += [f"        return {call}"]
        lines += ["    return None"]
    return lines


METHODS_HEAD = f'''"""The methods of AMQP 0-9-1 with RabbitMQ's extensions.

Written by tools/generate_amqp.py. Change the facts there, then run `{REGENERATE}`.

Short strings are str (UTF-8 with surrogateescape, so any bytes survive), long strings bytes,
tables dict. 64-bit numbers are i64: delivery tags of 2**63 and above come out negative. Reserved
fields travel as zero.
"""

from typing import final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.amqp import spec
from rhizome.amqp.field_reader import FieldReader
from rhizome.amqp.field_table import put_table
from rhizome.amqp.primitives import (
    put_longstr,
    put_shortstr,
    put_u8,
    put_u16,
    put_u32,
    put_u64,
    u16_at,
    u32_at,
)
from rhizome.errors import CommandInvalid, SyntaxErrorFault


class Method:
    """One method: what a method frame carries."""

    def code(self) -> i64:
        """Return class id << 16 | method id."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the payload of the method frame: class id, method id, fields.

        Raises ValueError if a field doesn't fit its type.
        """
        raise NotImplementedError

    def name(self) -> str:
        """Return the name as the specification writes it, "queue.declare"."""
        return spec.METHOD_NAMES[int(self.code())]
'''

DECODE = '''

def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame.

    Bytes after the last field are ignored, as RabbitMQ does. Raises SyntaxErrorFault if the fields
    are cut short or garbled, CommandInvalid if there is no such method.
    """
    if len(payload) < 4:
        raise SyntaxErrorFault("method frame is too short for a class and a method id")
    code = u32_at(payload, 0)
    try:
        method = _dispatch(code, FieldReader(payload, 4))
    except SyntaxErrorFault as fault:
        fault.class_id = int(u16_at(payload, 0))
        fault.method_id = int(u16_at(payload, 2))
        raise
    if method is None:
        class_id, method_id = int(u16_at(payload, 0)), int(u16_at(payload, 2))
        raise CommandInvalid(f"unknown method {class_id}.{method_id}", class_id, method_id)
    return method


def _dispatch(code: i64, r: FieldReader) -> Method | None:
    class_id = code >> 16
'''


def methods_text(facts: list[MethodFact]) -> str:
    lines = METHODS_HEAD.splitlines()
    for fact in facts:
        lines += ["", "", *class_lines(fact)]
    for fact in facts:
        if fact.fields:
            lines += ["", "", *reader_lines(fact)]
    lines += dispatch_lines(facts)
    lines += DECODE.splitlines()
    # Basic first: it is what a busy connection sends.
    classes = dict.fromkeys(["basic", *(fact.class_name for fact in facts)])
    for name in classes:
        lines += [f"    if class_id == spec.{name.upper()}:"]
        lines += [f"        return _dispatch_{name}(code, r)"]
    lines += ["    return None", "", "", "def has_content(code: i64) -> bool:"]
    lines += ['    """Tell whether a content header and body follow the method."""']
    lines += ["    return ("]
    for place, name in enumerate(WITH_CONTENT):
        constant = next(fact.constant for fact in facts if fact.full_name == name)
        lines += [f"        {'or ' if place else ''}code == spec.CODE_{constant}"]
    return "\n".join([*lines, "    )"]) + "\n"


def spec_text(facts: list[MethodFact]) -> str:
    lines = [
        '"""The numbers of AMQP 0-9-1 and of RabbitMQ\'s extensions.',
        "",
        f"Written by tools/generate_amqp.py. Change the facts there, then run `{REGENERATE}`.",
        '"""',
        "",
        "from typing import Final",
        "",
        'PROTOCOL_HEADER: Final = b"AMQP\\x00\\x00\\x09\\x01"',
        "",
    ]
    for line in CONSTANTS.split("\n"):
        if line:
            name, number = line.split()
            lines.append(f"{name}: Final = {number}")
    lines += ["", "# Class ids."]
    for class_name, class_id in dict.fromkeys((fact.class_name, fact.class_id) for fact in facts):
        lines.append(f"{class_name.upper()}: Final = {class_id}")
    lines += ["", "# Method ids, unique within their class."]
    lines += [f"{fact.constant}: Final = {fact.method_id}" for fact in facts]
    lines += ["", "# Class id << 16 | method id: the first four bytes of a method frame's payload."]
    for fact in facts:
        lines.append(f"CODE_{fact.constant}: Final = {fact.class_id} << 16 | {fact.method_id}")
    lines += ["", "METHOD_NAMES: Final[dict[int, str]] = {"]
    lines += [f'    CODE_{fact.constant}: "{fact.full_name}",' for fact in facts]
    return "\n".join([*lines, "}"]) + "\n"


def generated() -> dict[Path, str]:
    """Return the text of each generated file."""
    facts = parse_methods(METHODS)
    return {
        PACKAGE / "spec.py": spec_text(facts),
        PACKAGE / "methods.py": methods_text(facts),
    }


def stale() -> list[Path]:
    """Return the generated files that aren't up to date."""
    return [
        path
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="write the AMQP tables of rhizome.amqp")
    parser.add_argument(
        "--check", action="store_true", help="only tell whether they are up to date"
    )
    if parser.parse_args().check:
        for path in stale():
            print(f"{path} is out of date: run {REGENERATE}", file=sys.stderr)
        return 1 if stale() else 0
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
