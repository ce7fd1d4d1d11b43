-- Deletes old entries of a stream that every consumer group has acked, and nothing else.
-- KEYS: the stream. ARGV: how many entries it may have, and how many milliseconds old they may be, empty for no limit;
-- how many to delete at most, because nothing else runs meanwhile. Without that, Redis has a limit of its own (10,000).
-- Redis deletes whole nodes of a stream only (~), so all of these are approximate. Returns how many were deleted.
local function before(a, b)
  local am, as = a:match('(%d+)-(%d+)')
  local bm, bs = b:match('(%d+)-(%d+)')
  if am == bm then am, bm = as, bs end
  if #am ~= #bm then return #am < #bm end
  return am < bm
end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then return 0 end
local floor
for _, group in ipairs(groups) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  local first = info['last-delivered-id']
  if info['pending'] > 0 then first = redis.call('XPENDING', KEYS[1], info['name'])[2] end
  if not floor or before(first, floor) then floor = first end
end
if not floor then return 0 end
local deleted = 0
if ARGV[1] ~= '' then
  local excess = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[1])
  if excess > 0 then
    local most = math.min(excess, tonumber(ARGV[3]))
    deleted = redis.call('XTRIM', KEYS[1], 'MINID', '~', floor, 'LIMIT', string.format('%.0f', most))
  end
end
if ARGV[2] ~= '' then
  local now = redis.call('TIME')
  local oldest = string.format('%.0f-0', now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[2])
  if before(floor, oldest) then oldest = floor end
  deleted = deleted + redis.call('XTRIM', KEYS[1], 'MINID', '~', oldest, 'LIMIT', ARGV[3])
end
return deleted
