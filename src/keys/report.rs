//! What is wrong with a configuration, shown so that an operator can correct it without a manual: the place, the line
//! itself with a caret, and a message that names the remedy.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::types::kept::Text;

/// The severity of the finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The configuration works, but probably not as intended.
    Warning,
    /// The file is not used.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity of the finding.
    pub severity: Severity,
    /// The file or directory that the finding is about.
    pub path: PathBuf,
    /// The place in the file; `None` when the finding is about the file as a whole.
    pub place: Option<Place>,
    /// What is wrong, and what to do about it. Lower case, no full stop.
    pub message: String,
}

/// A place in a file, with the text of its line, so that the finding can be shown after the file has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The number of characters that the finding is about; at least 1, and not beyond the end of the line.
    pub width: usize,
    /// The line, with control characters and tabs replaced by spaces, and what may be a password by asterisks: the line
    /// is shown in the journal, which others read.
    pub text: String,
}

impl Diagnostic {
    /// A finding about a file or directory as a whole.
    #[must_use]
    pub fn of_file(severity: Severity, path: PathBuf, message: String) -> Self {
        Self { severity, path, place: None, message }
    }

    /// The file, and where in it: `path:line:column`.
    #[must_use]
    pub fn location(&self) -> String {
        let path = self.path.display();
        match &self.place {
            Some(place) => format!("{path}:{}:{}", place.line, place.column),
            None => path.to_string(),
        }
    }
}

/// `path:line:column: error: message`, then the line and its caret. No newline at the end.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let Some(place) = &self.place else {
            return write!(f, "{path}: {}: {}", self.severity, self.message);
        };
        writeln!(f, "{path}:{}:{}: {}: {}", place.line, place.column, self.severity, self.message)?;
        let gutter = place.line.to_string().len();
        writeln!(f, " {:gutter$} |", "")?;
        writeln!(f, " {} | {}", place.line, place.text)?;
        write!(f, " {:gutter$} | {:indent$}{}", "", "", "^".repeat(place.width), indent = place.column - 1)
    }
}

/// The error to correct first. An error at a place comes before one about a file as a whole, which may follow from it.
#[must_use]
pub fn first_error(diagnostics: &[Diagnostic]) -> Option<&Diagnostic> {
    let errors = || diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
    errors().find(|error| error.place.is_some()).or_else(|| errors().next())
}

/// The findings in one file, with its text to find places in.
pub struct Report {
    path: PathBuf,
    text: String,
    /// The severity of the finding that a secret is not safe.
    unsafe_is: Severity,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

impl Report {
    /// A report on a file that was just read.
    #[must_use]
    pub fn new(path: PathBuf, text: String) -> Self {
        Self { path, text, unsafe_is: Severity::Error, diagnostics: RefCell::default() }
    }

    /// A report on a text that was in force, and goes on for the leases that exist under it. An unsafe secret is only a
    /// warning in it: no unit is stopped because somebody might have learnt a secret. The present file is judged in
    /// full.
    #[must_use]
    pub fn former(text: Text) -> Self {
        Self { unsafe_is: Severity::Warning, ..Self::new(text.path, text.text) }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reports a mistake at a place.
    pub fn error(&self, span: &Range<usize>, message: impl Into<String>) {
        self.push(Severity::Error, Some(span), message.into());
    }

    /// Reports a secret that other users or hosts could learn.
    pub fn unsafe_secret(&self, span: &Range<usize>, message: impl Into<String>) {
        self.push(self.unsafe_is, Some(span), message.into());
    }

    /// Reports what is probably not intended.
    pub fn warning(&self, span: &Range<usize>, message: impl Into<String>) {
        self.push(Severity::Warning, Some(span), message.into());
    }

    /// An error about the file as a whole.
    pub fn file_error(&self, message: impl Into<String>) {
        self.push(Severity::Error, None, message.into());
    }

    /// Whether there is an error among the findings.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.borrow().iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// The error to correct first, as [`first_error`] chooses it.
    #[must_use]
    pub fn first_error(&self) -> Option<Diagnostic> {
        first_error(&self.diagnostics()).cloned()
    }

    /// The file as it was read.
    #[must_use]
    pub fn source(&self) -> Text {
        Text { path: self.path.clone(), text: self.text.clone() }
    }

    /// `path:line:column` of a span, to name the place in another file's message.
    #[must_use]
    pub fn locate(&self, span: &Range<usize>) -> String {
        let place = place(&self.text, span);
        format!("{}:{}:{}", self.path.display(), place.line, place.column)
    }

    /// The findings in the order of their places; those about the whole file first.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut sorted = self.diagnostics.borrow().clone();
        sorted.sort_by_key(|diagnostic| diagnostic.place.as_ref().map(|place| (place.line, place.column)));
        sorted
    }

