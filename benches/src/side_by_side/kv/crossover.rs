//! In a message, or by a transfer: from which size on which of them is better, on each fabric.
//!
//! Three servers run: one with messages for values of any size swept here, one with messages for none, and one with the default limits.
//! They take turns at each size. *Ours* is the default, *peer* the faster one of the two ways: a loss says that the default takes the
//! slower one. No client gets tags, because a GET by tag uses neither way.
//!
//! * `get`: the client knows the size from the last time: where it is over the limit it opens the transfer with the question.
//! * `get-anew`: it does not, so it asks, is told that the item is large, and opens the transfer then.
//! * `set`: the value is in the message, or the server reads it out of the client's memory.
//!
//! One of these is asked for at a time, so that the time is a request's own, most of which is waking. `get-many` and `set-many` have several
//! in flight at a time on the one connection, so that the work weighs more than the wake-ups.

use super::client::Client as Plain;
use super::contestant::Way;
use super::server::{Server, Whose};
use super::size_name;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};
use hdrhistogram::Histogram;
use rdmakv_client::{Client, Options, Source, Stored, Ticket, Value};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Above the tables.
const TITLE: &str = "Values in messages or by transfers: time and server's CPU of a request; ours: what the default does, peer: the better way";
const FABRICS: [Way; 2] = [Way::Shm, Way::Iwarp];
const SIZES: [usize; 7] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Values of a size.
const KEYS: usize = 64;
/// The compared figures: the median of the times, and the CPU of the server.
const COSTS: [&str; 2] = ["p50", "cpu"];

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Get,
    GetAnew,
    GetMany,
    Set,
    SetMany,
}

impl Asked {
    const ALL: [Self; 5] = [Self::Get, Self::GetAnew, Self::GetMany, Self::Set, Self::SetMany];

    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetAnew => "get-anew",
            Self::GetMany => "get-many",
            Self::Set => "set",
            Self::SetMany => "set-many",
        }
    }

    fn stores(self) -> bool {
        matches!(self, Self::Set | Self::SetMany)
    }

    /// Requests under way at a time.
    fn at_once(self) -> usize {
        match self {
            Self::GetMany | Self::SetMany => 8,
            Self::Get | Self::GetAnew | Self::Set => 1,
        }
    }
}

pub(super) fn parts() -> Vec<Part> {
    let mut rows: Vec<String> =
        SIZES.iter().flat_map(|&size| COSTS.map(|cost| format!("{}/{cost}", size_name(size)))).collect();
    for cost in COSTS {
        rows.extend(["messages-to", "transfers-from"].map(|end| format!("{cost}/{end}")));
    }
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let mut parts = Vec::new();
    for fabric in FABRICS {
        for asked in Asked::ALL {
            let name = format!("crossover/{}/{}", fabric.name(), asked.name());
            parts.push(Part::new(name.clone(), TITLE, &rows, move |setting| {
                measure(setting, fabric, asked, &name).map_err(|error| error.to_string())
            }));
        }
    }
    parts
}

/// A request under way.
enum Waiting {
    Get(Ticket<Option<Value>>),
    Set(Ticket<Stored>),
}

/// How values travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    Message,
    Transfer,
    /// As the server and its client choose.
    Default,
}

/// One choice: its server and its client, and by size what each round took: the median, and the server's CPU.
struct Contestant {
    choice: Choice,
    server: Server,
    client: Client,
    rounds: Vec<[Vec<f64>; 2]>,
    /// By size, GETs and those of them that came by a transfer.
    gets: Vec<[u64; 2]>,
}

fn key(size: usize, number: usize) -> String {
    format!("key:{size}:{number}")
}

