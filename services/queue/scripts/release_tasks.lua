-- Takes leased members back unfinished; they wait again and nothing counts against them.
-- ARGV: reason, then partition, task, attempt, member, issue/token of each lease.
local run, refusal = admit()
if not run then
  return refusal
end
local released = 0

local function release(p, task, attempt, member, issue)
  if call('ZREM', p.leases, lease_name(task, attempt, member, issue)) == 0 then
    return
  end
  count(p, 'released:' .. ARGV[1])
  released = released + 1
  local group = live_group(p, task, attempt)
  local record = group and load_member(group, member)
  if record and record.state == 'l' and issue_name(record) == issue then
    requeue_member(p, group, tonumber(member), record)
  end
end

for i = 2, #ARGV, 5 do
  release(partition(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
return { 'ok', released }
