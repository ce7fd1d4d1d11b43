"""What other roles of the database can do to us."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 7."""

    dependencies: ClassVar = [("postroad", "0006_inbox")]
    operations: ClassVar = [ApplyMigration(7)]
