-- Forgets entries that are not there any more, a part at a time. use: base streams
--
-- In: now, group, cursor. Out: the next cursor; 0 at the end.
local reply = call('HSCAN', SENT, ARGV[3], 'COUNT', 500)
for place = 1, #reply[2], 2 do
  local id = reply[2][place]
  local entry, queue, class = sent_as(id)
  if entry and #call('XRANGE', P .. queue, entry, entry) == 0 then
    forget(id, queue, class)
  end
end
return tonumber(reply[1])
