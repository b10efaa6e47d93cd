-- The rights of putexd in PostgreSQL: a role, a database of its own, and the least grants that suffice. putexd-stores(7) says how
-- to use it:
--
--     PUTEX_PASSWORD=... psql --set=ON_ERROR_STOP=1 --file=/usr/share/putexd/permissions/postgres-role.sql
--
-- A superuser executes it once, with psql of PostgreSQL 15 or newer. It makes the table as well, so "putexctl init" is not needed.
\getenv password PUTEX_PASSWORD
CREATE ROLE putexd LOGIN PASSWORD :'password';
-- Without this setting a crash may undo acknowledged writes; putexd refuses to work then.
ALTER ROLE putexd SET synchronous_commit = on;

-- By default every role may connect to every database, and make temporary tables there.
CREATE DATABASE putex;
REVOKE ALL ON DATABASE putex FROM PUBLIC;
GRANT CONNECT ON DATABASE putex TO putexd;

\connect putex
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO putexd;
\ir ../postgres.sql
-- putexd reads all columns. It makes rows, but never deletes one; and it never changes the name or the incarnation of a row,
-- by which hosts notice that they look at another store.
GRANT SELECT ON putex_locks TO putexd;
GRANT INSERT (name, incarnation, body, fields, write_id, heartbeat, revision, fencing_token) ON putex_locks TO putexd;
GRANT UPDATE (
    body, fields, write_id, heartbeat, revision, fencing_token, replaced_revision, replaced_body, replaced_fields
) ON putex_locks TO putexd;
