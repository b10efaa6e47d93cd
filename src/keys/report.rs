//! What is wrong with a configuration, told so that an operator can correct it without a manual: the place, and a message that names
//! the remedy.

use std::{cell::RefCell, fmt, ops::Range, path::PathBuf};

/// The severity of the finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration works, but probably not as intended.
    Warning,
    /// The file is not used.
    Error,
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

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
}

impl Place {
    /// The place of what begins after so many bytes.
    fn at(text: &str, start: usize) -> Self {
        // A parser may point beyond the end.
        let before = String::from_utf8_lossy(&text.as_bytes()[..start.min(text.len())]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
        }
    }
}

impl Diagnostic {
    /// A finding about a file or directory as a whole.
    pub fn of_file(severity: Severity, path: PathBuf, message: String) -> Self {
        Self {
            severity,
            path,
            place: None,
            message,
        }
    }

    /// The file, and where in it: `path:line:column`.
    pub fn location(&self) -> String {
        let path = self.path.display();
        match self.place {
            Some(Place { line, column }) => format!("{path}:{line}:{column}"),
            None => path.to_string(),
        }
    }
}

/// `path:line:column: error: message`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{}: {severity}: {}", self.location(), self.message)
    }
}

/// The error to correct first. An error at a place comes before one about a file as a whole, which may follow from it.
pub fn first_error(diagnostics: &[Diagnostic]) -> Option<&Diagnostic> {
    diagnostics
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .min_by_key(|error| error.place.is_none())
}

/// The findings in one file, with its text to find places in.
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// Its text; empty, where it was not read.
    pub text: String,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

impl FileReport {
    /// A report on a file that could be read, or else says why not.
    pub fn new(path: PathBuf, text: Result<String, String>) -> Self {
        let why = text.as_ref().err().cloned();
        let report = Self {
            path,
            text: text.unwrap_or_default(),
            diagnostics: RefCell::default(),
        };
        if let Some(why) = why {
            report.file_error(why);
        }
        report
    }

    /// Reports a mistake at a place.
    pub fn error(&self, span: &Range<usize>, message: impl Into<String>) {
        self.push(Severity::Error, Some(span), message.into());
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
    pub fn has_errors(&self) -> bool {
        self.first_error().is_some()
    }

    /// The error to correct first, as [`first_error`] chooses it.
    pub fn first_error(&self) -> Option<Diagnostic> {
        first_error(&self.diagnostics()).cloned()
    }

    /// `path:line:column` of a span, to name the place in another file's message; the path alone where the text is not known.
    pub fn locate(&self, span: &Range<usize>) -> String {
        let span = Some(span).filter(|_| !self.text.is_empty());
        self.finding(Severity::Error, span, String::new())
            .location()
    }

    /// The findings in the order of their places; those about the whole file first.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut sorted = self.diagnostics.borrow().clone();
        sorted.sort_by_key(|found| found.place);
        sorted
    }

    fn push(&self, severity: Severity, span: Option<&Range<usize>>, message: String) {
        let found = self.finding(severity, span, message);
        self.diagnostics.borrow_mut().push(found);
    }

    fn finding(
        &self,
        severity: Severity,
        span: Option<&Range<usize>>,
        message: String,
    ) -> Diagnostic {
        Diagnostic {
            severity,
            path: self.path.clone(),
            place: span.map(|span| Place::at(&self.text, span.start)),
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_characters_and_is_not_after_the_end() {
        let text = "a = 1\nnäme = \"µ\"\r\nlast";
        let start = text.find("\"µ\"").expect("it is there");
        assert_eq!(Place::at(text, start), Place { line: 2, column: 8 });
        assert_eq!(Place::at("unit", 10), Place { line: 1, column: 5 });
    }
}
