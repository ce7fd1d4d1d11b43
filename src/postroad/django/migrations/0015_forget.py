"""Forgetting what is known of a key."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 15."""

    dependencies: ClassVar = [("postroad", "0010_sinks")]
    operations: ClassVar = [ApplyMigration(15)]
