//! How many items a server holds, and what each takes besides its key and value.

use super::client::Client;
use super::server::{Server, Whose};
use super::{contestants, size_name};
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};

/// Above the table.
const TITLE: &str = "A full server of 64 MB: bytes resident for an item besides key and value, and items that it holds";
const SIZES: [usize; 4] = [32, 1 << 10, 10 << 10, 100 << 10];
const MEGABYTES: usize = 64;
/// Bytes of a key.
const KEY: usize = 16;

pub(super) fn parts() -> Vec<Part> {
    let part = |value| {
        let name = format!("overhead/{}", size_name(value));
        Part::new(name, TITLE, &["item", "items"], move |setting| measure(setting, value).map_err(|e| e.to_string()))
    };
    SIZES.map(part).into()
}

/// The content of a full server.
struct Full {
    items: f64,
    overhead: f64,
}

fn measure(setting: &Setting, value: usize) -> Outcome<Vec<Row>> {
    let full = contestants().into_iter().map(|whose| fill(whose, setting.far, value)).collect::<Outcome<Vec<_>>>()?;
    let row = |what: &str, unit, of: fn(&Full) -> f64| {
        let one = |full: &Full| Figure::once(of(full));
        let name = format!("overhead/{}/{what}", size_name(value));
        Row::new(name, one(&full[0]), full.get(1).map(one), unit)
    };
    Ok(vec![row("item", Unit::Bytes, |full| full.overhead), row("items", Unit::Items, |full| full.items)])
}

/// Fills a server until it holds no more.
fn fill(whose: Whose, cpu: usize, value: usize) -> Outcome<Full> {
    let server = Server::start(whose, cpu, &["-m", &MEGABYTES.to_string()])?;
    let mut client = Client::connect(&server.address)?;
    let before = server.resident()?;
    let payload = KEY + value;
    // Half as many again as would fit without any overhead.
    let count = (MEGABYTES << 20) * 3 / 2 / payload;
    let mut requests = Vec::new();
    for number in 0..count {
        requests.extend_from_slice(format!("set key:{number:012} 0 0 {value} noreply\r\n").as_bytes());
        requests.resize(requests.len() + value, b'v');
        requests.extend_from_slice(b"\r\n");
        if requests.len() > 1 << 16 {
            client.send(&requests)?;
            requests.clear();
        }
    }
    client.send(&requests)?;
    let items = client.stat("curr_items")? as f64;
    let grown = server.resident()?.saturating_sub(before) as f64;
    Ok(Full { items, overhead: grown / items - payload as f64 })
}
