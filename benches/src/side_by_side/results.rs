//! A run that is kept: as JSON lines that hold all that the tables do (`--save`), read back, and as the page that
//! `benches/RESULTS.md` is (`--markdown`).

use super::host::Host;
use super::report::{Row, Standing};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// The head of a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    /// Its name: `cache`.
    pub part: String,
    /// The command line.
    pub command: String,
    /// When and where.
    pub host: Host,
    /// The participants, and their settings.
    pub about: Vec<String>,
}

/// A row, and the title of the table that it is in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Titled {
    /// Above its table.
    pub title: String,
    /// Itself.
    pub row: Row,
}

/// A line of the file: first the head, then the rows as they are measured, so that what is there is good however it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The first.
    Head(Head),
    /// All others.
    Row(Titled),
}

impl Line {
    /// Writes it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }
}

/// The saved result of a part.
#[derive(Clone, Debug)]
pub struct Kept {
    /// How it began.
    pub head: Head,
    /// The rows.
    pub rows: Vec<Titled>,
    /// Whether it was measured to its end.
    pub whole: bool,
}

impl Kept {
    /// Reads what was saved. A part that did not get as far as its head is none.
    ///
    /// # Errors
    /// A line that is not one of these.
    pub fn read(text: &str, whole: bool) -> Result<Option<Self>, String> {
        let mut lines = text.lines().map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")));
        let head = match lines.next().transpose()? {
            None => return Ok(None),
            Some(Line::Head(head)) => head,
            Some(Line::Row(row)) => return Err(format!("{}: a row where the head was to be", row.row.name)),
        };
        let rows = lines.map(|line| match line? {
            Line::Row(row) => Ok(row),
            Line::Head(head) => Err(format!("{}: a second head", head.part)),
        });
        Ok(Some(Self { rows: rows.collect::<Result<_, String>>()?, head, whole }))
    }
}

/// The sections of a page that no part makes: those of other commands, and what people wrote. They outlive the page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Others {
    /// Behind the losses.
    early: String,
    /// Behind all parts.
    late: String,
}

const LOSSES: &str = "## Where we lose";
const MEASURED: &str = "## How this was measured";

impl Others {
    /// Finds them in a page.
    pub fn of(page: &str) -> Self {
        let (mut all, mut is_early, mut is_other, mut is_code) = (Self::default(), true, false, false);
        for line in page.lines() {
            is_code ^= line.starts_with("```");
            if !is_code && line.starts_with("## ") {
                is_early &= line != MEASURED;
                is_other = ![LOSSES, MEASURED].contains(&line) && !line.starts_with("## `side-by-side ");
            }
            if is_other {
                let place = if is_early { &mut all.early } else { &mut all.late };
                *place += line;
                place.push('\n');
            }
        }
        all
    }
}

/// Writes the page; `doubts` say why its figures are not to be believed, and `others` are from the page before.
///
/// # Errors
/// Those of the writer.
pub fn markdown(
    out: &mut impl Write,
    command: &str,
    host: &Host,
    doubts: &[String],
    parts: &[Kept],
    others: &Others,
) -> io::Result<()> {
    writeln!(out, "# Results\n")?;
    for part in parts {
        writeln!(out, "- {}", text(&in_a_line(part)))?;
    }
    writeln!(
        out,
        "\nTimes are ours / peer, and of rates peer / ours: below 1 is better. Even is the same in every digit that is shown."
    )?;
    for part in parts.iter().filter(|part| !part.whole) {
        writeln!(out, "\n**`{}` was not measured to its end.**", part.head.part)?;
    }
    let rows = || parts.iter().flat_map(|part| &part.rows);
    let lost: Vec<_> = rows().filter(|row| row.row.standing() == Some(Standing::Behind)).collect();
    let beside = rows().filter(|row| row.row.standing().is_some()).count();
    let overlap = rows().filter(|row| row.row.standing() == Some(Standing::Overlap)).count();
    writeln!(out, "\n{LOSSES}\n")?;
    writeln!(out, "In {} of {beside} rows that have a peer; in {overlap} others the rounds overlap.\n", lost.len())?;
    if !lost.is_empty() {
        table(out, lost.into_iter())?;
    }
    section(out, &others.early)?;
    writeln!(out, "\n{MEASURED}\n\n```sh\n{command}\n```\n")?;
    for line in host.lines().iter().chain(doubts) {
        writeln!(out, "- {}", text(line))?;
    }
    writeln!(
        out,
        "\nOurs and the peer took turns. Ratios are ours / peer, of the best rounds, and are left out where rounds of one lie \
         among those of the other (of 20 rounds and more, without a tenth at each end); medians are in brackets. Units: `ns`, \
         `B`, `MiB`, `share`, `calls` and counts are better the lower they are; `x`, `M/s`, `GB/s`, `items` and `part` the \
         higher."
    )?;
    for Kept { head, rows, .. } in parts {
        writeln!(out, "\n## `{}`\n", head.command)?;
        for line in &head.about {
            writeln!(out, "- {}", text(line))?;
        }
        let mut rest = rows.as_slice();
        while let Some(first) = rest.first() {
            let (now, later) = rest.split_at(rest.iter().take_while(|row| row.title == first.title).count());
            writeln!(out, "\n{}:\n", text(&first.title))?;
            table(out, now.iter())?;
            rest = later;
        }
    }
    section(out, &others.late)
}

