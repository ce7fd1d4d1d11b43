-- Adds the messages of one key to a stream, in order, and stops at the first that Redis does not take.
-- KEYS: the stream. ARGV: the number of options of XADD, the options; then for each message the number of its fields
-- and values, and these. Returns how many were added, and why the next one was not.
local key = KEYS[1]
local first = tonumber(ARGV[1]) + 2
local options = {}
for i = 2, first - 1 do options[i - 1] = ARGV[i] end
local added, at = 0, first
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local call = {'XADD', key, unpack(options)}
  call[#call + 1] = '*'
  for i = at + 1, at + count do call[#call + 1] = ARGV[i] end
  local answer = redis.pcall(unpack(call))
  if type(answer) == 'table' and answer.err then return {added, answer.err} end
  if not answer then return {added, 'NOSTREAM'} end
  added, at = added + 1, at + count + 1
end
return {added}
