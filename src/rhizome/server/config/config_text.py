"""Configurations as text: a commented TOML file, an example, and the reference page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from typing import Any, Final

from rhizome.server.config.config_fields import (
    SECRET_SHOWN,
    Setting,
    default_of,
    join_path,
    key_of,
    setting_of,
    settings_of,
    toml,
)

WIDTH: Final = 92


def render_toml(config: Any, hide_secrets: bool = True) -> str:
    """Every key with its value and what it does. Reads back as the same configuration, but for
    secrets, which are shown as asterisks."""
    blocks = [
        "\n".join(_block(described, getattr(config, described.name), hide_secrets))
        for described in fields(config)
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_example(default_config: Any) -> str:
    """A file to edit: every key commented out at its default."""
    lines = [
        "# Rhizome configuration. Every key is shown with its default; remove the # to change it.",
        '# Sizes and times need a unit: B kB MB GB KiB MiB GiB, ms s m h d ("64MiB", "1500ms").',
        "# Check the file with: rhizome config check FILE",
        "",
    ]
    for line in render_toml(default_config, hide_secrets=False).splitlines():
        is_plain = line.startswith("#") or not line or _is_section_heading(line)
        lines.append(line if is_plain else f"#{line}")
    return "\n".join(lines) + "\n"


def _is_section_heading(line: str) -> bool:
    # A heading of definitions, left in, would define an empty user.
    return line.startswith("[") and "." not in line


def _block(described: Field[Any], value: Any, hide_secrets: bool) -> Iterator[str]:
    name = described.name
    if "setting" not in described.metadata:
        yield from _comment(_first_paragraph(type(value)))
        yield f"[{name}]"
        yield from _section(value, hide_secrets, with_comments=True)
        yield from _inner_items(name, value, hide_secrets)
        return
    yield from _comment(setting_of(described).doc)
    for item_name, item in value.items():
        yield from _item(f"[{name}.{_quoted(item_name)}]", item, hide_secrets)


def _section(section: Any, hide_secrets: bool, with_comments: bool) -> Iterator[str]:
    """The keys of a section that are no tables."""
    for described in fields(section):
        setting = setting_of(described)
        if setting.item is not None:
            continue
        if with_comments:
            yield from _comment(setting.doc)
        value = getattr(section, described.name)
        is_hidden = hide_secrets and setting.is_secret and value
        shown = toml(SECRET_SHOWN) if is_hidden else setting.show(value)
        yield f"{key_of(described)} = {shown}"


def _item(heading: str, item: Any, hide_secrets: bool) -> Iterator[str]:
    yield heading
    yield from _section(item, hide_secrets, with_comments=False)
    yield from _inner_items(heading.strip("[]"), item, hide_secrets)


def _inner_items(path: str, item: Any, hide_secrets: bool) -> Iterator[str]:
    """The tables under a table."""
    for described in fields(item):
        setting = setting_of(described)
        value = getattr(item, described.name)
        inner = f"{path}.{key_of(described)}"
        if setting.many == "named":
            for name, each in value.items():
                yield from _item(f"[{inner}.{_quoted(name)}]", each, hide_secrets)
        elif setting.many == "listed":
            for each in value:
                yield from _item(f"[[{inner}]]", each, hide_secrets)


def _quoted(name: str) -> str:
    return join_path("", name)


def _comment(doc: str) -> Iterator[str]:
    for line in textwrap.wrap(doc, WIDTH):
        yield f"# {line}"


def _first_paragraph(section: type) -> str:
    return _paragraphs(section)[0]


def _paragraphs(section: type) -> list[str]:
    doc = textwrap.dedent("    " + (section.__doc__ or "")).strip()
    return [" ".join(part.split()) for part in doc.split("\n\n")]


# --- the reference page


def render_markdown(sections: Mapping[str, type], definitions: Mapping[str, type]) -> str:
    parts = [_INTRODUCTION]
    for name, section in sections.items():
        parts.append(f"## [{name}]\n\n" + "\n\n".join(_paragraphs(section)) + "\n")
        parts.append(_key_table(name, section))
        for key, described in settings_of(section).items():
            item = setting_of(described).item
            if item is not None:
                parts.extend(_definition(f"{name}.{key}.NAME", item))
    parts.append(_DEFINITIONS)
    for name, item in definitions.items():
        parts.extend(_definition(f"{name}.NAME", item))
    return "\n".join(parts)


def _definition(path: str, item: type) -> Iterator[str]:
    described = "\n\n".join(_paragraphs(item)).partition(": ")[2]
    yield f"### [{path}]\n\n{described[:1].upper()}{described[1:]}\n"
    yield _key_table("", item)
    for key, inner in settings_of(item).items():
        setting = setting_of(inner)
        if setting.item is not None:
            yield from _definition(
                f"{path}.{key}" + (".VHOST" if setting.many == "named" else ""), setting.item
            )


def _key_table(name: str, section: type) -> str:
    lines = ["| key | default | value | |", "|---|---|---|---|"]
    for key, described in settings_of(section).items():
        setting = setting_of(described)
        cells = (f"`{key}`", _default_cell(setting, described), setting.kind, setting.doc)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if name:
        first = next(iter(settings_of(section)))
        variable = f"RHIZOME_{name}_{first}".upper()
        lines.append(f"\nEnvironment: `RHIZOME_{name.upper()}_...`, such as `{variable}`.")
    return "\n".join(lines) + "\n"


def _default_cell(setting: Setting, described: Field[Any]) -> str:
    if setting.is_required:
        return "(required)"
    if setting.item is not None:
        return ""
    return f"`{setting.show(default_of(described))}`"


_INTRODUCTION: Final = """\
<!-- Generated by tools/generate_config_docs.py from src/rhizome/server/config/config_sections.py.
-->

