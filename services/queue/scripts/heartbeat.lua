-- Keeps what a replica says of itself.
-- ARGV: replica, policy version, status as JSON.
local FORGET_MS = 3600000
local run, refusal = admit()
if not run then
  return refusal
end
write_even_when_full()
local now = now_ms()
call('HSET', PREFIX .. 'replicas', ARGV[1], ARGV[3])
call('ZADD', PREFIX .. 'heard', whole(now), ARGV[1])
if tonumber(ARGV[2]) > run.replica_version then
  call('HSET', RUN_KEY, 'replica_version', ARGV[2])
end
for _, replica in ipairs(call('ZRANGEBYSCORE', PREFIX .. 'heard', '-inf', whole(now - FORGET_MS), 'LIMIT', 0, 100)) do
  call('ZREM', PREFIX .. 'heard', replica)
  call('HDEL', PREFIX .. 'replicas', replica)
end
return { 'ok', run.finished }
