-- Puts finished or failed members, each on its own. The payloads were written before, under the lease's name.
-- ARGV per record: partition, task, attempt, member, issue/token, failure reason or '', oldest version, payload bytes.
-- Returns how many groups were closed, and an outcome per record: accepted, duplicate, reissued, given_up, or missing
-- (the payload has to be sent again), or full (the run's quota has no room for it now).
local run, refusal = admit()
if not run then
  if refusal[1] == 'not_found' then
    -- Nobody will ask for these.
    for i = 1, #ARGV, 8 do
      call('UNLINK', partition(ARGV[i]).payload .. lease_name(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]))
    end
  end
  return refusal
end
local now = now_ms()
local held = held_bytes()

local function accept(p, group, member, record, put)
  call('PERSIST', put.payload)
  if record.state == 'p' then
    call('ZREM', p.pending, pending_name(group.task, member))
  end
  local number, token = string.match(put.issue, '^(%d+)/(%w+)$')
  record.state, record.issue, record.token = 'd', tonumber(number), token
  save_member(group, member, record)
  group.oldest = group.done == 0 and put.oldest or math.min(group.oldest, put.oldest)
  group.done = group.done + 1
  group.bytes = group.bytes + put.bytes
  call('HSET', group.key, 'd' .. member, put.issue .. ' ' .. whole(now) .. ' ' .. whole(put.bytes),
    'oldest', whole(group.oldest), 'done', group.done, 'bytes', whole(group.bytes))
  call('HINCRBY', p.state, 'bytes', whole(put.bytes))
  held = held + put.bytes
  count(p, 'put')
  close_if_complete(p, run, group, now)
  return 'accepted'
end

local function put_result(p, group, member, record, put)
  if record and record.state == 'd' and issue_name(record) == put.issue then
    return 'accepted'
  end
  local wanted = record and (record.state == 'p' or record.state == 'l')
  if wanted and call('EXISTS', put.payload) == 0 then
    return 'missing'
  end
  if wanted and is_full(run, held) then
    call('UNLINK', put.payload)
    return 'full'
  end
  local taken = take_issue(p, put.name)
  if wanted and taken then
    return accept(p, group, member, record, put)
  end
  if taken then
    count(p, 'duplicate')
  end
  call('UNLINK', put.payload)
  return 'duplicate'
end

local function put_failure(p, group, member, record, put)
  local taken = take_issue(p, put.name)
  local wanted = record and (record.state == 'p' or record.state == 'l')
  if taken then
    count(p, wanted and 'failed:' .. put.reason or 'duplicate')
  end
  if not wanted then
    return record and record.state == 'g' and 'given_up' or 'duplicate'
  end
  -- A lapse was held against the member when it lapsed; its late failure only moves to the right column.
  if taken == 'live' and record.state == 'l' and issue_name(record) == put.issue
    and fail_member(p, run, group, member, record, put.reason, now) then
    return 'given_up'
  end
  return 'reissued'
end

local answer = { 'ok', 0 }
for i = 1, #ARGV, 8 do
  local p = partition(ARGV[i])
  local task, attempt, member = ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local put = { issue = ARGV[i + 4], reason = ARGV[i + 5], oldest = tonumber(ARGV[i + 6]),
    bytes = tonumber(ARGV[i + 7]) }
  put.name = lease_name(task, attempt, member, put.issue)
  put.payload = p.payload .. put.name
  local group = live_group(p, task, attempt)
  local record = group and member < group.size and load_member(group, member) or nil
  local step = put.reason == '' and put_result or put_failure
  answer[#answer + 1] = step(p, group, member, record, put)
end
answer[2] = num_closed
return answer
