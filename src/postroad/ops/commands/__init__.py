"""The commands, one file each, named after the command.

A command parses its options and prints what `Admin` returns. One that changes something declares a `Plan`, which
`runner` previews, confirms, carries out and shows.
"""
