-- Delays rows that nobody holds and that wait for nothing but a delay. use: base bell layout heads rows
--
-- In: now, ids, until when. Out: the number of rows found.
local _, rows = load(cmsgpack.unpack(ARGV[2]))
local until_, count = tonumber(ARGV[3]), 0
for _, row in ipairs(rows) do
  if row.active and (not row.owner or row.owner == '(delay)') then
    row.owner, row.expires, row.modified = '(delay)', until_, now
    put(row)
    count = count + 1
  end
end
write()
ring()
return count
