"""``manage.py catalogue``: bring the message catalogues up to date, with Python alone."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.web.catalogue import find_messages, read_po, write_mo, write_po


class Command(BaseCommand):
    """Find new texts, drop unused ones, and compile; texts without a translation are an error."""

    help = "Bring portal/locale up to date: the .po file with every text, the .mo file from it."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write both files of each language."""
        messages = find_messages(Path(settings.BASE_DIR) / "portal")
        missing = 0
        for po in sorted(Path(settings.LOCALE_PATHS[0]).glob("*/LC_MESSAGES/django.po")):
            translations = {k: v for k, v in read_po(po.read_text(encoding="utf-8")).items() if k in messages}
            po.write_text(write_po(messages, translations), encoding="utf-8")
            po.with_suffix(".mo").write_bytes(write_mo(translations))
            missing += sum(1 for key in messages if not translations.get(key))
        if missing:
            raise CommandError(f"{missing} texts have no translation yet: fill them in and run this again.")
        self.stdout.write(f"{len(messages)} texts")
