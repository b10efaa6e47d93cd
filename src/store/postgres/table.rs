//! The table: its SQL statements, and how an entry becomes a row.
//!
//! Each operation is one statement in a transaction of its own, so that its answer describes one moment, the
//! incarnation included. The statements are simple enough for other servers that speak PostgreSQL's language.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::record;
use super::session::{Session, failure, is_not_understood};
use crate::store::{
    Attempt, ENCODED_LIMIT_BYTES, Entry, INCARNATION_LIMIT_BYTES, LISTED_LIMIT, Listed, Listing, MAKE_ONCE, Snapshot,
    StoreError, TEXT_LIMIT, listed_name, listing,
};
use crate::types::{Incarnation, Key, Revision, Value};

/// The definition of the table, which an administrator may also execute by hand, and the table's name in it.
const DEFINITION: &str = include_str!("../../../packaging/usr/share/putexd/postgres.sql");
const DEFINED_NAME: &str = "putex_locks";

/// The name of the row that holds the store's incarnation. No key can have this name.
const STORE_ROW: &str = "(store)";

/// The first revision of a row: the server's time in microseconds. Revisions of a row grow more slowly, so a row that
/// was deleted and made again begins above all of its former revisions.
const FIRST_REVISION: &str = "CAST(extract(epoch FROM now()) * 1000000 AS bigint)";

/// The SQL statements for one table.
pub(super) struct Table {
    /// The table's name, as the configuration has it.
    pub(super) name: String,
    /// The channel of the hints: the table's name without its schema, because a channel has no schema.
    channel: String,
    quoted: String,
    read: String,
    create: String,
    replace: String,
}

impl Table {
    /// Makes the statements for a table's name, which the configuration has checked.
    pub(super) fn new(name: &str) -> Self {
        let parts: Vec<String> = name.split('.').map(|part| format!("\"{part}\"")).collect();
        let quoted = parts.join(".");
        // A value that is too large for a client to hold stays in the server, which takes its length from the row's
        // header.
        let within = |body: &str, fields: &str| {
            format!("coalesce(octet_length({body}), 0) + coalesce(octet_length({fields}), 0) <= {ENCODED_LIMIT_BYTES}")
        };
        let small = within("held.body", "held.fields");
        let small_replaced = within("held.replaced_body", "held.replaced_fields");
        let incarnation = INCARNATION_LIMIT_BYTES + 1;
        let read = format!(
            "SELECT left(store.incarnation, {incarnation}), left(held.incarnation, {incarnation}), held.revision, \
             CASE WHEN {small} THEN held.body END, CASE WHEN {small} THEN held.fields END, \
             held.replaced_revision, CASE WHEN {small_replaced} THEN held.replaced_body END, \
             CASE WHEN {small_replaced} THEN held.replaced_fields END \
             FROM {quoted} AS store LEFT JOIN {quoted} AS held ON held.name = $1 WHERE store.name = '{STORE_ROW}'"
        );
        let create = format!(
            "INSERT INTO {quoted} (name, incarnation, body, fields, write_id, heartbeat, revision, fencing_token) \
             SELECT $1, incarnation, $3, $4, $5, now(), {FIRST_REVISION}, {FIRST_REVISION} \
             FROM {quoted} WHERE name = '{STORE_ROW}' AND incarnation = $2 \
             ON CONFLICT (name) DO NOTHING RETURNING revision"
        );
        // The expressions on the right of each `=` have the values before the write.
        let replace = format!(
            "UPDATE {quoted} SET body = $3, fields = $4, write_id = $5, heartbeat = now(), revision = revision + 1, \
             fencing_token = CASE WHEN body = $3 THEN fencing_token ELSE revision + 1 END, \
             replaced_revision = revision, replaced_body = CASE WHEN {} THEN body ELSE '' END, \
             replaced_fields = CASE WHEN {} THEN fields ELSE '{{}}' END \
             WHERE name = $1 AND incarnation = $2 AND revision = $6 RETURNING revision",
            within("body", "fields"),
            within("body", "fields"),
        );
        let channel = name.rsplit('.').next().unwrap_or(name).to_owned();
        Self { name: name.to_owned(), channel, quoted, read, create, replace }
    }

