-- Leases members in order of (sequence, member), validation before train.
-- ARGV: most members, policy version of the replica, token of the leases that this call gives.
-- Returns 'ok', finished, version wanted or '', lease time, then each lease as
-- "partition task attempt member issue min_version enqueue_time now content".
local LOOK_AHEAD = 64
local run, refusal = admit()
if not run then
  return refusal
end
if run.finished == 1 then
  return { 'ok', 1, '', run.lease_ms }
end
local room, version, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local now = now_ms()
local answer = { 'ok', 0, '', run.lease_ms }

local function note_wanted(min_version)
  if answer[3] == '' or min_version < tonumber(answer[3]) then
    answer[3] = whole(min_version)
  end
end

-- What was sampled by an older version than this would be stale by the time it is used.
local function effective_min(p, group)
  if p.is_train then
    return math.max(group.min_version, run.policy_version - run.max_staleness)
  end
  return group.min_version
end

local function issue(p, group, member, record)
  record.state, record.token = 'l', token
  save_member(group, member, record)
  call('ZADD', p.leases, whole(now + run.lease_ms), lease_name(group.task, group.attempt, member, issue_name(record)))
  count(p, 'issued')
  -- One text: ten answers would have to be read one by one.
  answer[#answer + 1] = table.concat({
    p.name, group.task, group.attempt, member, record.issue, whole(effective_min(p, group)), whole(group.enqueue_ms),
    whole(now), group.content,
  }, ' ')
  room = room - 1
end

local function begin(p, group)
  leave_fresh(p, group)
  group.state = 'open'
  call('HSET', group.key, 'state', 'open')
  if waits(p, run) then
    begin_wait(p, group, version)
  end
  for member = 0, group.size - 1 do
    if room > 0 then
      issue(p, group, member, load_member(group, member))
    else
      call('ZADD', p.pending, whole(group.sequence), pending_name(group.task, member))
    end
  end
end

-- Whether a new group may begin. A batch that the trainer waits for may be larger than the bounds.
local function may_begin(p)
  local held = held_bytes()
  if is_full(run, held) then
    return false
  end
  if not p.is_train then
    return true
  end
  local within_quota = run.quota_bytes == 0 or held < run.quota_bytes
  if within_quota and run.when_full ~= 'block' then
    return true
  end
  local ready = call('ZCARD', p.ready)
  if within_quota and ready < run.max_queue_size and queued_bytes(p) < run.max_queue_bytes then
    return true
  end
  return call('ZCARD', p.open) - call('ZCARD', p.leased) - call('ZCARD', p.fresh) < state_number(p, 'wanted')
end

-- How many groups may begin under the replica's version and still find a slot before they are too old. Under the
-- newest version that is every fresh group, unless a branch left more open than its versions have slots for; what the
-- trainer waits for may begin even then.
local function num_timely(p)
  if not waits(p, run) then
    return math.huge
  end
  local last = run.policy_version + run.max_staleness
  local least = math.huge
  for due = math.max(version, run.policy_version - run.max_staleness) + run.max_staleness, last do
    local slots = slots_until(p, run, due)
    if due == last then
      slots = math.max(slots, state_number(p, 'wanted'))
    end
    local unfinished, ready = due_by(p, run, due)
    least = math.min(least, slots - unfinished - ready)
  end
  return least
end

local function lease_from(p)
  local limit = room + LOOK_AHEAD - 1
  local pending = call('ZRANGE', p.pending, 0, limit, 'WITHSCORES')
  local fresh = may_begin(p) and call('ZRANGE', p.fresh, 0, limit, 'WITHSCORES') or {}
  local timely = fresh[1] and num_timely(p) or 0
  local i, j = 1, 1
  while room > 0 and (pending[i] or fresh[j]) do
    if pending[i] and (not fresh[j] or tonumber(pending[i + 1]) <= tonumber(fresh[j + 1])) then
      local task, member = string.match(pending[i], '^([^/]+)/(%d+)$')
      local group = load_group(p, task)
      if effective_min(p, group) <= version then
        call('ZREM', p.pending, pending[i])
        issue(p, group, tonumber(member), load_member(group, tonumber(member)))
      else
        note_wanted(effective_min(p, group))
      end
      i = i + 2
    else
      local group = load_group(p, fresh[j])
      if effective_min(p, group) > version then
        note_wanted(effective_min(p, group))
      elseif timely < 1 then
        if version < run.policy_version then
          note_wanted(version + 1)
        end
        fresh = {}
      else
        begin(p, group)
        timely = timely - 1
        if not may_begin(p) then
          fresh = {}
        end
      end
      j = j + 2
    end
  end
end

for i = #PARTITIONS, 1, -1 do
  local p = partition(PARTITIONS[i])
  sweep(p, run, now)
  if room > 0 then
    lease_from(p)
  end
end
return answer
