-- Reads what a list of runs shows. Refuses no format, so that a run of another one can be seen and deleted.
if call('EXISTS', DELETED) == 1 then
  return { 'deleting' }
end
local run = load_run()
if not run then
  return { 'not_found' }
end
if run.format ~= FORMAT then
  return { 'format', run.format, FORMAT }
end
local now, held = now_ms(), held_bytes()
local open = 0
for _, name in ipairs(PARTITIONS) do
  open = open + call('ZCARD', partition(name).open)
end
local heard = call('ZREVRANGE', PREFIX .. 'heard', 0, 0, 'WITHSCORES')
local active = math.max(run.trainer_ms, tonumber(heard[2] or 0))
local created = tonumber(call('HGET', RUN_KEY, 'created_ms'))
return {
  'ok', run.format, run.finished, run.epoch, run.commit_number, run.policy_version, whole(held), open,
  whole(created), whole(now - run.trainer_ms), whole(now - active), is_full(run, held) and 1 or 0,
}
