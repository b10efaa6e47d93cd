//! `[store]` with `type = "directory"`.

use std::ops::Range;

use super::required;
use crate::config::diagnostic::Report;
use crate::config::fragment::{StoreFragment, take};
use crate::types::store::DirectorySettings;

/// Validates the table. The store checks the directory itself, because a share that is not mounted yet is no mistake in
/// the file.
pub(super) fn check(
    table: &Range<usize>,
    fragment: &mut StoreFragment,
    report: &mut Report,
) -> Option<DirectorySettings> {
    let path = required(fragment.path.take(), "path", "\"/srv/putex\"", table, report)?;
    let owner = take(fragment.owner.take(), report).map(|owner| owner.into_inner().0);
    if !path.get_ref().is_absolute() {
        let shown = path.get_ref().display().to_string();
        report.error(&path.span(), format!("{shown:?} is not a full path: write it from the root"));
        return None;
    }
    Some(DirectorySettings { path: path.into_inner(), owner })
}
