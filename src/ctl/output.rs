//! What goes to standard output and standard error: text without control characters, tables, colours, and progress.

use std::{
    borrow::Cow,
    io::{self, Write as _},
    iter,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use textwrap::{Options, WordSplitter, core::display_width};

use crate::{
    command_line::exit,
    types::{printable, printable_lines},
};

/// The most characters of an error. A refusal may name each of a thousand services; what comes first is what to do.
const MESSAGE_LIMIT: usize = 1200;

/// The error, and the exit status. With an empty message nothing is printed.
pub struct Failure {
    pub status: u8,
    pub message: String,
}

impl Failure {
    pub fn new(status: u8, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// Ends with this status, which says all. 0 is no failure.
    pub fn end(status: u8) -> Result<(), Self> {
        if status == 0 {
            return Ok(());
        }
        Err(Self::new(status, ""))
    }

    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(exit::REFUSED, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(exit::UNAVAILABLE, message)
    }

    /// Prints the message to standard error.
    pub fn tell(&self) {
        if !self.message.is_empty() {
            let message: String = self.message.chars().take(MESSAGE_LIMIT).collect();
            tell(&format!("putexctl: {message}\n"));
        }
    }
}

/// Prints to standard output. The reader may have enough before the end, as in `putexctl status | head`.
pub fn print(text: &str) -> Result<(), Failure> {
    // A terminal obeys control characters, and text of another host or a server may contain any.
    write_out(&printable_lines(text))
}

/// Prints to standard error. Nobody may read it, which is no reason to end.
pub fn tell(text: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(printable_lines(text).as_bytes());
}

/// Shows a line on the terminal in the place of the one before, and nothing where standard error is none. An empty one takes that away.
pub fn progress(line: &str) {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    // A line that wraps cannot be written anew.
    if let Some(room) = columns.checked_sub(1) {
        let line: String = printable(line).chars().take(room).collect();
        let _ = write!(io::stderr(), "\r{line:room$}\r{line}");
    }
}

/// Prints a value as one line of JSON.
pub fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let json =
        serde_json::to_string(value).map_err(|error| Failure::new(exit::OS, error.to_string()))?;
    print(&(json + "\n"))
}

/// The rows of standard output; `None` if it is no terminal.
pub fn rows() -> Option<usize> {
    let rows = tcgetwinsize(io::stdout()).ok()?.ws_row;
    Some(rows.into()).filter(|rows| *rows > 0)
}

/// Writes a text over the one before, from the top of the terminal on, which has `rows` rows. `text` comes from a [`Screen`].
pub fn redraw(text: &str, rows: usize) -> Result<(), Failure> {
    let lines: Vec<&str> = text.lines().take(rows.saturating_sub(1)).collect();
    // Each line is cleared behind its end, and so is all below the last one, so that nothing flickers.
    let lines = lines.join("\u{1b}[K\n");
    write_out(&format!("\u{1b}[H{lines}\u{1b}[K\n\u{1b}[J"))
}

fn write_out(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_bytes());
    written.and_then(|()| output.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::new(exit::CLOSED_PIPE, "");
        }
        Failure::new(exit::OS, format!("failed to print: {error}"))
    })
}

/// How a piece of text is shown on a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
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
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Notable => "33",
        }
    }
}

/// One cell of a table.
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell with the text, or `-` in the place of an empty one.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        let text = match text.into() {
            text if text.is_empty() => "-".to_owned(),
            text => printable(&text).into_owned(),
        };
        Self { text, style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::Plain)
    }
}

/// The columns of a terminal that does not tell how many it has.
const USUAL_WIDTH: usize = 80;
/// No column is cut to less than this.
const NARROWEST: usize = 12;

/// The columns of standard output, where lines are to be broken; `None` if it is no terminal.
pub fn width() -> Option<usize> {
    match tcgetwinsize(io::stdout()).ok()?.ws_col {
        0 => Some(USUAL_WIDTH),
        columns => Some(columns.into()),
    }
}

/// A text that is being composed. Everything that is put into it is made printable, so that colours are the only sequences that
/// a terminal obeys.
pub struct Screen {
    width: usize,
    text: String,
}

impl Screen {
    /// `width`: where lines are to be broken, if they are.
    pub fn new(width: Option<usize>) -> Self {
        Self {
            width: width.unwrap_or(usize::MAX / 2),
            text: String::new(),
        }
    }

    /// A piece of the present line, or of several lines.
    pub fn put(&mut self, text: &str, style: Style) -> &mut Self {
        let text = printable_lines(text);
        match style.code() {
            "" => self.text += &text,
            code => self.text.extend(["\u{1b}[", code, "m", &text, "\u{1b}[0m"]),
        }
        self
    }

    /// A line.
    pub fn line(&mut self, text: &str) -> &mut Self {
        self.put(text, Style::Plain).end()
    }

    pub fn end(&mut self) -> &mut Self {
        self.text.push('\n');
        self
    }

