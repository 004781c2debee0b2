-- Makes leased groups ready again, whichever epoch leased them.
-- ARGV: epoch, partition.
local run, refusal = admit(ARGV[1])
if not run then
  return refusal
end
local p = partition(ARGV[2])
local tasks = call('ZRANGE', p.leased, 0, -1)
for _, task in ipairs(tasks) do
  local group = load_group(p, task)
  call('ZREM', p.leased, task)
  call('ZADD', p.ready, whole(group.sequence), task)
  call('ZADD', p.ages, whole(group.oldest), task)
  call('HSET', group.key, 'state', 'ready')
  call('HINCRBY', p.state, 'leased_bytes', whole(0 - group.bytes))
end
call('DEL', p.batch)
return { 'ok', #tasks }
