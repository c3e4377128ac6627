"""DuckDB in memory: a table of random rows, sorted as a whole, then its distinct values. Prints what came out.

Its own limit is far above any budget, so that it never spills to files by itself; it would else read the control group's limit."""
import sys

import duckdb

rows = int(sys.argv[1])
database = duckdb.connect(":memory:", config={"memory_limit": "16GB", "threads": 2, "temp_directory": ""})
database.execute(f"CREATE TABLE t AS SELECT i, hash(i) AS h, hash(i + 1) % {rows} AS g, md5(i::VARCHAR) AS s FROM range({rows}) r(i)")
database.execute("CREATE TABLE sorted AS SELECT h, i FROM t ORDER BY h")
print(database.execute("SELECT count(*), sum(i) FROM (SELECT i FROM sorted LIMIT 1000000)").fetchall())
print(database.execute("SELECT count(*), min(s), max(s) FROM (SELECT DISTINCT g, s FROM t)").fetchall())
