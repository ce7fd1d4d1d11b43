"""One file per command, as Django finds them."""
