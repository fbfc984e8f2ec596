-- Sets a pause. use: base
--
-- In: now, the pause as `kind:name`.
go_on_when_full()
call('SADD', PAUSES, ARGV[2])
