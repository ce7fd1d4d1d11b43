"""What operators see and do: when messages were published, holds, pauses, rewinds, the audit."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 3."""

    dependencies: ClassVar = [("postroad", "0002_trouble")]
    operations: ClassVar = [ApplyMigration(3)]
