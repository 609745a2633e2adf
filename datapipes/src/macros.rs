//! Macros for what many types of all crates implement in the same way; not part of the interface.

/// Implements `Wire` for a struct: its fields in sequence. Also defines the struct, if that stands
/// here. A field after a semicolon is not sent, and the receiver sets it to the given value. With
/// `by make`, decoding calls `make(fields, ..)`, which may fail. A field in another encoding names its
/// functions: `key: encode_key, decode_key`.
#[doc(hidden)]
#[macro_export]
macro_rules! wire_struct {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $type:ident {
            $($(#[$of_field:meta])* $field_visible:vis $field:ident: $value:ty),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visible struct $type {
            $($(#[$of_field])* $field_visible $field: $value),*
        }

        $crate::wire_struct!($type { $($field),* });
    };
    ($type:ident $(<$param:ident: $bound:path>)? { $($field:ident),* } by $make:expr) => {
        impl $(<$param: $crate::Wire + $bound>)? $crate::Wire for $type $(<$param>)? {
            fn encode<'a>(&'a self, to: &mut $crate::Writer<'a>) -> $crate::Result<()> {
                $($crate::Wire::encode(&self.$field, to)?;)*
                Ok(())
            }
            fn decode(from: &mut $crate::Reader<'_>) -> $crate::Result<Self> {
                $(let $field = $crate::Wire::decode(from)?;)*
                ($make)($($field),*).map_err($crate::Reader::damaged)
            }
        }
    };
    ($type:ident $(<$param:ident>)? {
        $($field:ident $(: $encode:path, $decode:path)?),* $(,)?
        $(; $(#[$of_other:meta])* $other:ident = $stays:expr)?
    }) => {
        impl $(<$param: $crate::Wire>)? $crate::Wire for $type $(<$param>)? {
            fn encode<'a>(&'a self, to: &mut $crate::Writer<'a>) -> $crate::Result<()> {
                $(
                    let $field = &self.$field;
                    $crate::wire_enum!(@encode $field to $($encode)?)?;
                )*
                Ok(())
            }
            fn decode(from: &mut $crate::Reader<'_>) -> $crate::Result<Self> {
                Ok($type {
                    $($field: $crate::wire_enum!(@decode from $($decode)?)?,)*
                    $($(#[$of_other])* $other: $stays,)?
                })
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
/// fields that are listed, and `..`. A field may have another value: `url = self.0.url`,
/// `len = self.len()`.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($type:ident $(<$($param:tt $(: ?$sized:ident)?),*>)? {
        $($field:ident $(= self.$($path:tt).+ $(($($none:tt)*))?)?),*
    }) => {
        impl $(<$($param $(: ?$sized)?),*>)? ::std::fmt::Debug for $type $(<$($param),*>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(
                        stringify!($field),
                        &$crate::opaque_debug!(@of self $field $($($path).+ $(($($none)*))?)?),
                    ))*
                    .finish_non_exhaustive()
            }
        }
    };
    (@of $this:ident $field:ident) => { $this.$field };
    (@of $this:ident $field:ident $($value:tt)+) => { $this.$($value)+ };
}

/// Implements `Clone` field by field, without requiring that the parameters are `Clone`, as a derived one
/// would. All fields have to be listed.
#[doc(hidden)]
#[macro_export]
macro_rules! clone_fields {
    ($type:ident<$($param:ident $(: ?$sized:ident)?),*> { $($field:tt),* }) => {
        impl<$($param $(: ?$sized)?),*> Clone for $type<$($param),*> {
            fn clone(&self) -> Self {
                $type {
                    $($field: Clone::clone(&self.$field)),*
                }
            }
        }
    };
}

/// Implements `Display` or `Debug` by a formatted text, once for each line:
///
/// ```
/// struct Size(u32, u32);
///
/// datapipes::formatted! {
///     Debug |size: Size| "Size({size})";
///     Display |size: Size| "{}x{}", size.0, size.1;
/// }
/// assert_eq!(format!("{:?}", Size(4, 3)), "Size(4x3)");
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! formatted {
    ($($(#[$attribute:meta])* $trait:ident |$value:ident: $type:ty| $($text:expr),+;)*) => {$(
        $(#[$attribute])*
        impl ::std::fmt::$trait for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $value = self;
                f.write_fmt(format_args!($($text),+))
            }
        }
    )*};
}

/// Defines an enum whose variants are displayed by words:
///
/// ```
/// datapipes::words! {
///     pub enum Answer { Yes = "yes", No = "no" }
/// }
/// assert_eq!(Answer::Yes.to_string(), "yes");
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($(#[$attribute:meta])* pub enum $type:ident {
        $($(#[$of_variant:meta])* $variant:ident = $word:literal),* $(,)?
    }) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$of_variant])* $variant),*
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    $($type::$variant => $word,)*
                })
            }
        }
    };
}