    fn push(&self, severity: Severity, span: Option<&Range<usize>>, message: String) {
        let place = span.map(|span| place(&self.text, span));
        self.diagnostics.borrow_mut().push(Diagnostic { severity, path: self.path.clone(), place, message });
    }
}

fn place(text: &str, span: &Range<usize>) -> Place {
    let start = floor_boundary(text, span.start);
    let end = floor_boundary(text, span.end).max(start);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
    let line = text[line_start..line_end].trim_end();
    Place {
        line: text[..line_start].matches('\n').count() + 1,
        column: text[line_start..start].chars().count() + 1,
        width: text[start..end.min(line_end)].trim_end().chars().count().max(1),
        text: mask_secrets(line)
            .chars()
            .map(|character| if character.is_control() { ' ' } else { character })
            .collect(),
    }
}

/// Replaces secrets by asterisks: `user:password@` in URLs, and what follows `password =`, be it a key, which does not
/// exist but operators may try it, or a part of the connection to PostgreSQL.
fn mask_secrets(line: &str) -> String {
    let mut masked: Vec<char> = line.chars().collect();
    let named = line.to_ascii_lowercase().match_indices("password").find_map(|(at, name)| {
        let after = &line[at + name.len()..];
        let secret =
            after.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')).strip_prefix('=')?;
        Some(masked.len() - secret.chars().count())
    });
    if let Some(start) = named {
        masked[start..].fill('*');
    }
    let ends: Vec<usize> = (0..masked.len()).filter(|index| masked[*index] == '@').collect();
    // The last `@` of a word is taken first, because a password may contain the character too.
    for end in ends.into_iter().rev() {
        let word =
            masked[..end].iter().rposition(|c| c.is_whitespace() || matches!(c, '"' | '\'')).map_or(0, |at| at + 1);
        let start =
            masked[word..end].windows(3).position(|three| three == [':', '/', '/']).map_or(word, |at| word + at + 3);
        if masked[start..end].contains(&':') {
            masked[start..end].fill('*');
        }
    }
    masked.into_iter().collect()
}

/// The last character boundary at or before `index`: a parser's span may point beyond the text's end.
fn floor_boundary(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_characters_and_stays_within_its_line() {
        let text = "a = 1\nnäme = \"µ\"\r\nlast";
        let at = text.find("\"µ\"").expect("it is there");
        let found = place(text, &(at..text.len()));
        assert_eq!(found, Place { line: 2, column: 8, width: 3, text: "näme = \"µ\"".to_owned() });
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = mask_secrets(r#"servers = ["nats://a:1", "nats://joe:se@cret@x", "joe:secret@y"]"#);
        assert_eq!(shown, r#"servers = ["nats://a:1", "nats://***********@x", "**********@y"]"#);
        assert_eq!(mask_secrets("password = \"a\""), "password =****");
        assert_eq!(mask_secrets("\"Password\"= 'a'"), "\"Password\"=****");
        assert_eq!(mask_secrets("connection = \"host=h1 password=a b=c\""), "connection = \"host=h1 password=******");
        assert_eq!(mask_secrets("password-file = \"/a\""), "password-file = \"/a\"");
        assert_eq!(mask_secrets("unit = \"db@main.service\""), "unit = \"db@main.service\"");
    }

    #[test]
    fn a_place_beyond_the_end_is_the_end() {
        let found = place("unit", &(10..20));
        assert_eq!((found.line, found.column, found.width), (1, 5, 1));
        assert_eq!(place("", &(0..0)).text, "");
    }
}
