"""Which postroad this is: the package, `postroad --version` and `postroad relays` take it from here."""

__all__ = ["__version__"]

__version__ = "0.1.0"
