//! The macro that defines sets of counters.

/// Defines a struct of counters: `plain` numbers without names, `named` numbers, or `shared` atomic ones with names. A name is what
/// `stats` prints, whatever the field is called.
macro_rules! counters {
    (plain $(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl $name {
            /// Adds another's numbers.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }
        }
    };
    (named $(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $field:ident = $text:literal,)* }) => {
        counters! { plain $(#[$of])* $name { $($(#[$doc])* $field,)* } }

        impl $name {
            /// Returns what was counted since.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.wrapping_sub(earlier.$field),)* }
            }

            /// Returns name and number of each.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$field),)*]
            }
        }
    };
    (shared $(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $field:ident = $text:literal,)* }) => {
        $(#[$of])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$doc])* pub $field: std::sync::atomic::AtomicU64,)* }

        impl $name {
            /// Returns name and number of each.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$field.load(std::sync::atomic::Ordering::Relaxed)),)*]
            }

            /// Sets all of them to zero.
            pub fn reset(&self) {
                $(self.$field.store(0, std::sync::atomic::Ordering::Relaxed);)*
            }
        }
    };
}
