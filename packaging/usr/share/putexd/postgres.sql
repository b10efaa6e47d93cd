-- The locks of putexd in PostgreSQL. "putexctl init" executes this file, with the table's name from the configuration.
--
-- The user that putexd logs in as needs no more than:
--     GRANT SELECT, INSERT, UPDATE ON putex_locks TO putex;
-- permissions/postgres-role.sql grants still less, and makes that user and a database for it.
--
-- There is one row for each lock, and one for the store itself, named "(store)"; no lock can have this name. If the table is
-- dropped and made anew, or emptied and this file executed again, the store has another incarnation: every host then waits for
-- holders that it may not know of. Never copy the row "(store)" to another server.
--
-- The statements use only what the PostgreSQL dialect of Spanner documents as well; they were not tested there.
CREATE TABLE IF NOT EXISTS putex_locks (
    -- The key of the lock.
    name varchar(128) NOT NULL,
    -- The node that holds the lock; empty if nobody holds it. Bytes other than printable ASCII, and backslashes, are written \xHH.
    body text NOT NULL,
    -- The other fields of the record: a JSON object of strings.
    fields text NOT NULL,
    -- Grows by 1 with each write. If you change a row by hand, add 1 too, or a holder does not notice the change.
    -- The first revision is the server's time in microseconds, so that a row that was deleted and made again does not repeat
    -- its former revisions. It could repeat them after the server's clock was set back; putexd then sees the lock go back in
    -- time, as after a restored backup, and waits.
    revision bigint NOT NULL,
    -- The incarnation of the row "(store)": when the store was made.
    incarnation text NOT NULL,
    -- The server's time of the last write, for people only: putexd measures time by its own clocks.
    heartbeat timestamptz NOT NULL,
    -- The revision that changed the body last: it grows with each change of the holder, and stays the same while the
    -- holder renews. putexd's own fencing token, which also tells two tenures of one node apart, is "token" in fields.
    fencing_token bigint NOT NULL,
    -- The attempt that wrote this row; each attempt has a different one.
    write_id text NOT NULL,
    -- What the last write replaced; NULL if there was nothing.
    replaced_revision bigint,
    replaced_body text,
    replaced_fields text,
    PRIMARY KEY (name)
);

INSERT INTO putex_locks (name, body, fields, revision, incarnation, heartbeat, fencing_token, write_id)
VALUES ('(store)', '', '{}', 0, CAST(now() AS text), now(), 0, '')
ON CONFLICT (name) DO NOTHING;
