//! Data on its way into the store: from the request that announces it to the answer that says what became of it.

use super::{COPIED, Context, Out, Session, Shards, binary, meta, text, watch};
use crate::store::{ChunkWriter, Found, Mode, Outcome, Refused, Terms};

/// The answer to give once the data is there.
#[derive(Debug)]
pub(super) enum Answer {
    Text { quiet: bool },
    Meta { flags: Vec<u8>, key: Vec<u8>, quiet: bool },
    Binary { header: rdmakv_proto::commands::binary::Header },
    Auth { quiet: bool },
    Sasl { header: rdmakv_proto::commands::binary::Header },
}

/// Data on its way into the store.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) writer: Option<ChunkWriter>,
    /// For what goes nowhere but here: a user's name and password.
    pub(super) scratch: Vec<u8>,
    pub(super) shard: usize,
    pub(super) got: usize,
    pub(super) len: usize,
    /// Whether "\r\n" follows it, as in the text protocol.
    pub(super) ended: bool,
    pub(super) terms: Terms,
    pub(super) answer: Answer,
}

impl Body {
    /// Returns a name and a password, which go nowhere but here.
    pub(super) fn of_login(len: usize, answer: Answer) -> Self {
        let ended = matches!(answer, Answer::Auth { .. });
        Self { writer: None, scratch: Vec::new(), shard: 0, got: 0, len, ended, terms: Terms::default(), answer }
    }
}

/// Returns the command by the name that events have for it.
fn command(terms: &Terms) -> &'static str {
    match terms.mode {
        Mode::Set if terms.cas.is_some() => "cas",
        Mode::Set => "set",
        Mode::Add => "add",
        Mode::Replace => "replace",
        Mode::Append => "append",
        Mode::Prepend => "prepend",
    }
}

