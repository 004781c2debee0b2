-- Rebuilds the run's truth from the trainer's checkpoint. What it had dropped and the checkpoint knows of stays ended;
-- what ended later comes back, and its first end stays in the ledger.
-- ARGV: epoch, commit number, first open sequence, policy version, consumed, filtered, dropped, then each ended
-- sequence at or above the first open one.
local run, refusal = admit(ARGV[1])
if not run then
  return refusal
end
local p = partition('train')
local commit_number, first_open = tonumber(ARGV[2]), tonumber(ARGV[3])
local consumed, filtered = tonumber(ARGV[5]), tonumber(ARGV[6])
-- Attempts that were dropped or dead-lettered.
local given_up = tonumber(ARGV[7])
local removed = 0

local function remove_between(low, high)
  for _, task in ipairs(call('ZRANGEBYSCORE', p.open, low, high)) do
    remove_group(p, load_group(p, task))
    removed = removed + 1
  end
end

local function given_up_now()
  local total = tonumber(call('HGET', p.ledger, 'dead_lettered') or 0)
  local ledger = call('HGETALL', p.ledger)
  for i = 1, #ledger, 2 do
    if string.sub(ledger[i], 1, 8) == 'dropped:' then
      total = total + tonumber(ledger[i + 1])
    end
  end
  return total
end

remove_between('-inf', '(' .. whole(first_open))
call('DEL', p.ended)
-- The trainer feeds again from its own frontier, and says again when the data ends.
call('HSET', p.state, 'low_water', whole(first_open), 'data_ended', 0, 'wanted', 0, 'held', 0)
for i = 8, #ARGV do
  remove_between(ARGV[i], ARGV[i])
  mark_ended(p, tonumber(ARGV[i]))
end
-- What the checkpoint does not know was never committed.
call('ZREMRANGEBYSCORE', p.consumed, '(' .. whole(commit_number), '+inf')
call('HSET', p.ledger, 'consumed', whole(consumed), 'filtered', whole(filtered), 'commits', whole(commit_number))
local known = given_up_now()
if known < given_up then
  count(p, 'dropped:reconciled', whole(given_up - known))
  known = given_up
end
local fed = consumed + filtered + known + call('ZCARD', p.open)
local refilled = math.min(fed, tonumber(call('HGET', p.ledger, 'refilled') or 0))
call('HSET', p.ledger, 'fed', whole(fed), 'refilled', whole(refilled))
local version = math.max(run.policy_version, tonumber(ARGV[4]))
if version > run.policy_version then
  -- The digest belongs to the older version; the trainer registers the newer one with its own.
  call('HSET', RUN_KEY, 'policy_digest', '')
end
call('HSET', RUN_KEY, 'commit_number', whole(commit_number), 'finished', 0, 'policy_version', whole(version),
  'base_version', whole(version), 'carry', 0)
run.base_version, run.carry = version, 0
place_again(p, run)
return { 'ok', removed }
