-- Sets a pause. use: base
--
-- In: now, the pause as `kind:name`.
call('SADD', PAUSES, ARGV[2])