impl Session {
    /// Returns the destination of a large value on its way, for direct reads.
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        let body = self.body.as_mut()?;
        let (got, len) = (body.got, body.len);
        // The last bytes go the usual way, which also ends the request; of a binary one nothing follows the value, so
        // that its last byte has to be left for that.
        if len.saturating_sub(got) < COPIED {
            return None;
        }
        let end = if body.ended { len } else { len - 1 };
        Some(&mut body.writer.as_mut()?.value()[got..end])
    }

    /// So much was read there.
    pub fn directly(&mut self, read: usize) {
        if let Some(body) = &mut self.body {
            body.got += read;
        }
    }

    /// Takes data for the body; says how much, and whether it was all.
    pub(super) fn fill(&mut self, rest: &[u8], cx: &mut Context<'_>, out: &mut Out) -> (usize, bool) {
        let Some(body) = &mut self.body else { return (0, true) };
        let part = (body.len - body.got).min(rest.len());
        match &mut body.writer {
            Some(writer) => writer.value()[body.got..body.got + part].copy_from_slice(&rest[..part]),
            None => body.scratch.extend_from_slice(&rest[..part]),
        }
        body.got += part;
        if body.got < body.len {
            return (part, false);
        }
        let mut used = part;
        let mut good = true;
        if body.ended {
            let Some(end) = rest.get(part..part + 2) else { return (part, false) };
            good = end == b"\r\n";
            used += 2;
        }
        if let Some(body) = self.body.take() {
            self.finish(body, good, cx, out);
        }
        (used, true)
    }

    fn finish(&mut self, body: Body, good: bool, cx: &mut Context<'_>, out: &mut Out) {
        if let Answer::Auth { quiet } = body.answer {
            return self.login.authenticate(&body.scratch, good, quiet, cx, out);
        }
        if let Answer::Sasl { header } = body.answer {
            return self.login.finish_sasl(&header, &body.scratch, cx, out);
        }
        let Some(writer) = body.writer else { return };
        let mut store = cx.shared.shards.at(body.shard);
        if !good {
            store.abandon(writer);
            // As memcached: of a meta command this answer comes even if none was wanted.
            if !matches!(body.answer, Answer::Text { quiet: true }) {
                out.bytes.extend_from_slice(b"CLIENT_ERROR bad data chunk\r\n");
            }
            return;
        }
        cx.report_get(&store, writer.key());
        let (key, expiry) = (cx.reports_sets().then(|| writer.key().to_vec()), writer.expiry());
        // An append adds to the value there.
        let appends =
            matches!(body.terms.mode, Mode::Append | Mode::Prepend) && matches!(body.answer, Answer::Meta { .. });
        let there = match appends.then(|| store.peek(writer.key(), cx.now)) {
            Some(Found::Item { value, .. }) => value,
            _ => 0,
        };
        let outcome = store.publish(writer, body.terms, cx.now);
        if let Some(key) = key {
            let (class, command) = (store.class_for(key.len(), body.len), command(&body.terms));
            cx.report_set(outcome, &watch::Set { key: &key, command, expiry, class, size: body.len });
        }
        drop(store);
        if body.terms.cas.is_some() {
            match outcome {
                Outcome::Stored(_) => cx.counts.cas_hits += 1,
                Outcome::Exists => cx.counts.cas_badval += 1,
                Outcome::NotFound => cx.counts.cas_misses += 1,
                _ => {}
            }
        }
        // To memcached, what has nothing to be put to is not stored, whatever version was asked for.
        let outcome = match (outcome, body.terms.mode) {
            (Outcome::NotFound, Mode::Append | Mode::Prepend) => Outcome::NotStored,
            (outcome, _) => outcome,
        };
        let outcome = match outcome {
            Outcome::Stored(version) => Outcome::Stored(cx.shown(version)),
            other => other,
        };
        match body.answer {
            Answer::Text { quiet } => text::stored(outcome, quiet, out),
            Answer::Meta { flags, key, quiet } => meta::stored(outcome, (&flags, quiet), &key, there + body.len, out),
            Answer::Binary { header } => binary::stored(&header, body.terms.mode, outcome, out),
            Answer::Auth { .. } | Answer::Sasl { .. } => {}
        }
    }

    /// Begins to take data for an item.
    pub(super) fn begin(
        &mut self,
        key: &[u8],
        (len, flags, exptime): (usize, u32, i64),
        (terms, ended): (Terms, bool),
        cx: &mut Context<'_>,
        answer: Answer,
    ) -> Result<(), Refused> {
        cx.counts.cmd_set += 1;
        cx.shared.prefixes.set(key);
        let shard = cx.shared.shards.of(key);
        let mut store = cx.shared.shards.at(shard);
        match store.reserve(key, len, flags, cx.until(exptime), cx.now) {
            Ok(writer) => {
                let writer = Some(writer);
                self.body = Some(Body { writer, scratch: Vec::new(), shard, got: 0, len, ended, terms, answer });
                Ok(())
            }
            Err(refused) => {
                // As memcached: better no value than the one that should have been replaced. `cas` would have replaced
                // only the one that was meant.
                let compared = terms.cas.is_some() && matches!(answer, Answer::Text { .. });
                if terms.mode == Mode::Set && !compared {
                    store.delete(key, None, cx.now);
                }
                if cx.reports_sets() {
                    let (expiry, command) = (cx.until(exptime), command(&terms));
                    let set = watch::Set { key, command, expiry, class: 0, size: len };
                    cx.report_set(Outcome::Refused(refused), &set);
                }
                self.drop = len + if ended { 2 } else { 0 };
                Err(refused)
            }
        }
    }

    /// Returns the destination of the value that the last line announced, if none of it has come: for values that arrive
    /// another way. The end of the request still has to come the usual way.
    pub(crate) fn awaited(&mut self) -> Option<&mut [u8]> {
        let body = self.body.as_mut().filter(|body| body.got == 0)?;
        Some(body.writer.as_mut()?.value())
    }

    /// Gives up the request for lack of its data: the next bytes are another's.
    pub(crate) fn give_up(&mut self, shards: &Shards) {
        self.close(shards);
        self.drop = 0;
    }
}
