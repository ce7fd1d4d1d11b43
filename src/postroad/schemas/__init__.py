"""The schemas of events: found in the application's code, written as JSON Schema and AsyncAPI, and compared."""
