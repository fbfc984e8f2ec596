-- Tells everybody who waits that work may have become leasable.
--
-- The version tells a listener that looks what it has missed. The key `quiet` keeps a stream of changes from becoming a
-- stream of messages: the first change after a look is told, the others are found by the next look (changed.lua).
local function ring()
  local version = call('INCR', P .. 'version')
  if call('SET', P .. 'quiet', '', 'NX') then
    call('PUBLISH', P .. 'bell', format('%d', version))
  end
end
