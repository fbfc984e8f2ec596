-- Makes yields that never failed due, dated back so that they come first. use: base bell layout heads rows
--
-- In: now, ids, how far back. Out: the number of rows changed.
local moment = now - tonumber(ARGV[3])
local _, rows = load(cmsgpack.unpack(ARGV[2]))
local count = 0
for _, row in ipairs(rows) do
  if row.active and row.owner == '(yield)' and row.failures == 0 and (row.expires or 0) > moment then
    row.expires = moment
    put(row)
    count = count + 1
  end
end
write()
ring()
return count
