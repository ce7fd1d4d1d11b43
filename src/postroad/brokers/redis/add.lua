-- Adds the messages of one key to a stream, in order, and stops at the first that Redis does not take.
-- KEYS: the stream. ARGV: for each message the number of the arguments of its XADD behind the stream, and these: they
-- are not copied into a table, which takes longer than the XADD. Returns how many were added, and why the next one was
-- not.
local added, at = 0, 1
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local answer = redis.pcall('XADD', KEYS[1], unpack(ARGV, at + 1, last))
  if type(answer) == 'table' and answer.err then return {added, answer.err} end
  if not answer then return {added, 'NOSTREAM'} end
  added, at = added + 1, last + 1
end
return {added}
