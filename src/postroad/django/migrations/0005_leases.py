"""Who has which lane until when, and which relays there are."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 5."""

    dependencies: ClassVar = [("postroad", "0004_naps")]
    operations: ClassVar = [ApplyMigration(5)]