/// Writes sections as they were.
fn section(out: &mut impl Write, text: &str) -> io::Result<()> {
    match text.trim_end() {
        "" => Ok(()),
        text => writeln!(out, "\n{text}"),
    }
}

/// The rows that the line of each part begins with: the part, the row and its meaning to users.
const HEADLINES: [(&str, &str, &str); 13] = [
    ("cache", "hit/stride/1000/1-thread", "a hit among 1,000 regions"),
    ("cache", "hit/irregular/100000/1-thread", "among 100,000 irregular ones"),
    ("cache", "churn/1000-of-2000", "a miss with its eviction"),
    ("sim", "sim/pindown/command", "CPU of a replay by `pindown`"),
    ("sim", "sim/gdsf/command", "by `gdsf`"),
    ("fabric", "shm/read/1KiB/p50", "a read of 1 KiB over shm"),
    ("fabric", "iwarp/crc/read/1KiB", "over iWARP with CRCs"),
    ("fabric", "iwarp/crc/write/1MiB", "a write of 1 MiB"),
    ("handshake", "shm/nic/1MiB/cold/p50", "1 MiB over shm, registered at both ends"),
    ("handshake", "shm/nic/4MiB/warm/p50", "4 MiB, registered before"),
    ("kv", "paper/full/1KiB/tcp/cpu", "CPU of a GET of 1 KiB over TCP"),
    ("kv", "paper/full/1KiB/iwarp/cpu", "over iWARP"),
    ("kv", "paper/full/1KiB/iwarp/p50", "its latency there"),
];

/// Returns how a part fares, in a line.
fn in_a_line(part: &Kept) -> String {
    let of = |standing| part.rows.iter().filter(|row| row.row.standing() == Some(standing)).count();
    let [ahead, even, behind] = [Standing::Ahead, Standing::Even, Standing::Behind].map(of);
    let overlap = of(Standing::Overlap);
    let peer = part.head.about.iter().find_map(|line| line.strip_prefix("peer: "));
    let peer = peer.map(|peer| format!(" (peer: {})", peer.split(':').next().unwrap_or(peer))).unwrap_or_default();
    let effect = |&(_, name, meaning): &(&str, &str, &str)| {
        let row = &part.rows.iter().find(|row| row.row.name == name)?.row;
        row.times().map(|times| format!("{meaning} {times:.2} ×"))
    };
    let effects: Vec<String> = HEADLINES.iter().filter(|(of, ..)| *of == part.head.part).filter_map(effect).collect();
    let effects = if effects.is_empty() { String::new() } else { format!(" {}.", effects.join(", ")) };
    let rows = |count: usize| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    format!(
        "**{}**{peer}:{effects} Ahead in {}, even in {even}, behind in {behind}; in {overlap} the rounds overlap.",
        part.head.part,
        rows(ahead)
    )
}

fn table<'a>(out: &mut impl Write, rows: impl Iterator<Item = &'a Titled>) -> io::Result<()> {
    writeln!(out, "| | ours | | peer | | | ratio | |\n| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |")?;
    for Titled { row, .. } in rows {
        let [name, ours, our_median, peer, peer_median, unit, ratio, note] = row.cells().map(|cell| text(&cell));
        writeln!(out, "| `{name}` | {ours} | {our_median} | {peer} | {peer_median} | {unit} | {ratio} | {note} |")?;
    }
    Ok(())
}

