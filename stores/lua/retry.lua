-- Brings archived tasks back under their ids, ready and without failures. use: base bell layout heads rows rules
--
-- In: now, ids, 1 where successful ones come back too.
-- Out: for each its row (head, hold, state); three empty texts: there was nothing to bring back.
local ids, repeats = cmsgpack.unpack(ARGV[2]), ARGV[3] == '1'
local rows = load(ids)
local out = {}
for _, id in ipairs(ids) do
  local row = rows[id]
  if row and not row.active and (repeats or row.result ~= 0) then
    spend_receipt(row)
    row.active, row.lane = true, lane_of(row.body)
    row.owner, row.expires = nil, 0
    row.failures, row.failed_at, row.lost, row.modified = 0, 0, 0, now
    put(row)
    show_active(out, row)
  else
    show_nothing(out, 3)
  end
end
write()
ring()
return out
