-- Leases whole groups to the trainer in order of sequence.
-- ARGV: epoch, partition, groups wanted, use version, most bytes, id of the request.
-- Returns 'ok', end_of_data, commit number, ready groups, then each group as
-- { task, attempt, sequence, size, oldest, member, issue/token, put_ms, ... }.
local run, refusal = admit(ARGV[1])
if not run then
  return refusal
end
local p = partition(ARGV[2])
local num_groups, use_version, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()

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

local function answer_with(groups)
  local num_ready = call('ZCARD', p.ready)
  local is_open = call('ZCARD', p.open) > call('ZCARD', p.leased)
  local ended = run.finished == 1 or (state_number(p, 'data_ended') == 1 and not is_open)
  local answer = { 'ok', ended and 1 or 0, run.commit_number, num_ready }
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
      if run.on_stale == 'refill' then
        refill_group(p, group, oldest_allowed)
      else
        end_group(p, group, 'dropped:stale')
      end
    end
  until #tasks == 0
end

local function lease(group)
  call('ZREM', p.ready, group.task)
  call('ZREM', p.ages, group.task)
  call('ZADD', p.leased, whole(group.sequence), group.task)
  call('HSET', group.key, 'state', 'leased', 'epoch', whole(run.epoch))
  call('HINCRBY', p.state, 'leased_bytes', whole(group.bytes))
end

local before = leased_before()
if #before > 0 then
  return answer_with(before)
end
sweep(p, run, now)
if p.is_train then
  retire_stale()
end
local num_ready = call('ZCARD', p.ready)
local is_rest = state_number(p, 'data_ended') == 1 and num_ready == call('ZCARD', p.open) - call('ZCARD', p.leased)
if num_ready == 0 or (num_ready < num_groups and not is_rest) then
  call('HSET', p.state, 'wanted', num_groups)
  return answer_with({})
end
local groups, tasks, bytes = {}, {}, 0
for _, task in ipairs(call('ZRANGE', p.ready, 0, num_groups - 1)) do
  local group = load_group(p, task)
  bytes = bytes + group.bytes
  if #groups > 0 and bytes > max_bytes then
    break
  end
  lease(group)
  groups[#groups + 1] = group
  tasks[#tasks + 1] = task
end
call('HSET', p.batch, 'id', ARGV[6], 'epoch', whole(run.epoch), 'tasks', table.concat(tasks, '/'))
call('HSET', p.state, 'wanted', 0)
return answer_with(groups)
