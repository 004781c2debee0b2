-- Deletes some keys of the run, as long as the named deletion goes on: once it has ended, a new run may own them.
-- ARGV: name of the deletion, then keys. Without keys the deletion ends.
if call('GET', DELETED) ~= ARGV[1] then
  return { 'ended' }
end
if #ARGV == 1 then
  call('UNLINK', DELETED)
  return { 'ok', 0 }
end
return { 'ok', call('UNLINK', unpack(ARGV, 2)) }
