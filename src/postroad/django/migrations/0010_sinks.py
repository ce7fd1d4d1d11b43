"""What is known of a sink beside its lanes."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 10."""

    dependencies: ClassVar = [("postroad", "0008_limits")]
    operations: ClassVar = [ApplyMigration(10)]
