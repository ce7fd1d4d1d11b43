"""One Django migration for each of postroad's own, with the same number and name."""
