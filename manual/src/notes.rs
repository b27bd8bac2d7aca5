//! The notes of a command behind its options, taken apart: examples, the exit status, and the rest.
//!
//! In a terminal that is one text, written to be read as it stands:
//!
//! ```text
//! Examples:
//!   tracesim info requests.csv     what is in it
//!
//! Reused are requests of which every page was asked for before.
//!
//! Exit status: 0, 1 if the work failed.
//! ```
//!
//! A line from the margin on is prose, which a page may break anew. Indented lines belong to the text before them.
//! Under `Examples:` they are commands, two spaces or more before their description; elsewhere they are a table,
//! which stays as it is.

/// The text, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    pub(crate) examples: Vec<Example>,
    pub(crate) paragraphs: Vec<Paragraph>,
    pub(crate) exit_status: String,
}

/// A command, and what it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Example {
    pub(crate) command: String,
    pub(crate) about: String,
}

/// Prose, and the lines that are set in below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paragraph {
    pub(crate) text: String,
    pub(crate) table: Vec<String>,
}

const EXAMPLES: &str = "Examples:";
const EXIT: &str = "Exit status: ";
/// Set in further than that, a line goes on with what the command before it does.
const FAR: usize = 10;

impl Notes {
    pub(crate) fn of(text: &str) -> Self {
        let mut notes = Self::default();
        let mut in_examples = false;
        let mut fresh = true;
        for line in text.lines() {
            let set_in = line.len() - line.trim_start().len();
            if line.trim().is_empty() {
                fresh = true;
            } else if line == EXAMPLES {
                in_examples = true;
            } else if set_in > 0 && in_examples {
                notes.example(line, set_in);
            } else if set_in > 0 {
                notes.table(line, fresh);
                fresh = false;
            } else {
                in_examples = false;
                notes.prose(line, fresh);
                fresh = false;
            }
        }
        notes.take_exit_status();
        notes
    }

    fn example(&mut self, line: &str, set_in: usize) {
        let line = line.trim();
        match self.examples.last_mut().filter(|_| set_in >= FAR) {
            Some(before) => append(&mut before.about, line),
            None => {
                let (command, about) = line.split_once("  ").unwrap_or((line, ""));
                self.examples.push(Example { command: command.into(), about: about.trim().into() });
            }
        }
    }

    fn table(&mut self, line: &str, fresh: bool) {
        if self.paragraphs.is_empty() {
            self.paragraphs.push(Paragraph::default());
        }
        let Some(paragraph) = self.paragraphs.last_mut() else { return };
        if fresh && !paragraph.table.is_empty() {
            paragraph.table.push(String::new());
        }
        paragraph.table.push(line.into());
    }

    fn prose(&mut self, line: &str, fresh: bool) {
        match self.paragraphs.last_mut().filter(|paragraph| !fresh && paragraph.table.is_empty()) {
            Some(paragraph) => append(&mut paragraph.text, line),
            None => self.paragraphs.push(Paragraph { text: line.into(), table: Vec::new() }),
        }
    }

    /// It may stand at the end of a paragraph.
    fn take_exit_status(&mut self) {
        for paragraph in &mut self.paragraphs {
            if let Some((before, status)) = paragraph.text.split_once(EXIT) {
                self.exit_status = status.into();
                paragraph.text = before.trim_end().into();
            }
        }
        self.paragraphs.retain(|paragraph| !paragraph.text.is_empty() || !paragraph.table.is_empty());
    }
}

fn append(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_split_into_examples_prose_and_status() {
        let notes = Notes::of(
            "Examples:\n  run this   what it does\n             and more of that\n\n  run that\n\nSome prose\nthat goes on. Exit status: 0,\n\
             or 1.\n\nA table:\n  a   b\n\n  c   d\nAnd prose.",
        );
        let example = |command: &str, about: &str| Example { command: command.into(), about: about.into() };
        assert_eq!(notes.examples, [example("run this", "what it does and more of that"), example("run that", "")]);
        assert_eq!(notes.exit_status, "0, or 1.");
        let paragraph = |text: &str, table: &[&str]| Paragraph {
            text: text.into(),
            table: table.iter().copied().map(str::to_owned).collect(),
        };
        let wanted = [
            paragraph("Some prose that goes on.", &[]),
            paragraph("A table:", &["  a   b", "", "  c   d"]),
            paragraph("And prose.", &[]),
        ];
        assert_eq!(notes.paragraphs, wanted);
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(Notes::of(""), Notes::default());
    }
}
