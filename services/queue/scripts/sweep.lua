-- Ends what time or the end of the run has ended, a bounded number per call. Returns how many, and what is still live.
-- ARGV: quota of bytes, quota of open tasks.
local DROP_LIMIT = 200
local run, refusal = admit()
if not run then
  return refusal
end
write_even_when_full()
if whole(run.quota_bytes) ~= ARGV[1] or whole(run.quota_open_tasks) ~= ARGV[2] then
  set_quotas(ARGV[1], ARGV[2])
end
local now = now_ms()
local ended, live = 0, 0
for _, name in ipairs(PARTITIONS) do
  local p = partition(name)
  ended = ended + sweep(p, run, now)
  if run.finished == 1 then
    for _, task in ipairs(call('ZRANGE', p.open, 0, DROP_LIMIT - 1)) do
      end_group(p, load_group(p, task), 'dropped:run_ended')
      ended = ended + 1
    end
  end
  live = live + call('ZCARD', p.open) + call('ZCARD', p.leases)
end
return { 'ok', ended, live, run.finished }
