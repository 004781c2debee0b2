-- Reads the newest dead-lettered groups of each partition, newest first.
-- ARGV: most of each partition.
local run, refusal = admit()
if not run then
  return refusal
end
local answer = { 'ok' }
for _, name in ipairs(PARTITIONS) do
  answer[#answer + 1] = { name, call('LRANGE', partition(name).dead, 0, tonumber(ARGV[1]) - 1) }
end
return answer
