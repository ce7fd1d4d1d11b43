"""Which role added a message, and which role a consumer belongs to."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 9."""

    dependencies: ClassVar = [("postroad", "0008_limits")]
    operations: ClassVar = [ApplyMigration(9)]
