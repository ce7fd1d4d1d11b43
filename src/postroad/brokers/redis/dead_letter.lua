-- Adds a dead letter and acks its message, both or nothing; and nothing if the process has lost the lease.
-- KEYS: the lease; the stream; the stream of dead letters. ARGV: this process; the group; the message's id; fields.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local added = redis.call('XADD', KEYS[3], '*', unpack(ARGV, 4))
redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
return added
