"""Which postroad this is: the package, `postroad --version` and `postroad relays` take it from here."""

__version__ = "0.1.0"
