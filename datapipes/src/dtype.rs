//! Types of elements, and vectors of any of them.

use std::fmt;

use half::{bf16, f16};

/// A type that may be an element of a [`Tensor`](crate::Tensor): the integers of 8 to 64 bits, the floats of 16 to
/// 64, and `bool`.
///
/// Sealed: the implementing types are those of [`DType`].
pub trait Element:
    sealed::Sealed
    + bytemuck::NoUninit
    + bytemuck::CheckedBitPattern
    + Default
    + PartialEq
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
    /// The type's name at run time.
    const DTYPE: DType;
    /// Wraps a vector with its type at run time.
    fn wrap(values: Vec<Self>) -> TypedVec;
    /// Returns the vector, if it is of this type.
    fn unwrap(values: TypedVec) -> Option<Vec<Self>>;
    /// Returns the slice, if it is of this type.
    fn slice(values: &TypedVec) -> Option<&[Self]>;
    /// Returns the slice for writing, if it is of this type.
    fn slice_mut(values: &mut TypedVec) -> Option<&mut [Self]>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! dtypes {
    ($($variant:ident $type:ident $what:literal;)*) => {
        /// The type of a [`Tensor`](crate::Tensor)'s elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DType {
            $(#[doc = $what] $variant,)*
        }

        /// A vector of any element type.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum TypedVec {
            $(#[doc = $what] $variant(Vec<$type>),)*
        }

        impl DType {
            /// All types, in order.
            pub(crate) const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Returns the number of bytes of one element.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => size_of::<$type>(),)* }
            }
        }

        impl fmt::Display for DType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(DType::$variant => stringify!($type),)* })
            }
        }

        impl TypedVec {
            /// Returns the type of the elements.
            pub fn dtype(&self) -> DType {
                match self { $(TypedVec::$variant(_) => DType::$variant,)* }
            }

            /// Returns the number of elements.
            pub fn len(&self) -> usize {
                match self { $(TypedVec::$variant(values) => values.len(),)* }
            }

            /// Returns true if there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the elements as bytes, in the machine's order.
            pub fn as_bytes(&self) -> &[u8] {
                match self { $(TypedVec::$variant(values) => bytemuck::cast_slice(values),)* }
            }
        }

        $(
            impl sealed::Sealed for $type {}

            impl Element for $type {
                const DTYPE: DType = DType::$variant;
                fn wrap(values: Vec<Self>) -> TypedVec {
                    TypedVec::$variant(values)
                }
                fn unwrap(values: TypedVec) -> Option<Vec<Self>> {
                    match values { TypedVec::$variant(values) => Some(values), _ => None }
                }
                fn slice(values: &TypedVec) -> Option<&[Self]> {
                    match values { TypedVec::$variant(values) => Some(values), _ => None }
                }
                fn slice_mut(values: &mut TypedVec) -> Option<&mut [Self]> {
                    match values { TypedVec::$variant(values) => Some(values), _ => None }
                }
            }
        )*

        /// Runs an expression with `$T` as the element type that a `DType` names.
        macro_rules! with_dtype {
            ($dtype:expr, $T:ident => $run:expr) => {
                match $dtype { $($crate::DType::$variant => { type $T = $type; $run })* }
            };
        }
        pub(crate) use with_dtype;
    };
}

dtypes! {
    U8 u8 "Unsigned, 8 bits.";
    I8 i8 "Signed, 8 bits.";
    U16 u16 "Unsigned, 16 bits.";
    I16 i16 "Signed, 16 bits.";
    U32 u32 "Unsigned, 32 bits.";
    I32 i32 "Signed, 32 bits.";
    U64 u64 "Unsigned, 64 bits.";
    I64 i64 "Signed, 64 bits.";
    F16 f16 "IEEE 754 half precision.";
    BF16 bf16 "The upper half of an `f32`.";
    F32 f32 "IEEE 754 single precision.";
    F64 f64 "IEEE 754 double precision.";
    Bool bool "A byte that is 0 or 1.";
}
