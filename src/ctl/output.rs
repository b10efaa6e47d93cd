//! What goes to standard output and standard error: text without control characters, tables, colours, a pager, and progress.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::command_line::exit;
use crate::types::{printable, printable_lines};

/// The error, and the exit status. With an empty message nothing is printed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: u8,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn unavailable(message: String) -> Self {
        Self::new(exit::UNAVAILABLE, message)
    }

    /// Prints the message to standard error.
    pub(super) fn tell(&self) {
        if !self.message.is_empty() {
            // A refusal may name each of a thousand services; what comes first is what to do.
            tell(&format!("putexctl: {}\n", bounded(&self.message)));
        }
    }
}

/// The most characters of an error.
const MESSAGE_LIMIT: usize = 1200;

/// The message, or as much of its beginning as an error may have, up to the end of a part of the sentence.
fn bounded(message: &str) -> String {
    let Some((limit, _)) = message.char_indices().nth(MESSAGE_LIMIT) else { return message.to_owned() };
    let end = message[..limit].rfind(['\n', ';', ',']).unwrap_or(limit);
    let left = message[end..].chars().count();
    format!("{} … and {left} characters more: \"putexctl status\" shows each service", &message[..end])
}

/// Prints to standard output. The reader may have enough before the end, as in `putexctl status | head`.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    // A terminal obeys control characters, and text of another host or a server may contain any.
    write_out(&printable_lines(text))
}

/// Prints to standard error. Nobody may read it, which is no reason to end.
pub(super) fn tell(text: &str) {
    let _ = io::stderr().lock().write_all(printable_lines(text).as_bytes());
}

/// Prints a value as JSON, in several lines.
pub(super) fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::new(exit::OS, format!("failed to print: {error}")))?;
    print(&format!("{text}\n"))
}

/// Prints a value as one line of JSON.
pub(super) fn print_json_line<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string(value);
    let text = text.map_err(|error| Failure::new(exit::OS, format!("failed to print: {error}")))?;
    print(&format!("{text}\n"))
}

/// Writes a text over the one before, from the top of the terminal on. `text` comes from a [`Screen`], and is cut where the terminal
/// ends.
pub(super) fn redraw(text: &str, height: Option<usize>) -> Result<(), Failure> {
    let lines: Vec<&str> = text.lines().take(height.map_or(usize::MAX, |height| height.saturating_sub(1))).collect();
    // Each line is cleared behind its end, and so is all below the last one, so that nothing flickers.
    write_out(&format!("\u{1b}[H{}\u{1b}[K\n\u{1b}[J", lines.join("\u{1b}[K\n")))
}

fn write_out(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::new(exit::CLOSED_PIPE, "")),
        Err(error) => Err(Failure::new(exit::OS, format!("failed to print: {error}"))),
    }
}

/// How a piece of text is shown on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Style {
    #[default]
    Plain,
    /// A heading.
    Bold,
    /// What is well.
    Good,
    /// What somebody has to look at.
    Bad,
    /// What somebody has asked for, or what is under way.
    Notable,
    /// What is of less importance.
    Faint,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Notable => "33",
            Self::Faint => "2",
        }
    }
}

/// One cell of a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with the text, or `-` in the place of an empty one.
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { text: if text.is_empty() { "-".to_owned() } else { printable(&text).into_owned() }, style: Style::Plain }
    }

    pub(super) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { style, ..Self::new(text) }
    }

    /// What it shows.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// What the screen is shown on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Surface {
    /// Whether colours may be used.
    pub(super) colours: bool,
    /// The columns, where lines are to be broken; `None` where nobody knows.
    pub(super) width: Option<usize>,
    /// The rows of the terminal; `None` if it is none.
    pub(super) height: Option<usize>,
}

/// The columns of a terminal that does not tell how many it has.
const USUAL_WIDTH: usize = 80;

