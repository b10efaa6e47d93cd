-- The locks of putexd in PostgreSQL: what "putexctl init" executes, with the name that the configuration gives the table.
--
-- Whoever runs putexd needs no more than:
--     GRANT SELECT, INSERT, UPDATE ON putex_locks TO putexd;
--
-- One row for each lock, and one for the store itself, named "(store)", which no lock can be called. Dropping the table
-- and making it anew, or emptying it and running this again, makes another incarnation: every host then waits for the
-- holders that it knows nothing of. Never copy the row "(store)" to another server.
--
-- The statements keep to what the PostgreSQL dialect of Spanner documents as well; it was not tried there.
CREATE TABLE IF NOT EXISTS putex_locks (
    -- The key of the lock.
    name varchar(128) NOT NULL,
    -- The node that holds it; empty: nobody. Bytes other than printable ASCII, and backslashes, are written \xHH.
    token text NOT NULL,
    -- What putexd says beside the token: a JSON object of strings.
    fields text NOT NULL,
    -- 1 more with each write. Whoever changes a row by hand adds 1 too, or a holder does not notice.
    -- The first is the server's time in microseconds, so that a row that was deleted and made again does not repeat the
    -- revisions of its former life. After a server's clock was set back it could; putexd then sees the lock go back in
    -- time, as after a restored backup, and waits.
    revision bigint NOT NULL,
    -- That of the row "(store)": when the store was made.
    incarnation text NOT NULL,
    -- The server's time of the last write. For people: putexd measures by its own clocks.
    heartbeat timestamptz NOT NULL,
    -- The revision that changed the token last: it grows with each change of the holder, and stays the same while the
    -- holder renews. putexd's own fencing token, which also tells two holdings of one node apart, is "term" in fields.
    fencing_token bigint NOT NULL,
    -- The attempt that wrote this; each has another.
    write_id text NOT NULL,
    -- What the last write replaced; NULL: nothing.
    replaced_revision bigint,
    replaced_token text,
    replaced_fields text,
    PRIMARY KEY (name)
);

INSERT INTO putex_locks (name, token, fields, revision, incarnation, heartbeat, fencing_token, write_id)
VALUES ('(store)', '', '{}', 0, CAST(now() AS text), now(), 0, '')
ON CONFLICT (name) DO NOTHING;