/// Escapes text for Markdown.
fn text(plain: &str) -> String {
    plain.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::super::figure::Figure;
    use super::super::report::Unit;
    use super::*;

    fn saved() -> String {
        let host = Host {
            date: "2026-01-31T12:00:00Z".into(),
            version: "0.1.0".into(),
            machine: "a CPU".into(),
            system: "Linux".into(),
            load: "0 0 0".into(),
        };
        let about = vec!["peer: <none>".into()];
        let head = Head { part: "cache".into(), command: "side-by-side cache".into(), host, about };
        let row = |title: &str, name: &str, ours: &[f64], peer: f64| {
            let row = Row::new(name, Figure::lowest(ours.into()), Some(Figure::once(peer)), Unit::Nanos);
            Line::Row(Titled { title: title.into(), row })
        };
        let lines = [
            Line::Head(head),
            row("Hits", "hit", &[1.0, 2.0], 4.0),
            row("Misses", "miss", &[9.0], 3.0),
            row("Misses", "none", &[f64::NAN], 3.0),
        ];
        let mut text = Vec::new();
        lines.iter().try_for_each(|line| line.write(&mut text)).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn saved_results_read_back_with_losses() {
        let kept = Kept::read(&saved(), true).unwrap().unwrap();
        let mut page = Vec::new();
        let parts = std::slice::from_ref(&kept);
        markdown(&mut page, "side-by-side", &kept.head.host, &[], parts, &Others::default()).unwrap();
        let page = String::from_utf8(page).unwrap();
        let (losses, rest) = page.split_once("## `side-by-side cache`").unwrap();
        assert!(losses.starts_with("# Results\n\n- **cache** (peer: &lt;none>): Ahead in 1 row, even in 0"), "{page}");
        assert!(losses.contains("2026-01-31") && losses.contains("In 1 of 2 rows"), "{page}");
        assert!(losses.contains("| `miss` | 9.0 |") && !losses.contains("`hit`"), "{page}");
        assert!(rest.contains("Hits:") && rest.matches("Misses:").count() == 1 && rest.contains("&lt;none>"), "{page}");
        assert!(rest.contains("| `hit` | 1.0 | (2.0) | 4.0 |  | ns | 0.25 |  |"), "{page}");
    }

    #[test]
    fn lines_begin_with_effects() {
        let mut kept = Kept::read(&saved(), true).unwrap().unwrap();
        let row = |name: &str, ours: f64, peer: f64, unit| Titled {
            title: "t".into(),
            row: Row::new(name, Figure::once(ours), Some(Figure::once(peer)), unit),
        };
        kept.rows.push(row("churn/1000-of-2000", 522.0, 160.0, Unit::Nanos));
        // That of another part.
        kept.rows.push(row("sim/gdsf/command", 6.0, 2.0, Unit::Millions));
        let line = in_a_line(&kept);
        assert!(
            line.starts_with("**cache** (peer: <none>): a miss with its eviction 3.26 ×. Ahead in 2 rows"),
            "{line}"
        );
        kept.head.part = "sim".into();
        // A rate: three times as much takes a third.
        assert!(in_a_line(&kept).contains(": by `gdsf` 0.33 ×. Ahead"), "{}", in_a_line(&kept));
    }

    #[test]
    fn sections_of_other_commands_outlive_the_page() {
        let kept = Kept::read(&saved(), true).unwrap().unwrap();
        let page = |others: &Others| {
            let mut page = Vec::new();
            markdown(&mut page, "side-by-side", &kept.head.host, &[], std::slice::from_ref(&kept), others).unwrap();
            String::from_utf8(page).unwrap()
        };
        let plain = page(&Others::default());
        assert_eq!(Others::of(&plain), Others::default());
        let early = "## Goals\n\n- missed\n";
        let late = "## `tracesim compare --held-out`\n\n```sh\n## no heading\n```\n\n## Builds\n\nslow\n";
        let with = plain.replace(MEASURED, &format!("{early}\n{MEASURED}")) + "\n" + late;
        let again = page(&Others::of(&with));
        assert_eq!(again, with);
        assert_eq!(page(&Others::of(&again)), with);
    }

    #[test]
    fn a_part_that_ended_early_is_said_to_have() {
        let first = saved().lines().next().unwrap().to_owned();
        let kept = Kept::read(&first, false).unwrap().unwrap();
        let mut page = Vec::new();
        let parts = std::slice::from_ref(&kept);
        markdown(&mut page, "side-by-side", &kept.head.host, &[], parts, &Others::default()).unwrap();
        assert!(String::from_utf8(page).unwrap().contains("`cache` was not measured to its end"));
    }

    #[test]
    fn what_is_no_run_is_refused() {
        assert!(Kept::read("", true).unwrap().is_none());
        let rows = saved().lines().skip(1).map(|line| format!("{line}\n")).collect::<String>();
        for bad in ["nonsense", &rows, &(saved() + &saved())] {
            assert!(Kept::read(bad, true).is_err(), "{bad}");
        }
    }
}
