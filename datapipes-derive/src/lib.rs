//! Derive macros of the `datapipes` crate.

mod wire;

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, Expr, Field, Fields, Ident, Index, Path, Result, Type,
    parse_macro_input,
};

/// Derives a batch type for a struct, with a column for each field, and implements `Collate` for
/// the struct.
///
/// `Sample { image, label }` becomes `SampleBatch { image, label }`. The batch has the struct's
/// visibility and its fields are public; it is `Clone` and `Debug`. Each field's type must be
/// `Collate`, or have an attribute that defines how it is collated. Tuple structs and structs
/// without fields work too; enums, unions and generic structs do not.
///
/// ```
/// use datapipes::{Collate, Graph, Tensor};
///
/// #[derive(Collate)]
/// struct Sample {
///     pixels: [u8; 3],
///     label: u32,
/// }
///
/// let graph = Graph::range(0..4).map(|n| Sample { pixels: [n as u8; 3], label: n as u32 });
/// let batch: SampleBatch = graph.batch(4).collate().collect()?.remove(0);
/// assert_eq!(batch.pixels.shape(), [4, 3]);
/// assert_eq!(batch.label.as_slice::<u32>()?, [0, 1, 2, 3]);
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// A field can be collated by a function, `fn(Vec<Field>) -> datapipes::Result<Batch>`. The
/// attribute names the batch type too, because a macro cannot know the return type of a function:
///
/// ```
/// use datapipes::{Collate, Result, Tensor};
///
/// #[derive(Collate)]
/// pub struct Point(#[collate(with = sums, batch = Vec<u64>)] pub Vec<u64>, pub f32);
///
/// fn sums(items: Vec<Vec<u64>>) -> Result<Vec<u64>> {
///     Ok(items.iter().map(|item| item.iter().sum()).collect())
/// }
///
/// let PointBatch(summed, y) = Point::collate(vec![Point(vec![1, 2], 0.5), Point(vec![3], 1.5)])?;
/// assert_eq!((summed, y.len()), (vec![3, 3], 2));
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// A field of sequences of different lengths can be padded, each field with a value of its own; the
/// type of the numbers does not change. Any expression may be the value. The supported types are
/// documented at `datapipes::Ragged`: a `Vec` of numbers, a `Tensor`, maps of them.
///
/// - `#[collate(pad = 0)]`: pads to the longest sequence of the batch.
/// - `multiple_of = 8`, `length = 512`, `axis = 1`, `all_axes`: as the methods of `datapipes::Padding`.
/// - `lengths = name`: the batch gets a field of this name with the lengths before padding, `[n]`
///   of `i64`; with `all_axes`, `[n, axes]`.
/// - `mask = name`: the batch gets a field of this name that is true where there is no padding,
///   `[n, longest]` of `bool`; with `all_axes`, of the shape of the padded field.
///
/// ```
/// use datapipes::{Collate, Graph};
///
/// #[derive(Collate)]
/// struct Text {
///     #[collate(pad = 0, multiple_of = 4, lengths = id_lengths)]
///     ids: Vec<u32>,
///     #[collate(pad = -100, mask = is_target)]
///     targets: Vec<i64>,
///     label: u8,
/// }
///
/// let texts = Graph::range(1..3).map(|n| Text { ids: vec![7; n as usize], targets: vec![8; n as usize], label: n as u8 });
/// let batch = texts.batch(2).collate().collect()?.remove(0);
/// assert_eq!(batch.ids.as_slice::<u32>()?, [7, 0, 0, 0, 7, 7, 0, 0]);
/// assert_eq!(batch.id_lengths.as_slice::<i64>()?, [1, 2]);
/// assert_eq!(batch.targets.as_slice::<i64>()?, [8, -100, 8, 8]);
/// assert_eq!(batch.is_target.as_slice::<bool>()?, [true, false, true, true]);
/// assert_eq!(batch.label.as_slice::<u8>()?, [1, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// An error names the field and the two items that differ:
///
/// ```
/// # use datapipes::{Collate, Tensor};
/// #[derive(Collate)]
/// struct Text { ids: Vec<u32> }
///
/// let error = Text::collate(vec![Text { ids: vec![1] }, Text { ids: vec![2, 3] }]).unwrap_err();
/// assert_eq!(error.to_string(), "shape mismatch: ids: item 0 has length 1, item 1 has length 2");
/// ```
///
/// A type that cannot be a column does not compile:
///
/// ```compile_fail,E0277
/// #[derive(datapipes::Collate)]
/// struct Sample { when: std::time::Instant }
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Collate)]
/// enum Shape { Round, Square(u32) }
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Collate)]
/// struct Sample<T> { value: T }
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Collate)]
/// struct Sample { #[collate(with = std::convert::identity)] value: u32 }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(datapipes::Collate)]
/// struct Sample { #[collate(pad = 0)] value: u32 } // not a sequence
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Collate)]
/// struct Sample { #[collate(lengths = value_lengths)] value: Vec<u32> } // without `pad`
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Collate)]
/// struct Sample(#[collate(pad = 0, mask = mask)] Vec<u32>); // fields of a tuple have no names
/// ```
#[proc_macro_derive(Collate, attributes(collate))]
pub fn collate(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Implements `Wire` for a struct or an enum, so that it can be sent to another process: its
/// fields, one after another.
///
/// Each field's type must be `Wire`, or have an attribute. Generic types work, too: each type
/// parameter must be `Wire`. An enum is written as the number of its variant, followed by the
/// fields of that variant.
///
/// ```
/// use datapipes::{Tensor, Wire};
///
/// #[derive(Debug, PartialEq, Wire)]
/// struct Example<L> {
///     pixels: Tensor,
///     label: L,
///     #[wire(skip)]
///     weight: Option<f32>, // `None` on the other side
/// }
///
/// #[derive(Debug, PartialEq, Wire)]
/// enum Label { Unknown, Class(u32), Words { words: Vec<String> } }
///
/// fn can_travel<T: Wire>() {}
/// can_travel::<Example<Label>>();
/// ```
///
/// - `#[wire(skip)]`: the field is not written; the receiver uses its type's `Default`.
/// - `#[wire(serde)]`: serde writes and reads the field, as in `datapipes::Serde`; needs the
///   feature `serde`.
///
/// A type that cannot be sent does not compile:
///
/// ```compile_fail,E0277
/// #[derive(datapipes::Wire)]
/// struct Sample { when: std::time::Instant }
/// ```
///
/// ```compile_fail,E0277
/// #[derive(datapipes::Wire)]
/// struct Sample { #[wire(skip)] file: std::fs::File } // is not `Default`
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Wire)]
/// union Number { float: f32, int: u32 }
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Wire)]
/// struct Sample { #[wire(whole)] value: u32 }
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Wire)]
/// struct Sample { #[wire(skip, serde)] value: u32 }
/// ```
///
/// ```compile_fail
/// #[derive(datapipes::Wire)]
/// #[wire(skip)]
/// struct Sample { value: u32 }
/// ```
#[proc_macro_derive(Wire, attributes(wire))]
pub fn wire(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    wire::expand(input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(input: DeriveInput) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        _ => {
            let message =
                "`Collate` can be derived for structs; implement it by hand for this type";
            return Err(Error::new_spanned(&input.ident, message));
        }
    };
    if !input.generics.params.is_empty() {
        let message = "`Collate` cannot be derived for a generic struct; implement it by hand";
        return Err(Error::new_spanned(&input.generics, message));
    }
    let columns = fields
        .iter()
        .enumerate()
        .map(Column::new)
        .collect::<Result<Vec<_>>>()?;
    if let (Fields::Unnamed(_), Some(name)) =
        (fields, columns.iter().flat_map(|c| c.added()).next())
    {
        let message = "the fields of a tuple have no names: give the struct named fields, or use `datapipes::Padding`";
        return Err(Error::new_spanned(name.0, message));
    }

    let (vis, sample, batch) = (
        &input.vis,
        &input.ident,
        format_ident!("{}Batch", input.ident),
    );
    let docs = format!("A batch of [`{sample}`]: a column of each field.");
    let definition = match fields {
        Fields::Named(_) => {
            let fields = columns.iter().map(|c| {
                let (member, batch, docs) = (&c.member, c.batch(), c.docs());
                let added = c
                    .added()
                    .map(|(name, batch, docs)| quote!(#[doc = #docs] pub #name: #batch,));
                quote!(#[doc = #docs] pub #member: #batch, #(#added)*)
            });
            quote!(#vis struct #batch { #(#fields)* })
        }
        Fields::Unnamed(_) => {
            let fields = columns.iter().map(|c| {
                let (batch, docs) = (c.batch(), c.docs());
                quote!(#[doc = #docs] pub #batch)
            });
            quote!(#vis struct #batch(#(#fields,)*);)
        }
        Fields::Unit => quote!(#vis struct #batch;),
    };
    let variables: Vec<_> = columns.iter().map(|c| &c.variable).collect();
    let members: Vec<_> = columns.iter().map(|c| &c.member).collect();
    let collated = columns.iter().map(Column::collated);
    let made = columns.iter().map(Column::made);
    let weights = columns.iter().map(Column::weight);
    Ok(quote! {
        #[doc = #docs]
        #[derive(Clone, Debug)]
        #definition

        #[automatically_derived]
        impl ::datapipes::Collate for #sample {
            type Batch = #batch;

            fn collate(items: ::std::vec::Vec<Self>) -> ::datapipes::Result<#batch> {
                #(let mut #variables = ::std::vec::Vec::with_capacity(items.len());)*
                for item in items {
                    #(#variables.push(item.#members);)*
                }
                #(#collated)*
                ::std::result::Result::Ok(#batch { #(#made)* })
            }

            fn weigh(batch: &#batch) -> ::std::option::Option<usize> {
                let _ = batch;
                ::std::option::Option::Some(0 #(+ #weights)*)
            }
        }
    })
}

/// Collation of one field.
struct Column<'a> {
    member: TokenStream,
    /// Name in errors.
    name: String,
    variable: Ident,
    kind: &'a Type,
    how: How,
}

/// Collation method of a field.
enum How {
    ByItself,
    /// A function, with the type that it returns.
    With(Box<(Path, Type)>),
    Padded(Box<Pad>),
}

/// `#[collate(pad = value, ..)]`.
struct Pad {
    value: Expr,
    /// Calls of methods of `Padding`.
    settings: TokenStream,
    lengths: Option<Ident>,
    mask: Option<Ident>,
}

impl<'a> Column<'a> {
    fn new((place, field): (usize, &'a Field)) -> Result<Self> {
        let (member, name) = match &field.ident {
            Some(ident) => (
                quote!(#ident),
                ident.to_string().trim_start_matches("r#").to_owned(),
            ),
            None => {
                let index = Index::from(place);
                (quote!(#index), place.to_string())
            }
        };
        let variable = format_ident!("column_{place}");
        Ok(Column {
            member,
            name,
            variable,
            kind: &field.ty,
            how: how(field)?,
        })
    }

    fn batch(&self) -> TokenStream {
        let kind = self.kind;
        match &self.how {
            How::With(with) => {
                let batch = &with.1;
                quote!(#batch)
            }
            How::ByItself => quote_spanned!(kind.span()=> <#kind as ::datapipes::Collate>::Batch),
            How::Padded(_) => quote_spanned!(kind.span()=> <#kind as ::datapipes::Ragged>::Values),
        }
    }

    /// Returns the additional fields of the batch: names, types and documentation.
    fn added(&self) -> impl Iterator<Item = (&Ident, TokenStream, String)> {
        let (kind, name) = (self.kind, &self.name);
        let [lengths, mask] = match &self.how {
            How::Padded(pad) => [&pad.lengths, &pad.mask].map(Option::as_ref),
            _ => [None, None],
        };
        let lengths = lengths.map(|lengths| {
            let batch = quote_spanned!(kind.span()=> <#kind as ::datapipes::Ragged>::Lengths);
            (
                lengths,
                batch,
                format!("The lengths of `{name}` before they were padded."),
            )
        });
        let mask = mask.map(|mask| {
            (
                mask,
                quote!(::datapipes::Tensor),
                format!("Where `{name}` has no padding."),
            )
        });
        lengths.into_iter().chain(mask)
    }

    fn docs(&self) -> String {
        format!("The column of `{}`.", self.name)
    }

    /// Returns statements that make a batch of the column.
    fn collated(&self) -> TokenStream {
        let (name, variable) = (&self.name, &self.variable);
        match &self.how {
            How::With(with) => {
                let with = &with.0;
                quote!(let #variable = ::datapipes::derived::named(#name, #with(#variable))?;)
            }
            How::ByItself => {
                quote!(let #variable = ::datapipes::derived::field(#name, #variable)?;)
            }
            How::Padded(pad) => {
                let Pad {
                    value,
                    settings,
                    mask,
                    ..
                } = &**pad;
                let [lengths, is_step] = self.variables_added();
                let mask = mask.as_ref().map(|_| {
                    quote! {
                        let mask = padding.mask(&#variable, &#lengths);
                        let #is_step = ::datapipes::derived::named(#name, mask)?;
                    }
                });
                quote! {
                    let padding = ::datapipes::Padding::new(#value) #settings;
                    let (#variable, #lengths) = ::datapipes::derived::padded(#name, #variable, padding)?;
                    let _ = &#lengths;
                    #mask
                }
            }
        }
    }

    fn variables_added(&self) -> [Ident; 2] {
        ["lengths", "mask"].map(|name| format_ident!("{}_{name}", self.variable))
    }

    /// Returns the fields of the batch.
    fn made(&self) -> TokenStream {
        let (member, variable, [lengths, mask]) =
            (&self.member, &self.variable, self.variables_added());
        let added = match &self.how {
            How::Padded(pad) => {
                let lengths = pad.lengths.as_ref().map(|name| quote!(#name: #lengths,));
                let mask = pad.mask.as_ref().map(|name| quote!(#name: #mask,));
                quote!(#lengths #mask)
            }
            _ => TokenStream::new(),
        };
        quote!(#member: #variable, #added)
    }

    fn weight(&self) -> TokenStream {
        let (member, kind) = (&self.member, self.kind);
        match &self.how {
            How::With(..) => quote!(::std::mem::size_of_val(&batch.#member)),
            How::ByItself => quote! {
                <#kind as ::datapipes::Collate>::weigh(&batch.#member)
                    .unwrap_or(::std::mem::size_of_val(&batch.#member))
            },
            How::Padded(_) => quote!(<#kind as ::datapipes::Ragged>::weigh(&batch.#member)),
        }
    }
}

/// Parses the attribute `collate` of a field.
fn how(field: &Field) -> Result<How> {
    let (mut with, mut batch, mut pad) = (None, None, None);
    let (mut settings, mut lengths, mut mask) = (TokenStream::new(), None, None);
    for attribute in field
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("collate"))
    {
        attribute.parse_nested_meta(|meta| {
            let is = |name| meta.path.is_ident(name);
            if is("with") {
                with = Some(meta.value()?.parse()?);
            } else if is("batch") {
                batch = Some(meta.value()?.parse()?);
            } else if is("pad") {
                pad = Some(meta.value()?.parse()?);
            } else if is("multiple_of") || is("length") || is("axis") {
                let (method, number) = (&meta.path, meta.value()?.parse::<Expr>()?);
                settings.extend(quote!(.#method(#number)));
            } else if is("all_axes") {
                settings.extend(quote!(.all_axes()));
            } else if is("lengths") {
                lengths = Some(meta.value()?.parse()?);
            } else if is("mask") {
                mask = Some(meta.value()?.parse()?);
            } else {
                let message = "expected `pad = number` (with `multiple_of`, `length`, `axis`, `all_axes`, `lengths`, `mask`), \
                               or `with = function, batch = Type`";
                return Err(meta.error(message));
            }
            Ok(())
        })?;
    }
    let of_padding = !settings.is_empty() || lengths.is_some() || mask.is_some();
    let error = |message| Err(Error::new_spanned(field, message));
    match (with, batch, pad) {
        (None, None, None) if of_padding => {
            error("say what to pad with, too: `#[collate(pad = 0)]`")
        }
        (None, None, None) => Ok(How::ByItself),
        (Some(with), Some(batch), None) if !of_padding => Ok(How::With(Box::new((with, batch)))),
        (None, None, Some(value)) => Ok(How::Padded(Box::new(Pad {
            value,
            settings,
            lengths,
            mask,
        }))),
        (_, _, Some(_)) => error("a field is padded, or collated `with` a function, not both"),
        _ => error("say both: `#[collate(with = function, batch = Type)]`"),
    }
}