    /// The latest entry of a key, or the one which `before` replaced.
    pub(super) async fn read(
        &self,
        session: &Session,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let rows = session.query(&self.read, &[(&key.as_str(), Type::TEXT)]).await.map_err(|error| failure(&error))?;
        let row = rows.first().ok_or_else(|| self.missing("it lacks the row of the store itself"))?;
        let incarnation: String = column(row, 0)?;
        let entry = match column::<Option<String>>(row, 1)? {
            None => None,
            Some(of_row) if of_row != incarnation => {
                return Err(StoreError::Unfit(format!(
                    "the row {:?} of {} is of another incarnation than its row {STORE_ROW:?}: delete the row",
                    key.as_str(),
                    self.name
                )));
            }
            Some(_) if column::<i64>(row, 2)?.is_negative() => {
                return Err(StoreError::Unfit(format!(
                    "the row {:?} of {} has a revision below 0: delete the row",
                    key.as_str(),
                    self.name
                )));
            }
            Some(_) => match before {
                None => Some(entry(row, [2, 3, 4])?),
                Some(revision) => replaced(row, revision)?,
            },
        };
        Ok(Snapshot { incarnation: crate::store::incarnation(&incarnation)?, entry })
    }

    /// Writes an entry, and returns the revision of the write; `None` if its base is not the latest revision, or its
    /// incarnation is another.
    pub(super) async fn write(
        &self,
        session: &Session,
        key: &Key,
        attempt: &Attempt,
    ) -> Result<Option<Revision>, StoreError> {
        // Revisions are `bigint`, so no row has a larger one.
        let Ok(base) = i64::try_from(attempt.base.0) else { return Ok(None) };
        let columns = record::encode(&attempt.value).map_err(|error| StoreError::Garbled(error.to_string()))?;
        let (body, fields) = columns;
        let write = attempt.write.to_string();
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&attempt.incarnation.0, Type::TEXT),
            (&body, Type::TEXT),
            (&fields, Type::TEXT),
            (&write, Type::TEXT),
        ];
        let name = key.as_str();
        parameters.insert(0, (&name, Type::TEXT));
        let statement = if base == 0 {
            &self.create
        } else {
            parameters.push((&base, Type::INT8));
            &self.replace
        };
        let rows = session.query(statement, &parameters).await.map_err(|error| failure(&error))?;
        rows.first().map(|row| revision(column(row, 0)?)).transpose()
    }

    /// All rows but the store's own.
    pub(super) async fn list(&self, session: &Session) -> Result<Listing, StoreError> {
        let question = format!(
            "SELECT left(name, {}), revision, CAST(extract(epoch FROM now() - heartbeat) AS bigint), \
             CAST(octet_length(body) + octet_length(fields) AS bigint) \
             FROM {} WHERE name <> '{STORE_ROW}' ORDER BY name LIMIT {}",
            TEXT_LIMIT + 1,
            self.quoted,
            LISTED_LIMIT + 1
        );
        let rows = session.query(&question, &[]).await.map_err(|error| failure(&error))?;
        let listed = rows.iter().map(|row| {
            let positive = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
            Ok(Listed {
                name: listed_name(&column::<String>(row, 0)?),
                revision: Revision(positive(column(row, 1)?).unwrap_or(0)),
                age: positive(column(row, 2)?).map(Duration::from_secs),
                size: positive(column(row, 3)?),
            })
        });
        Ok(listing(listed.collect::<Result<_, StoreError>>()?, false))
    }

    /// Sends a hint for `key` to all listening sessions. It is not part of the write: the server lets only one
    /// transaction with a notification commit at a time, over all databases and programs, and a write may have to wait
    /// for a standby.
    pub(super) async fn notify(&self, session: &Session, key: &Key) -> Result<(), StoreError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&self.channel, Type::TEXT), (&key.as_str(), Type::TEXT)];
        let sent = session.query("SELECT pg_notify($1, $2)", &parameters).await;
        sent.map(drop).map_err(|error| failure(&error))
    }

    /// The store's incarnation; `Missing` if the table or its row of the store does not exist.
    pub(super) async fn incarnation(&self, session: &Session) -> Result<Incarnation, StoreError> {
        let limit = INCARNATION_LIMIT_BYTES + 1;
        let question = format!("SELECT left(incarnation, {limit}) FROM {} WHERE name = '{STORE_ROW}'", self.quoted);
        let rows = session.query(&question, &[]).await.map_err(|error| failure(&error))?;
        let row = rows.first().ok_or_else(|| self.missing("it lacks the row of the store itself"))?;
        crate::store::incarnation(&column::<String>(row, 0)?)
    }

    /// Makes the table, or what is missing of it. `false`: nothing was missing, or another process made it first.
    pub(super) async fn make(&self, session: &Session) -> Result<bool, StoreError> {
        match session.execute(&DEFINITION.replace(DEFINED_NAME, &self.quoted)).await {
            Ok(inserted) => Ok(inserted > 0),
            // `IF NOT EXISTS` does not protect against a creation at the same moment.
            Err(error)
                if error.code().is_some_and(|code| {
                    [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT].contains(code)
                }) =>
            {
                Ok(false)
            }
            Err(error) => Err(failure(&error)),
        }
    }

    /// Subscribes to the hints; `false` if the server has no notifications.
    pub(super) async fn listen(&self, session: &Session) -> Result<bool, StoreError> {
        match session.execute(&format!("LISTEN \"{}\"", self.channel)).await {
            Ok(_) => Ok(true),
            Err(error) if is_not_understood(&error) => Ok(false),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Checks that the table, if it exists, can hold locks.
    pub(super) async fn check(&self, session: &Session) -> Result<(), StoreError> {
        let question =
            format!("SELECT relkind, relpersistence FROM pg_class WHERE oid = to_regclass('{}')", self.quoted);
        let answer = session.ask(&question).await?;
        let Some([kind, persistence]) = answer.as_deref() else { return Ok(()) };
        let problem = problem(kind, persistence);
        problem.map_or(Ok(()), |why| Err(StoreError::Unfit(format!("the table {} {why}", self.name))))
    }

    fn missing(&self, why: &str) -> StoreError {
        StoreError::Missing(format!("the table {}: {why}; {MAKE_ONCE}", self.name))
    }
}

/// Why a table of this kind and persistence, as pg_class has them, cannot hold locks; `None` if it can.
fn problem(kind: &str, persistence: &str) -> Option<&'static str> {
    match (kind, persistence) {
        ("r" | "p", "p") => None,
        (_, "u") => Some("is unlogged, so a crash empties it: ALTER TABLE ... SET LOGGED"),
        (_, "t") => Some("is temporary: make a lasting one"),
        _ => Some("is no table"),
    }
}