impl Surface {
    /// A file or a pipe.
    #[cfg(test)]
    pub(super) const PIPE: Self = Self { colours: false, width: None, height: None };

    /// What standard output is.
    pub(super) fn of_output() -> Self {
        let output = io::stdout();
        if !output.is_terminal() {
            return Self { colours: false, width: None, height: None };
        }
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let size = rustix::termios::tcgetwinsize(&output).ok();
        let known = |count: u16| (count > 0).then_some(usize::from(count));
        Self {
            colours: !is_dumb && !set("NO_COLOR"),
            width: Some(size.and_then(|size| known(size.ws_col)).unwrap_or(USUAL_WIDTH)),
            height: size.and_then(|size| known(size.ws_row)),
        }
    }
}

/// A text that is being composed. Everything that is put into it is made printable, so that colours are the only sequences that
/// a terminal obeys.
#[derive(Debug)]
pub(super) struct Screen {
    surface: Surface,
    text: String,
}

impl Screen {
    pub(super) fn new(surface: Surface) -> Self {
        Self { surface, text: String::new() }
    }

    /// A piece of the present line, or of several lines.
    pub(super) fn put(&mut self, text: &str, style: Style) -> &mut Self {
        let text = printable_lines(text);
        if self.surface.colours && style != Style::Plain && !text.is_empty() {
            self.text.push_str("\u{1b}[");
            self.text.push_str(style.code());
            self.text.push('m');
            self.text.push_str(&text);
            self.text.push_str("\u{1b}[0m");
        } else {
            self.text.push_str(&text);
        }
        self
    }

    /// A line.
    pub(super) fn line(&mut self, text: &str) -> &mut Self {
        self.put(text, Style::Plain).end()
    }

    pub(super) fn end(&mut self) -> &mut Self {
        self.text.push('\n');
        self
    }

    /// A sentence, broken at words where it is longer than a line of the terminal, with `indent` before the first line and as
    /// many spaces before the others.
    pub(super) fn sentence(&mut self, indent: &str, text: &str, style: Style) -> &mut Self {
        let hanging = " ".repeat(indent.chars().count());
        for (number, line) in self.broken(indent.chars().count(), &printable(text)).iter().enumerate() {
            self.put(if number == 0 { indent } else { &hanging }, Style::Plain);
            self.put(line, style).end();
        }
        self
    }

