//! Expired items leave even if nobody asks: the crawler walks the pages, a few chunks at a time.

use super::Store;

/// Where the crawler stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    page: usize,
    slot: u32,
}

impl Store {
    /// Looks at this many chunks and takes out what is over; says whether it came to the end of the arena.
    pub fn crawl(&mut self, chunks: usize, now: u64) -> bool {
        for _ in 0..chunks {
            let Cursor { page, slot } = self.crawler;
            if slot >= self.pages.touched(page) {
                let next = (page + 1) % self.pages.count();
                self.crawler = Cursor { page: next, slot: 0 };
                if next == 0 {
                    return true;
                }
                continue;
            }
            self.crawler.slot += 1;
            let id = self.pages.id(page, slot);
            if self.is_alive(id) {
                let class = self.chunk(id).class();
                self.classes[class].crawler_checked += 1;
                if self.is_over(id, now) {
                    self.classes[class].crawler_reclaimed += 1;
                    self.reclaim(id, now);
                }
            }
        }
        false
    }
}