impl Contestant {
    fn begin(fabric: Way, cpu: usize, asked: Asked, choice: Choice) -> Outcome<Self> {
        let address = fabric.address()?.ok_or("no fabric")?;
        let mut flags = vec!["-m", "1024", "-t", "1", "--fabric", &address];
        match choice {
            Choice::Message => flags.extend(["--eager", "64k"]),
            Choice::Transfer => flags.extend(["--eager", "0"]),
            Choice::Default => {}
        }
        let server = Server::start(Whose::Ours, cpu, &flags)?;
        // A client that remembers at most one key knows no size of those that come in turn.
        let tags = if asked == Asked::GetAnew { 1 } else { 65_536 };
        let options = Options { timeout: Duration::from_secs(20), one_sided: false, tags, ..Options::default() };
        let mut client = Client::with_options([&address], options)?;
        for size in SIZES {
            let value = vec![b'v'; size];
            for number in 0..KEYS {
                if !client.set(key(size, number), &value, ())?.is_stored() {
                    return Err(format!("a value of {size} bytes was not stored").into());
                }
                client.get(key(size, number))?.ok_or("a value is gone")?;
            }
        }
        Ok(Self {
            choice,
            server,
            client,
            rounds: vec![<[Vec<f64>; 2]>::default(); SIZES.len()],
            gets: vec![[0; 2]; SIZES.len()],
        })
    }

    /// Asks for so long.
    fn turn(&mut self, asked: Asked, nth: usize, whole: Duration) -> Outcome<()> {
        let size = SIZES[nth];
        let value = vec![b'v'; size];
        let keys: Vec<_> = (0..KEYS).map(|number| key(size, number)).collect();
        let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut waiting = VecDeque::new();
        let mut keys = keys.iter().cycle();
        let cpu = self.server.cpu()?.all;
        let begun = Instant::now();
        loop {
            if waiting.len() < asked.at_once() && begun.elapsed() < whole {
                let key = keys.next().ok_or("no keys")?;
                let at = Instant::now();
                waiting.push_back((
                    at,
                    match asked.stores() {
                        true => Waiting::Set(self.client.iset(key, &value[..], ())?),
                        false => Waiting::Get(self.client.iget(key)?),
                    },
                ));
                continue;
            }
            let Some((at, ticket)) = waiting.pop_front() else { break };
            self.end(ticket, size, nth)?;
            times.saturating_record(at.elapsed().as_nanos() as u64);
        }
        let cpu = (self.server.cpu()?.all - cpu) as f64 / times.len().max(1) as f64;
        let [medians, cpus] = &mut self.rounds[nth];
        medians.push(times.value_at_quantile(0.5) as f64);
        cpus.push(cpu);
        Ok(())
    }

    /// Waits for a request's end, which has to be as it should.
    fn end(&mut self, waiting: Waiting, size: usize, nth: usize) -> Outcome<()> {
        let fits = |source| match self.choice {
            Choice::Message => source == Source::Message,
            Choice::Transfer => source == Source::Transfer,
            Choice::Default => true,
        };
        match waiting {
            Waiting::Set(ticket) => match self.client.wait(ticket)?.is_stored() {
                true => Ok(()),
                false => Err(format!("a value of {size} bytes was not stored").into()),
            },
            Waiting::Get(ticket) => {
                let got = self.client.wait(ticket)?.ok_or("a value is gone")?;
                self.gets[nth][0] += 1;
                self.gets[nth][1] += u64::from(got.source() == Source::Transfer);
                if got.len() == size && fits(got.source()) {
                    return Ok(());
                }
                let choice = self.choice;
                Err(format!("a value of {} bytes came by a {}, not {size} by {choice:?}", got.len(), got.source())
                    .into())
            }
        }
    }

    /// That its values did not come in another way: none was pulled out of the client's memory, or all were.
    fn check_sets(&self, fabric: Way, asked: Asked) -> Outcome<()> {
        let pulled = Plain::connect(&self.server.address)?.stat(&format!("{}_sets_pulled", fabric.name()))? > 0;
        if asked.stores() && self.choice != Choice::Default && pulled == (self.choice == Choice::Message) {
            return Err("values were stored in another way than they should be".into());
        }
        Ok(())
    }

    fn figures(&self, cost: usize) -> Vec<Figure> {
        self.rounds.iter().map(|of_size| Figure::lowest(of_size[cost].clone())).collect()
    }
}