    /// A sentence, broken at words where it is longer than a line of the terminal, with `indent` before the first line and as
    /// many spaces before the others.
    pub fn sentence(&mut self, indent: &str, text: &str, style: Style) -> &mut Self {
        let left = display_width(indent);
        let width = self.width.saturating_sub(left).max(20);
        let options = Options::new(width).break_words(false);
        let options = options.word_splitter(WordSplitter::NoHyphenation);
        let mut before = indent.to_owned();
        for line in textwrap::wrap(&printable(text), options) {
            self.put(&before, style).put(&line, style).end();
            before = " ".repeat(left);
        }
        self
    }

    /// A table with columns as wide as their widest cell. Where its lines do not fit the terminal, it is without the last `spare`
    /// columns, and what is too long in the last three of the others is cut: a row is a line.
    pub fn table<const N: usize>(
        &mut self,
        spare: usize,
        header: [&str; N],
        rows: impl IntoIterator<Item = [Cell; N]>,
    ) -> &mut Self {
        let header = header.map(|name| Cell::styled(name, Style::Bold));
        let all: Vec<[Cell; N]> = iter::once(header).chain(rows).collect();
        let width = |column: usize| all.iter().map(|row| display_width(&row[column].text)).max();
        let mut widths: Vec<usize> = (0..N).filter_map(width).collect();
        let room = self.width + 2;
        let fits = |widths: &[usize]| widths.iter().map(|width| width + 2).sum::<usize>() <= room;
        if !fits(&widths) {
            widths.truncate(N - spare);
        }
        while !fits(&widths)
            && let Some(widest) = widths.iter_mut().rev().take(3).max()
            && *widest > NARROWEST
        {
            *widest -= 1;
        }
        for row in &all {
            let mut behind = 0;
            for (cell, width) in row.iter().zip(&widths) {
                let text = cut(&cell.text, *width);
                self.text += &" ".repeat(behind);
                self.put(&text, cell.style);
                behind = width + 2 - display_width(&text);
            }
            self.end();
        }
        self
    }

    /// The text as it is printed: without colours where standard output has none.
    pub fn text(&self) -> String {
        match AutoStream::choice(&io::stdout()) {
            ColorChoice::Never => strip_str(&self.text).to_string(),
            ColorChoice::Auto | ColorChoice::Always | ColorChoice::AlwaysAnsi => self.text.clone(),
        }
    }

    pub fn show(&self) -> Result<(), Failure> {
        write_out(&self.text())
    }
}

/// The text in at most this many columns. An ellipsis at the end tells that there is more.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if display_width(text) <= width {
        return text.into();
    }
    let mut shown = String::new();
    for character in text.chars() {
        if display_width(&shown) + display_width(character.encode_utf8(&mut [0; 4])) >= width {
            break;
        }
        shown.push(character);
    }
    (shown + "…").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["db", "running", "database.service"], ["", "", ""]];
        let mut wide = Screen::new(Some(80));
        wide.table(
            0,
            ["SERVICE", "STATE", "UNIT"],
            rows.map(|row| row.map(Cell::from)),
        );
        assert_eq!(
            wide.text(),
            "SERVICE  STATE    UNIT\ndb       running  database.service\n-        -        -\n"
        );
        let rows = [["db", "one two three four five six"].map(Cell::from)];
        let mut long = Screen::new(Some(32));
        long.table(0, ["SERVICE", "WHY"], rows);
        assert_eq!(
            long.text(),
            "SERVICE  WHY\ndb       one two three four fiv…\n"
        );
    }

    #[test]
    fn a_cell_is_cut_where_nothing_can_be_left_out_and_wide_characters_count_twice() {
        let rows = [["数据库", "one two three four five", "x"].map(Cell::from)];
        let mut narrow = Screen::new(Some(26));
        narrow.table(0, ["NAME", "WHY", "END"], rows);
        assert_eq!(
            narrow.text(),
            "NAME    WHY            END\n数据库  one two thre…  x\n"
        );
    }

    #[test]
    fn a_sentence_is_broken_at_words_and_hangs() {
        let mut screen = Screen::new(Some(24));
        screen.sentence("  - ", "one two three four five six", Style::Plain);
        assert_eq!(screen.text(), "  - one two three four\n    five six\n");
    }

    #[test]
    fn no_text_becomes_a_sequence_that_a_terminal_obeys() {
        let hostile = "a\u{1b}[31mb\u{9b}c\u{202e}";
        let mut screen = Screen::new(None);
        screen
            .line(hostile)
            .sentence("", hostile, Style::Bad)
            .table(0, [hostile], [[hostile.into()]]);
        assert!(
            !screen.text.contains("\u{1b}[31m") && !screen.text.contains('\u{9b}'),
            "{}",
            screen.text
        );
        let mut coloured = Screen::new(None);
        coloured.put("bad", Style::Bad).put("plain", Style::Plain);
        assert_eq!(coloured.text, "\u{1b}[1;31mbad\u{1b}[0mplain");
    }
}
