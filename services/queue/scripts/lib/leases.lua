-- Leases of members: how an issue is given and how it ends.
--
-- An issue is named "<number>/<token>". It is in exactly one place: `leases` (in flight), or one column of the ledger.
-- One that lapsed stays in `lapsed` for a while, so that a late answer moves it to the column where it belongs.

local LAPSED_KEPT = 100000
local SWEEP_LIMIT = 200

local function lease_name(task, attempt, member, issue)
  return task .. '/' .. attempt .. '/' .. member .. '/' .. issue
end

-- Takes the issue out of flight. Returns 'live', 'lapsed' (counted as lapsed, unanswered until now), or nil when it
-- has ended otherwise and nothing may be counted again.
local function take_issue(p, name)
  if call('ZREM', p.leases, name) == 1 then
    return 'live'
  end
  if call('ZREM', p.lapsed, name) == 1 then
    count(p, 'lapsed', -1)
    return 'lapsed'
  end
  return nil
end

-- Puts a member back in line after its issue ended without a result.
local function requeue_member(p, group, member, record)
  record.state = 'p'
  record.issue, record.token = record.issue + 1, '-'
  save_member(group, member, record)
  call('ZADD', p.pending, whole(group.sequence), pending_name(group.task, member))
end

-- Notes a failed or lapsed issue; gives the member up at the bound. Returns true when it was given up.
local function fail_member(p, run, group, member, record, reason, now)
  record.failures = record.failures + 1
  call('HSET', group.key, 'r' .. member, reason)
  if record.failures < run.max_member_issues then
    requeue_member(p, group, member, record)
    return false
  end
  record.state = 'g'
  save_member(group, member, record)
  group.given_up = group.given_up + 1
  call('HSET', group.key, 'given_up', group.given_up)
  close_if_complete(p, run, group, now)
  return true
end

-- Returns the group of the issue when its attempt is alive.
local function live_group(p, task, attempt)
  local group = load_group(p, task)
  if group and group.attempt == tonumber(attempt) then
    return group
  end
  return nil
end

local function lapse(p, run, name, now)
  call('ZREM', p.leases, name)
  local task, attempt, member, issue = string.match(name, '^([^/]+)/(%d+)/(%d+)/(%d+/%w+)$')
  local group = live_group(p, task, attempt)
  local record = group and load_member(group, member)
  if not record or record.state ~= 'l' or issue_name(record) ~= issue then
    count(p, 'duplicate')
    return
  end
  count(p, 'lapsed')
  call('ZREM', p.waited, task)
  call('ZADD', p.lapsed, whole(now), name)
  call('ZREMRANGEBYRANK', p.lapsed, 0, -LAPSED_KEPT - 1)
  fail_member(p, run, group, member, record, 'lapsed', now)
end

-- Ends the leases whose deadline has passed, a bounded number per call. Returns how many.
local function sweep(p, run, now)
  local names = call('ZRANGEBYSCORE', p.leases, '-inf', whole(now), 'LIMIT', 0, SWEEP_LIMIT)
  for _, name in ipairs(names) do
    lapse(p, run, name, now)
  end
  return #names
end
