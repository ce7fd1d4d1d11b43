"""The OrderFlow story, told by real processes on two SQLite files: no server, and no mercy for the processes.

    shop process                       relay process, killed twice
    shop.sqlite                        warehouse.sqlite
    ┌───────────────────────┐          ┌────────────┐
    │ orders, declined, log │ ───────▶ │ deliveries │
    └───────────────────────┘          └────────────┘

`plan` is what all of them know, `shop` and `warehouse` are the application, `story` starts and kills them, `audit`
compares their tables, `screen` and `report` show it. Shop and relay run as `python -m postroad.ops.demo`.
"""
