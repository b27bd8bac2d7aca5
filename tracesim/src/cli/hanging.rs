//! Names with what they mean, in help: lines that fit a terminal, the text in a column of its own.

/// clap breaks longer lines itself, without regard to columns.
pub(super) const WIDTH: usize = 98;

/// Returns the name, indented, and the text in a column that begins there. It is broken at blanks and after commas.
pub(super) fn hanging(name: &str, column: usize, text: &str) -> String {
    let mut lines = format!("  {name:<width$}", width = column.saturating_sub(2));
    let mut at = lines.chars().count();
    for part in text.split_inclusive([' ', ',']) {
        if at + part.trim_end().chars().count() > WIDTH && at > column {
            lines.truncate(lines.trim_end().len());
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', column));
            at = column;
        }
        lines += part;
        at += part.chars().count();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_in_its_column() {
        assert_eq!(hanging("a", 6, "short"), "  a   short");
        let words = "twenty letters long, ".repeat(10);
        let lines = hanging("a", 6, words.trim_end());
        assert!(lines.lines().count() > 2 && lines.lines().all(|line| line.len() <= WIDTH), "{lines}");
        assert!(lines.lines().skip(1).all(|line| line.starts_with("      ") && !line[6..].starts_with(' ')), "{lines}");
        assert_eq!(lines.split_whitespace().skip(1).collect::<Vec<_>>(), words.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn no_line_of_help_is_broken_by_clap() {
        let command = crate::cli::command();
        for one in std::iter::once(&command).chain(command.get_subcommands()) {
            for help in [one.get_after_help(), one.get_after_long_help()].into_iter().flatten() {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= WIDTH, "{}: {line}", one.get_name());
                }
            }
        }
    }
}
