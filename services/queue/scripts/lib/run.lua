-- The run, its partitions and the clock. Every script begins with this file.
--
-- KEYS[1] is the run's hash; its other keys share its hash tag and are named from it, so one slot holds them all.
-- Times are milliseconds of the server's clock. Numbers become text by `whole`, since tostring() may write 1e+15.

local call = redis.call
local RUN_KEY = KEYS[1]
local PREFIX = string.sub(RUN_KEY, 1, -4)
local PARTITIONS = { 'train', 'validation' }
-- Set while the run is being deleted, to the name of that deletion; the run's hash is gone by then.
local DELETED = PREFIX .. 'deleted'
-- Version of what the keys mean. It grows with every change after which older code would misread a run.
local FORMAT = '1'
-- At the quota of bytes no new group begins, at this many times the quota no payload is taken.
local HARD_QUOTAS = 2
local TRAINER_NOTED_MS = 1000

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local RUN_NUMBERS = {
  'epoch', 'finished', 'commit_number', 'policy_version', 'base_version', 'replica_version', 'carry',
  'max_staleness', 'groups_per_version', 'max_member_issues', 'lease_ms', 'max_queue_size', 'max_queue_bytes',
  'min_group_members', 'quota_bytes', 'quota_open_tasks', 'trainer_ms',
}

local function load_run()
  local values = call('HMGET', RUN_KEY, 'on_stale', 'when_full', 'format', unpack(RUN_NUMBERS))
  if not values[1] then
    return nil
  end
  local run = { on_stale = values[1], when_full = values[2], format = values[3] or '' }
  for i, name in ipairs(RUN_NUMBERS) do
    run[name] = tonumber(values[i + 3])
  end
  return run
end

-- Lets the script write on a server that has reached its maxmemory. Such a server refuses a script's first write when it
-- may take memory, and none after one that cannot, so this one goes first: in whatever gives memory back, and in what
-- must not stop while it is waited for. What stores payloads and tasks goes without and is refused as a whole.
local function write_even_when_full()
  call('UNLINK', PREFIX .. 'none')
end

-- Returns the run, or nil and the answer that refuses the call.
local function admit(epoch)
  local run = load_run()
  if not run then
    return nil, { 'not_found' }
  end
  if run.format ~= FORMAT then
    return nil, { 'format', run.format, FORMAT }
  end
  if not epoch then
    return run
  end
  epoch = tonumber(epoch)
  if epoch < run.epoch then
    return nil, { 'fenced', whole(run.epoch) }
  end
  -- Only the trainer names an epoch, and whatever it asks for leads to the next commit, which makes room.
  write_even_when_full()
  if epoch > run.epoch then
    -- The server lost the newest takeover. The largest epoch wins, and no former owner may have it.
    run.epoch = epoch
    call('HSET', RUN_KEY, 'epoch', whole(epoch), 'owner', '')
  end
  local now = now_ms()
  if now - run.trainer_ms >= TRAINER_NOTED_MS then
    call('HSET', RUN_KEY, 'trainer_ms', whole(now))
  end
  return run
end

-- Names the keys of a partition:
--   open     zset   task by sequence: every live attempt, whatever its state
--   fresh    zset   task by sequence: open groups of which no member was leased yet
--   pending  zset   task/member by sequence: members of begun groups that wait for a rollouter
--   leases   zset   task/attempt/member/issue/token by deadline: issued and not ended
--   lapsed   zset   the same by time of lapse: issues counted as lapsed that may still be answered (bounded)
--   ready    zset   task by sequence: closed groups that wait for the trainer
--   ages     zset   the same tasks by oldest version
--   waited   zset   task by oldest version: begun groups that a batch waits for; only with on_stale = wait
--   spent    zset   task by oldest version: those of `ages` that nobody waited for at their end; only with that too
--   leased   zset   task by sequence: groups leased by the trainer
--   ended    set    sequences ended above the low-water mark
--   consumed zset   task/attempt by commit number: what was trained on lately (bounded)
--   dead     list   JSON of dead-lettered groups, newest first (bounded)
--   state    hash   low_water, data_ended, fresh_members, bytes, leased_bytes,
--                  wanted (groups that a waiting LeaseBatch needs), held (unfinished groups that it is held for),
--                  asked_ms and commit_ms (times of the newest LeaseBatch and CommitBatch)
--   batch    hash   id, epoch, tasks: the newest batch lease, so that its retry is answered the same
--   ledger   hash   counters of what ended where
local function partition(name)
  local base = PREFIX .. name .. ':'
  return {
    name = name, is_train = name == 'train',
    open = base .. 'open', fresh = base .. 'fresh', pending = base .. 'pending', leases = base .. 'leases',
    lapsed = base .. 'lapsed', ready = base .. 'ready', ages = base .. 'ages', leased = base .. 'leased',
    waited = base .. 'waited', spent = base .. 'spent',
    ended = base .. 'ended', consumed = base .. 'consumed', dead = base .. 'dead', state = base .. 'state',
    batch = base .. 'batch', ledger = base .. 'ledger',
    group = base .. 'group:', task = base .. 'task:', payload = base .. 'payload:',
  }
end

local function count(p, column, number)
  call('HINCRBY', p.ledger, column, number or 1)
end

local function state_number(p, name)
  return tonumber(call('HGET', p.state, name) or 0)
end

-- Bytes of all payloads of the run, those of leased groups too.
local function held_bytes()
  local bytes = 0
  for _, name in ipairs(PARTITIONS) do
    bytes = bytes + state_number(partition(name), 'bytes')
  end
  return bytes
end

-- Whether no payload is taken any more.
local function is_full(run, held)
  return run.quota_bytes > 0 and held >= run.quota_bytes * HARD_QUOTAS
end

-- Writes the quotas that the calling service enforces into the run, so that every script finds them there.
local function set_quotas(quota_bytes, quota_open_tasks)
  call('HSET', RUN_KEY, 'quota_bytes', quota_bytes, 'quota_open_tasks', quota_open_tasks)
end
