-- Creates the run or takes it over.
-- ARGV: owner, whether a new run is allowed, quota of bytes, quota of open tasks, then name and value of each setting in
-- their order.
local FIRST = 5
local owner = ARGV[1]
if call('EXISTS', DELETED) == 1 then
  return { 'deleting' }
end
local now = whole(now_ms())
local created = call('EXISTS', RUN_KEY) == 0
if created then
  if ARGV[2] ~= '1' then
    return { 'refused' }
  end
  -- The first epoch is the time, so that it also grows over a run that the server lost.
  call('HSET', RUN_KEY, 'format', FORMAT, 'epoch', whole(math.floor(now_ms() / 1000)), 'owner', owner, 'finished', 0,
    'commit_number', 0, 'policy_version', -1, 'policy_digest', '', 'base_version', -1, 'replica_version', -1, 'carry', 0,
    'created_ms', now, 'trainer_ms', now)
end
local known_format = call('HGET', RUN_KEY, 'format') or ''
if known_format ~= FORMAT then
  return { 'format', known_format, FORMAT }
end
for i = FIRST, #ARGV, 2 do
  local known = call('HGET', RUN_KEY, ARGV[i])
  if created then
    call('HSET', RUN_KEY, ARGV[i], ARGV[i + 1])
  elseif known ~= ARGV[i + 1] then
    return { 'conflict', ARGV[i], known or '', ARGV[i + 1] }
  end
end
if not created then
  write_even_when_full()
end
if not created and call('HGET', RUN_KEY, 'owner') ~= owner then
  call('HINCRBY', RUN_KEY, 'epoch', 1)
  call('HSET', RUN_KEY, 'owner', owner)
end
call('HSET', RUN_KEY, 'trainer_ms', now)
set_quotas(ARGV[3], ARGV[4])
local run = load_run()
return { 'ok', run.epoch, run.commit_number, run.policy_version, run.replica_version, created and 1 or 0, run.finished }
