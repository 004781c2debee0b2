-- Groups: how one opens, closes and leaves.
--
--   (enqueue) -> fresh -> open -> ready <-> leased -> (ended)
--                  \________\_______\__________\____-> (ended); a refill makes the next attempt fresh
--
-- group:<task> is a hash: sequence, attempt, size, state, min_version, enqueue_ms, content (hash of the task's body),
-- oldest, bytes, done (members put), given_up, and per member i
--   m<i>  "<state> <issue> <failures> <token>": p waits (issue is the next), l leased, d put, g given up; absent is
--         "p 0 0 -". The token is that of the lease that is live or was put, else "-".
--   d<i>  "<issue>/<token> <put_ms> <bytes>" once put
--   r<i>  reason of its newest failure

local DEAD_LETTERS = 1000
local GROUP_NUMBERS = {
  'sequence', 'attempt', 'size', 'min_version', 'enqueue_ms', 'oldest', 'bytes', 'done', 'given_up',
}

local function load_group(p, task)
  local values = call('HMGET', p.group .. task, 'state', 'content', unpack(GROUP_NUMBERS))
  if not values[1] then
    return nil
  end
  local group = { task = task, key = p.group .. task, state = values[1], content = values[2] }
  for i, name in ipairs(GROUP_NUMBERS) do
    group[name] = tonumber(values[i + 2] or 0)
  end
  return group
end

local function load_member(group, member)
  local text = call('HGET', group.key, 'm' .. member)
  if not text then
    return { state = 'p', issue = 0, failures = 0, token = '-' }
  end
  local state, issue, failures, token = string.match(text, '^(%a) (%d+) (%d+) (%S+)$')
  return { state = state, issue = tonumber(issue), failures = tonumber(failures), token = token }
end

local function save_member(group, member, record)
  local text = record.state .. ' ' .. record.issue .. ' ' .. record.failures .. ' ' .. record.token
  call('HSET', group.key, 'm' .. member, text)
end

-- Names one issue of a member. The token makes the name unique also over a server that lost or regained state, where
-- the same number is issued again.
local function issue_name(record)
  return record.issue .. '/' .. record.token
end

local function pending_name(task, member)
  return task .. '/' .. string.format('%06d', member)
end

local function payload_key(p, group, member, issue)
  return p.payload .. group.task .. '/' .. group.attempt .. '/' .. member .. '/' .. issue
end

local function mark_ended(p, sequence)
  local low_water = state_number(p, 'low_water')
  if sequence > low_water then
    call('SADD', p.ended, whole(sequence))
  elseif sequence == low_water then
    repeat
      low_water = low_water + 1
    until call('SREM', p.ended, whole(low_water)) == 0
    call('HSET', p.state, 'low_water', whole(low_water))
  end
end

local function is_ended(p, sequence, low_water)
  return sequence < low_water or call('SISMEMBER', p.ended, whole(sequence)) == 1
end

local function enter_fresh(p, group)
  call('ZADD', p.fresh, whole(group.sequence), group.task)
  call('HINCRBY', p.state, 'fresh_members', group.size)
end

local function leave_fresh(p, group)
  call('ZREM', p.fresh, group.task)
  call('HINCRBY', p.state, 'fresh_members', 0 - group.size)
end

-- Removes what the attempt holds: its payloads, its waiting members, its place in every list but `open`.
-- Its live leases stay and end by themselves, as duplicates.
local function clear_attempt(p, group)
  local task = group.task
  if group.state == 'fresh' then
    leave_fresh(p, group)
  elseif group.state == 'ready' then
    call('ZREM', p.ready, task)
    call('ZREM', p.ages, task)
    call('ZREM', p.spent, task)
  elseif group.state == 'open' then
    call('ZREM', p.waited, task)
  elseif group.state == 'leased' then
    call('ZREM', p.leased, task)
    call('HINCRBY', p.state, 'leased_bytes', whole(0 - group.bytes))
  end
  if group.state ~= 'fresh' then
    for member = 0, group.size - 1 do
      local record = load_member(group, member)
      if record.state == 'd' then
        call('UNLINK', payload_key(p, group, member, issue_name(record)))
      elseif record.state == 'p' then
        call('ZREM', p.pending, pending_name(task, member))
      end
    end
    call('HINCRBY', p.state, 'bytes', whole(0 - group.bytes))
  end
end

-- Takes the attempt out of the run without entering it in the ledger.
local function remove_group(p, group)
  clear_attempt(p, group)
  call('ZREM', p.open, group.task)
  call('UNLINK', group.key, p.task .. group.task .. '/' .. group.content)
end

local function end_group(p, group, column)
  remove_group(p, group)
  mark_ended(p, group.sequence)
  count(p, column)
end

-- Oldest version that may sample the training task at this place, from 0, among those that count against the bound: the
-- place says at which version the task is used at the latest.
local function min_version_at(run, place)
  local base = run.base_version
  return math.max(base, base + math.floor(place / run.groups_per_version) - run.max_staleness)
end

-- Gives the open tasks their places anew, in order of sequence, after the base version moved: what was fed for a later
-- version must not be sampled, and then used, together with what comes before it.
local function place_again(p, run)
  for place, task in ipairs(call('ZRANGE', p.open, 0, -1)) do
    local least = min_version_at(run, run.carry + place - 1)
    if tonumber(call('HGET', p.group .. task, 'min_version')) < least then
      call('HSET', p.group .. task, 'min_version', whole(least))
    end
  end
end

local function save_fresh(p, group)
  call('DEL', group.key)
  call('HSET', group.key, 'sequence', whole(group.sequence), 'attempt', group.attempt, 'size', group.size,
    'state', 'fresh', 'min_version', whole(group.min_version), 'enqueue_ms', whole(group.enqueue_ms),
    'content', group.content)
  group.state = 'fresh'
  enter_fresh(p, group)
end

-- Drops the attempt as stale and issues the same task as the next attempt.
local function refill_group(p, group, min_version)
  clear_attempt(p, group)
  group.attempt = group.attempt + 1
  group.min_version = math.max(group.min_version, min_version)
  save_fresh(p, group)
  count(p, 'dropped:stale')
  count(p, 'fed')
  count(p, 'refilled')
end

local function queued_bytes(p)
  return state_number(p, 'bytes') - state_number(p, 'leased_bytes')
end

-- Makes room by when_full = drop_oldest. A batch that the trainer waits for may be larger than the bound.
local function drop_oldest(p, run)
  local wanted = state_number(p, 'wanted')
  local num_ready = call('ZCARD', p.ready)
  while num_ready > math.max(run.max_queue_size, wanted)
    or (num_ready > math.max(1, wanted) and queued_bytes(p) > run.max_queue_bytes) do
    local task = call('ZRANGE', p.ready, 0, 0)[1]
    end_group(p, load_group(p, task), 'dropped:queue_full')
    num_ready = num_ready - 1
  end
end

local function dead_letter(p, group, now)
  local reasons = {}
  for member = 0, group.size - 1 do
    reasons[member + 1] = call('HGET', group.key, 'r' .. member) or 'unknown'
  end
  call('LPUSH', p.dead, cjson.encode({
    task_id = group.task, attempt = group.attempt, sequence = group.sequence, time_ms = whole(now), reasons = reasons,
  }))
  call('LTRIM', p.dead, 0, DEAD_LETTERS - 1)
  end_group(p, group, 'dead_lettered')
end

-- Groups that this script closed.
local num_closed = 0

-- Ends the open state once each member is put or given up.
local function close_if_complete(p, run, group, now)
  if group.done + group.given_up < group.size then
    return
  end
  num_closed = num_closed + 1
  if group.done == 0 then
    return dead_letter(p, group, now)
  end
  if p.is_train and group.done < math.min(group.size, run.min_group_members) then
    return end_group(p, group, 'dropped:too_few_members')
  end
  call('HSET', group.key, 'state', 'ready')
  call('ZADD', p.ready, whole(group.sequence), group.task)
  call('ZADD', p.ages, whole(group.oldest), group.task)
  if waits(p, run) then
    finish_wait(p, group)
  end
  if p.is_train and run.when_full == 'drop_oldest' then
    drop_oldest(p, run)
  end
end
