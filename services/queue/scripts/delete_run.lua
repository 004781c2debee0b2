-- Begins to delete the run, or joins a deletion that goes on: from here on nobody finds the run.
-- ARGV: name for a new deletion, force. Returns the name of the deletion.
local known = call('GET', DELETED)
if known then
  return { 'ok', known }
end
if call('EXISTS', RUN_KEY) == 0 then
  return { 'not_found' }
end
if ARGV[2] ~= '1' then
  local run, refusal = admit()
  if not run then
    return refusal
  end
  if run.finished ~= 1 then
    return { 'not_finished' }
  end
end
write_even_when_full()
call('SET', DELETED, ARGV[1])
call('UNLINK', RUN_KEY)
return { 'ok', ARGV[1] }
