-- Makes consumption final, once per commit number.
-- ARGV: epoch, partition, commit number, policy version, final, results as JSON
-- [[task, attempt, ledger column, sequence or -1], ...].
local CONSUMED_KEPT = 100000
local run, refusal = admit(ARGV[1])
if not run then
  return refusal
end
local p = partition(ARGV[2])
local number, version = tonumber(ARGV[3]), tonumber(ARGV[4])
call('HSET', p.state, 'commit_ms', whole(now_ms()))

local function note_consumed(task, attempt)
  local name = task .. '/' .. attempt
  local known = call('ZSCORE', p.consumed, name)
  if known and tonumber(known) ~= number then
    count(p, 'trained_twice')
  end
  call('ZADD', p.consumed, whole(number), name)
end

-- Enters a group that the server lost, as if it had been fed and ended.
local function end_lost(sequence, column)
  if sequence >= 0 and not is_ended(p, sequence, state_number(p, 'low_water')) then
    mark_ended(p, sequence)
    count(p, 'fed')
    count(p, column)
  end
end

-- Ends one group. An attempt older than the named one was brought back by a server that lost its newest writes; a newer
-- one was issued by such a server, and is not wanted any more once another was trained on.
local function apply(task, attempt, column, sequence)
  local group = load_group(p, task)
  local is_consumed = column == 'consumed'
  if not group then
    end_lost(sequence, column)
  elseif group.attempt <= attempt or is_consumed then
    end_group(p, group, column)
  end
  if is_consumed and p.is_train then
    note_consumed(task, attempt)
  end
  return is_consumed and 1 or 0
end

local function apply_all()
  local consumed = 0
  for _, result in ipairs(cjson.decode(ARGV[6])) do
    consumed = consumed + apply(result[1], tonumber(result[2]), result[3], tonumber(result[4]))
  end
  call('ZREMRANGEBYRANK', p.consumed, 0, -CONSUMED_KEPT - 1)
  count(p, 'commits')
  return consumed
end

if not p.is_train then
  -- Measurements are not numbered: a group that is gone was measured before.
  apply_all()
  return { 'ok', run.commit_number }
end
if number > run.commit_number + 1 then
  return { 'reconcile', run.commit_number }
end
if number == run.commit_number + 1 then
  local consumed = apply_all()
  run.commit_number = number
  -- Groups trained on since the base version was assigned still count: the next version comes only after all of its
  -- groups, wherever between two versions the commit falls.
  local base = math.max(run.base_version, version)
  local carry = run.carry + consumed - (base - run.base_version) * run.groups_per_version
  call('HSET', RUN_KEY, 'commit_number', whole(number), 'base_version', whole(base), 'carry', whole(math.max(0, carry)))
end
if ARGV[5] == '1' then
  call('HSET', RUN_KEY, 'finished', 1)
end
return { 'ok', run.commit_number }
