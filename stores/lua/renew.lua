-- Moves the expiry of each valid lease, never back. use: base layout heads rows rules
--
-- In: now, seconds, leases (msgpack: id, owner, expires).
-- Out: for each its row (head, hold, state); three empty texts: the lease is lost.
local wanted = now + tonumber(ARGV[2])
local leases = cmsgpack.unpack(ARGV[3])

local ids = {}
for at, lease in ipairs(leases) do
  ids[at] = lease[1]
end
local rows = load(ids)
local out = {}
for _, lease in ipairs(leases) do
  local row = rows[lease[1]]
  if is_held(row, lease[2], lease[3]) then
    if (row.expires or 0) < wanted then
      spend_receipt(row)
      row.expires = first_unspent(row.spent, row.owner, wanted)
      put(row)
    end
    show_active(out, row)
  else
    show_nothing(out, 3)
  end
end
write()
return out
