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
        // In one go: a program that is killed leaves half a line in few cases.
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)
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
    /// Reads what was saved. A part that did not get as far as its head is none. Half a last line is left out, and the part
    /// then has no end.
    ///
    /// # Errors
    /// A line that is not one of these.
    pub fn read(text: &str, whole: bool) -> Result<Option<Self>, String> {
        let (text, whole) = match text.rsplit_once('\n') {
            Some((lines, half)) if !half.is_empty() => (lines, false),
            _ => (text, whole),
        };
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

    /// Returns its rows that are ahead, even, behind and overlapping.
    fn counts(&self) -> [usize; 4] {
        [Standing::Ahead, Standing::Even, Standing::Behind, Standing::Overlap]
            .map(|standing| self.rows.iter().filter(|row| row.row.standing() == Some(standing)).count())
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

/// All that a page has. What a run does not measure stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// The sections of no part.
    pub others: Others,
    parts: Vec<Old>,
    /// Above the losses, behind their count.
    remarks: String,
    /// Losses that are in no part's tables.
    losses: Vec<String>,
    /// How the page was measured, with its heading.
    measured: String,
}

/// A part of a page.
#[derive(Clone, Debug, Default)]
struct Old {
    name: String,
    /// How it fares.
    line: String,
    /// That its last run did not end well, if so.
    word: String,
    /// With its heading.
    section: String,
    losses: Vec<String>,
}

impl Old {
    /// Returns its rows that are ahead, even, behind and overlapping, as its line has them.
    fn counts(&self) -> [usize; 4] {
        let counts = self.line.rsplit_once("Ahead in ").map_or("", |(_, counts)| counts);
        let mut numbers = counts.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
        [(); 4].map(|()| numbers.next().unwrap_or(0))
    }

    /// Returns the paragraphs that people wrote: no list, table, code or title.
    fn notes(&self) -> impl Iterator<Item = &str> {
        let of_tables =
            |text: &&str| ["## ", "- ", "|", "```"].iter().any(|begin| text.starts_with(begin)) || text.ends_with(':');
        self.section.split("\n\n").map(str::trim).filter(move |text| !text.is_empty() && !of_tables(text))
    }
}

const LOSSES: &str = "## Where we lose";
const MEASURED: &str = "## How this was measured";
const OVERLAP: &str = "the rounds overlap.";

/// Returns the row of a table without its note: what tells it from others of its name.
fn key(line: &str) -> Option<Vec<&str>> {
    line.starts_with("| `").then(|| line.split('|').map(str::trim).take(8).collect())
}

/// Returns the part whose section begins with this heading: `` ## `side-by-side cache --quick` ``.
fn part_of(heading: &str) -> Option<&str> {
    heading.strip_prefix("## `side-by-side ")?.split([' ', '`']).next()
}

/// Returns the part that this says not to be measured to its end.
fn unmeasured(line: &str) -> Option<&str> {
    line.strip_prefix("**`")?.split_once("` was not measured to its end.**").map(|(name, _)| name)
}

impl Before {
    /// Finds it in a page.
    pub fn of(page: &str) -> Self {
        let (mut all, mut is_early, mut is_code) = (Self::default(), true, false);
        let (mut heading, mut losses, mut words) = (String::new(), Vec::new(), Vec::new());
        for line in page.lines() {
            is_code ^= line.starts_with("```");
            if !is_code && line.starts_with("## ") {
                is_early &= line != MEASURED;
                line.clone_into(&mut heading);
            }
            // Sections of parts that the list at the top lacks are those of other commands.
            let part = part_of(&heading).and_then(|name| all.parts.iter_mut().find(|part| part.name == name));
            let place = match (heading.as_str(), part) {
                ("", _) => {
                    let name = line.strip_prefix("- **").and_then(|line| line.split_once("**"));
                    all.parts.extend(name.map(|(name, _)| Old {
                        name: name.into(),
                        line: line.into(),
                        ..Old::default()
                    }));
                    words.extend(unmeasured(line).map(|name| (name, line)));
                    continue;
                }
                (LOSSES, _) if line == LOSSES => continue,
                (LOSSES, _) if line.starts_with('|') => {
                    losses.extend(key(line).map(|key| (key, line)));
                    continue;
                }
                (LOSSES, _) => &mut all.remarks,
                (MEASURED, _) => &mut all.measured,
                (_, Some(part)) => &mut part.section,
                (_, None) if is_early => &mut all.others.early,
                (_, None) => &mut all.others.late,
            };
            *place += line;
            place.push('\n');
        }
        all.remarks = all.remarks.split_once(OVERLAP).map_or("", |(_, remarks)| remarks).trim().to_owned();
        for (name, word) in words {
            all.parts.iter_mut().filter(|part| part.name == name).for_each(|part| word.clone_into(&mut part.word));
        }
        for (key, line) in losses {
            let of =
                all.parts.iter_mut().find(|part| part.section.lines().any(|row| self::key(row).as_ref() == Some(&key)));
            of.map_or(&mut all.losses, |part| &mut part.losses).push(line.to_owned());
        }
        all
    }
}

/// A part on its way to a page.
enum Entry<'a> {
    /// Measured now; and what the page had of it.
    New(&'a Kept, Option<&'a Old>),
    /// As it was, with a word on how this run of it ended.
    Old(&'a Old, String),
}

/// Returns the parts of the page before, in their order, and the new ones.
fn entries<'a>(parts: &'a [Kept], failed: &[String], before: &'a Before) -> Vec<Entry<'a>> {
    let measured = |name: &str| parts.iter().find(|part| part.head.part == name);
    let olds = before.parts.iter().map(|old| match measured(&old.name) {
        Some(part) if part.whole => Entry::New(part, Some(old)),
        None if !failed.contains(&old.name) => Entry::Old(old, old.word.clone()),
        _ => Entry::Old(old, format!("{} Its section is of an earlier run.", no_end(&old.name))),
    });
    let is_old = |part: &&Kept| before.parts.iter().any(|old| old.name == part.head.part);
    olds.chain(parts.iter().filter(|part| !is_old(part)).map(|part| Entry::New(part, None))).collect()
}

fn no_end(name: &str) -> String {
    format!("**`{name}` was not measured to its end.**")
}

/// Writes the page; `doubts` say why its figures are not to be believed. `failed` are the parts that did not end well.
/// What was not measured now stays as it was `before`.
///
/// # Errors
/// Those of the writer.
pub fn markdown(
    out: &mut impl Write,
    command: &str,
    host: &Host,
    doubts: &[String],
    parts: &[Kept],
    failed: &[String],
    before: &Before,
) -> io::Result<()> {
    let entries = entries(parts, failed, before);
    let olds = || entries.iter().filter_map(|entry| if let Entry::Old(old, _) = entry { Some(*old) } else { None });
    writeln!(out, "# Results\n")?;
    for entry in &entries {
        match entry {
            Entry::New(part, _) => writeln!(out, "- {}", text(&in_a_line(part)))?,
            Entry::Old(old, _) => writeln!(out, "{}", old.line)?,
        }
    }
    writeln!(
        out,
        "\nTimes are ours / peer, and of rates peer / ours: below 1 is better. Even is the same in every digit that is shown."
    )?;
    for entry in &entries {
        match entry {
            Entry::New(part, _) if !part.whole => writeln!(out, "\n{}", no_end(&part.head.part))?,
            Entry::Old(_, word) if !word.is_empty() => writeln!(out, "\n{word}")?,
            _ => {}
        }
    }
    let has_entry = |name: &&String| {
        parts.iter().map(|part| &part.head.part).chain(before.parts.iter().map(|old| &old.name)).any(|of| of == *name)
    };
    for name in failed.iter().filter(|name| !has_entry(name)) {
        writeln!(out, "\n{}", no_end(name))?;
    }
    losses(out, &entries, before)?;
    section(out, &before.others.early)?;
    if olds().next().is_some() {
        section(out, &before.measured)?;
    } else {
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
    }
    for entry in &entries {
        match entry {
            Entry::New(part, old) => {
                // The section above is of another run.
                let own = olds().next().is_some().then(|| part.head.host.lines());
                new_section(out, part, own.iter().flatten(), old.iter().flat_map(|old| old.notes()))?;
            }
            Entry::Old(old, _) => section(out, &old.section)?,
        }
    }
    section(out, &before.others.late)
}

/// Writes the losses of all parts, and those that people added.
fn losses(out: &mut impl Write, entries: &[Entry<'_>], before: &Before) -> io::Result<()> {
    let mut counts = [0; 4];
    for entry in entries {
        let more = match entry {
            Entry::New(part, _) => part.counts(),
            Entry::Old(old, _) => old.counts(),
        };
        counts.iter_mut().zip(more).for_each(|(all, more)| *all += more);
    }
    let [ahead, even, behind, overlap] = counts;
    let beside = ahead + even + behind + overlap;
    let others = match before.losses.len() {
        0 => String::new(),
        count => format!(", and in {count} of other commands, the last ones"),
    };
    let remarks = if before.remarks.is_empty() { String::new() } else { format!(" {}", before.remarks) };
    writeln!(out, "\n{LOSSES}\n")?;
    writeln!(out, "In {behind} of {beside} rows that have a peer{others}; in {overlap} others {OVERLAP}{remarks}\n")?;
    if behind + before.losses.len() == 0 {
        return Ok(());
    }
    writeln!(out, "{TABLE}")?;
    for entry in entries {
        match entry {
            Entry::New(part, _) => {
                let lost = part.rows.iter().filter(|row| row.row.standing() == Some(Standing::Behind));
                lost.into_iter().try_for_each(|row| writeln!(out, "{}", in_a_table(row)))?;
            }
            Entry::Old(old, _) => old.losses.iter().try_for_each(|line| writeln!(out, "{line}"))?,
        }
    }
    before.losses.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Writes the section of a part that was measured now.
fn new_section<'a>(
    out: &mut impl Write,
    Kept { head, rows, .. }: &'a Kept,
    own: impl Iterator<Item = &'a String>,
    notes: impl Iterator<Item = &'a str>,
) -> io::Result<()> {
    writeln!(out, "\n## `{}`\n", head.command)?;
    for line in own.chain(&head.about) {
        writeln!(out, "- {}", text(line))?;
    }
    let mut rest = rows.as_slice();
    while let Some(first) = rest.first() {
        let (now, later) = rest.split_at(rest.iter().take_while(|row| row.title == first.title).count());
        writeln!(out, "\n{}:\n", text(&first.title))?;
        table(out, now.iter())?;
        rest = later;
    }
    for note in notes {
        writeln!(out, "\n{note}")?;
    }
    Ok(())
}

/// Writes sections as they were.
fn section(out: &mut impl Write, text: &str) -> io::Result<()> {
    match text.trim_end() {
        "" => Ok(()),
        text => writeln!(out, "\n{text}"),
    }
}

/// The rows that the line of each part begins with: the part, the row and its meaning to users.
const HEADLINES: [(&str, &str, &str); 16] = [
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
    ("resilience", "set/1MiB/code/p50", "a SET of 1 MiB with 4+2"),
    ("resilience", "get/1MiB/code/p50", "a GET of it"),
    ("resilience", "get/1KiB/copies/p50", "a GET of 1 KiB with three copies"),
];

/// Returns how a part fares, in a line.
fn in_a_line(part: &Kept) -> String {
    let [ahead, even, behind, overlap] = part.counts();
    let peer = part.head.about.iter().find_map(|line| line.strip_prefix("peer: "));
    let peer = peer.map(|peer| format!(" (peer: {})", peer.split(':').next().unwrap_or(peer))).unwrap_or_default();
    let effect = |&(_, name, meaning): &(&str, &str, &str)| {
        let row = &part.rows.iter().find(|row| row.row.name == name)?.row;
        row.times().map(|times| format!("{meaning} {times:.2} ×"))
    };
    let effects: Vec<String> = HEADLINES.iter().filter(|(of, ..)| *of == part.head.part).filter_map(effect).collect();
    let effects = if effects.is_empty() { String::new() } else { format!(" {}.", effects.join(", ")) };
    let limits: Vec<bool> = part.rows.iter().filter_map(|row| row.row.is_within_limit()).collect();
    let limits = match (limits.iter().filter(|&&is_met| is_met).count(), limits.len()) {
        (_, 0) => String::new(),
        (met, all) => format!(" {met} of {all} limits are met."),
    };
    let rows = |count: usize| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    format!(
        "**{}**{peer}:{effects}{limits} Ahead in {}, even in {even}, behind in {behind}; in {overlap} the rounds overlap.",
        part.head.part,
        rows(ahead)
    )
}

const TABLE: &str = "| | ours | | peer | | | ratio | |\n| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |";

fn table<'a>(out: &mut impl Write, mut rows: impl Iterator<Item = &'a Titled>) -> io::Result<()> {
    writeln!(out, "{TABLE}")?;
    rows.try_for_each(|row| writeln!(out, "{}", in_a_table(row)))
}

/// Returns a row as a line of a table.
fn in_a_table(Titled { row, .. }: &Titled) -> String {
    let [name, ours, our_median, peer, peer_median, unit, ratio, note] = row.cells().map(|cell| text(&cell));
    format!("| `{name}` | {ours} | {our_median} | {peer} | {peer_median} | {unit} | {ratio} | {note} |")
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
        markdown(&mut page, "side-by-side", &kept.head.host, &[], parts, &[], &Before::default()).unwrap();
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
        let page = |before: &Before| written(std::slice::from_ref(&kept), &[], before);
        let plain = page(&Before::default());
        assert_eq!(Before::of(&plain).others, Others::default());
        let early = "## Goals\n\n- missed\n";
        let late = "## `tracesim compare --held-out`\n\n```sh\n## no heading\n```\n\n## Builds\n\nslow\n";
        let with = plain.replace(MEASURED, &format!("{early}\n{MEASURED}")) + "\n" + late;
        let again = page(&Before::of(&with));
        assert_eq!(again, with);
        assert_eq!(page(&Before::of(&again)), with);
    }

    fn written(parts: &[Kept], failed: &[String], before: &Before) -> String {
        let mut page = Vec::new();
        let host = &Kept::read(&saved(), true).unwrap().unwrap().head.host;
        markdown(&mut page, "side-by-side", host, &[], parts, failed, before).unwrap();
        String::from_utf8(page).unwrap()
    }

    /// The saved part under another name, its rows too.
    fn part(name: &str, ours: f64, whole: bool) -> Kept {
        let mut kept = Kept::read(&saved(), whole).unwrap().unwrap();
        kept.head.part = name.into();
        kept.head.command = format!("side-by-side {name}");
        for row in &mut kept.rows {
            row.row.name = format!("{name}/{}", row.row.name);
        }
        kept.rows[1].row.ours = Figure::once(ours);
        kept
    }

    /// A page of two parts, with what people added.
    fn by_hand() -> String {
        let page = written(&[part("cache", 9.0, true), part("kv", 8.0, true)], &[], &Before::default());
        let page = page.replace("the rounds overlap.\n\n|", "the rounds overlap. By hand.\n\n|").replacen(
            "peer;",
            "peer, and in 1 of other commands, the last ones;",
            1,
        );
        let page = page.replacen("| a loss |\n\n", "| a loss |\n| `other` | 2 |  | 1 |  | ns | 2.00 | a loss |\n\n", 1);
        assert!(page.contains("By hand.") && page.contains("`other`"), "{page}");
        page.replacen("| a loss |", "| a loss; by hand |", 1)
            + "\nA note by hand.\n\n## `side-by-side lonely`\n\nNo part.\n"
    }

    #[test]
    fn a_page_that_nothing_was_measured_for_stays() {
        let page = by_hand();
        assert_eq!(written(&[], &[], &Before::of(&page)), page);
    }

    #[test]
    fn the_page_of_results_is_one_of_these() {
        let page = include_str!("../../RESULTS.md");
        let before = Before::of(page);
        assert_eq!(
            before.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(),
            ["cache", "sim", "fabric", "handshake", "kv", "resilience"]
        );
        for part in &before.parts {
            assert_eq!(part.losses.len(), part.counts()[2], "{}", part.name);
        }
        assert_eq!(written(&[], &[], &before), page);
    }

    #[test]
    fn what_was_not_measured_now_stays() {
        let page = by_hand();
        let again = written(&[part("cache", 7.0, true)], &[], &Before::of(&page));
        let section = |page: &str, name: &str| {
            let (_, section) = page.split_once(&format!("## `side-by-side {name}`")).unwrap();
            section.to_owned()
        };
        assert_eq!(section(&again, "kv"), section(&page, "kv"));
        let own = section(&again, "cache");
        assert!(own.starts_with("\n\n- 2026-01-31T12:00:00Z") && own.contains("| `cache/miss` | 7.0 |"), "{again}");
        let changed: Vec<_> = again.lines().filter(|line| !page.lines().any(|old| old == *line)).collect();
        // Once among the losses, and once in the section, which also says when and where.
        assert!(changed.len() == 2 || changed.len() == 3 && changed[1].contains("CPU"), "{changed:#?}");
        assert!(
            again.contains("rows that have a peer, and in 1 of other commands") && again.contains("By hand."),
            "{again}"
        );
        assert!(again.contains("| `other` | 2 |") && again.matches("| `cache/miss` |").count() == 2, "{again}");
    }

    #[test]
    fn a_part_that_failed_keeps_its_old_section() {
        let page = by_hand();
        // It had a head, and it had none.
        for parts in [&[part("kv", 7.0, false)][..], &[]] {
            let again = written(parts, &["kv".into()], &Before::of(&page));
            let word = "**`kv` was not measured to its end.** Its section is of an earlier run.\n\n";
            assert_eq!(again.replacen(word, "", 1), page);
            assert!(again.contains(word));
            // The next run of another part says so too, and one of this part does not.
            assert!(written(&[part("cache", 7.0, true)], &[], &Before::of(&again)).contains(word));
            assert!(!written(&[part("kv", 7.0, true)], &[], &Before::of(&again)).contains(word));
        }
        assert!(written(&[], &["sim".into()], &Before::of(&page)).contains("**`sim` was not measured to its end.**"));
    }

    #[test]
    fn notes_of_a_part_measured_again_stay() {
        let again = written(&[part("kv", 7.0, true)], &[], &Before::of(&by_hand()));
        assert!(again.contains("\n\nA note by hand.\n\n## `side-by-side lonely`"), "{again}");
    }

    #[test]
    fn half_a_last_line_is_left_out() {
        let text = saved();
        for end in [text.len() - 1, text.len() - 9] {
            let kept = Kept::read(&text[..end], true).unwrap().unwrap();
            assert_eq!((kept.rows.len(), kept.whole), (2, false));
        }
    }

    #[test]
    fn a_part_that_ended_early_is_said_to_have() {
        let first = saved().lines().next().unwrap().to_owned();
        let kept = Kept::read(&first, false).unwrap().unwrap();
        let mut page = Vec::new();
        let parts = std::slice::from_ref(&kept);
        markdown(&mut page, "side-by-side", &kept.head.host, &[], parts, &[], &Before::default()).unwrap();
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
