"""What consumers have processed, and their attempts."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 6."""

    dependencies: ClassVar = [("postroad", "0005_leases")]
    operations: ClassVar = [ApplyMigration(6)]
