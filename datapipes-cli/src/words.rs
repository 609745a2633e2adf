//! Enums that are read and shown by words.

/// Defines an enum whose variants have words of their own, by which they are read and shown.
macro_rules! words {
    ($(#[$attribute:meta])* pub enum $type:ident {
        $($(#[$of_variant:meta])* $variant:ident = $word:literal),* $(,)?
    }) => {
        datapipes::words! {
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $type {
                $($(#[$of_variant])* $variant = $word),*
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($type::$variant),)*
                    _ => Err(format!("not one of {}", [$($word),*].join(", "))),
                }
            }
        }
    };
}
pub(crate) use words;
