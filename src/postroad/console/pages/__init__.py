"""The pages, one file each. A page is a function of a `Context`; `routes` says which right each needs."""
