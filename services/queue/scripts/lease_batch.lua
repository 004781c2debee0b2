-- Leases whole groups to the trainer in order of sequence. With on_stale = wait a batch is held, and leaves groups out,
-- as the slots of other groups demand (lib/waits.lua).
-- ARGV: epoch, partition, groups wanted, use version, most bytes, id of the request.
-- Returns 'ok', end_of_data, commit number, ready groups, how many more must close before it is worth to ask again when
-- there is no group in the answer, then each group as
-- { task, attempt, sequence, size, oldest, member, issue/token, put_ms, ... }.
local run, refusal = admit(ARGV[1])
if not run then
  return refusal
end
local p = partition(ARGV[2])
local num_groups, use_version, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()
call('HSET', p.state, 'asked_ms', whole(now))

local function describe(group)
  local text = { group.task, group.attempt, whole(group.sequence), group.size, whole(group.oldest) }
  for member = 0, group.size - 1 do
    local issue, put_ms = string.match(call('HGET', group.key, 'd' .. member) or '', '^(%S+) (%d+) %d+$')
    if issue then
      text[#text + 1] = member
      text[#text + 1] = issue
      text[#text + 1] = put_ms
    end
  end
  return text
end

local function answer_with(groups, missing)
  local num_ready = call('ZCARD', p.ready)
  local is_open = call('ZCARD', p.open) > call('ZCARD', p.leased)
  local ended = run.finished == 1 or (state_number(p, 'data_ended') == 1 and not is_open)
  local answer = { 'ok', ended and 1 or 0, run.commit_number, num_ready, missing }
  for _, group in ipairs(groups) do
    answer[#answer + 1] = describe(group)
  end
  return answer
end

-- What the same request leased before and nobody has ended or released since.
local function leased_before()
  local known = call('HMGET', p.batch, 'id', 'epoch', 'tasks')
  local groups = {}
  if known[1] == ARGV[6] and tonumber(known[2]) == run.epoch then
    for task in string.gmatch(known[3], '[^/]+') do
      local group = load_group(p, task)
      if group and group.state == 'leased' then
        groups[#groups + 1] = group
      end
    end
  end
  return groups
end

local function retire_stale()
  local oldest_allowed = use_version - run.max_staleness
  repeat
    local tasks = call('ZRANGEBYSCORE', p.ages, '-inf', '(' .. whole(oldest_allowed), 'LIMIT', 0, 100)
    for _, task in ipairs(tasks) do
      local group = load_group(p, task)
      if run.on_stale == 'drop' then
        end_group(p, group, 'dropped:stale')
      else
        refill_group(p, group, oldest_allowed)
      end
    end
  until #tasks == 0
  -- What a branch or another's lapse made too old before its end will be refilled when it ends.
  call('ZREMRANGEBYSCORE', p.waited, '-inf', '(' .. whole(oldest_allowed))
end

-- How many of the groups that are not yet due by a version this batch may take, for each version at which some are not:
-- the slots until then that the due ones leave. A trainer that asks for more than the slots, because it will filter
-- some, gets it. Also returns how many unfinished groups hold the batch back, 0 when it has its `target`.
local function limits_for(target)
  local limits, held = {}, 0
  for due = use_version, use_version + run.max_staleness - 1 do
    local unfinished, ready = due_by(p, run, due)
    local left = math.max(0, math.max(slots_until(p, run, due), num_groups) - unfinished - ready)
    limits[#limits + 1] = { oldest = due - run.max_staleness, left = left }
    if ready + left < target then
      held = unfinished
    end
  end
  return limits, held
end

-- Whether the limits admit one more ready group; counts it when they do.
local function take(limits, task)
  if #limits == 0 then
    return true
  end
  local oldest = call('ZSCORE', p.spent, task) and math.huge or tonumber(call('ZSCORE', p.ages, task))
  for _, limit in ipairs(limits) do
    if oldest > limit.oldest and limit.left == 0 then
      return false
    end
  end
  for _, limit in ipairs(limits) do
    if oldest > limit.oldest then
      limit.left = limit.left - 1
    end
  end
  return true
end

local function lease(group)
  call('ZREM', p.ready, group.task)
  call('ZREM', p.ages, group.task)
  call('ZREM', p.spent, group.task)
  call('ZADD', p.leased, whole(group.sequence), group.task)
  call('HSET', group.key, 'state', 'leased', 'epoch', whole(run.epoch))
  call('HINCRBY', p.state, 'leased_bytes', whole(group.bytes))
end

local before = leased_before()
if #before > 0 then
  return answer_with(before, 0)
end
sweep(p, run, now)
if p.is_train then
  retire_stale()
end
local num_ready = call('ZCARD', p.ready)
local data_ended = state_number(p, 'data_ended') == 1
local num_left = call('ZCARD', p.open) - call('ZCARD', p.leased)
local target = data_ended and num_ready == num_left and math.min(num_ready, num_groups) or num_groups
local limits, held = {}, 0
local is_enough = num_ready > 0 and num_ready >= target
-- While the run's quota has no room for payloads nothing can finish, so nothing is waited for.
if is_enough and waits(p, run) and not is_full(run, held_bytes()) then
  limits, held = limits_for(target)
end
if not is_enough or held > 0 then
  call('HSET', p.state, 'wanted', num_groups, 'held', held)
  -- The last groups of the data may be fewer than wanted.
  local attainable = data_ended and math.min(num_left, num_groups) or num_groups
  return answer_with({}, held > 0 and 1 or math.max(1, attainable - num_ready))
end

local groups, tasks, bytes, skipped, is_page_full = {}, {}, 0, 0, false
repeat
  local names = call('ZRANGE', p.ready, skipped, skipped + target - #groups - 1)
  for _, task in ipairs(names) do
    if take(limits, task) then
      local group = load_group(p, task)
      bytes = bytes + group.bytes
      is_page_full = #groups > 0 and bytes > max_bytes
      if is_page_full then
        break
      end
      lease(group)
      groups[#groups + 1] = group
      tasks[#tasks + 1] = task
    else
      skipped = skipped + 1
    end
  end
until is_page_full or #groups == target or #names == 0
call('HSET', p.batch, 'id', ARGV[6], 'epoch', whole(run.epoch), 'tasks', table.concat(tasks, '/'))
call('HSET', p.state, 'wanted', 0, 'held', 0)
return answer_with(groups, 0)
