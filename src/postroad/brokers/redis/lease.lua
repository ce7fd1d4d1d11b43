-- Renews the leases of a process on streams, and takes free ones until it has its share.
-- KEYS: the set of processes of the consumer; the lease of each stream. ARGV: this process; how long a lease lasts (ms).
-- Returns the process's share, and for each stream 0 if it has no lease, 1 if it had one and still has it, and 2 if it
-- took the lease now: another process may have had it since the last call.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], 2 * ARGV[2])
local processes = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(processes)
local streams, before = #KEYS - 1, 0
for _, process in ipairs(processes) do if process < ARGV[1] then before = before + 1 end end
local share = math.floor(streams / #processes)
if before < streams % #processes then share = share + 1 end
local owned, count = {}, 0
for i = 1, streams do
  owned[i] = 0
  if redis.call('GET', KEYS[i + 1]) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[i + 1], ARGV[2])
    owned[i], count = 1, count + 1
  end
end
for i = 1, streams do
  if count < share and redis.call('SET', KEYS[i + 1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    owned[i], count = 2, count + 1
  end
end
return {share, owned}
