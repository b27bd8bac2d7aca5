//! The progress of repair, as the servers of a cluster tell it.

use crate::{Client, Options, Stats};
use rdmakv_cluster::config::{Config, Server, ServerId};
use rdmakv_cluster::facts::View;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long servers may take to tell theirs, names of machines included.
const PATIENCE: Duration = Duration::from_secs(2);

/// The repair of one server's keys, by `stats cluster`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Repair {
    epoch: u64,
    keys: u64,
    left: u64,
    bytes: u64,
    short: u64,
    refused: u64,
    millis: u64,
    lost: u64,
    lost_epoch: u64,
}

/// The repair of each server that told it.
pub(super) type Repairs = BTreeMap<ServerId, Repair>;

impl Repair {
    /// Returns what statistics tell; None if they are of an earlier release.
    fn of(stats: &Stats) -> Option<Self> {
        let number = |name| stats.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.parse().ok());
        Some(Self {
            epoch: number("epoch")?,
            keys: number("repair_keys")?,
            left: number("repair_left_keys")?,
            bytes: number("repair_bytes")?,
            short: number("repair_short_keys")?,
            refused: number("repair_refused_keys")?,
            millis: number("repair_millis")?,
            lost: number("lost")?,
            lost_epoch: number("lost_epoch")?,
        })
    }

    fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1000.0 / self.millis.max(1) as f64
    }

    /// Returns how many seconds it takes yet, at the pace so far; None before the first keys.
    fn seconds_left(&self) -> Option<u64> {
        let done = self.keys + self.short + self.refused;
        let millis = u128::from(self.left) * u128::from(self.millis);
        (done > 0).then(|| u64::try_from(millis / u128::from(done)).unwrap_or(u64::MAX).div_ceil(1000))
    }

    /// Returns it as JSON.
    pub(super) fn json(&self) -> Value {
        json!({
            "keys": self.keys,
            "left_keys": self.left,
            "bytes": self.bytes,
            "bytes_per_second": self.bytes_per_second() as u64,
            "seconds_left": self.seconds_left(),
            "short_keys": self.short,
            "refused_keys": self.refused,
            "lost": self.lost,
            "lost_epoch": self.lost_epoch,
        })
    }
}

/// Asks the servers that are live. Those that do not answer in time are left out.
pub(super) fn ask(view: &View, config: &Config, mut options: Options) -> Repairs {
    let is_live = |server: &&Server| view.facts().is_alive(server.id, server.incarnation);
    let address = |server: &Server| {
        let tcp = server.addresses.iter().find(|address| address.starts_with("tcp:"));
        tcp.or(server.addresses.first()).map(|address| (server.id, address.clone()))
    };
    let (ids, addresses): (Vec<ServerId>, Vec<String>) =
        config.servers().iter().filter(is_live).filter_map(address).unzip();
    if addresses.is_empty() {
        return Repairs::new();
    }
    options.timeout = options.timeout.min(PATIENCE / 2);
    (options.connect_timeout, options.one_sided) = (options.timeout, false);
    let (tell, told) = channel();
    let asks = move || {
        let stats = Client::with_options(&addresses, options).map(|mut client| client.stats("cluster"));
        // The other end may wait no longer.
        let _ = tell.send(stats.unwrap_or_default());
    };
    // Without a thread nothing is told.
    let _ = std::thread::Builder::new().name("stats".to_owned()).spawn(asks);
    let stats = told.recv_timeout(PATIENCE).unwrap_or_default();
    let repair = |(id, (_, stats)): (ServerId, (String, crate::Result<Stats>))| Some((id, Repair::of(&stats.ok()?)?));
    let repairs = ids.into_iter().zip(stats).filter_map(repair);
    // One that is in another epoch yet tells of that.
    repairs.filter(|(_, repair)| repair.epoch == u64::from(config.epoch().0)).collect()
}

