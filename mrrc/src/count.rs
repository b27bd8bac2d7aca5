//! Numbers with their nouns, as messages say them: `1 page`, `2 pages`.

use std::fmt;

/// So many of what the plural names.
#[derive(Clone, Copy)]
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self(number, plural) = self;
        let noun = match plural {
            _ if number != 1 => plural,
            "batches" => "batch",
            "tries" => "try",
            _ => plural.strip_suffix('s').unwrap_or(plural),
        };
        write!(f, "{number} {noun}")
    }
}

/// Pages and regions, of which one may be none.
#[derive(Clone, Copy)]
pub(crate) struct Amounts {
    pub(crate) pages: u64,
    pub(crate) regions: u64,
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pages, regions) = (Count(self.pages, "pages"), Count(self.regions, "regions"));
        match (self.pages, self.regions) {
            (_, 0) => pages.fmt(f),
            (0, _) => regions.fmt(f),
            _ => write!(f, "{pages} and {regions}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_none_is_left_out() {
        let said = |pages, regions| Amounts { pages, regions }.to_string();
        assert_eq!([said(1, 2), said(2, 1)], ["1 page and 2 regions", "2 pages and 1 region"]);
        assert_eq!([said(0, 1), said(1, 0), said(0, 0)], ["1 region", "1 page", "0 pages"]);
    }
}
