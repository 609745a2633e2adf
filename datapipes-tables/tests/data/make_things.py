"""Makes `things.db` beside it, by Python's sqlite3: `python make_things.py`."""

import sqlite3
from pathlib import Path

HERE = Path(__file__).parent


def database():
    path = HERE / "things.db"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA page_size = 1024")
        db.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT, score REAL, data BLOB, any)")
        things = [
            (i * 10, f"thing {i}", i / 4, bytes([i, 255]), [None, i, "x", 0.5, b"\x00"][i % 5]) for i in range(7)
        ]
        db.executemany("INSERT INTO things VALUES (?, ?, ?, ?, ?)", things)
        db.execute('CREATE TABLE "odd ""name" ("a b" TEXT, k TEXT, n INTEGER, PRIMARY KEY (k, n)) WITHOUT ROWID')
        db.executemany('INSERT INTO "odd ""name" VALUES (?, ?, ?)', [("v1", "b", 1), ("v2", "a", 2), ("v3", "a", 1)])
        db.execute("CREATE VIEW big AS SELECT id, name FROM things WHERE id >= 40")
        db.execute("PRAGMA user_version = 1")
    db.close()


database()
