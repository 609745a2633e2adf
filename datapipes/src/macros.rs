//! Macros for what many types of all crates implement in the same way; not part of the interface.

/// Implements `Wire` for a struct: its fields in sequence.
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

/// Implements `Wire` for an enum: the number of the variant, and its values if it has some.
///
/// A value in another encoding names its functions: `3 Json(json: encode_json, decode_json)`.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_enum {
    ($type:ident { $(
        $(#[$attribute:meta])*
        $number:literal $variant:ident $(($($value:ident $(: $encode:path, $decode:path)?),+))?
    ),* $(,)? }) => {
        impl $crate::Wire for $type {
            fn encode<'a>(&'a self, to: &mut $crate::Writer<'a>) -> $crate::Result<()> {
                match self {
                    $($(#[$attribute])*
                    $type::$variant $(($($value),+))? => {
                        to.number($number);
                        $($($crate::wire_enum!(@encode $value to $($encode)?)?;)+)?
                    })*
                }
                Ok(())
            }
            fn decode(from: &mut $crate::Reader<'_>) -> $crate::Result<Self> {
                Ok(match from.number()? {
                    $($(#[$attribute])*
                    $number => $type::$variant $(($({
                        let $value = $crate::wire_enum!(@decode from $($decode)?)?;
                        $value
                    }),+))?,)*
                    other => {
                        let what = format_args!("{} has no variant {other}", stringify!($type));
                        return Err($crate::Reader::damaged(what));
                    }
                })
            }
        }
    };
    (@encode $value:ident $to:ident) => { $crate::Wire::encode($value, $to) };
    (@encode $value:ident $to:ident $encode:path) => { $encode($value, $to) };
    (@decode $from:ident) => { $crate::Wire::decode($from) };
    (@decode $from:ident $decode:path) => { $decode($from) };
}

/// Implements `Debug` for a type with parts that cannot be shown, such as functions: its name, the
/// fields that are listed, and `..`.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($type:ident $(<$($param:tt $(: ?$sized:ident)?),*>)? { $($field:ident),* }) => {
        impl $(<$($param $(: ?$sized)?),*>)? ::std::fmt::Debug for $type $(<$($param),*>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    };
}
