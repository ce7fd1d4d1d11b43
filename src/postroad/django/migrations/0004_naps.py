"""Who sleeps, and the trigger that wakes them."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 4."""

    dependencies: ClassVar = [("postroad", "0003_operations")]
    operations: ClassVar = [ApplyMigration(4)]
