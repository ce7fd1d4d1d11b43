"""postroad as a Django app: its tables through `manage.py migrate`, and a correlation id per request.

INSTALLED_APPS = [..., "postroad.django"]
MIDDLEWARE = ["postroad.django.middleware.CorrelationMiddleware", ...]
POSTROAD_SCHEMA = "postroad"   # where the tables are; this is the default
"""
