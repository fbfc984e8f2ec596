-- Writes, without changing anything: a server that cannot says why. use: base
call('INCRBY', LAST_ID, 0)
