-- An in-memory database: two tables, joins, indexes built late, groups and a look-up through each index.
PRAGMA cache_size = -4000000;
PRAGMA temp_store = MEMORY;
CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT, town INTEGER);
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, owner INTEGER, price INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < @ROWS@ / 5)
INSERT INTO owners SELECT i, 'owner ' || (i * 7919 % 200017), i * 31 % 97 FROM n;
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < @ROWS@)
INSERT INTO items SELECT i, 'item ' || (i * 2654435761 % 4294967291), i * 48271 % (@ROWS@ / 5), i * 16807 % 10007,
  printf('%064x', i * 69621) FROM n;
CREATE INDEX items_by_owner ON items (owner, price);
CREATE INDEX items_by_name ON items (name);
SELECT o.town, count(*), sum(i.price), min(i.name), max(i.note)
  FROM owners o JOIN items i ON i.owner = o.id GROUP BY o.town ORDER BY o.town;
SELECT count(*), sum(b.price) FROM items a JOIN items b ON a.owner = b.owner AND a.price < b.price;
SELECT sum(length(note)), count(DISTINCT name) FROM items WHERE owner % 11 = 5;
