-- Counts what a consumer group has not acked of each stream: what it has read, and what it has not, up to a thousand.
-- KEYS: the streams. ARGV: the group.
local found = {}
for s, stream in ipairs(KEYS) do
  found[s] = {0, redis.call('XLEN', stream)}
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    if info['name'] == ARGV[1] then
      local unread = redis.call('XRANGE', stream, '(' .. info['last-delivered-id'], '+', 'COUNT', 1000)
      found[s] = {info['pending'], #unread}
    end
  end
end
return found
