-- Lifts a pause. use: base bell
--
-- In: now, the pause as `kind:name`. Out: 1 where it was set.
local was_set = call('SREM', PAUSES, ARGV[2])
ring()
return was_set
