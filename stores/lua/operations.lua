-- Out: the time, the last id, and the sizes of the queue's parts by name. use: base layout heads
local last_id = tonumber(try('GET', LAST_ID) or '')
return { now, last_id and last_id >= 0 and last_id <= U32 and last_id or 0, {
  'task (active)', call('ZCARD', ACTIVE),
  'task (archived)', call('ZCARD', ARCHIVE),
  'payload (apart)', call('HLEN', DATA),
  'queue (ready tasks)', call('ZCARD', heads_key('R')),
  'key', call('HLEN', KNOWN_KEYS),
  'event', call('HLEN', EVENTS),
  'pause', call('SCARD', PAUSES),
} }
