-- Reads the ledger, the depths and the replicas at one moment.
-- ARGV: milliseconds after which a silent replica is left out.
local run, refusal = admit()
if not run then
  return refusal
end
local now = now_ms()
local answer = { 'ok', run.epoch, run.commit_number, run.policy_version, run.finished }
for _, name in ipairs(PARTITIONS) do
  local p = partition(name)
  sweep(p, run, now)
  local open, ready, leased = call('ZCARD', p.open), call('ZCARD', p.ready), call('ZCARD', p.leased)
  answer[#answer + 1] = {
    name, call('ZCARD', p.pending) + state_number(p, 'fresh_members'), call('ZCARD', p.leases), open, ready, leased,
    whole(state_number(p, 'bytes')), call('HGETALL', p.ledger), whole(state_number(p, 'low_water')),
    call('SMEMBERS', p.ended), whole(state_number(p, 'held')),
  }
end
local replicas = {}
local heard = call('ZRANGEBYSCORE', PREFIX .. 'heard', whole(now - tonumber(ARGV[1])), '+inf', 'WITHSCORES')
for i = 1, #heard, 2 do
  replicas[#replicas + 1] = call('HGET', PREFIX .. 'replicas', heard[i])
  replicas[#replicas + 1] = whole(now - tonumber(heard[i + 1]))
end
answer[#answer + 1] = replicas
return answer