/// Returns a part of a value that matches a pattern, or `None`, as `matches!` returns true or false:
/// `matching!(value, Value::Text(text) => text)`.
#[doc(hidden)]
#[macro_export]
macro_rules! matching {
    ($value:expr, $pattern:pat => $part:expr) => {
        match $value {
            $pattern => Some($part),
            _ => None,
        }
    };
}

/// Writes methods of a builder, each of which sets one field and returns the builder:
///
/// ```
/// #[derive(Default)]
/// pub struct Options { seed: u64, name: Option<String>, sorted: bool }
///
/// impl Options {
///     datapipes::setters! {
///         /// Sets the seed.
///         seed(seed: u64) => seed = seed;
///         /// Sets the name.
///         name(name: impl Into<String>) => name = Some(name.into());
///         /// Sorts the items.
///         sorted() => sorted = true;
///     }
/// }
/// assert_eq!(Options::default().seed(3).sorted().seed, 3);
/// ```
///
/// In place of an assignment a method of the field may be called: `limits.add(bytes)`.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($(
        $(#[$attribute:meta])*
        $name:ident($($arg:ident: $type:ty),*) => $($field:tt).+ $(($($given:expr),*))? $(= $value:expr)?;
    )*) => {
        $(
            $(#[$attribute])*
            pub fn $name(mut self $(, $arg: $type)*) -> Self {
                self.$($field).+ $(= $value)? $(($($given),*))?;
                self
            }
        )*
    };
}

/// Writes methods that call the same method of another value, such as a field:
///
/// ```
/// struct Named { name: String }
///
/// impl Named {
///     datapipes::forward! { self.name =>
///         /// Returns the number of bytes.
///         pub fn len(&self) -> usize;
///         fn ends_with(&self, end: &str) -> bool;
///     }
/// }
/// let named = Named { name: "cat".to_owned() };
/// assert!(named.len() == 3 && named.ends_with("at"));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! forward {
    ($to:expr => $(
        $(#[$attribute:meta])*
        $visible:vis fn $name:ident(&$this:ident $(, $arg:ident: $type:ty)*) -> $out:ty;
    )*) => {
        $(
            $(#[$attribute])*
            $visible fn $name(&$this $(, $arg: $type)*) -> $out {
                $to.$name($($arg),*)
            }
        )*
    };
}

/// Takes the value of a `Result` in a function that returns [`Items`](crate::Items), as `?` does
/// where a `Result` is returned: an error is all that it returns.
#[doc(hidden)]
#[macro_export]
macro_rules! or_fail {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $crate::Items::fail(error),
        }
    };
}

/// Implements `From`, once for each line:
///
/// ```
/// #[derive(Debug, PartialEq)]
/// struct Size(u32, u32);
///
/// datapipes::conversions! {
///     |side: u32| -> Size { Size(side, side) }
///     |(width, height): (u32, u32)| -> Size { Size(width, height) }
/// }
/// assert_eq!(Size::from(3), (3, 3).into());
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! conversions {
    ($($(#[$attribute:meta])* |$value:tt: $from:ty| -> $to:ty { $made:expr })*) => {
        $(
            $(#[$attribute])*
            impl From<$from> for $to {
                fn from($value: $from) -> Self {
                    $made
                }
            }
        )*
    };
}
