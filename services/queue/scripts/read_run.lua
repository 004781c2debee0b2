-- Reads the ledger, the depths and the replicas at one moment.
-- ARGV: milliseconds after which a silent replica is left out.
local run, refusal = admit()
if not run then
  return refusal
end
local now = now_ms()
local answer = {
  'ok', run.epoch, run.commit_number, run.policy_version, run.finished,
  {
    run.max_staleness, run.groups_per_version, run.on_stale, run.max_member_issues, whole(run.lease_ms),
    run.max_queue_size, whole(run.max_queue_bytes), run.when_full, run.min_group_members,
  },
}

-- Milliseconds since a time that the partition's state holds; -1 when it holds none.
local function age_ms(p, name)
  local time = state_number(p, name)
  return whole(time > 0 and now - time or -1)
end

for _, name in ipairs(PARTITIONS) do
  local p = partition(name)
  sweep(p, run, now)
  local open, ready, leased = call('ZCARD', p.open), call('ZCARD', p.ready), call('ZCARD', p.leased)
  answer[#answer + 1] = {
    name, call('ZCARD', p.pending) + state_number(p, 'fresh_members'), call('ZCARD', p.leases), open, ready, leased,
    whole(state_number(p, 'bytes')), call('HGETALL', p.ledger), whole(state_number(p, 'low_water')),
    call('SMEMBERS', p.ended), whole(state_number(p, 'held')), whole(queued_bytes(p)), state_number(p, 'data_ended'),
    age_ms(p, 'asked_ms'), age_ms(p, 'commit_ms'),
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
