-- Registers a newly assigned policy version.
-- ARGV: epoch, version, digest, branch.
local run, refusal = admit(ARGV[1])
if not run then
  return refusal
end
local version, digest = tonumber(ARGV[2]), ARGV[3]
if version < run.policy_version then
  return { 'not_newer', whole(run.policy_version) }
end
local known = call('HGET', RUN_KEY, 'policy_digest')
if version == run.policy_version and known ~= '' and known ~= digest then
  return { 'conflict', known }
end
call('HSET', RUN_KEY, 'policy_version', whole(version), 'policy_digest', digest)
if ARGV[4] == '1' and run.base_version ~= version then
  run.base_version, run.carry = version, 0
  call('HSET', RUN_KEY, 'base_version', whole(version), 'carry', 0)
  place_again(partition('train'), run)
elseif run.base_version < 0 then
  call('HSET', RUN_KEY, 'base_version', whole(version))
end
return { 'ok' }
