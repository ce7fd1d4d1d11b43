"""What operators see and change, written once for all databases.

`admin` is the API: one class, composed of functions on named queries. `contract` has its values, `inspect` and `status`
read, `preview` tells what a change would do, `change`, `cleanup` and `rewind` make changes, `audit` records them. `why`
looks up what `explain` answers from, and `notices` says what of a status needs attention; those two are pure.
`session` is what a database provides: `postgresql` and `sqlite` implement it.
"""
