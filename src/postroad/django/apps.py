"""What Django knows the app by. It has migrations and no models: the log is written and read through postroad alone."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["PostroadConfig"]


class PostroadConfig(AppConfig):
    """The app `postroad`."""

    name = "postroad.django"
    label = "postroad"
    verbose_name = "postroad"

    def ready(self) -> None:
        from postroad.django import checks  # noqa: F401
