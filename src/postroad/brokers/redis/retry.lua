-- Moves a dead letter back to the stream that it came from, both or nothing; and nothing if it is not there any more.
-- KEYS: the stream of dead letters; the stream. ARGV: the letter's id.
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not found then return false end
local added = redis.call('XADD', KEYS[2], '*', unpack(found[2]))
redis.call('XDEL', KEYS[1], ARGV[1])
return added