fn measure(setting: &Setting, fabric: Way, asked: Asked, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let choices = [Choice::Message, Choice::Transfer, Choice::Default];
    let begin = |choice| Contestant::begin(fabric, setting.far, asked, choice);
    let mut all = choices.into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    for round in 0..setting.rounds {
        for nth in 0..SIZES.len() {
            for turn in 0..all.len() {
                // There and back: no contestant always runs behind the same other.
                let turn = if round % 2 == 0 { turn } else { all.len() - 1 - turn };
                all[turn].turn(asked, nth, setting.whole / 4)?;
            }
        }
    }
    for one in &all {
        one.check_sets(fabric, asked)?;
    }
    let costs = [0, 1].map(|cost| (all[0].figures(cost), all[1].figures(cost)));
    let mut rows = Vec::new();
    for (nth, size) in SIZES.into_iter().enumerate() {
        for (cost, (what, (message, transfer))) in COSTS.into_iter().zip(&costs).enumerate() {
            let ours = all[2].figures(cost)[nth];
            let (peer, other, way) = if message[nth].best <= transfer[nth].best {
                (message[nth], transfer[nth], "message")
            } else {
                (transfer[nth], message[nth], "transfer")
            };
            let mut note = format!("peer: by {way}; the other way {:.0}", other.best);
            let [gets, transfers] = all[2].gets[nth];
            if gets > 0 {
                note += &format!("; ours: {:.0} % by transfer", 100.0 * transfers as f64 / gets as f64);
            }
            rows.push(Row::new(format!("{name}/{}/{what}", size_name(size)), ours, Some(peer), Unit::Nanos).note(note));
        }
    }
    for (cost, (message, transfer)) in COSTS.into_iter().zip(&costs) {
        let Crossing { messages_to, transfers_from } = crossing(&SIZES, message, transfer);
        let row = |end: &str, size: Option<usize>, note| {
            let size = Figure::once(size.map_or(f64::NAN, |size| size as f64));
            Row::new(format!("{name}/{cost}/{end}"), size, None, Unit::Bytes).note(note)
        };
        rows.push(row("messages-to", messages_to, "messages are better in each round up to there"));
        rows.push(row("transfers-from", transfers_from, "transfers are, from there on"));
    }
    Ok(rows)
}

/// The size at which one way stops to be the better one, and the other begins. Between them the rounds overlap, or neither has the
/// better of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Crossing {
    messages_to: Option<usize>,
    transfers_from: Option<usize>,
}

fn crossing(sizes: &[usize], message: &[Figure], transfer: &[Figure]) -> Crossing {
    let better = |one: &[Figure], other: &[Figure], nth: usize| {
        !one[nth].overlaps(&other[nth]) && one[nth].best < other[nth].best
    };
    let up = (0..sizes.len()).take_while(|&nth| better(message, transfer, nth)).last();
    let down = (0..sizes.len()).rev().take_while(|&nth| better(transfer, message, nth)).last();
    Crossing { messages_to: up.map(|nth| sizes[nth]), transfers_from: down.map(|nth| sizes[nth]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rounds: &[[f64; 2]]) -> Vec<Figure> {
        rounds.iter().map(|round| Figure::lowest(round.to_vec())).collect()
    }

    #[test]
    fn no_crossing_is_claimed_where_rounds_overlap() {
        let sizes = [1, 2, 4, 8];
        let message = figures(&[[1.0, 2.0], [2.0, 3.0], [4.0, 6.0], [9.0, 9.5]]);
        let transfer = figures(&[[4.0, 5.0], [4.0, 5.0], [5.0, 5.5], [6.0, 7.0]]);
        let found = crossing(&sizes, &message, &transfer);
        assert_eq!(found, Crossing { messages_to: Some(2), transfers_from: Some(8) });
        assert_eq!(crossing(&sizes, &transfer, &transfer), Crossing { messages_to: None, transfers_from: None });
        let always = crossing(&sizes[..2], &message[..2], &transfer[..2]);
        assert_eq!(always, Crossing { messages_to: Some(2), transfers_from: None });
    }
}
