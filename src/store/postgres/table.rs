//! The table: its SQL statements, and how an entry becomes a row.
//!
//! Each operation is one statement in a transaction of its own, so that its answer describes one moment, the
//! incarnation included. The statements are simple enough for other servers that speak PostgreSQL's language.

use tokio_postgres::{
    Row,
    types::{FromSql, ToSql, Type},
};

use super::{record, session::Session};
use crate::{
    store::{
        Attempt, ENCODED_LIMIT_BYTES, Entry, INCARNATION_LIMIT_BYTES, MAKE_ONCE, Result, Snapshot,
        StoreError, revision,
    },
    types::{Incarnation, Key, Revision, Value},
};

/// The definition of the table, which an administrator may also execute by hand, and the table's name in it.
const DEFINITION: &str = include_str!("../../../packaging/usr/share/putexd/postgres.sql");
const DEFINED_NAME: &str = "putex_locks";

/// The name of the row that holds the store's incarnation. No key can have this name.
const STORE_ROW: &str = "(store)";

/// The first revision of a row: the server's time in microseconds. Revisions of a row grow more slowly, so a row that
/// was deleted and made again begins above all of its former revisions.
const FIRST_REVISION: &str = "CAST(extract(epoch FROM now()) * 1000000 AS bigint)";

/// The SQL statements for one table.
pub struct Statements {
    /// The table's name, as the configuration has it.
    pub name: String,
    /// The channel of the hints: the table's name without its schema, because a channel has no schema.
    channel: String,
    quoted: String,
    read: String,
    create: String,
    replace: String,
}

impl Statements {
    /// Makes the statements for a table's name, which the configuration has checked.
    pub fn new(name: &str) -> Self {
        let parts: Vec<String> = name.split('.').map(|part| format!("\"{part}\"")).collect();
        let quoted = parts.join(".");
        // A value that is too large for a client to hold stays in the server, which takes its length from the row's
        // header.
        let within = |prefix: &str| {
            let length = |column| format!("coalesce(octet_length({prefix}{column}), 0)");
            format!(
                "{} + {} <= {ENCODED_LIMIT_BYTES}",
                length("body"),
                length("fields")
            )
        };
        let (own, small, small_replaced) = (within(""), within("held."), within("held.replaced_"));
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
             replaced_revision = revision, replaced_body = CASE WHEN {own} THEN body ELSE '' END, \
             replaced_fields = CASE WHEN {own} THEN fields ELSE '{{}}' END \
             WHERE name = $1 AND incarnation = $2 AND revision = $6 RETURNING revision"
        );
        let channel = name.rsplit('.').next().unwrap_or(name).to_owned();
        Self {
            name: name.to_owned(),
            channel,
            quoted,
            read,
            create,
            replace,
        }
    }

    /// The latest entry of a key, or the one which `before` replaced.
    pub async fn read(
        &self,
        session: &Session,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot> {
        let rows = session
            .query(&self.read, &[(&key.as_str(), Type::TEXT)])
            .await?;
        let row = rows.first().ok_or_else(|| self.missing())?;
        let incarnation: String = column(row, 0)?;
        let entry = match column::<Option<String>>(row, 1)? {
            None => None,
            Some(of_row) if of_row != incarnation || column::<i64>(row, 2)?.is_negative() => {
                return Err(StoreError::Unfit(format!(
                    "delete the row {:?} of {}: it is of another incarnation than {STORE_ROW:?}, or its revision is below 0",
                    key.as_str(),
                    self.name
                )));
            }
            Some(_) => match before {
                None => Some(entry(row, [2, 3, 4])?),
                Some(revision) => replaced(row, revision)?,
            },
        };
        Ok(Snapshot {
            incarnation: crate::store::incarnation(&incarnation)?,
            entry,
        })
    }

    /// Writes an entry, and returns the revision of the write; `None` if its base is not the latest revision, or its
    /// incarnation is another.
    pub async fn write(
        &self,
        session: &Session,
        key: &Key,
        attempt: &Attempt,
    ) -> Result<Option<Revision>> {
        // Revisions are `bigint`, so no row has a larger one.
        let Ok(base) = i64::try_from(attempt.base.0) else {
            return Ok(None);
        };
        let (body, fields) = record::encode(&attempt.value);
        let (name, write) = (key.as_str(), attempt.write.to_string());
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&name, Type::TEXT),
            (&attempt.incarnation.0, Type::TEXT),
            (&body, Type::TEXT),
            (&fields, Type::TEXT),
            (&write, Type::TEXT),
        ];
        let statement = if base == 0 {
            &self.create
        } else {
            parameters.push((&base, Type::INT8));
            &self.replace
        };
        let rows = session.query(statement, &parameters).await?;
        rows.first()
            .map(|row| revision(column(row, 0)?))
            .transpose()
    }

    /// Sends a hint for `key` to all listening sessions. It is not part of the write: the server lets only one
    /// transaction with a notification commit at a time, over all databases and programs, and a write may have to wait
    /// for a standby.
    pub async fn notify(&self, session: &Session, key: &Key) -> Result<()> {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.channel, Type::TEXT), (&key.as_str(), Type::TEXT)];
        session
            .query("SELECT pg_notify($1, $2)", &parameters)
            .await?;
        Ok(())
    }

    /// The store's incarnation; `Missing` if the table or its row of the store does not exist.
    pub async fn incarnation(&self, session: &Session) -> Result<Incarnation> {
        let limit = INCARNATION_LIMIT_BYTES + 1;
        let question = format!(
            "SELECT left(incarnation, {limit}) FROM {} WHERE name = '{STORE_ROW}'",
            self.quoted
        );
        let rows = session.query(&question, &[]).await?;
        let row = rows.first().ok_or_else(|| self.missing())?;
        crate::store::incarnation(&column::<String>(row, 0)?)
    }

    /// Makes the table, or what is missing of it. `false`: nothing was missing, or another process made it first: `IF NOT EXISTS`
    /// does not protect against a creation at the same moment.
    pub async fn make(&self, session: &Session) -> Result<bool> {
        let definition = DEFINITION.replace(DEFINED_NAME, &self.quoted);
        match session.execute(&definition).await {
            Ok((inserted, _)) => Ok(inserted > 0),
            Err(error) => {
                let found = self.incarnation(session).await;
                found.map(|_| false).map_err(|_| error.into())
            }
        }
    }

    /// Subscribes to the hints.
    pub async fn listen(&self, session: &Session) -> Result<()> {
        let listen = format!("LISTEN \"{}\"", self.channel);
        session.execute(&listen).await?;
        Ok(())
    }

    /// The question what kind of table it is, and how lasting.
    pub fn kind(&self) -> String {
        let name = &self.quoted;
        format!(
            "SELECT concat(relkind, relpersistence) FROM pg_class WHERE oid = to_regclass('{name}')"
        )
    }

    /// Checks that a table of this [`kind`](Self::kind) can hold locks. It may not exist yet.
    pub fn check(&self, kind: &str) -> Result<()> {
        let why = match kind {
            "" | "rp" | "pp" => return Ok(()),
            "ru" => "is unlogged, so a crash empties it: ALTER TABLE ... SET LOGGED",
            _ => "is no lasting table",
        };
        Err(StoreError::Unfit(format!("the table {} {why}", self.name)))
    }

    fn missing(&self) -> StoreError {
        let why = "it lacks the row of the store itself";
        StoreError::Missing(format!("the table {}: {why}; {MAKE_ONCE}", self.name))
    }
}

