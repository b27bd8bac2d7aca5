//! `-o`: memcached's extended options. An option of a part that is not there is accepted with a note that it has no
//! effect, so that a command line for memcached goes on to work. An option with a promise that is not kept is refused.

use super::plan::Plan;

/// Takes one option.
///
/// # Errors
///
/// The fault and the right form.
pub(super) fn take(option: &str, plan: &mut Plan) -> Result<(), String> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let number = || {
        value
            .and_then(|value| value.parse::<u64>().ok())
            .ok_or_else(|| format!("-o {name}: a whole number is needed, 0 to {}: {name}=1", u64::MAX))
    };
    match name {
        "maxconns_fast" => plan.settings.maxconns_fast = true,
        "no_maxconns_fast" => plan.settings.maxconns_fast = false,
        "idle_timeout" => plan.settings.idle_timeout = number()?,
        "hashpower" => {
            let power = number()?;
            if !(12..=32).contains(&power) {
                return Err("-o hashpower: between 12 and 32".into());
            }
            // Ten slots to a bucket where memcached has one.
            plan.settings.hashpower = power as u32;
            plan.store.hashpower = power as u32 - 3;
        }
        "lru_crawler" => plan.crawler = true,
        "no_lru_crawler" => plan.crawler = false,
        "track_sizes" | "modern" | "slab_reassign" | "no_drop_privileges" => {}
        // The defaults of memcached 1.4, as far as there is such a part here.
        "no_modern" => {
            plan.settings.maxconns_fast = false;
            plan.crawler = false;
            plan.automove = 0;
        }
        // As memcached: without a level it is on.
        "slab_automove" => match value.map_or(Ok(1), |_| number())? {
            level @ 0..=2 => plan.automove = level as u32,
            _ => return Err("-o slab_automove: 0, 1 or 2".into()),
        },
        "no_slab_automove" => plan.automove = 0,
        "watcher_logbuf_size" => match number()? {
            kilobytes @ 1..=65_536 => plan.settings.watcher_buffer = (kilobytes as usize) << 10,
            _ => return Err("-o watcher_logbuf_size: between 1 and 65536 (kilobytes)".into()),
        },
        "lru_maintainer" => plan.settings.moves = true,
        "no_lru_maintainer" => plan.settings.moves = false,
        "hot_lru_pct" | "warm_lru_pct" | "hot_max_factor" | "warm_max_factor" | "temporary_ttl" => {
            return Err(format!("-o {name}: items are evicted by S3-FIFO, which has no such segments; leave it out"));
        }
        "hash_algorithm"
        | "lru_crawler_sleep"
        | "lru_crawler_tocrawl"
        | "read_buf_mem_limit"
        | "slab_chunk_max"
        | "slab_automove_ratio"
        | "slab_automove_window"
        | "slab_automove_freeratio"
        | "no_slab_reassign"
        | "worker_logbuf_size"
        | "tail_repair_time"
        | "no_inline_ascii_resp"
        | "inline_ascii_resp"
        | "chunked_items"
        | "no_chunked_items"
        | "resp_obj_mem_limit" => {
            plan.notes.push(format!("-o {name}: has no effect here: there is no such part to tune"));
        }
        "ext_path" => plan.flash.take(value.unwrap_or("")).map_err(|error| format!("-o ext_path={error}"))?,
        _ if name.starts_with("ext_") => return flash(name, value, number(), plan),
        _ if name.starts_with("ssl_") || name.starts_with("no_ssl_") => match &mut plan.tls {
            Some(tls) => tls.take(name, value)?,
            None => return Err(format!("-o {name}: nothing is encrypted without -Z; add it, or leave this out")),
        },
        "slab_sizes" => return Err("-o slab_sizes: the sizes of chunks follow from -f and -n; use these".into()),
        "drop_privileges" => {
            return Err(
                "-o drop_privileges: is the system's to do; -u gives up root, the systemd unit does more".into()
            );
        }
        "sock_cookie_id" | "no_hashexpand" => {
            return Err(format!("-o {name}: is not offered; start without it"));
        }
        _ => return Err(format!("-o {name}: there is no such option (-h lists the flags)")),
    }
    Ok(())
}

/// Takes an option of the second tier besides its path.
fn flash(name: &str, value: Option<&str>, number: Result<u64, String>, plan: &mut Plan) -> Result<(), String> {
    let megabytes = |number: u64| (1..=1024).contains(&number).then_some((number as u32) << 20);
    match name {
        "ext_item_size" => plan.flash.item_min = Some(u32::try_from(number?).unwrap_or(u32::MAX)),
        "ext_page_size" => {
            let segment = megabytes(number?).filter(|bytes| bytes.is_power_of_two());
            let wrong = || "-o ext_page_size: a power of two of megabytes, 1 to 1024".to_owned();
            plan.flash.segment = Some(segment.ok_or_else(wrong)?);
        }
        "ext_wbuf_size" => {
            let batch = megabytes(number?).filter(|&bytes| bytes <= 64 << 20);
            let wrong = || "-o ext_wbuf_size: 1 to 64 (megabytes)".to_owned();
            plan.flash.batch = Some(batch.ok_or_else(wrong)?);
        }
        "ext_max_frag" => {
            let share = value.and_then(|value| value.parse::<f64>().ok()).filter(|share| (0.0..=1.0).contains(share));
            let wrong = || "-o ext_max_frag: a share from 0 to 1, as in ext_max_frag=0.6".to_owned();
            plan.flash.max_live = Some((share.ok_or_else(wrong)? * 100.0).round() as u32);
        }
        "ext_drop_unread" => plan.flash.drop_unread = true,
        "ext_threads" | "ext_io_depth" | "ext_item_age" | "ext_low_ttl" | "ext_recache_rate" | "ext_compact_under"
        | "ext_drop_under" | "ext_max_sleep" => {
            plan.notes.push(format!("-o {name}: has no effect here: there is no such part to tune"));
        }
        _ => return Err(format!("-o {name}: there is no such option (-h lists the flags)")),
    }
    Ok(())
}
