-- Out: the time, the last id, and the sizes of the queue's parts by name. use: base layout heads
return { now, tonumber(call('GET', LAST_ID) or 0), {
  'task (active)', call('ZCARD', ACTIVE),
  'task (archived)', call('ZCARD', ARCHIVE),
  'payload (apart)', call('HLEN', DATA),
  'queue (ready tasks)', call('ZCARD', heads_key('R')),
  'key', call('HLEN', KNOWN_KEYS),
  'event', call('HLEN', EVENTS),
  'pause', call('SCARD', PAUSES),
} }
