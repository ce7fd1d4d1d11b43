"""Messages that need care of their own: refused ones, those behind them, and those whose time has not come."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from postroad.django.operations import ApplyMigration


class Migration(migrations.Migration):
    """postroad's migration 2."""

    dependencies: ClassVar = [("postroad", "0001_log")]
    operations: ClassVar = [ApplyMigration(2)]
