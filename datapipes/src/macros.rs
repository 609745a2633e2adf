//! Macros for what many types of all crates implement in the same way; not part of the interface.

/// Implements [`Wire`](crate::Wire) for a struct: its fields in sequence.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_struct {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::Wire for $type {
            fn encode<'a>(&'a self, to: &mut $crate::Writer<'a>) -> $crate::Result<()> {
                $($crate::Wire::encode(&self.$field, to)?;)*
                Ok(())
            }
            fn decode(from: &mut $crate::Reader<'_>) -> $crate::Result<Self> {
                Ok($type { $($field: $crate::Wire::decode(from)?),* })
            }
        }
    };
}

/// Implements [`Wire`](crate::Wire) for an enum: the number of the variant, and its value if it has
/// one.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_enum {
    ($type:ident { $($number:literal $variant:ident $(($value:ident))?),* $(,)? }) => {
        impl $crate::Wire for $type {
            fn encode<'a>(&'a self, to: &mut $crate::Writer<'a>) -> $crate::Result<()> {
                match self {
                    $($type::$variant $(($value))? => {
                        to.number($number);
                        $($crate::Wire::encode($value, to)?;)?
                    })*
                }
                Ok(())
            }
            fn decode(from: &mut $crate::Reader<'_>) -> $crate::Result<Self> {
                Ok(match from.number()? {
                    $($number => $type::$variant $(({
                        let $value = $crate::Wire::decode(from)?;
                        $value
                    }))?,)*
                    other => {
                        let what = format_args!("{} has no variant {other}", stringify!($type));
                        return Err($crate::Reader::damaged(what));
                    }
                })
            }
        }
    };
}
