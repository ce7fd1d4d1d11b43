"""For FastAPI, Starlette and every other ASGI application: one correlation id per request, and an endpoint that
receives messages. No framework is imported.
"""

from postroad.asgi.correlation import CorrelationMiddleware
from postroad.asgi.webhook import Webhook, webhook

__all__ = ["CorrelationMiddleware", "Webhook", "webhook"]