    fn broken(&self, indent: usize, text: &str) -> Vec<String> {
        let Some(width) = self.surface.width.map(|width| width.saturating_sub(indent).max(20)) else {
            return vec![text.to_owned()];
        };
        let mut lines: Vec<String> = Vec::new();
        for word in text.split(' ') {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                Some(_) | None => lines.push(word.to_owned()),
            }
        }
        lines
    }

    /// A table with columns as wide as their widest cell. The last columns are left out as long as the lines do not fit the
    /// terminal, `spare` of them at most.
    pub(super) fn table(&mut self, header: &[&str], rows: &[Vec<Cell>], spare: usize) -> &mut Self {
        self.table_with(header, rows, spare, |_, _| {})
    }

    /// The same, with more lines behind each row.
    pub(super) fn table_with(
        &mut self,
        header: &[&str],
        rows: &[Vec<Cell>],
        spare: usize,
        mut below: impl FnMut(&mut Self, usize),
    ) -> &mut Self {
        let widths: Vec<usize> = (0..header.len())
            .map(|column| {
                let cells = rows.iter().filter_map(|row| row.get(column)).map(Cell::width);
                cells.chain([header[column].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let mut shown = header.len();
        if let Some(width) = self.surface.width {
            while shown > header.len().saturating_sub(spare)
                && widths[..shown].iter().sum::<usize>() + 2 * (shown - 1) > width
            {
                shown -= 1;
            }
        }
        let header: Vec<Cell> = header.iter().map(|name| Cell::styled(*name, Style::Bold)).collect();
        self.row(&header[..shown], &widths);
        for (number, row) in rows.iter().enumerate() {
            self.row(&row[..shown.min(row.len())], &widths);
            below(self, number);
        }
        self
    }

    fn row(&mut self, cells: &[Cell], widths: &[usize]) {
        let mut left = 0;
        for (number, (cell, width)) in cells.iter().zip(widths).enumerate() {
            if number + 1 < cells.len() {
                self.put(&cell.text, cell.style);
                self.text.push_str(&" ".repeat(width - cell.width() + 2));
                left += width + 2;
                continue;
            }
            // The last cell may be a sentence.
            for (number, line) in self.broken(left, &cell.text).iter().enumerate() {
                if number > 0 {
                    self.end().put(&" ".repeat(left), Style::Plain);
                }
                self.put(line, cell.style);
            }
        }
        self.end();
    }

    /// The text as it would be printed.
    pub(super) fn as_text(&self) -> &str {
        &self.text
    }

    /// Prints it, through a pager where it is longer than the terminal and a pager is wanted.
    pub(super) fn show(&self, may_page: bool) -> Result<(), Failure> {
        let is_long = self.surface.height.is_some_and(|height| self.text.lines().count() >= height);
        if may_page && is_long && page(&self.text) {
            return Ok(());
        }
        write_out(&self.text)
    }
}

/// Gives the text to the pager; `false` if there is none.
fn page(text: &str) -> bool {
    let named = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
    let named = named.trim();
    if named.is_empty() || named == "cat" {
        return false;
    }
    if !is_there(named) {
        return false;
    }
    let mut command = Command::new("sh");
    command.arg("-c").arg(named).stdin(Stdio::piped());
    // What less is to do unless somebody has said otherwise: as systemctl(1) has it. In its secure mode it starts no program.
    for (name, value) in [("LESS", "FRSX"), ("LESSSECURE", "1"), ("LESSCHARSET", "utf-8")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let Ok(mut pager) = command.spawn() else { return false };
    if let Some(mut input) = pager.stdin.take() {
        // Whoever has read enough ends the pager before the end of the text.
        let _ = input.write_all(text.as_bytes());
    }
    // A shell that does not find the program says so with 127, and has read nothing.
    pager.wait().is_ok_and(|status| status.code() != Some(127))
}

/// Whether the program of a command is there, as far as that can be told from its first word: the shell would complain of one that is
/// not.
fn is_there(command: &str) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    if program.contains(|character: char| !character.is_ascii_alphanumeric() && !"/._+-".contains(character)) {
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A name with a slash is looked for as it is.
    program.contains('/') && Path::new(program).exists()
        || !program.contains('/') && std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// What a command that takes a while tells meanwhile on standard error: one line that is written anew on a terminal that tells its
/// width, and a line for each change elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    redraws: bool,
    last: String,
}

/// The columns of the terminal that standard error is; `None` if it is none, or does not tell, as the one that apt gives to dpkg where
/// its own output is none.
fn width_of_errors() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Whether two lines are the same but for their numbers, such as a time that grows.
fn is_alike(one: &str, other: &str) -> bool {
    let plain = |text: &str| text.replace(|each: char| each.is_ascii_digit() || each == '.', "");
    one.is_empty() == other.is_empty() && plain(one) == plain(other)
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        Self { redraws: !is_dumb && width_of_errors().is_some(), last: String::new() }
    }

    /// `text`: what is the case. `counting`: what changes all the time, such as how long it lasts; shown on a terminal alone.
    pub(super) fn show(&mut self, text: &str, counting: &str) {
        let (text, counting) = (printable(text), printable(counting));
        let mut error = io::stderr().lock();
        // Nobody may read it, which is no reason to end.
        let _ = if self.redraws {
            // The line is cut where the terminal ends, because a line that wraps cannot be written anew.
            let width = width_of_errors().unwrap_or(USUAL_WIDTH).max(20);
            let line: String = format!("{text}{counting}").chars().take(width - 1).collect();
            write!(error, "\r\u{1b}[K{line}").and_then(|()| error.flush())
        } else if !is_alike(&text, &self.last) {
            writeln!(error, "{text}")
        } else {
            Ok(())
        };
        self.last = text.into_owned();
    }

    /// Takes the line away, so that something else can be printed.
    pub(super) fn clear(&self) {
        if self.redraws && !self.last.is_empty() {
            let mut error = io::stderr().lock();
            let _ = write!(error, "\r\u{1b}[K").and_then(|()| error.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(width: Option<usize>, colours: bool) -> Screen {
        Screen::new(Surface { colours, width, height: None })
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_the_last_go_where_there_is_no_room() {
        let rows = [vec![Cell::new("db"), Cell::new("running"), Cell::new("database.service")], vec![Cell::new("")]];
        let mut wide = on(Some(80), false);
        wide.table(&["SERVICE", "STATE", "UNIT"], &rows, 1);
        assert_eq!(wide.as_text(), "SERVICE  STATE    UNIT\ndb       running  database.service\n-\n");
        let mut narrow = on(Some(20), false);
        narrow.table(&["SERVICE", "STATE", "UNIT"], &rows, 1);
        assert_eq!(narrow.as_text(), "SERVICE  STATE\ndb       running\n-\n");
        let rows = [vec![Cell::new("db"), Cell::new("one two three four five six")]];
        let mut long = on(Some(32), false);
        long.table(&["SERVICE", "WHY"], &rows, 0);
        assert_eq!(long.as_text(), "SERVICE  WHY\ndb       one two three four five\n         six\n");
    }

    #[test]
    fn a_long_refusal_is_cut_behind_a_part_of_it() {
        assert_eq!(bounded("short"), "short");
        let long = "app-000 has no other host; ".repeat(400);
        let shown = bounded(&long);
        assert!(shown.chars().count() < MESSAGE_LIMIT + 100, "{shown}");
        assert!(shown.starts_with("app-000 has no other host; ") && shown.contains("no other host … and "), "{shown}");
    }

    #[test]
    fn a_line_of_progress_with_another_time_is_not_told_again() {
        let line = |seconds: &str| format!("db: h1 has the lock and starts it in {seconds}");
        assert!(is_alike(&line("4.0s"), &line("3.2s")) && is_alike(&line("12s"), &line("9.8s")));
        assert!(!is_alike(&line("4.0s"), "db: h1 runs it") && !is_alike(&line("4.0s"), ""));
    }

    #[test]
    fn a_pager_that_is_not_there_is_not_tried() {
        assert!(is_there("sh") && is_there("sh -c true") && is_there("/bin/sh") && is_there("LESS=R less"));
        assert!(!is_there("no-such-pager -R") && !is_there("/bin/no-such-pager"));
    }

    #[test]
    fn a_sentence_is_broken_at_words_and_hangs() {
        let mut screen = on(Some(24), false);
        screen.sentence("  - ", "one two three four five six", Style::Plain);
        assert_eq!(screen.as_text(), "  - one two three four\n    five six\n");
    }

    #[test]
    fn no_text_becomes_a_sequence_that_a_terminal_obeys() {
        let hostile = "a\u{1b}[31mb\u{9b}c\u{202e}";
        let mut screen = on(None, false);
        screen.line(hostile).sentence("", hostile, Style::Bad).table(&[hostile], &[vec![Cell::new(hostile)]], 0);
        assert!(!screen.as_text().contains('\u{1b}') && !screen.as_text().contains('\u{9b}'), "{}", screen.as_text());
        let mut coloured = on(None, true);
        coloured.put("bad", Style::Bad).put("plain", Style::Plain);
        assert_eq!(coloured.as_text(), "\u{1b}[1;31mbad\u{1b}[0mplain");
    }
}
