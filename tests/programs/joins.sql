-- An in-memory database: two tables, joins, an index build, a group, a delete and a check of its own structure.
PRAGMA cache_size = -2000000;
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, owner INTEGER, price INTEGER, note TEXT);
CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT, town INTEGER);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 18000)
INSERT INTO owners SELECT i, 'owner ' || (i * 7919 % 18013), i * 31 % 97 FROM n;
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
INSERT INTO items SELECT i, 'item ' || (i * 2654435761 % 4294967291), i * 48271 % 18001, i * 16807 % 10007,
  printf('%0250x%0250x%0250x', i * 69621, i * 40692, i * 1103) FROM n;
CREATE INDEX items_by_owner ON items (owner, price);
CREATE INDEX items_by_name ON items (name);
SELECT o.town, count(*), sum(i.price), min(i.name), max(i.note) FROM owners o JOIN items i ON i.owner = o.id GROUP BY o.town ORDER BY o.town;
SELECT a.name, b.name FROM items a JOIN items b ON a.owner = b.owner AND a.price = b.price AND a.id < b.id ORDER BY a.name, b.name LIMIT 5000;
DELETE FROM items WHERE price % 3 = 0;
UPDATE items SET note = note || name WHERE owner % 11 = 5;
SELECT count(*), sum(length(note)), sum(id * price) FROM items;
PRAGMA integrity_check;
