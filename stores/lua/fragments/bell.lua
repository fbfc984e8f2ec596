-- Tells everybody who waits that work may have become leasable.
--
-- The version tells a listener that looks what it has missed. The key `quiet` keeps a stream of changes from becoming a
-- stream of messages: the first change after a look is told, the others are found by the next look (changed.lua).
local function ring()
  go_on_when_full()
  local version = try('INCR', P .. 'version')
  if not version or version == 1 then
    -- a server that has forgotten everything must not come by a version that somebody has seen
    local clock = call('TIME')
    version = clock[1] * 1000000 + clock[2]
    call('SET', P .. 'version', format('%d', version))
  end
  if call('SET', P .. 'quiet', '', 'NX') then
    -- an account may lack the right to the channel; then listeners find the change by looking
    redis.pcall('PUBLISH', P .. 'bell', format('%d', version))
  end
end
