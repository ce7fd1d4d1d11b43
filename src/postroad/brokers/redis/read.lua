-- Reads entries of a stream for a consumer group, and nothing if the process has lost the lease: so entries can't go to
-- a process that does not know that another one has taken over.
-- KEYS: the lease; the stream. ARGV: this process; the group; how many; where to go on among entries that were delivered
-- before and not acked, or '>' when all of those were read.
-- Returns where to go on, the entries, and the ids of entries that were deleted from the stream before they were acked;
-- if there is no entry, also the id of the last one that the group has read.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
if ARGV[4] ~= '>' then
  local claimed = redis.call('XAUTOCLAIM', KEYS[2], ARGV[2], 'postroad', 0, ARGV[4], 'COUNT', ARGV[3])
  local cursor = claimed[1]
  if cursor == '0-0' then cursor = '>' end
  return {cursor, claimed[2], claimed[3] or {}}
end
local read = redis.call('XREADGROUP', 'GROUP', ARGV[2], 'postroad', 'COUNT', ARGV[3], 'STREAMS', KEYS[2], '>')
if read then return {'>', read[1][2], {}} end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  if info['name'] == ARGV[2] then return {'>', {}, {}, info['last-delivered-id']} end
end
return false
