"""What a row must not exceed."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 8."""

    dependencies: ClassVar = [("postroad", "0007_rights")]
    operations: ClassVar = [ApplyMigration(8)]
