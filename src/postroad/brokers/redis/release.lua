-- Gives up leases, if they are the process's own.
-- KEYS: the set of processes of the consumer; leases. ARGV: this process; 'leaves' if it ends.
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then redis.call('DEL', KEYS[i]) end
end
if ARGV[2] == 'leaves' then redis.call('ZREM', KEYS[1], ARGV[1]) end
return 1
