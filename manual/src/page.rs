//! A manual page for a command and for each of its own commands. Synopsis and options are those of `clap_mangen`. The
//! text behind them (`after_help`) becomes sections of a manual page, where `clap_mangen` would run examples and
//! tables together.

use crate::notes::{Example, Notes};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;

/// Returns the pages: file names and texts.
///
/// # Errors
/// None: it is written to memory.
pub(crate) fn all(command: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, None, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, parent: Option<&Command>, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    pages.push((format!("{}.1", display(command)), page(command, parent)?));
    visible(command).try_for_each(|inner| add(inner, Some(command), pages))
}

/// `tracesim-replay`.
fn display(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

fn page(command: &Command, parent: Option<&Command>) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    // By hand: without a date, which would be another for each day that it is made, `render_title` leaves out a field.
    let title = display(command).to_uppercase();
    let mut text = format!(".TH {title} 1 \"\" \"mrrc {}\" \"mrrc\"\n", env!("CARGO_PKG_VERSION")).into_bytes();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    said_behind(&Notes::of(&after.map_or_else(String::new, ToString::to_string))).to_writer(&mut text)?;
    see_also(command, parent).to_writer(&mut text)?;
    Ok(text)
}

fn said_behind(notes: &Notes) -> Roff {
    let mut roff = Roff::new();
    if !notes.paragraphs.is_empty() {
        roff.control("SH", ["NOTES"]);
    }
    for (nth, paragraph) in notes.paragraphs.iter().enumerate() {
        if nth > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(paragraph.text.as_str())]);
        if !paragraph.table.is_empty() {
            verbatim(&mut roff, &paragraph.table);
        }
    }
    if !notes.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for Example { command, about } in &notes.examples {
        if about.is_empty() {
            roff.control("PP", []);
            roff.text([bold(command.as_str())]);
        } else {
            roff.control("TP", []);
            roff.text([bold(command.as_str())]);
            roff.text([roman(about.as_str())]);
        }
    }
    if !notes.exit_status.is_empty() {
        roff.control("SH", ["EXIT STATUS"]);
        roff.text([roman(notes.exit_status.as_str())]);
    }
    roff
}

/// Lines as they are.
fn verbatim(roff: &mut Roff, lines: &[String]) {
    roff.control("PP", []);
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line.as_str())]);
    }
    roff.control("fi", []);
}

fn see_also(command: &Command, parent: Option<&Command>) -> Roff {
    let mut names: Vec<_> = parent.into_iter().map(|parent| format!("{}(1)", display(parent))).collect();
    names.extend(visible(command).map(|inner| format!("{}(1)", display(inner))));
    names.push("mrrc(7)".into());
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(names.join(", "))]);
    roff
}
