-- Moves the deadlines of live leases. Work that is still wanted is renewed even past its deadline, as long as no sweep
-- has given it to another.
-- ARGV: partition, task, attempt, member, issue/token of each lease. Returns 1 for each lost lease, else 0.
local run, refusal = admit()
if not run then
  return refusal
end
write_even_when_full()
local now = now_ms()
local answer = { 'ok' }

local function extend(p, task, attempt, member, issue)
  local name = lease_name(task, attempt, member, issue)
  if not call('ZSCORE', p.leases, name) then
    return 1
  end
  local group = live_group(p, task, attempt)
  local record = group and load_member(group, member)
  if record and record.state == 'l' and issue_name(record) == issue then
    call('ZADD', p.leases, whole(now + run.lease_ms), name)
    return 0
  end
  call('ZREM', p.leases, name)
  count(p, 'duplicate')
  return 1
end

for i = 1, #ARGV, 5 do
  answer[#answer + 1] = extend(partition(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
return answer
