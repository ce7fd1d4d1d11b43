"""The whole schema."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 1."""

    initial = True
    dependencies: ClassVar = []
    operations: ClassVar = [ApplyMigration(1)]
