"""The live view of `postroad top`: `snapshot` is what one look at the database gives, `frame` (pure) draws it, `screen`
is the terminal with its keys, `live` polls and draws.
"""