/// The entry that the row's revision replaced, if that revision is `by`.
fn replaced(row: &Row, by: Revision) -> Result<Option<Entry>> {
    if revision(column(row, 2)?)? != by || column::<Option<i64>>(row, 5)?.is_none() {
        return Ok(None);
    }
    let before = entry(row, [5, 6, 7])?;
    // An administrator who wrote by hand may have raised the revision, and left the columns of the replaced entry as
    // the write before had set them.
    Ok(Some(before).filter(|before| before.revision.0.checked_add(1) == Some(by.0)))
}

fn entry(row: &Row, [at, body, fields]: [usize; 3]) -> Result<Entry> {
    let value = match (
        column::<Option<String>>(row, body)?,
        column::<Option<String>>(row, fields)?,
    ) {
        (Some(body), Some(fields)) => record::decode(&body, &fields),
        (None, _) | (_, None) => Value::too_large(),
    };
    Ok(Entry {
        revision: revision(column(row, at)?)?,
        value: Some(value.within_limit()),
    })
}

fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T> {
    row.try_get(index)
        .map_err(|error| StoreError::Garbled(format!("a row of the table: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_gets_the_name_of_the_table_in_all_places() {
        let table = Statements::new("ha.locks");
        assert_eq!(
            (table.quoted.as_str(), table.channel.as_str()),
            ("\"ha\".\"locks\"", "locks")
        );
        let text = DEFINITION.replace(DEFINED_NAME, &table.quoted);
        assert!(
            text.contains("CREATE TABLE IF NOT EXISTS \"ha\".\"locks\" (")
                && !text.contains(DEFINED_NAME)
        );
        assert!(text.contains(&format!("'{STORE_ROW}'")));
    }
    #[test]
    fn only_a_logged_table_holds_locks() {
        let check = |kind| {
            Statements::new("t")
                .check(kind)
                .map_err(|why| why.to_string())
        };
        assert_eq!((check(""), check("rp")), (Ok(()), Ok(())));
        assert!(check("ru").is_err_and(|why| why.contains("SET LOGGED")));
        assert!(check("rt").is_err() && check("vp").is_err());
    }
}