# Configuration

A broker reads one TOML file: `rhizome serve --config FILE`. Every key has a default, so an empty
file, or none, starts a working broker on the loopback addresses.

    rhizome config show --default > rhizome.toml    # every key at its default, with comments
    rhizome config check rhizome.toml               # all problems at once; exit status 1 if any
    rhizome config show --config rhizome.toml       # what is in effect, secrets hidden

Later ones win: defaults, the file, environment variables, options of the command line. The variable
`RHIZOME_<SECTION>_<KEY>` sets one key; lists are separated by commas. Definitions (vhosts, users,
policies) come from the file only.

**Units.** Sizes and times are strings with a unit: `B`, `kB`, `MB`, `GB` (powers of 1000), `KiB`,
`MiB`, `GiB` (powers of 1024); `ms`, `s`, `m`, `h`, `d`. A number without a unit is an error, as is
an unknown key or section; the message names the file, the key and the nearest valid name.

```text
rhizome.toml: limits.frame_max: 131072 has no unit; write a size such as "128KiB"
rhizome.toml: limits.heartbeet: unknown key; did you mean "heartbeat"? (keys here: ...)
```
"""

_DEFINITIONS: Final = """\
## Definitions

Vhosts, users and policies that a broker creates when it starts with an empty store. Afterwards they
are changed with the command line or the HTTP API, and those changes are kept. Without a `[users]`
section there is one user, `guest` with password `guest`, who has every permission on the vhost `/`
and may connect from loopback addresses only. Naming any user replaces that default.

```toml
[vhosts."/"]
[vhosts.shop]

[users.checkout]
password = "a long secret"

[users.checkout.permissions.shop]
configure = "^checkout\\\\."
write = "^(checkout\\\\.|amq\\\\.default$)"
read = ""

[policies.expire]
vhost = "shop"
pattern = "^checkout\\\\."
apply_to = "queues"
definition = { message-ttl = 60000 }
```

Permission patterns are regular expressions ([patterns.md](patterns.md)), searched anywhere in the
name unless anchored with `^` and `$`; the empty pattern matches nothing; the default exchange is
called `amq.default`.
"""
