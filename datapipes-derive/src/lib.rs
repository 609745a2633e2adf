//! Derive macros of the `datapipes` crate.

mod wire;

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, Ident, Index, Path, Result, Type, parse_macro_input};

/// Makes a batch type of a struct, a column for each field, and implements `Collate` for the struct.
///
/// `Sample { image, label }` becomes `SampleBatch { image, label }`. The batch has the struct's visibility and its
/// fields are public; it is `Clone` and `Debug`. Each field's type must be `Collate`, or say how it is collated.
/// Tuple structs and structs without fields work too; enums, unions and generic structs do not.
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
/// A field can be collated by a function of one's own, `fn(Vec<Field>) -> datapipes::Result<Batch>`. It is named
/// together with the batch, because a macro does not know what a function returns:
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
/// What cannot be a column does not compile:
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
#[proc_macro_derive(Collate, attributes(collate))]
pub fn collate(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `Wire` for a struct or an enum, so that it can travel to another process: its fields, one behind the other.
///
/// Each field's type has to be `Wire`, or say what becomes of it. Generic types work, too: each type parameter has to be
/// `Wire`. An enum is written as the number of its variant, and the fields of that.
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
/// - `#[wire(skip)]`: the field is not written, and is its type's `Default` on the other side.
/// - `#[wire(serde)]`: serde writes and reads the field, as in `datapipes::Serde`; needs the feature `serde`.
///
/// What cannot travel does not compile:
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
    wire::expand(input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: DeriveInput) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        _ => {
            let message = "`Collate` can be derived for structs; implement it by hand for this type";
            return Err(Error::new_spanned(&input.ident, message));
        }
    };
    if !input.generics.params.is_empty() {
        let message = "`Collate` cannot be derived for a generic struct; implement it by hand";
        return Err(Error::new_spanned(&input.generics, message));
    }
    let columns = fields.iter().enumerate().map(Column::new).collect::<Result<Vec<_>>>()?;

    let (vis, sample, batch) = (&input.vis, &input.ident, format_ident!("{}Batch", input.ident));
    let docs = format!("A batch of [`{sample}`]: a column of each field.");
    let definition = match fields {
        Fields::Named(_) => {
            let fields = columns.iter().map(|c| {
                let (member, batch, docs) = (&c.member, c.batch(), c.docs());
                quote!(#[doc = #docs] pub #member: #batch)
            });
            quote!(#vis struct #batch { #(#fields,)* })
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
                ::std::result::Result::Ok(#batch { #(#members: #collated,)* })
            }

            fn weigh(batch: &#batch) -> ::std::option::Option<usize> {
                let _ = batch;
                ::std::option::Option::Some(0 #(+ #weights)*)
            }
        }
    })
}

/// What becomes of one field.
struct Column<'a> {
    member: TokenStream,
    /// As errors call it.
    name: String,
    variable: Ident,
    kind: &'a Type,
    with: Option<(Path, Type)>,
}

impl<'a> Column<'a> {
    fn new((place, field): (usize, &'a Field)) -> Result<Self> {
        let (member, name) = match &field.ident {
            Some(ident) => (quote!(#ident), ident.to_string().trim_start_matches("r#").to_owned()),
            None => {
                let index = Index::from(place);
                (quote!(#index), place.to_string())
            }
        };
        let variable = format_ident!("column_{place}");
        Ok(Column { member, name, variable, kind: &field.ty, with: with(field)? })
    }

    fn batch(&self) -> TokenStream {
        match &self.with {
            Some((_, batch)) => quote!(#batch),
            None => {
                let kind = self.kind;
                quote_spanned!(kind.span()=> <#kind as ::datapipes::Collate>::Batch)
            }
        }
    }

    fn docs(&self) -> String {
        format!("The column of `{}`.", self.name)
    }

    fn collated(&self) -> TokenStream {
        let (name, variable) = (&self.name, &self.variable);
        match &self.with {
            Some((with, _)) => quote!(::datapipes::derived::named(#name, #with(#variable))?),
            None => quote!(::datapipes::derived::field(#name, #variable)?),
        }
    }
}

impl Column<'_> {
    fn weight(&self) -> TokenStream {
        let (member, kind) = (&self.member, self.kind);
        match &self.with {
            Some(_) => quote!(::std::mem::size_of_val(&batch.#member)),
            None => quote! {
                <#kind as ::datapipes::Collate>::weigh(&batch.#member)
                    .unwrap_or(::std::mem::size_of_val(&batch.#member))
            },
        }
    }
}

/// `#[collate(with = path, batch = Type)]`, if it is there.
fn with(field: &Field) -> Result<Option<(Path, Type)>> {
    let (mut with, mut batch) = (None, None);
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("collate")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("with") {
                with = Some(meta.value()?.parse()?);
            } else if meta.path.is_ident("batch") {
                batch = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error("expected `with = function` or `batch = Type`"));
            }
            Ok(())
        })?;
    }
    match (with, batch) {
        (None, None) => Ok(None),
        (Some(with), Some(batch)) => Ok(Some((with, batch))),
        _ => Err(Error::new_spanned(field, "say both: `#[collate(with = function, batch = Type)]`")),
    }
}
