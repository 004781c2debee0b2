-- Waits: with on_stale = wait, no begun group becomes too old because the version grew.
--
-- A begun group is due at its oldest version + max_staleness: the last version at which it can be used. For every
-- version v from the current one on, the groups that are due by v are kept at or below the slots until v, which are the
-- groups that the trainer will still lease while the version is at most v:
--   a fresh group begins only under a version at which a slot is left for it, and its other members are sampled by no
--   older version (lease_tasks.lua)
--   a batch takes from the slots until v only what the groups due by v leave, and is held until it can (lease_batch.lua)
-- A group whose lease lapsed is waited for no longer, and has no slot.

local function waits(p, run)
  return p.is_train and run.on_stale == 'wait'
end

local function slots_until(p, run, version)
  return (version - run.base_version + 1) * run.groups_per_version - run.carry - call('ZCARD', p.leased)
end

-- Returns how many groups that are due by the version are unfinished, and how many are ready.
local function due_by(p, run, version)
  local oldest = whole(version - run.max_staleness)
  local ready = call('ZCOUNT', p.ages, '-inf', oldest) - call('ZCOUNT', p.spent, '-inf', oldest)
  return call('ZCOUNT', p.waited, '-inf', oldest), ready
end

local function begin_wait(p, group, version)
  group.min_version = version
  call('HSET', group.key, 'min_version', whole(version))
  call('ZADD', p.waited, whole(version), group.task)
end

-- Ends the wait of a group that has closed.
local function finish_wait(p, group)
  if call('ZREM', p.waited, group.task) == 0 then
    call('ZADD', p.spent, whole(group.oldest), group.task)
  end
end
