-- Writes owner and expiry of an active row past the store's rules, and keeps its indexes. use: base layout heads rows
--
-- In: now, id, owner and expiry (empty: none).
local row = load({ ARGV[2] })[ARGV[2]]
if row and row.active then
  row.owner = ARGV[3] ~= '' and ARGV[3] or nil
  row.expires = tonumber(ARGV[4])
  put(row)
  write()
end
