"""Files that are shipped: vendored scripts as they were published, catalogues complete and compiled."""

import gettext
import hashlib
import io
import json
import re
from pathlib import Path

import portal
from portal.web.catalogue import Key, find_messages, read_po, write_mo, write_po

ROOT = Path(portal.__file__).parent
VENDOR = ROOT / "web" / "static" / "vendor"
CATALOGUE = ROOT / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"


def test_vendored_files_are_those_of_the_manifest_and_no_others() -> None:
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    listed = {}
    for package in manifest["packages"]:
        assert package["version"]
        assert package["licence"]
        listed |= package["files"]
    there = {str(p.relative_to(VENDOR)): p for p in VENDOR.rglob("*") if p.is_file() and p.name != "manifest.json"}
    assert set(listed) == set(there)
    for name, digest in listed.items():
        assert hashlib.sha256(there[name].read_bytes()).hexdigest() == digest, name


def test_the_vendored_plot_library_says_the_version_of_the_manifest() -> None:
    [uplot] = json.loads((VENDOR / "manifest.json").read_text())["packages"]
    assert f"(v{uplot['version']})" in (VENDOR / "uplot" / "uPlot.iife.min.js").read_text()[:200]


def test_every_text_has_a_chinese_translation() -> None:
    translations = read_po(CATALOGUE.read_text(encoding="utf-8"))
    messages = find_messages(ROOT)
    assert len(messages) > 400
    assert [key for key in messages if not translations.get(key)] == []
    assert [key for key in translations if key not in messages] == []


def test_a_translation_has_the_names_of_its_text() -> None:
    for key, translation in read_po(CATALOGUE.read_text(encoding="utf-8")).items():
        names = set(re.findall(r"%\(\w+\)[sd]|\{\w+\}", key.text))
        assert set(re.findall(r"%\(\w+\)[sd]|\{\w+\}", translation)) == names, key


def test_the_compiled_catalogue_is_that_of_the_texts() -> None:
    translations = read_po(CATALOGUE.read_text(encoding="utf-8"))
    assert CATALOGUE.with_suffix(".mo").read_bytes() == write_mo(translations)
    read = gettext.GNUTranslations(io.BytesIO(write_mo(translations)))
    for key, translation in translations.items():
        if key.plural:
            assert read.ngettext(key.text, key.plural, 5) == translation
        elif key.context:
            assert read.pgettext(key.context, key.text) == translation
        else:
            assert read.gettext(key.text) == translation


def test_a_catalogue_is_read_back_as_it_was_written() -> None:
    key, plural = Key('a "b"\n\\c'), Key("{n} job", "{n} jobs", "list")
    messages = {key: {"x.py"}, plural: {"y.html", "x.py"}}
    text = write_po(messages, {key: "中\n“引”", plural: "{n} 个"})
    assert read_po(text) == {key: "中\n“引”", plural: "{n} 个"}


def test_texts_are_found_in_python_and_templates(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('_("one")\nngettext("n", "ns", 2)\npgettext("c", "two")\n_(name)\nother("no")\n')
    (tmp_path / "b.html").write_text(
        '{% load i18n %}{% translate "three" %}{% translate "four" context "m" %}{{ _("five") }}'
        "{% blocktranslate count n=3 with x=y %}{{ n }} a (b) {{ x }}{% plural %}{{ n }} c{% endblocktranslate %}"
        '{% blocktranslate %}It’s (so) "quoted"{% endblocktranslate %}'
    )
    assert set(find_messages(tmp_path)) == {
        Key("one"), Key("n", "ns"), Key("two", context="c"), Key("three"), Key("four", context="m"), Key("five"),
        Key("%(n)s a (b) %(x)s", "%(n)s c"), Key('It’s (so) "quoted"'),
    }  # fmt: skip


def test_pages_name_static_files_that_exist() -> None:
    for template in ROOT.rglob("templates/**/*.html"):
        for name in re.findall(r"{% asset '([^']+)' %}", template.read_text()):
            assert (ROOT / "web" / "static" / name).is_file(), (template, name)


def test_icons_that_templates_use_are_drawn() -> None:
    drawn = set(re.findall(r'<symbol id="(\w+)"', (ROOT / "web" / "static" / "web" / "icons.svg").read_text()))
    used = {
        name for t in ROOT.rglob("templates/**/*.html") for name in re.findall(r'{% icon "(\w+)" %}', t.read_text())
    }
    assert used <= drawn
