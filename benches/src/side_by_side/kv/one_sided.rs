//! The load of [`load`](super::load) by our client over a fabric: as many connections, each with a request of its own at a time.
//!
//! One client with many ways to one server: it takes them for several servers, so that keys share out among them.

use super::load::{CONNECTIONS, Mix, Turn, key};
use crate::side_by_side::remote::Outcome;
use hdrhistogram::Histogram;
use rdmakv_client::{Client, Options, Source, Ticket, Value};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// GETs between looks at the clock, where there is one at a time.
const UNTIMED: u64 = 64;

/// A client that has all the tags.
pub(super) struct OneSided {
    client: Client,
    mix: Mix,
    keys: Vec<String>,
    random: u64,
    /// At once.
    depth: usize,
    /// Values that came in another way than by a one-sided read.
    pub(super) asked: u64,
}

impl OneSided {
    /// Stores the values, and gets each once, so that the tags are there. `address` is a fabric's.
    pub(super) fn begin(address: &str, connections: usize, mix: Mix) -> Outcome<Self> {
        let ways = (0..connections).map(|number| format!("{address},name=way{number}"));
        let options = Options { timeout: Duration::from_secs(20), ..Options::default() };
        let mut client = Client::with_options(ways, options)?;
        let keys = mix.keys();
        let value = vec![b'v'; mix.value];
        for number in 0..keys {
            if !client.set(key(number), &value, ())?.is_stored() {
                return Err(format!("a value of {} bytes was not stored", mix.value).into());
            }
        }
        for number in 0..keys {
            client.get(key(number))?.ok_or("a value is gone")?;
        }
        let depth = connections.min(CONNECTIONS);
        let keys = (0..keys).map(key).collect();
        Ok(Self { client, mix, keys, random: 1, depth, asked: 0 })
    }

    /// Returns the place of the next key.
    fn next(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % self.keys.len() as u64) as usize
    }

    fn is_good(&mut self, value: Option<Value>) -> Outcome<()> {
        let value = value.ok_or("a value is gone")?;
        if value.len() != self.mix.value || value.first() != Some(&b'v') || value.last() != Some(&b'v') {
            return Err("a value is another than was stored".into());
        }
        self.asked += u64::from(value.source() != Source::OneSided);
        Ok(())
    }

    /// Asks for several keys at once.
    fn many(&mut self) -> Outcome<()> {
        let keys: Vec<_> = (0..self.mix.at_once).map(|_| self.next()).collect();
        self.client
            .get_many(keys.iter().map(|&key| &self.keys[key]))
            .into_iter()
            .try_for_each(|value| self.is_good(value?))
    }

    /// Asks so often, one after the other.
    pub(super) fn one_by_one(&mut self, count: usize) -> Outcome<()> {
        if self.mix.at_once > 1 {
            return (0..count / self.mix.at_once).try_for_each(|_| self.many());
        }
        for _ in 0..count {
            let key = self.next();
            let value = self.client.get(&self.keys[key])?;
            self.is_good(value)?;
        }
        Ok(())
    }

    /// Asks for so long.
    pub(super) fn turn(&mut self, whole: Duration) -> Outcome<Turn> {
        let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut requests = 0;
        let begun = Instant::now();
        while self.mix.at_once > 1 && begun.elapsed() < whole {
            let at = Instant::now();
            self.many()?;
            times.saturating_record(at.elapsed().as_nanos() as u64);
            requests += self.mix.at_once as u64;
        }
        if self.depth == 1 && self.mix.at_once == 1 {
            // As fast as one can ask: a look at the clock would be a tenth of a GET.
            let mut at = begun;
            while at - begun < whole {
                self.one_by_one(UNTIMED as usize)?;
                let now = Instant::now();
                times.saturating_record_n((now - at).as_nanos() as u64 / UNTIMED, UNTIMED);
                at = now;
                requests += UNTIMED;
            }
        }
        let mut waiting: VecDeque<(Instant, Ticket<Option<Value>>)> = VecDeque::new();
        while self.depth > 1 {
            if waiting.len() < self.depth && begun.elapsed() < whole {
                let key = self.next();
                waiting.push_back((Instant::now(), self.client.iget(&self.keys[key])?));
                continue;
            }
            let Some((at, ticket)) = waiting.pop_front() else { break };
            let value = self.client.wait(ticket)?;
            self.is_good(value)?;
            times.saturating_record(at.elapsed().as_nanos() as u64);
            requests += 1;
        }
        let quantiles = [0.5, 0.99, 0.999].map(|quantile| times.value_at_quantile(quantile));
        Ok(Turn { requests, quantiles, nanos: begun.elapsed().as_nanos() as u64 })
    }
}