/// Returns the rows of the repairs that go on, with a heading; none if there are none.
pub(super) fn rows(repairs: &Repairs, config: &Config) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    for (id, repair) in repairs.iter().filter(|(_, repair)| !config.is_whole() && repair.keys + repair.left > 0) {
        let name = config.server(*id).map_or_else(String::new, |server| server.name.clone());
        let left = repair.seconds_left().map_or("–".to_owned(), |seconds| format!("{seconds} s"));
        let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
        let (sent, rate) = (megabytes(repair.bytes as f64), megabytes(repair.bytes_per_second()));
        rows.push([name, repair.keys.to_string(), repair.left.to_string(), sent, rate, left]);
    }
    if !rows.is_empty() {
        rows.insert(0, ["repair of", "keys", "left", "MB", "MB/s", "time left"].map(str::to_owned));
    }
    rows
}

/// Returns a line for each loss, and for each reason why an epoch does not become whole.
pub(super) fn warnings(repairs: &Repairs, config: &Config) -> String {
    let mut text = String::new();
    for (id, repair) in repairs {
        let name = config.server(*id).map_or("", |server| &*server.name);
        let Repair { short, refused, lost, lost_epoch, .. } = *repair;
        if lost > 0 {
            let _ = writeln!(text, "warning: {name}: {lost} values were lost in epoch {lost_epoch}");
        }
        if short > 0 {
            let _ = writeln!(
                text,
                "warning: {name}: {short} values have fewer fragments than their policy wants: start more servers"
            );
        }
        if refused > 0 {
            let lack = no_room(refused, "another server, which its agent names");
            let _ = writeln!(text, "warning: {name}: {lack}");
        }
    }
    text
}

/// Returns how servers lack room for keys, and what helps. Memory that is in use for values of other sizes is no room, however much it is.
pub(super) fn no_room(keys: u64, servers: &str) -> String {
    format!(
        "{keys} keys found no room at {servers}: its memory is full, or in use for values of other sizes: start it with more -m, and with no smaller -I than the others"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_cluster::config::Incarnation;

    fn stats(numbers: [u64; 9]) -> Stats {
        let names = [
            "epoch",
            "repair_keys",
            "repair_left_keys",
            "repair_bytes",
            "repair_short_keys",
            "repair_refused_keys",
            "repair_millis",
            "lost",
            "lost_epoch",
        ];
        names.iter().zip(numbers).map(|(name, number)| ((*name).to_owned(), number.to_string())).collect()
    }

    #[test]
    fn repair_is_shown_with_rate_and_time_left() {
        let config = Config::new(7).with_server("tcp:a:1", Vec::new(), 1, Incarnation(1)).unwrap();
        let repair = Repair::of(&stats([2, 300, 100, 600_000_000, 0, 0, 1500, 0, 0])).unwrap();
        let repairs = Repairs::from([(ServerId(0), repair)]);
        let rows = rows(&repairs, &config);
        assert_eq!(rows[1], ["tcp:a:1", "300", "100", "600.0", "400.0", "1 s"]);
        assert_eq!(warnings(&repairs, &config), "");
        assert_eq!(repair.json()["bytes_per_second"], 400_000_000);
        // A whole epoch has no repair, and one without progress no time.
        assert!(super::rows(&repairs, &config.whole().unwrap()).is_empty());
        assert_eq!(Repair::of(&stats([2, 0, 100, 0, 0, 0, 1500, 0, 0])).unwrap().seconds_left(), None);
        assert_eq!(Repair::of(&Stats::new()), None);
    }

    #[test]
    fn losses_and_obstacles_are_told() {
        let config = Config::new(7).with_server("tcp:a:1", Vec::new(), 1, Incarnation(1)).unwrap();
        let repair = Repair::of(&stats([2, 1, 0, 0, 5, 6, 9, 3, 1])).unwrap();
        let told = warnings(&Repairs::from([(ServerId(0), repair)]), &config);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[0], "warning: tcp:a:1: 3 values were lost in epoch 1");
        assert!(lines[1].contains(": 5 values have fewer fragments") && lines[2].contains(": 6 keys found no room"));
        // One with as much memory as the others may have it in use for other sizes.
        assert!(lines[2].contains("of other sizes: start it with more -m,"), "{}", lines[2]);
    }
}