/// The entry that the row's revision replaced, if that revision is `by`.
fn replaced(row: &Row, by: Revision) -> Result<Option<Entry>, StoreError> {
    if revision(column(row, 2)?)? != by || column::<Option<i64>>(row, 5)?.is_none() {
        return Ok(None);
    }
    let before = entry(row, [5, 6, 7])?;
    // An administrator who wrote by hand may have raised the revision, and left the columns of the replaced entry as
    // the write before had set them.
    Ok(Some(before).filter(|before| before.revision.0.checked_add(1) == Some(by.0)))
}

fn entry(row: &Row, [at, body, fields]: [usize; 3]) -> Result<Entry, StoreError> {
    let value = match (column::<Option<String>>(row, body)?, column::<Option<String>>(row, fields)?) {
        (Some(body), Some(fields)) => record::decode(&body, &fields),
        (None, _) | (_, None) => Value::too_large(),
    };
    Ok(Entry { revision: revision(column(row, at)?)?, value: Some(value.within_limit()) })
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| StoreError::Garbled(format!("a row of the table: {error}")))
}

fn revision(number: i64) -> Result<Revision, StoreError> {
    let revision = u64::try_from(number).map_err(|_| StoreError::Garbled(format!("the revision {number}")))?;
    Ok(Revision(revision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_gets_the_name_of_the_table_in_all_places() {
        let table = Table::new("ha.locks");
        assert_eq!((table.quoted.as_str(), table.channel.as_str()), ("\"ha\".\"locks\"", "locks"));
        let text = DEFINITION.replace(DEFINED_NAME, &table.quoted);
        assert!(text.contains("CREATE TABLE IF NOT EXISTS \"ha\".\"locks\" (") && !text.contains(DEFINED_NAME));
        assert!(text.contains(&format!("'{STORE_ROW}'")));
    }
    #[test]
    fn only_a_logged_table_holds_locks() {
        assert_eq!(problem("r", "p"), None);
        assert!(problem("r", "u").is_some_and(|why| why.contains("SET LOGGED")));
        assert!(problem("r", "t").is_some() && problem("v", "p").is_some());
    }
}
