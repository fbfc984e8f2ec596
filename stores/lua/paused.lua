-- Out: the pauses in force, as `kind:name`. use: base
return call('SMEMBERS', PAUSES)
