"""Message catalogues without gettext's tools: find every text, keep the ``.po`` file, write the ``.mo`` file.

Django's own commands call ``xgettext`` and ``msgfmt``, which a fresh machine does not have.
"""

import ast
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from django.utils.translation.template import templatize

CALLS: Final = {
    # The places of the texts among a call's arguments; Python files give gettext short names.
    **dict.fromkeys(("_", "_t", "_n", "gettext", "gettext_lazy", "gettext_noop"), (0,)),
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (0, 1)),
    **dict.fromkeys(("pgettext", "pgettext_lazy"), (1,)),
}
EOT: Final = "\x04"  # between a context and its message, in .mo files


@dataclass(frozen=True)
class Key:
    """What is looked up: the English text, its plural, its context."""

    text: str
    plural: str = ""
    context: str = ""


@dataclass
class Entry:
    """A text with its translation and the files that use it."""

    key: Key
    translation: str = ""
    places: set[str] = field(default_factory=set)


def find_messages(root: Path) -> dict[Key, set[str]]:
    """Every text of templates and Python files below the folder, with the files it stands in."""
    found: dict[Key, set[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".py", ".html", ".txt") or "migrations" in path.parts or "static" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        keys = _in_python(text) if path.suffix == ".py" else _in_template(text)
        for key in keys:
            found.setdefault(key, set()).add(str(path.relative_to(root)))
    return found


def _in_python(text: str) -> Iterator[Key]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            key = _key_of(name, node)
            if key is not None:
                yield key


def _key_of(name: str, call: ast.Call) -> Key | None:
    places = CALLS.get(name)
    if places is None or len(call.args) <= max(places):
        return None
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if len(texts) <= max(places):
        return None
    if name.startswith("pgettext"):
        return Key(texts[1], context=texts[0])
    return Key(texts[0], texts[1] if len(places) == 2 else "")


def _in_template(text: str) -> Iterator[Key]:
    """Django turns a template into pseudo-code with gettext calls; what is a call in it is read as Python."""
    code = templatize(text)
    for match in re.finditer(r"\b(_|gettext|ngettext|pgettext)\(", code):
        for end in (m.end() for m in re.finditer(r"\)", code[match.start() :])):
            try:
                tree = ast.parse(code[match.start() : match.start() + end].strip(), mode="eval")
            except SyntaxError:
                continue
            if isinstance(tree.body, ast.Call):
                key = _key_of(match.group(1), tree.body)
                if key is not None:
                    yield key
            break


def read_po(text: str) -> dict[Key, str]:
    """The translations of a ``.po`` file (its header left out)."""
    found: dict[Key, str] = {}
    for block in re.split(r"\n\s*\n", text):
        parts: dict[str, str] = {}
        current = ""
        for line in block.splitlines():
            match = re.match(r'(msgctxt|msgid_plural|msgid|msgstr\[0\]|msgstr) (".*")$', line)
            if match:
                current = match.group(1).replace("[0]", "")
                parts[current] = ast.literal_eval(match.group(2))
            elif line.startswith('"') and current:
                parts[current] += ast.literal_eval(line)
        if parts.get("msgid"):
            key = Key(parts["msgid"], parts.get("msgid_plural", ""), parts.get("msgctxt", ""))
            found[key] = parts.get("msgstr", "")
    return found


HEADER: Final = (
    "Content-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
    "Language: zh_Hans\nPlural-Forms: nplurals=1; plural=0;\n"
)


def write_po(messages: dict[Key, set[str]], translations: dict[Key, str]) -> str:
    """A ``.po`` file with all messages in order; those without a translation are empty."""
    blocks = ['msgid ""\nmsgstr ""\n' + "\n".join(_quoted(line + "\n") for line in HEADER.splitlines())]
    for key in sorted(messages, key=lambda k: (sorted(messages[k])[0], k.text, k.context)):
        lines = [f"#: {place}" for place in sorted(messages[key])]
        if key.context:
            lines.append(f"msgctxt {_quoted(key.context)}")
        lines.append(f"msgid {_quoted(key.text)}")
        if key.plural:
            lines.append(f"msgid_plural {_quoted(key.plural)}")
        lines.append(f"{'msgstr[0]' if key.plural else 'msgstr'} {_quoted(translations.get(key, ''))}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{plain}"'


def write_mo(translations: dict[Key, str]) -> bytes:
    """A ``.mo`` file (GNU gettext's binary form) of the translations that are not empty."""
    rows = {"": HEADER}
    for key, translation in translations.items():
        if translation:
            text = f"{key.context}{EOT}{key.text}" if key.context else key.text
            rows[f"{text}\0{key.plural}" if key.plural else text] = translation
    pairs = sorted((original.encode(), translated.encode()) for original, translated in rows.items())
    ids = b"".join(original + b"\0" for original, _ in pairs)
    texts = b"".join(translated + b"\0" for _, translated in pairs)
    head = 7 * 4
    ids_at = head + 16 * len(pairs)
    texts_at = ids_at + len(ids)
    table = b"".join(_table([original for original, _ in pairs], ids_at))
    table += b"".join(_table([translated for _, translated in pairs], texts_at))
    header = struct.pack("<7I", 0x950412DE, 0, len(pairs), head, head + 8 * len(pairs), 0, ids_at)
    return header + table + ids + texts


def _table(texts: Iterable[bytes], start: int) -> Iterator[bytes]:
    for text in texts:
        yield struct.pack("<2I", len(text), start)
        start += len(text) + 1
