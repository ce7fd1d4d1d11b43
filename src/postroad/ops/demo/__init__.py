"""The demo: two applications and a relay, as real processes on two SQLite files, some of which are killed.

    shop process                       relay process, killed twice
    shop.sqlite                        warehouse.sqlite
    ┌───────────────────────┐          ┌────────────┐
    │ orders, declined, log │ ───────▶ │ deliveries │
    └───────────────────────┘          └────────────┘

`plan` is known to all of them, `shop` and `warehouse` are the applications, `story` starts and kills the processes,
`audit` compares their tables with `verify`, `screen` and `report` print it. Shop and relay are run
by `python -m postroad.ops.demo`.
"""
