-- Adds tasks in order as far as the capacity rule admits.
-- ARGV: epoch, partition, end_of_data, pinned version or '', number of leased groups that will be filtered, now follow
-- id, sequence, group size and content hash of each task. The bodies were written before, under their content hash.
local UNBOUNDED = 4294967295
local FIRST = 6
local run, refusal = admit(ARGV[1])
if not run then
  if refusal[1] == 'not_found' then
    -- Nobody will ask for these.
    for i = FIRST, #ARGV, 4 do
      call('UNLINK', partition(ARGV[2]).task .. ARGV[i] .. '/' .. ARGV[i + 3])
    end
  end
  return refusal
end
if run.finished == 1 then
  return { 'finished' }
end
local p = partition(ARGV[2])
local low_water = state_number(p, 'low_water')

-- 'ended', 'known', 'new', or 'conflict' with the task that stands in the way.
local function judge(task, sequence, content)
  if is_ended(p, sequence, low_water) then
    return 'ended'
  end
  local known = call('HMGET', p.group .. task, 'content', 'sequence')
  if known[1] then
    local same = known[1] == content and tonumber(known[2]) == sequence
    return same and 'known' or 'conflict', task
  end
  local other = call('ZRANGEBYSCORE', p.open, whole(sequence), whole(sequence))[1]
  if other then
    return 'conflict', other
  end
  return 'new'
end

local verdicts = {}
for i = FIRST, #ARGV, 4 do
  local verdict, other = judge(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 3])
  if verdict == 'conflict' then
    return { 'conflict', ARGV[i], other }
  end
  if verdict == 'new' and call('EXISTS', p.task .. ARGV[i] .. '/' .. ARGV[i + 3]) == 0 then
    return { 'missing' }
  end
  verdicts[#verdicts + 1] = verdict
end

-- Tasks that count against the bound now: those in the queue, those trained on since the base version, without those
-- that the trainer has filtered and not committed yet.
local used = math.max(0, call('ZCARD', p.open) + run.carry - tonumber(ARGV[5]))
local limit = UNBOUNDED
if p.is_train then
  limit = (run.max_staleness + run.policy_version - run.base_version + 1) * run.groups_per_version
end
-- The service's own quota leaves out what the trainer has leased: it must not wait for room that its own commit makes.
if run.quota_open_tasks > 0 then
  limit = math.min(limit, used + math.max(0, run.quota_open_tasks - call('ZCARD', p.open) + call('ZCARD', p.leased)))
end

local pinned = tonumber(ARGV[4]) or -1

local now = now_ms()
local accepted, added = 0, 0
for number, verdict in ipairs(verdicts) do
  local i = FIRST + (number - 1) * 4
  if verdict == 'new' then
    if used >= limit then
      break
    end
    local task, content = ARGV[i], ARGV[i + 3]
    call('PERSIST', p.task .. task .. '/' .. content)
    call('ZADD', p.open, ARGV[i + 1], task)
    save_fresh(p, {
      task = task, key = p.group .. task, sequence = tonumber(ARGV[i + 1]), attempt = 0, size = tonumber(ARGV[i + 2]),
      min_version = p.is_train and min_version_at(run, used) or pinned, enqueue_ms = now, content = content,
    })
    count(p, 'fed')
    used, added = used + 1, added + 1
  end
  accepted = accepted + 1
end
if ARGV[3] == '1' and accepted == #verdicts then
  call('HSET', p.state, 'data_ended', 1)
elseif added > 0 then
  call('HSET', p.state, 'data_ended', 0)
end
return { 'ok', accepted, whole(math.min(UNBOUNDED, math.max(0, limit - used))), added }
